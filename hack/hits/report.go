// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

func heading(o options, out io.Writer) {
	version, err := exec.Command(o.redis, "--version").Output()
	if err != nil {
		version = []byte(err.Error())
	}
	fmt.Fprintf(out, "%s; %d processors; memory node of %d MiB, compute shards: %d, workers of each: %d; %d requests at %g a second, at most, on %d keys and more, seed %d.\n",
		strings.Join(strings.Fields(string(version))[:3], " "), runtime.NumCPU(), o.mebibytes, o.shards, o.workers, o.requests, o.rate, o.keys, o.seed)
}

// ratiosTable prints a row for each comparison.
func ratiosTable(all []comparison, out io.Writer) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(out, "\n| trace | policy | protocol | hits, pool | hits, redis-server | difference | keys, pool | keys, redis-server | s, pool | s, redis-server |\n")
	fmt.Fprintf(out, "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, c := range all {
		fmt.Fprintf(out, "| %s | %s | %s | %.2f %% | %.2f %% | %+.2f | %d | %d | %.1f | %.1f |\n", c.trace, c.policy, c.protocol, 100*c.pool.ratio(), 100*c.redis.ratio(),
			100*(c.pool.ratio()-c.redis.ratio()), c.pool.keys, c.redis.keys, c.pool.took.Seconds(), c.redis.took.Seconds())
	}
	least := slices.MinFunc(all, func(a, b comparison) int { return compareGain(a, b) })
	fmt.Fprintf(out, "\nThe least difference: %+.2f points, of %s under %s with %s. Writes that were refused: %d.\n", 100*gain(least), least.trace, least.policy, least.protocol, refused(all))
}

func gain(c comparison) float64 { return c.pool.ratio() - c.redis.ratio() }

func compareGain(a, b comparison) int {
	switch {
	case gain(a) < gain(b):
		return -1
	case gain(a) > gain(b):
		return 1
	}
	return 0
}

func refused(all []comparison) (sum int) {
	for _, c := range all {
		sum += c.pool.refused + c.redis.refused
	}
	return sum
}

// writesTable prints a row for each full store beside one that has room.
func writesTable(all []pressure, out io.Writer) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(out, "\n| connections | server | p50 ms, full | p50 ms, with room | ratio | p99 ms, full | p99 ms, with room | ratio | most ms, full | most ms, with room | keys written | keys held |\n")
	fmt.Fprintf(out, "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, p := range all {
		fmt.Fprintf(out, "| %d | %s |", p.writers, p.server)
		for _, percentile := range []float64{0.5, 0.99} {
			full, roomy := p.full.percentile(percentile), p.roomy.percentile(percentile)
			fmt.Fprintf(out, " %s | %s | %.2f |", milliseconds(full), milliseconds(roomy), float64(full)/float64(roomy))
		}
		fmt.Fprintf(out, " %s | %s | %d | %d |\n", milliseconds(p.full.percentile(1)), milliseconds(p.roomy.percentile(1)), p.added, p.stood)
	}
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()*1000) }

// plot draws each comparison as a circle: on the diagonal both have the same ratio, above it the pool hits more often.
func plot(all []comparison) string {
	const width, height, left, right, top, bottom = 560, 560, 70, 20, 50, 60
	colours := []string{"#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad"}
	least := 1.0
	for _, c := range all {
		least = min(least, c.pool.ratio(), c.redis.ratio())
	}
	first := int(10 * least) // tenths
	at := func(ratio float64) (x, y float64) {
		part := (ratio - float64(first)/10) / (1 - float64(first)/10)
		return left + part*(width-left-right), height - bottom - part*(height-top-bottom)
	}
	var s strings.Builder
	fmt.Fprintf(&s, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n", width, height, width, height)
	fmt.Fprintf(&s, "<text x=\"%d\" y=\"24\" text-anchor=\"middle\" font-size=\"15\">Hit ratios with as many keys: above the line the pool's is higher</text>\n", width/2)
	for tenth := first; tenth <= 10; tenth++ {
		x, y := at(float64(tenth) / 10)
		fmt.Fprintf(&s, "<path d=\"M%.1f %dV%d\" stroke=\"#ddd\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d %%</text>\n", x, height-bottom, top, x, height-bottom+18, 10*tenth)
		fmt.Fprintf(&s, "<path d=\"M%d %.1fH%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n", left, y, width-right, left-8, y+4, 10*tenth)
	}
	fmt.Fprintf(&s, "<path d=\"M%d %dL%d %d\" stroke=\"#555\" stroke-dasharray=\"5 4\"/>\n", left, height-bottom, width-right, top)
	fmt.Fprintf(&s, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">redis-server</text>\n<text transform=\"translate(18 %d) rotate(-90)\" text-anchor=\"middle\">pool</text>\n", width/2, height-18, height/2)
	var policies []string
	for _, c := range all {
		if !slices.Contains(policies, c.policy) {
			policies = append(policies, c.policy)
		}
		x, _ := at(c.redis.ratio())
		_, y := at(c.pool.ratio())
		fmt.Fprintf(&s, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"none\" stroke-width=\"1.5\" stroke=\"%s\"><title>%s, %s, %s</title></circle>\n",
			x, y, colours[slices.Index(policies, c.policy)%len(colours)], c.trace, c.policy, c.protocol)
	}
	for i, policy := range policies {
		y := top + 20 + 18*i
		fmt.Fprintf(&s, "<circle cx=\"%d\" cy=\"%d\" r=\"4\" fill=\"none\" stroke-width=\"1.5\" stroke=\"%s\"/><text x=\"%d\" y=\"%d\">%s</text>\n", left+20, y, colours[i%len(colours)], left+32, y+4, policy)
	}
	s.WriteString("</svg>\n")
	return s.String()
}
