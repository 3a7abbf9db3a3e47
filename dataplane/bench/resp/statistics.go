// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A spread is what several runs gave.
type spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return spread{Min: sorted[0], Median: median, Max: sorted[len(sorted)-1]}
}

// text is the median, and behind it the least and the most if they differ from it in what is printed.
func (s spread) text(decimals int) string {
	number := func(value float64) string { return fmt.Sprintf("%.*f", decimals, value) }
	median, least, most := number(s.Median), number(s.Min), number(s.Max)
	if least == median && most == median {
		return median
	}
	return fmt.Sprintf("%s (%s–%s)", median, least, most)
}

// percentile returns the least latency that at least so many of a hundred operations do not exceed. It sorts the batches.
func percentile(of []batch, percent int) time.Duration {
	slices.SortFunc(of, func(a, b batch) int { return cmp.Compare(a.latency, b.latency) })
	all := 0
	for _, b := range of {
		all += b.operations
	}
	seen := 0
	for _, b := range of {
		if seen += b.operations; seen*100 >= all*percent {
			return b.latency
		}
	}
	return 0
}
