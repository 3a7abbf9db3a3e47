// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"maps"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"farpool.dev/farpool/operator/internal/observe"
	"farpool.dev/farpool/operator/internal/render"
)

// Hands carry out a plan. The controller has an implementation with an API server and agents; the simulation of the planner has another.
type Hands interface {
	// SideBySide calls do so many times, in any order and partly at once, and returns when all calls have returned.
	SideBySide(count int, do func(int))
	// Apply makes an object what the plan wants it to be. Delete deletes the very object that the plan saw.
	Apply(render.Object) error
	Delete(client.Object) error
	// Relabel puts labels back that an object has lost.
	Relabel(object client.Object, labels map[string]string) error
	// Adopt makes a pod owned by its MemoryNode and its pool.
	Adopt(Adoption) error
	// Judge says what a failure of Apply, Delete or WriteStatuses means.
	Judge(error) Failure
	// Announce tells people about events of objects that were applied.
	Announce([]Event)
	// Connect keeps streams to the processes that the plan names.
	Connect() error
	// Tell asks memory nodes to hold a map, or to follow it. It returns the publications that succeeded, and why the others failed.
	Tell(publications []Publication, prepare bool) (told []Publication, failures []error)
	// Refuses says whether a failure is a memory node's refusal of a map. Conflict is called with one such refusal.
	Refuses(failure error) bool
	Conflict(failure error)
	// Follow says whether every memory node of these publications is known to follow its map.
	Follow([]Publication) bool
	// Blame puts into the pool's status what could not be applied so far.
	Blame(Outcome)
	// WriteStatuses writes what Statuses lists, each of them whatever becomes of the others.
	WriteStatuses() []error
	// Ask calls agents on behalf of RepairLeases.
	Ask()
}

// Failure is what an error means for the rest of a plan.
type Failure int

const (
	// Failed: the operator tries again soon.
	Failed Failure = iota
	// Refused: the API server refuses an object as it is wanted, or another object is in its place. The operator tries again now and then.
	Refused
	// Stale: the decision came from a cache that lags, or waits for an object that is being deleted.
	Stale
	// Ending: the namespace is being deleted, and everything with it.
	Ending
	// Later: the object was put off, because its turn came too late in this look at the pool. Nothing is deleted meanwhile.
	Later
)

// Outcome is what became of a plan: the errors of each kind of failure.
type Outcome map[Failure][]error

func (o Outcome) note(hands Hands, err error) {
	if err != nil {
		kind := hands.Judge(err)
		o[kind] = append(o[kind], err)
	}
}

// Err joins the errors of these kinds; nil: there are none.
func (o Outcome) Err(kinds ...Failure) error {
	var all []error
	for _, kind := range kinds {
		all = append(all, o[kind]...)
	}
	return errors.Join(all...)
}

// CarryOut carries out a plan. Each step takes place whatever became of earlier steps, unless it needs one of them. An operator may die at any step. The next one
// relies on this order: a map is an object before any memory node receives it, secrets are written down before they are used, and statuses say what has been done.
func (p *Plan) CarryOut(hands Hands) Outcome {
	outcome := Outcome{}
	without := map[render.Object]bool{}
	lacks := func(needs []render.Object) bool {
		return slices.ContainsFunc(needs, func(needed render.Object) bool { return without[needed] })
	}
	for done := 0; done < len(p.Apply); {
		batch := p.independent(p.Apply[done:])
		p.applyAll(hands, batch, lacks, without, outcome)
		if len(outcome[Ending]) > 0 {
			return outcome
		}
		done += len(batch)
	}
	for _, lost := range p.Relabel {
		outcome.note(hands, hands.Relabel(lost.Object, lost.Labels))
	}
	for _, adoption := range p.Adopt {
		outcome.note(hands, hands.Adopt(adoption))
	}
	// An object that is put off may be what takes the place of one that is deleted.
	if len(outcome[Later]) == 0 {
		for _, object := range p.Delete {
			if !lacks(p.DeleteNeeds[object]) {
				outcome.note(hands, hands.Delete(object))
			}
		}
	}
	hands.Announce(slices.DeleteFunc(slices.Clone(p.Events), func(event Event) bool { return event.With != nil && without[event.With] }))
	if !lacks(p.ConnectNeeds) {
		outcome.note(hands, hands.Connect())
	}
	var untold []error
	if !lacks(p.PublishNeeds) {
		var told bool
		if told, untold = p.publish(hands); told && len(outcome) == 0 {
			// What the memory nodes report now makes the controller look at the pool again. The statuses of this plan would be older than that.
			return outcome
		}
	}
	// Memory nodes that did not receive their map have conditions of their own.
	hands.Blame(outcome)
	for _, failure := range untold {
		outcome.note(hands, failure)
	}
	for _, failure := range hands.WriteStatuses() {
		outcome.note(hands, failure)
	}
	hands.Ask()
	return outcome
}

