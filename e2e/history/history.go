// SPDX-License-Identifier: Apache-2.0

// Package history records what clients of a key-value store asked and saw, and judges whether one register per key could have
// answered so: linearizability, checked key by key with Porcupine.
package history

import (
	"fmt"
	"math"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Tag names one written value; no two writes of a history share one. Absent stands for "no value".
type Tag uint64

// Absent is what a read of a missing key sees.
const Absent Tag = 0

// Kind is what an operation does to its key's register.
type Kind uint8

// The operations a register understands, named after the commands that carry them.
const (
	Get    Kind = iota
	Set         // writes Wrote
	SetNX       // writes Wrote if the key is absent; Applied says whether it did
	GetSet      // writes Wrote, sees what was there
	Del         // removes; Applied says whether there was something
	GetDel      // removes, sees what was there
	// A key of one of the next two pairs knows only that pair.
	Incr   // adds one to a counter; Saw is the sum
	Count  // reads a counter; Saw is the sum
	Append // appends Wrote to a list; Saw is how many it has then
	List   // reads a list; Saw is its Fold
)

func (k Kind) String() string {
	return [...]string{"GET", "SET", "SETNX", "GETSET", "DEL", "GETDEL", "INCR", "GET of a counter", "APPEND", "GET of a list"}[k]
}

// reads says whether an operation changes nothing.
func (k Kind) reads() bool { return k == Get || k == Count || k == List }

// Fold is the state of a list after one more element: how many there are, and a hash of what they are, in order.
func Fold(list, element Tag) Tag {
	const counts = 48
	x := uint64(list)*0x9e3779b97f4a7c15 + uint64(element)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return Tag((uint64(list)>>counts+1)<<counts | (x^x>>31)&(1<<counts-1))
}

// Len is how many elements a Fold holds.
func Len(list Tag) Tag { return list >> 48 }

// Op is one operation of one client. Times are nanoseconds since the Recorder was made.
type Op struct {
	Client  int
	Key     uint32
	Kind    Kind
	Wrote   Tag
	Saw     Tag
	Applied bool
	// Unknown: no answer came, so the operation may take effect at any time after Call, or never.
	Unknown bool
	Call    int64
	Return  int64
}

// Recorder gives each client a Log and puts the logs together.
type Recorder struct {
	start time.Time
	logs  []*Log
}

// Log is one client's part of a history. It belongs to one goroutine.
type Log struct {
	recorder *Recorder
	client   int
	next     uint64
	ops      []Op
}

// NewRecorder makes a recorder with one log for each client.
func NewRecorder(clients int) *Recorder {
	r := &Recorder{start: time.Now()}
	for i := range clients {
		r.logs = append(r.logs, &Log{recorder: r, client: i})
	}
	return r
}

// Log is the log of a client.
func (r *Recorder) Log(client int) *Log { return r.logs[client] }

// Ops are all operations recorded so far. Call it when no client runs.
func (r *Recorder) Ops() []Op {
	var all []Op
	for _, l := range r.logs {
		all = append(all, l.ops...)
	}
	return all
}

// NewTag is a tag that no other write of this history has.
func (l *Log) NewTag() Tag {
	l.next++
	return Tag(uint64(l.client+1)<<40 | l.next)
}

// Begin notes the moment before an operation is sent.
func (l *Log) Begin() int64 { return int64(time.Since(l.recorder.start)) }

// End records an operation whose Call is what Begin gave. A failed read tells nothing and is left out; a failed change stays
// as an open interval.
func (l *Log) End(op Op, err error) {
	op.Client, op.Return = l.client, int64(time.Since(l.recorder.start))
	if err != nil {
		if op.Kind.reads() {
			return
		}
		op.Unknown = true
	}
	l.ops = append(l.ops, op)
}

// Violation is a history of one key that no register could have produced.
type Violation struct {
	Key uint32
	Ops []Op
}

func (v *Violation) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "the history of key %d is not linearizable; its %d operations by time of call:", v.Key, len(v.Ops))
	const most = 60
	for i, op := range v.Ops {
		if i == most {
			fmt.Fprintf(&b, "\n  … and %d more", len(v.Ops)-most)
			break
		}
		end := time.Duration(op.Return).String()
		if op.Unknown {
			end = "unknown"
		}
		fmt.Fprintf(&b, "\n  client %d %s wrote=%x saw=%x applied=%t [%s, %s]", op.Client, op.Kind, uint64(op.Wrote),
			uint64(op.Saw), op.Applied, time.Duration(op.Call), end)
	}
	return b.String()
}

// Summary counts what a check looked at.
type Summary struct {
	Keys, Ops, Unknown int
}

// Check judges a history key by key, within a time limit. The error is a *Violation if a key's history is impossible.
func Check(ops []Op, limit time.Duration) (Summary, error) {
	deadline := time.Now().Add(limit)
	sorted := append([]Op(nil), ops...)
	sort.SliceStable(sorted, func(i, j int) bool {
		if sorted[i].Key != sorted[j].Key {
			return sorted[i].Key < sorted[j].Key
		}
		return sorted[i].Call < sorted[j].Call
	})
	sum := Summary{Ops: len(sorted)}
	for begin := 0; begin < len(sorted); {
		end := begin
		for end < len(sorted) && sorted[end].Key == sorted[begin].Key {
			if sorted[end].Unknown {
				sum.Unknown++
			}
			end++
		}
		key := sorted[begin:end]
		sum.Keys++
		left := time.Until(deadline)
		if left <= 0 {
			return sum, fmt.Errorf("the checker had no time left at key %d after %d keys: raise its limit of %s or shorten the history",
				key[0].Key, sum.Keys, limit)
		}
		switch porcupine.CheckOperationsTimeout(register, events(key), left) {
		case porcupine.Ok:
		case porcupine.Illegal:
			return sum, &Violation{Key: key[0].Key, Ops: key}
		default:
			return sum, fmt.Errorf("the checker ran out of its limit of %s at key %d with %d operations: lower the contention on one key",
				limit, key[0].Key, len(key))
		}
		begin = end
	}
	return sum, nil
}

func events(key []Op) []porcupine.Operation {
	out := make([]porcupine.Operation, len(key))
	for i, op := range key {
		ret := op.Return
		if op.Unknown {
			ret = math.MaxInt64
		}
		out[i] = porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Call, Output: op, Return: ret}
	}
	return out
}

// register is one key: its state is the tag it holds.
var register = porcupine.Model{
	Init: func() any { return Absent },
	Step: func(state, input, output any) (bool, any) {
		held, op, seen := state.(Tag), input.(Op), output.(Op)
		switch op.Kind {
		case Get, Count, List:
			return seen.Saw == held, held
		case Set:
			return true, op.Wrote
		case SetNX:
			fits := held == Absent
			if !op.Unknown && seen.Applied != fits {
				return false, held
			}
			if fits {
				return true, op.Wrote
			}
			return true, held
		case GetSet:
			return op.Unknown || seen.Saw == held, op.Wrote
		case Del:
			return op.Unknown || seen.Applied == (held != Absent), Absent
		case GetDel:
			return op.Unknown || seen.Saw == held, Absent
		case Incr:
			return op.Unknown || seen.Saw == held+1, held + 1
		case Append:
			next := Fold(held, op.Wrote)
			return op.Unknown || seen.Saw == Len(next), next
		}
		return false, held
	},
	Equal: func(a, b any) bool { return a.(Tag) == b.(Tag) },
}
