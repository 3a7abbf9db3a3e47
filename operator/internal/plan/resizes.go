// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"farpool.dev/farpool/api/v1alpha1"
	"farpool.dev/farpool/operator/internal/render"
)

const (
	// resizesKept is how many ResizeOperations stay to be read when they are over.
	resizesKept = 8
	// resizeLooks is how often the number of keys left is looked at.
	resizeLooks = 10 * time.Second
	// longestEstimate is how many seconds ahead an estimated time may lie.
	longestEstimate = 1e9
)

// findResize finds the ResizeOperation of the present aim, and says in the statuses of the others what became of them. An aborted operation also stands for
// evacuations that came later: as long as it holds the pool, nothing moves.
func (d *decision) findResize() {
	m := &d.moves
	for _, operation := range d.Resizes {
		aborted := operation.Spec.RequestedState == v1alpha1.RequestedAbort && operation.DeletionTimestamp.IsZero() && d.asks(operation)
		switch {
		case m.open == nil && isOpen(operation) && (aborted || d.aims(operation)):
			m.open = operation
			if aborted {
				m.aborted = operation
			}
		case aborted && stillHolds(operation):
			m.aborted = operation
		}
	}
}

func isOpen(operation *v1alpha1.ResizeOperation) bool {
	return operation.DeletionTimestamp.IsZero() && operation.Status.CompletionTime == nil
}

// asks says whether an operation's aim is the number of memory nodes, and of their tables, that the spec asks for.
func (d *decision) asks(operation *v1alpha1.ResizeOperation) bool {
	tables := int32(1)
	if operation.Spec.Tables != nil {
		tables = operation.Spec.Tables.To
	}
	if tables != d.tablesWanted() {
		return false
	}
	asked, to := map[string]int32{}, map[string]int32{}
	for _, memoryPool := range d.Pool.Spec.Memory.Pools {
		if memoryPool.Replicas > 0 {
			asked[memoryPool.Name] = memoryPool.Replicas
		}
	}
	for _, changed := range operation.Spec.Pools {
		if changed.To > 0 {
			to[changed.Name] = changed.To
		}
	}
	return maps.Equal(asked, to)
}

// aims says whether an operation's aim is the present one, evacuations included.
func (d *decision) aims(operation *v1alpha1.ResizeOperation) bool {
	if !d.asks(operation) {
		return false
	}
	for _, n := range d.nodes {
		if n.evacuated && !slices.Contains(operation.Spec.Evacuates, n.name) {
			return false
		}
	}
	return true
}

// decideResize makes a ResizeOperation when memory nodes have to come or go, and says how far each operation has come. It derives everything from the map, from
// what memory nodes report and from the spec.
func (d *decision) decideResize(act bool) {
	d.Status.Resizes = map[string]v1alpha1.ResizeOperationStatus{}
	for _, stray := range d.Strays {
		d.Status.Resizes[stray.Name] = RefuseResize(stray, d.Pool, d.Now)
	}
	if d.epochs.effective() == nil {
		return
	}
	d.survey()
	d.Status.PartsLeft = d.moves.partsLeft
	if d.moves.counted {
		d.Status.KeysLeft = &d.moves.keysLeft
	}
	var over []*v1alpha1.ResizeOperation
	for _, operation := range d.Resizes {
		switch {
		case !operation.DeletionTimestamp.IsZero():
		case operation.Status.CompletionTime != nil:
			if stillHolds(operation) {
				status := *operation.Status.DeepCopy()
				status.Conditions = d.setConditions(status.Conditions, operation.Generation, d.holding(operation))
				d.Status.Resizes[operation.Name] = status
			}
			if operation != d.moves.held {
				over = append(over, operation)
			}
		default:
			d.Status.Resizes[operation.Name] = d.followResize(operation)
		}
	}
	if act && d.moves.open == nil && d.moves.held == nil && d.unsettled(d.epochs.effective()) {
		// First a status says that one operation is over, then the next operation is made: a pool never has more than one that is open.
		if at := slices.IndexFunc(d.Resizes, isOpen); at >= 0 {
			d.moves.words = fmt.Sprintf("another number of memory nodes is asked for: ResizeOperation %s ends before another follows it", d.Resizes[at].Name)
		} else {
			d.makeResize()
		}
	}
	if act {
		for i := 0; i < len(over)-resizesKept; i++ {
			d.Delete = append(d.Delete, over[i])
		}
	}
	if d.moves.words != "" {
		d.due(d.Now.Add(resizeLooks))
	}
}