// independent returns the longest beginning of these objects in which none needs another.
func (p *Plan) independent(objects []render.Object) []render.Object {
	for i, object := range objects {
		if slices.ContainsFunc(p.Needs[object], func(needed render.Object) bool { return slices.Contains(objects[:i], needed) }) {
			return objects[:i]
		}
	}
	return objects
}

// applyAll applies objects that do not need one another, except objects that lack what they need. It adds to `without` every object that is not as it should be.
func (p *Plan) applyAll(hands Hands, objects []render.Object, lacks func([]render.Object) bool, without map[render.Object]bool, outcome Outcome) {
	lacking, failures := make([]bool, len(objects)), make([]error, len(objects))
	hands.SideBySide(len(objects), func(i int) {
		if lacking[i] = lacks(p.Needs[objects[i]]); !lacking[i] {
			failures[i] = hands.Apply(objects[i])
		}
	})
	for i, object := range objects {
		if lacking[i] || failures[i] != nil {
			without[object] = true
		}
		outcome.note(hands, failures[i])
	}
}

// publish sends memory nodes their map, in two phases: none follows it while another refuses to hold it. A memory node that does not answer keeps no other
// waiting: it gets both later. told says that each of them now follows the map.
func (p *Plan) publish(hands Hands) (told bool, failures []error) {
	if len(p.Publish) == 0 {
		return false, nil
	}
	prepared, unprepared := hands.Tell(p.Publish, true)
	for _, failure := range unprepared {
		if hands.Refuses(failure) {
			hands.Conflict(failure)
			return false, unprepared
		}
	}
	_, unpublished := hands.Tell(prepared, false)
	if failures := append(unprepared, unpublished...); len(failures) > 0 {
		return false, failures
	}
	return hands.Follow(p.Publish), nil
}

// StatusWrite is the status that an object is to have.
type StatusWrite struct {
	Object client.Object
	Status any
}

// Statuses lists the statuses to be written, in the order in which they are written: the pool's own comes last.
func (p *Plan) Statuses(snapshot *observe.Snapshot) []StatusWrite {
	var writes []StatusWrite
	for _, name := range slices.Sorted(maps.Keys(p.Status.Nodes)) {
		status := p.Status.Nodes[name]
		writes = append(writes, StatusWrite{snapshot.Nodes[name], &status})
	}
	for _, object := range snapshot.ShardMaps {
		if status, ok := p.Status.Maps[object.Name]; ok && !slices.Contains(p.Delete, client.Object(object)) {
			writes = append(writes, StatusWrite{object, &status})
		}
	}
	for _, object := range snapshot.Leases {
		if status, ok := p.Status.Leases[object.Name]; ok {
			writes = append(writes, StatusWrite{object, &status})
		}
	}
	for _, object := range slices.Concat(snapshot.Resizes, snapshot.Strays) {
		if status, ok := p.Status.Resizes[object.Name]; ok {
			writes = append(writes, StatusWrite{object, &status})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Status.MemoryPools)) {
		status := p.Status.MemoryPools[name]
		writes = append(writes, StatusWrite{snapshot.MemoryPools[name], &status})
	}
	for _, name := range slices.Sorted(maps.Keys(p.Status.ComputePools)) {
		status := p.Status.ComputePools[name]
		writes = append(writes, StatusWrite{snapshot.ComputePools[name], &status})
	}
	return append(writes, StatusWrite{snapshot.Pool, &p.Status.Pool})
}
