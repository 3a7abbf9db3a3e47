// SPDX-License-Identifier: Apache-2.0

package local

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestAProcessIsCountedOverAllItsLives(t *testing.T) {
	p := Process{Name: "p", args: []string{"sleep", "600"}, metrics: "127.0.0.1:1", Log: filepath.Join(t.TempDir(), "log"), Counted: map[string]float64{"a_total": 2}}
	for range 2 {
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		if !p.Alive() {
			t.Fatal("it is not alive")
		}
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		if p.Alive() {
			t.Fatal("it has been killed and is alive")
		}
	}
	if p.Lives != 2 || p.Counted["a_total"] != 2 {
		t.Fatal(p.Lives, p.Counted)
	}
	if err := p.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "ended on its own") {
		t.Fatalf("got %v", err)
	}
}
