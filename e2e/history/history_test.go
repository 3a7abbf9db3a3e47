// SPDX-License-Identifier: Apache-2.0

package history

import (
	"errors"
	"testing"
	"time"
)

const limit = 10 * time.Second

func TestHistoriesOfOneKey(t *testing.T) {
	const a, b = Tag(1), Tag(2)
	op := func(kind Kind, call, ret int64, f func(*Op)) Op {
		o := Op{Kind: kind, Call: call, Return: ret}
		if f != nil {
			f(&o)
		}
		return o
	}
	set := func(v Tag, call, ret int64) Op { return op(Set, call, ret, func(o *Op) { o.Wrote = v }) }
	get := func(v Tag, call, ret int64) Op { return op(Get, call, ret, func(o *Op) { o.Saw = v }) }
	setnx := func(v Tag, won bool, call, ret int64) Op {
		return op(SetNX, call, ret, func(o *Op) { o.Wrote, o.Applied = v, won })
	}
	del := func(found bool, call, ret int64) Op { return op(Del, call, ret, func(o *Op) { o.Applied = found }) }
	getset := func(saw, v Tag, call, ret int64) Op {
		return op(GetSet, call, ret, func(o *Op) { o.Saw, o.Wrote = saw, v })
	}
	getdel := func(saw Tag, call, ret int64) Op { return op(GetDel, call, ret, func(o *Op) { o.Saw = saw }) }
	incr := func(sum Tag, call, ret int64) Op { return op(Incr, call, ret, func(o *Op) { o.Saw = sum }) }
	count := func(sum Tag, call, ret int64) Op { return op(Count, call, ret, func(o *Op) { o.Saw = sum }) }
	add := func(v, length Tag, call, ret int64) Op {
		return op(Append, call, ret, func(o *Op) { o.Wrote, o.Saw = v, length })
	}
	list := func(call, ret int64, elements ...Tag) Op {
		return op(List, call, ret, func(o *Op) {
			for _, v := range elements {
				o.Saw = Fold(o.Saw, v)
			}
		})
	}
	unknown := func(o Op) Op { o.Unknown = true; return o }

	for name, c := range map[string]struct {
		ops  []Op
		want bool
	}{
		"read your write":                    {[]Op{set(a, 1, 2), get(a, 3, 4)}, true},
		"stale read":                         {[]Op{set(a, 1, 2), set(b, 3, 4), get(a, 5, 6)}, false},
		"lost write":                         {[]Op{set(a, 1, 2), get(Absent, 3, 4)}, false},
		"read of a concurrent write":         {[]Op{set(a, 1, 5), get(a, 2, 3)}, true},
		"two reads go backwards":             {[]Op{set(a, 1, 2), set(b, 3, 9), get(b, 4, 5), get(a, 6, 7)}, false},
		"unknown write seen late":            {[]Op{unknown(set(a, 1, 2)), get(Absent, 3, 4), get(a, 5, 6)}, true},
		"unknown write never seen":           {[]Op{unknown(set(a, 1, 2)), get(Absent, 3, 4)}, true},
		"unknown write seen, then unseen":    {[]Op{unknown(set(a, 1, 2)), get(a, 3, 4), get(Absent, 5, 6)}, false},
		"unknown write before it was called": {[]Op{get(a, 1, 2), unknown(set(a, 3, 4))}, false},
		"one winner":                         {[]Op{setnx(a, true, 1, 4), setnx(b, false, 1, 4), get(a, 5, 6)}, true},
		"two winners":                        {[]Op{setnx(a, true, 1, 4), setnx(b, true, 1, 4)}, false},
		"no winner":                          {[]Op{setnx(a, false, 1, 4), setnx(b, false, 1, 4)}, false},
		"unknown race":                       {[]Op{unknown(setnx(a, false, 1, 4)), setnx(b, false, 2, 4), get(a, 5, 6)}, true},
		"delete":                             {[]Op{set(a, 1, 2), del(true, 3, 4), del(false, 5, 6), get(Absent, 7, 8)}, true},
		"delete of what was there":           {[]Op{set(a, 1, 2), del(false, 3, 4)}, false},
		"read after delete":                  {[]Op{set(a, 1, 2), del(true, 3, 4), get(a, 5, 6)}, false},
		"getset chain":                       {[]Op{getset(Absent, a, 1, 2), getset(a, b, 3, 4), getdel(b, 5, 6)}, true},
		"getset lost update":                 {[]Op{getset(Absent, a, 1, 4), getset(Absent, b, 2, 5)}, false},
		"counter":                            {[]Op{incr(1, 1, 4), incr(2, 1, 4), count(2, 5, 6)}, true},
		"counter that lost one":              {[]Op{incr(1, 1, 4), incr(1, 1, 4)}, false},
		"counter read too high":              {[]Op{incr(1, 1, 2), count(2, 3, 4)}, false},
		"unknown increment seen":             {[]Op{unknown(incr(0, 1, 2)), incr(2, 3, 4)}, true},
		"unknown increment seen twice":       {[]Op{unknown(incr(0, 1, 2)), incr(3, 3, 4)}, false},
		"list":                               {[]Op{add(a, 1, 1, 9), add(b, 2, 1, 9), list(10, 11, a, b)}, true},
		"list in the other order":            {[]Op{add(a, 1, 1, 9), add(b, 2, 1, 9), list(10, 11, b, a)}, false},
		"list that lost one":                 {[]Op{add(a, 1, 1, 2), add(b, 2, 3, 4), list(5, 6, b)}, false},
		"unknown element seen":               {[]Op{unknown(add(a, 0, 1, 2)), add(b, 2, 3, 4), list(5, 6, a, b)}, true},
		"unknown element twice":              {[]Op{unknown(add(a, 0, 1, 2)), add(b, 3, 3, 4)}, false},
		"getdel twice":                       {[]Op{set(a, 1, 2), getdel(a, 3, 4), getdel(a, 5, 6)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			sum, err := Check(c.ops, limit)
			var v *Violation
			switch {
			case c.want && err != nil:
				t.Fatal(err)
			case !c.want && !errors.As(err, &v):
				t.Fatalf("want a violation, got %v", err)
			case sum.Ops != len(c.ops) || sum.Keys != 1:
				t.Fatalf("counted %+v", sum)
			}
		})
	}
}

