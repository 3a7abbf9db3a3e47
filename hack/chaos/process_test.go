// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestAProcessIsCountedOverAllItsLives(t *testing.T) {
	p := process{name: "p", args: []string{"sleep", "600"}, metrics: "127.0.0.1:1", log: filepath.Join(t.TempDir(), "log"), counted: map[string]float64{"a_total": 2}}
	for range 2 {
		if err := p.start(); err != nil {
			t.Fatal(err)
		}
		if !p.alive() {
			t.Fatal("it is not alive")
		}
		if err := p.kill(); err != nil {
			t.Fatal(err)
		}
		if p.alive() {
			t.Fatal("it has been killed and is alive")
		}
	}
	if p.lives != 2 || p.counted["a_total"] != 2 {
		t.Fatal(p.lives, p.counted)
	}
	if err := p.ready(t.Context()); err == nil || !strings.Contains(err.Error(), "ended on its own") {
		t.Fatalf("got %v", err)
	}
}
