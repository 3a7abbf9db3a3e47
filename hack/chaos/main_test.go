// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"farpool.dev/farpool/hack/local"
)

func TestProtocolsShareTimeAndStops(t *testing.T) {
	all := options{Shape: local.Shape{Protocol: "rcuckoo,race", Tables: 4096}, minutes: 1, zombies: 5, seed: 7}
	runs, err := all.each()
	if err != nil || len(runs) != 2 {
		t.Fatal(runs, err)
	}
	for i, tables := range []int{1, 4096} {
		one := runs[i]
		if one.Protocol != protocols[i] || one.Tables != tables || one.minutes != 0.5 || one.zombies != 3 || one.seed != 7 {
			t.Errorf("%+v", one)
		}
	}
}

func TestOneProtocolHasAllTheTime(t *testing.T) {
	runs, err := options{Shape: local.Shape{Protocol: "race", Tables: 16}, minutes: 10}.each()
	if err != nil || len(runs) != 1 || runs[0].minutes != 10 || runs[0].Tables != 16 || runs[0].zombies != 0 {
		t.Fatal(runs, err)
	}
}

func TestAProtocolThatThereIsNot(t *testing.T) {
	for _, protocol := range []string{"", "cuckoo", "race,", "race, rcuckoo"} {
		if _, err := (options{Shape: local.Shape{Protocol: protocol}}).each(); err == nil || !strings.Contains(err.Error(), "rcuckoo, race") {
			t.Errorf("%q: %v", protocol, err)
		}
	}
}