func TestKeysAreJudgedApart(t *testing.T) {
	ops := []Op{
		{Key: 1, Kind: Set, Wrote: 7, Call: 1, Return: 2},
		{Key: 2, Kind: Get, Saw: Absent, Call: 3, Return: 4},
		{Key: 1, Kind: Get, Saw: 7, Call: 3, Return: 4},
	}
	if sum, err := Check(ops, limit); err != nil || sum.Keys != 2 {
		t.Fatalf("%+v, %v", sum, err)
	}
	ops[1].Saw = 7
	var v *Violation
	if _, err := Check(ops, limit); !errors.As(err, &v) || v.Key != 2 {
		t.Fatalf("want a violation of key 2, got %v", err)
	}
}

func TestFailedReadsAreLeftOut(t *testing.T) {
	r := NewRecorder(1)
	l := r.Log(0)
	l.End(Op{Kind: Get, Saw: 3, Call: l.Begin()}, errors.New("connection reset"))
	l.End(Op{Kind: Set, Wrote: l.NewTag(), Call: l.Begin()}, errors.New("connection reset"))
	ops := r.Ops()
	if len(ops) != 1 || !ops[0].Unknown {
		t.Fatalf("%+v", ops)
	}
}

func TestNoTimeLeftIsAnErrorButNoViolation(t *testing.T) {
	_, err := Check([]Op{{Kind: Set, Wrote: 1, Call: 1, Return: 2}}, 0)
	var v *Violation
	if err == nil || errors.As(err, &v) {
		t.Fatalf("got %v", err)
	}
}
