// SPDX-License-Identifier: Apache-2.0

//go:build daemons

package local

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// start starts a memory node and compute shards for the time of a test: one for each list of flags, which it has besides the usual ones.
// When the test has failed, it shows what they logged.
func start(t *testing.T, front ...[]string) *Cluster {
	t.Helper()
	runtime.LockOSThread() // with this thread the kernel would end the daemons
	c, err := NewCluster(t.TempDir(), Shape{Binaries: "../../build/release/apps", Memory: "64Mi", Protocol: "rcuckoo", Tables: 1, Nodes: 1, Shards: len(front), Lease: 5 * time.Second, Wire: TCP, Front: front})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, p := range c.All() {
				said, _ := os.ReadFile(p.Log)
				t.Logf("%s said:\n%s", p.Name, said)
			}
		}
	})
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}
