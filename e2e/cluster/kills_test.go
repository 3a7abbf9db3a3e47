// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestKillsAreNoCrashes(t *testing.T) {
	ended := func(code int32, reason string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}}
	}
	for name, of := range map[string]struct {
		now, last corev1.ContainerState
		killed    bool
	}{
		"it has run since it began":        {killed: true},
		"killed by the kubelet":            {last: ended(137, "Error"), killed: true},
		"told to end":                      {last: ended(0, "Completed"), killed: true},
		"told before it listened":          {last: ended(143, "Error"), killed: true},
		"killed, and not begun anew":       {now: ended(137, "Error"), killed: true},
		"a broken invariant":               {last: ended(134, "Error")},
		"a bad address, after it was told": {now: ended(139, "Error"), last: ended(143, "Error")},
		"too much memory":                  {last: ended(137, "OOMKilled")},
		"it was set up wrongly":            {last: ended(1, "Error")},
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{RestartCount: 3, State: of.now, LastTerminationState: of.last}}}}
		count, err := Kills(pod)
		if (err == nil) != of.killed || err == nil && count != 3 {
			t.Errorf("%s: %d, %v", name, count, err)
		}
	}
}