// RefuseResize is the status of a ResizeOperation that no pool has made, whether the pool that it names exists or not. The operation moves nothing; the status
// says what would.
func RefuseResize(stray *v1alpha1.ResizeOperation, pool *v1alpha1.KVPool, now time.Time) v1alpha1.ResizeOperationStatus {
	status := *stray.Status.DeepCopy()
	status.ObservedGeneration = stray.Generation
	status.Change = changeOf(&stray.Spec)
	complete := condition(v1alpha1.ConditionComplete, metav1.ConditionFalse, v1alpha1.ReasonPoolNotFound, "there is no KVPool %s in namespace %s: delete this ResizeOperation", stray.Spec.PoolName, stray.Namespace)
	if pool != nil {
		complete = condition(v1alpha1.ConditionComplete, metav1.ConditionFalse, v1alpha1.ReasonNotFollowed,
			"the operator makes the ResizeOperations of a pool itself, and follows no other: delete this one, and edit spec.memory.pools[].replicas of KVPool %s, or scale its MemoryNodePools (kubectl -n %s get memorynodepools)",
			pool.Name, pool.Namespace)
	}
	status.Conditions = moved(status.Conditions, stray.Generation, now, complete)
	return status
}

func (d *decision) makeResize() {
	// A name can be taken once. If the cache lags, or another operator has made an operation, the number is taken already, so that no two are made.
	number := int64(1)
	for _, operation := range slices.Concat(d.Resizes, d.Strays) {
		suffix, ours := strings.CutPrefix(operation.Name, v1alpha1.ResizeOperationPrefix(d.Pool.Name))
		if taken, err := strconv.ParseInt(suffix, 10, 64); ours && err == nil {
			number = max(number, taken+1)
		}
	}
	spec := &v1alpha1.ResizeOperationSpec{PoolName: d.Pool.Name, Approval: v1alpha1.ApprovalAutomatic}
	if d.asksApproval() {
		spec.Approval = v1alpha1.ApprovalRequired
	}
	for p := range d.Pool.Spec.Memory.Pools {
		memoryPool := &d.Pool.Spec.Memory.Pools[p]
		changed := v1alpha1.ResizePool{Name: memoryPool.Name, To: memoryPool.Replicas}
		for _, n := range d.nodes {
			if n.pool == memoryPool && inMap(d.epochs.current, n.name) {
				changed.From++
			}
		}
		// Where a person takes memory pools away faster than keys move, the last of them are not listed.
		if len(spec.Pools) < mostEntries {
			spec.Pools = append(spec.Pools, changed)
		}
	}
	for _, n := range d.nodes {
		if n.evacuated {
			spec.Evacuates = append(spec.Evacuates, n.name)
		}
	}
	if wanted := d.tablesWanted(); wanted > 1 {
		spec.Tables = &v1alpha1.ResizeTables{From: d.tablesInUse(d.epochs.effective()), To: wanted}
	}
	name := v1alpha1.ResizeOperationName(d.Pool.Name, number)
	resize := render.ResizeOperation(d.pool, name, spec)
	d.moves.made = append(d.moves.made, resize)
	d.moves.words = fmt.Sprintf("memory nodes %s: ResizeOperation %s follows it", changeOf(spec), name)
	d.eventWith(resize, d.Pool, corev1.EventTypeNormal, v1alpha1.ReasonResizePlanned, "Resize", d.moves.words)
}

// changeOf describes a change of memory nodes.
func changeOf(spec *v1alpha1.ResizeOperationSpec) string {
	var from, to int32
	for _, changed := range spec.Pools {
		from += changed.From
		to += changed.To
	}
	words := fmt.Sprintf("%d to %d", from, to)
	if evacuated := len(spec.Evacuates); evacuated > 0 {
		words += fmt.Sprintf(", %d evacuated", evacuated)
	}
	if spec.Tables != nil && spec.Tables.From != spec.Tables.To {
		words += fmt.Sprintf(", %d to %d tables each", spec.Tables.From, spec.Tables.To)
	}
	return words
}

// These are the lines of events about a ResizeOperation.
const (
	lineBegun = "begun"
	lineStage = "stage"
	lineKeys  = "keys"
)

