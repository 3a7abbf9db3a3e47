// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
)

// A row is what one server did under one load, in all runs.
type row struct {
	Operation string    `json:"operation"`
	Clients   int       `json:"clients"`
	Pipeline  int       `json:"pipeline"`
	Server    string    `json:"server"`
	Rate      spread    `json:"rate"`
	CPU       spread    `json:"cpu"`
	RateRatio spread    `json:"rate_ratio"` // to redis-server in the same run
	CPURatio  spread    `json:"cpu_ratio"`
	Runs      []figures `json:"runs"`
}

// A table is one generator's rows, with values of one size.
type table struct {
	Generator  string `json:"generator"`
	ClientTLS  bool   `json:"client_tls"`
	Wire       string `json:"wire"`
	Spin       string `json:"spin"`
	ValueBytes int    `json:"value_bytes"`
	Keys       int    `json:"keys"`
	Rows       []*row `json:"rows"`
}

// summarize computes spreads from the runs. A run's ratios are to redis-server's run under the same load in the same pass.
func (t *table) summarize() {
	over := func(figure, reference float64) float64 { return figure / max(reference, 0.01) }
	type point struct {
		operation         string
		clients, pipeline int
	}
	redis := map[point]*row{}
	for _, r := range t.Rows {
		if r.Server == redisName {
			redis[point{r.Operation, r.Clients, r.Pipeline}] = r
		}
	}
	for _, r := range t.Rows {
		reference := redis[point{r.Operation, r.Clients, r.Pipeline}]
		var rates, cpus, rateRatios, cpuRatios []float64
		for i, f := range r.Runs {
			rates, cpus = append(rates, f.Rate), append(cpus, f.Total)
			if reference != nil && i < len(reference.Runs) {
				rateRatios = append(rateRatios, over(f.Rate, reference.Runs[i].Rate))
				cpuRatios = append(cpuRatios, over(f.Total, reference.Runs[i].Total))
			}
		}
		r.Rate, r.CPU, r.RateRatio, r.CPURatio = spreadOf(rates), spreadOf(cpus), spreadOf(rateRatios), spreadOf(cpuRatios)
	}
}

// median is that of one figure of a row's runs.
func (r *row) median(of func(figures) float64) float64 {
	var values []float64
	for _, f := range r.Runs {
		values = append(values, of(f))
	}
	return spreadOf(values).Median
}

const tableHead = `| op | clients | pipeline | server | op/s | rate ratio | p50 ms | p99 ms | CPU | CPU ratio | CPU shard + node | trips/op | load CPU |
|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|
`

func (t *table) markdown(out io.Writer) {
	fmt.Fprintf(out, "### %d-byte values over %d keys, load by %s%s\n\n%s", t.ValueBytes, t.Keys, generatorTitle(t.Generator), map[bool]string{true: ", TLS with clients"}[t.ClientTLS], tableHead)
	for _, r := range t.Rows {
		parts, trips := "", ""
		if strings.HasPrefix(r.Server, "farpool") {
			shard, node := r.median(func(f figures) float64 { return f.CPU["shard"] }), r.median(func(f figures) float64 { return f.CPU["node"] })
			parts = fmt.Sprintf("%.1f + %.1f", shard, node)
			trips = fmt.Sprintf("%.2f", r.median(func(f figures) float64 { return f.Trips }))
		}
		rates, cpus := r.RateRatio.text(2), r.CPURatio.text(1)
		if r.Server == redisName {
			rates, cpus = "", ""
		}
		fmt.Fprintf(out, "| %s | %d | %d | %s | %s | %s | %.3f | %.3f | %s | %s | %s | %s | %.1f |\n",
			strings.ToUpper(r.Operation), r.Clients, r.Pipeline, r.Server, r.Rate.text(0), rates,
			r.median(func(f figures) float64 { return f.P50 }), r.median(func(f figures) float64 { return f.P99 }),
			r.CPU.text(1), cpus, parts, trips, r.median(func(f figures) float64 { return f.Load }))
	}
	fmt.Fprintln(out)
}

func generatorTitle(name string) string {
	if name == "built-in" {
		return "the built-in generator"
	}
	return name
}

// heading says what was measured, and with what.
func heading(o options, versions []string, out io.Writer) {
	wire := "tcp"
	if o.wire == "shm" {
		wire = fmt.Sprintf("shm, polled for %s before a wait", o.spin)
	}
	runs := fmt.Sprintf("%d runs of about %gs: median (least–most); latencies, parts of CPU, trips and load: medians", o.runs, o.seconds)
	if o.runs == 1 {
		runs = fmt.Sprintf("One run of about %gs", o.seconds)
	}
	fmt.Fprintf(out, "One machine with %d CPUs; %s. %s.\n", runtime.NumCPU(), strings.Join(versions, ", "), runs)
	fmt.Fprintf(out, "farpool: one compute shard with one worker, one memory node with one executor, wire: %s; \"TLS\" in its name: between these two.\n", wire)
	fmt.Fprintf(out, "CPU: microseconds an operation, from /proc/PID/stat. Ratios: to redis-server in the same run. docs/measurements/resp.md explains each column.\n\n")
}

// writeJSON replaces a file with all tables so far.
func writeJSON(path string, versions []string, tables []*table) error {
	content, err := json.MarshalIndent(struct {
		CPUs     int      `json:"cpus"`
		Versions []string `json:"versions"`
		Tables   []*table `json:"tables"`
	}{runtime.NumCPU(), versions, tables}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o644)
}
