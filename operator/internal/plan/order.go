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

// Hands do what a plan says. The controller has one implementation, with an API server and agents, and the simulation of the planner another.
type Hands interface {
	// Apply makes an object what the plan wants it to be. Delete deletes the very object that was seen.
	Apply(render.Object) error
	Delete(client.Object) error
	// Tolerates says whether everything else goes on though an object could not be applied. Refused is called with all such errors.
	Tolerates(object render.Object, err error) bool
	Refused(err error)
	// Failed sees to an error that stopped the plan, and returns what to report.
	Failed(err error) error
	// Connect tells people what was applied, and keeps streams to the processes that the plan names.
	Connect() error
	// Tell memory nodes to hold a map, or to follow it, and return the publications that were told and why others were not.
	Tell(publications []Publication, prepare bool) (told []Publication, failures []error)
	// Refuses says whether a failure is a memory node's answer that it will not have a map. Conflict is called with one such answer.
	Refuses(failure error) bool
	Conflict(failure error)
	// Follow says whether every memory node of these publications is known to follow its map.
	Follow([]Publication) bool
	// WriteStatuses writes what Statuses lists, in that order.
	WriteStatuses() error
	// Ask agents on behalf of RepairLeases.
	Ask()
}

// CarryOut has a plan carried out. The order is what an operator that dies at any step, and the next one, rely on: a map is an object before any
// memory node is told of it, and statuses say what has been done.
func (p *Plan) CarryOut(hands Hands) error {
	refused, err := p.applyObjects(hands)
	if err != nil {
		return hands.Failed(err)
	}
	if refused != nil {
		hands.Refused(refused)
	}
	if err := hands.Connect(); err != nil {
		return err
	}
	told, err := p.publish(hands)
	if told {
		// What nodes now say has the pool looked at again. Its status would be one of before.
		return nil
	}
	if failed := hands.WriteStatuses(); failed != nil {
		return errors.Join(err, failed)
	}
	hands.Ask()
	return err
}

// applyObjects makes and deletes what is decided. Without an object whose failure is not tolerated nothing goes on.
func (p *Plan) applyObjects(hands Hands) (refused, err error) {
	for _, object := range p.Apply {
		err := hands.Apply(object)
		if err != nil && hands.Tolerates(object, err) {
			refused = errors.Join(refused, err)
			continue
		}
		if err != nil {
			return refused, err
		}
	}
	for _, object := range p.Delete {
		if err := hands.Delete(object); err != nil {
			return refused, err
		}
	}
	return refused, nil
}

// publish tells nodes their map, in two phases: none is told to follow it while another refuses to hold it. One that does not answer keeps no other
// waiting: it is told both later. told says that each of them now follows it.
func (p *Plan) publish(hands Hands) (told bool, err error) {
	if len(p.Publish) == 0 {
		return false, nil
	}
	prepared, unprepared := hands.Tell(p.Publish, true)
	for _, failure := range unprepared {
		if hands.Refuses(failure) {
			hands.Conflict(failure)
			return false, errors.Join(unprepared...)
		}
	}
	_, unpublished := hands.Tell(prepared, false)
	if failures := append(unprepared, unpublished...); len(failures) > 0 {
		return false, errors.Join(failures...)
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