// followResize says how far an operation has come. It announces each step by comparison with the earlier status, so any operator announces it, and none announces
// it twice.
func (d *decision) followResize(operation *v1alpha1.ResizeOperation) v1alpha1.ResizeOperationStatus {
	m := &d.moves
	status := *operation.Status.DeepCopy()
	status.ObservedGeneration = operation.Generation
	status.Change = changeOf(&operation.Spec)
	if operation.Spec.Tables != nil && operation == m.open {
		status.TablesInUse = d.tablesInUse(d.epochs.effective())
	}
	now := &metav1.Time{Time: d.Now.Truncate(time.Second)}
	if status.StartTime == nil {
		status.StartTime = now
		d.tellOf(operation, lineBegun, "", v1alpha1.ReasonResizePlanned, "memory nodes "+status.Change)
	}
	end := func(stage v1alpha1.ResizeStage) {
		status.Stage, status.CompletionTime, status.KeysLeft, status.BytesLeft, status.EstimatedCompletionTime = stage, now, 0, 0, nil
	}
	complete := condition(v1alpha1.ConditionComplete, metav1.ConditionFalse, v1alpha1.ReasonSuperseded, "the pool's spec asks for another number of memory nodes by now; what was begun is finished all the same")
	switch {
	case operation != m.open:
		end(v1alpha1.StageSuperseded)
		d.tellOf(operation, lineStage, string(status.Stage), v1alpha1.ReasonSuperseded, complete.Message)
	default:
		stage, reason, words := d.stage()
		status.Stage = stage
		if m.known {
			status.PartsTotal = max(status.PartsTotal, status.PartsMoved+m.partsLeft)
			status.PartsMoved = status.PartsTotal - m.partsLeft
		}
		if m.counted {
			m.estimate(&status, stage, now)
			status.KeysLeft, status.BytesLeft = m.keysLeft, m.bytesLeft
		}
		d.tellStage(operation, stage, reason, words)
		if stage == v1alpha1.StageMoving {
			d.tellKeys(operation, &status)
		}
		complete = condition(v1alpha1.ConditionComplete, metav1.ConditionFalse, reason, "%s", words)
		if stage == v1alpha1.StageAborted {
			status.Conditions = d.setConditions(status.Conditions, operation.Generation, d.holding(operation))
			end(stage)
			break
		}
		if stage == v1alpha1.StageComplete {
			complete.Status = metav1.ConditionTrue
			end(stage)
			break
		}
		m.words = fmt.Sprintf("memory nodes %s, by ResizeOperation %s: %s", status.Change, operation.Name, words)
	}
	status.Conditions = d.setConditions(status.Conditions, operation.Generation, complete)
	return status
}

// tellOf sends an event about a ResizeOperation to people who look at it. People who look at its pool get the event too, unless another event tells them.
func (d *decision) tellOf(operation *v1alpha1.ResizeOperation, line, step, reason, note string) {
	event := Event{Regarding: operation, Type: corev1.EventTypeNormal, Reason: reason, Action: "Resize", Note: clip(note), Of: operation.UID, Line: line, Step: step}
	switch reason {
	case v1alpha1.ReasonNodeUnschedulable, v1alpha1.ReasonTablesStopped, v1alpha1.ReasonSecretMissing, v1alpha1.ReasonMapMissing, v1alpha1.ReasonMovesExhausted:
		event.Type = corev1.EventTypeWarning
	}
	d.Status.Events = append(d.Status.Events, event)
	switch reason {
	case v1alpha1.ReasonApprovalRequired, v1alpha1.ReasonMoveProgressed, v1alpha1.ReasonResizeComplete, v1alpha1.ReasonResizeAborted:
		event.Regarding, event.Note = d.Pool, clip(fmt.Sprintf("ResizeOperation %s: %s", operation.Name, note))
		d.Status.Events = append(d.Status.Events, event)
	}
}

// tellStage announces that a resize has come to another stage, or waits for something else. It leaves out that memory nodes receive a map: that happens between
// any two stages and is soon over.
func (d *decision) tellStage(operation *v1alpha1.ResizeOperation, stage v1alpha1.ResizeStage, reason, words string) {
	was := meta.FindStatusCondition(operation.Status.Conditions, v1alpha1.ConditionComplete)
	if reason == v1alpha1.ReasonPublishing || operation.Status.Stage == stage && was != nil && was.Reason == reason {
		return
	}
	d.tellOf(operation, lineStage, string(stage)+" "+reason, reason, words)
}

