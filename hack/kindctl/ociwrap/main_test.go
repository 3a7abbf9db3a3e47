// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestRestrictDropsWhatTheBoundingSetLacks(t *testing.T) {
	have, err := grantable("Name:\tx\nCapBnd:\t000001fffeffffff\nCapAmb:\t0\n")
	if err != nil {
		t.Fatal(err)
	}
	if have["CAP_SYS_RESOURCE"] || !have["CAP_CHECKPOINT_RESTORE"] || !have["CAP_CHOWN"] || len(have) != 40 {
		t.Fatalf("wrong set: %v", have)
	}
	out, err := restrict([]byte(`{"process":{"capabilities":{"bounding":["CAP_CHOWN","CAP_SYS_RESOURCE"]}},"n":9007199254740993}`), true, have)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(out); strings.Contains(got, "SYS_RESOURCE") || !strings.Contains(got, "CAP_CHOWN") || !strings.Contains(got, "9007199254740993") {
		t.Fatalf("got %s", got)
	}
}

func TestTargetFollowsTheCommandLine(t *testing.T) {
	for line, want := range map[string]string{
		"--root /r create --bundle /b id":  "/b/config.json",
		"--root /r run -b /b id":           "/b/config.json",
		"--root /r exec --process /p.j id": "/p.j",
		"--root /r delete id":              "",
		"--root /r exec id sh":             "",
	} {
		if got, _ := target(strings.Fields(line)); got != want {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}