// tellKeys announces each further quarter of the keys that has moved. The memory nodes report the last one.
func (d *decision) tellKeys(operation *v1alpha1.ResizeOperation, status *v1alpha1.ResizeOperationStatus) {
	moved := quarters(status)
	if moved <= quarters(&operation.Status) || moved == 4 {
		return
	}
	note := fmt.Sprintf("%d %% of the keys to be moved have moved: about %d keys and %d MiB are left", 25*moved, status.KeysLeft, status.BytesLeft>>20)
	if end := status.EstimatedCompletionTime; end != nil {
		note += ", which takes until about " + end.UTC().Format(time.RFC3339)
	}
	d.tellOf(operation, lineKeys, strconv.FormatInt(moved, 10), v1alpha1.ReasonMoveProgressed, note)
}

// quarters counts the quarters of the keys that have moved.
func quarters(status *v1alpha1.ResizeOperationStatus) int64 {
	if status.KeysTotal == 0 {
		return 0
	}
	return 4 * (status.KeysTotal - status.KeysLeft) / status.KeysTotal
}

// estimate estimates when the move will be finished, whenever fewer keys are left than before.
func (m *moves) estimate(status *v1alpha1.ResizeOperationStatus, stage v1alpha1.ResizeStage, now *metav1.Time) {
	status.KeysTotal = max(status.KeysTotal, m.keysLeft)
	if stage != v1alpha1.StageMoving {
		status.EstimatedCompletionTime = nil
		return
	}
	if status.MovingSince == nil {
		status.MovingSince = now
	}
	if moved := status.KeysTotal - m.keysLeft; moved > 0 && m.keysLeft != status.KeysLeft {
		left := now.Sub(status.MovingSince.Time).Seconds() * float64(m.keysLeft) / float64(moved)
		status.EstimatedCompletionTime = &metav1.Time{Time: now.Add(time.Duration(min(left, longestEstimate)) * time.Second)}
	}
}

// stage returns the stage of the resize under way, the reason, and words for people.
func (d *decision) stage() (stage v1alpha1.ResizeStage, reason, words string) {
	m, spec := &d.moves, d.epochs.effective()
	awaits := ""
	if m.awaits != nil {
		awaits = m.awaits.message
	}
	if m.held != nil {
		awaits = joinWords(awaits, "it was aborted: nothing more is begun of it")
	}
	left := ""
	if m.known && m.partsLeft > 0 {
		left = fmt.Sprintf("%d of %d parts are left to be moved", m.partsLeft, len(spec.Directory.Tables))
		if m.counted {
			left += fmt.Sprintf(", with about %d keys and %d MiB", m.keysLeft, m.bytesLeft>>20)
		}
	}
	switch {
	case len(spec.Departures) > 0:
		var from []string
		for _, entry := range givers(spec) {
			from = append(from, entry.Name)
		}
		return v1alpha1.StageMoving, v1alpha1.ReasonMoving, joinWords(fmt.Sprintf("move %d of keys away from %s is under way", spec.Move, some(from)), left, awaits)
	case m.held != nil:
		return v1alpha1.StageAborted, v1alpha1.ReasonResizeAborted, d.howToGoOn()
	case m.awaits != nil && m.awaits.reason == v1alpha1.ReasonApprovalRequired:
		return v1alpha1.StagePlanned, m.awaits.reason, joinWords(awaits, left)
	case d.epochs.next == nil && d.unsplit(spec) && spec.LeastTables == d.tablesWanted():
		return v1alpha1.StageSplitting, v1alpha1.ReasonSplitting, joinWords(fmt.Sprintf("clients split tables ahead of keys: %d of %d are in use at the memory node that has fewest", d.tablesInUse(spec), d.tablesWanted()), left, awaits)
	case d.epochs.next == nil && !d.unsettled(spec) && len(d.going()) == 0:
		return v1alpha1.StageComplete, v1alpha1.ReasonResizeComplete, fmt.Sprintf("the pool has the %d memory nodes that its spec asks for, each with its share of %d parts", len(spec.Nodes), len(spec.Directory.Tables))
	case m.known && m.partsLeft == 0 && len(d.missing(spec)) == 0 && len(d.going()) > 0:
		return v1alpha1.StageRemoving, v1alpha1.ReasonRemoving, joinWords("memory nodes that hold nothing any more are being removed: "+some(d.going()), awaits)
	case m.awaits != nil:
		return v1alpha1.StageWaiting, m.awaits.reason, joinWords(awaits, left)
	}
	return v1alpha1.StageWaiting, v1alpha1.ReasonPublishing, joinWords(fmt.Sprintf("waiting for memory nodes to follow map epoch %d", spec.Epoch), left)
}
