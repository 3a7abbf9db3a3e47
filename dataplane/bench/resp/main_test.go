// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"flag"
	"io"
	"math/rand/v2"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestSpreadsOfRuns(t *testing.T) {
	for _, c := range []struct {
		runs []float64
		want spread
		text string
	}{
		{nil, spread{}, "0.0"},
		{[]float64{3}, spread{3, 3, 3}, "3.0"},
		{[]float64{9, 1, 4}, spread{1, 4, 9}, "4.0 (1.0–9.0)"},
		{[]float64{9, 1, 4, 5}, spread{1, 4.5, 9}, "4.5 (1.0–9.0)"},
		{[]float64{2, 2.03125}, spread{2, 2.015625, 2.03125}, "2.0"},
	} {
		got := spreadOf(c.runs)
		if got != c.want || got.text(1) != c.text {
			t.Errorf("%v: got %v, %s", c.runs, got, got.text(1))
		}
	}
}

func TestPercentilesCountOperationsAndNotBatches(t *testing.T) {
	batches := []batch{{latency: 9, operations: 1}, {latency: 1, operations: 16}, {latency: 2, operations: 83}}
	rand.Shuffle(len(batches), func(i, j int) { batches[i], batches[j] = batches[j], batches[i] })
	for percent, want := range map[int]time.Duration{1: 1, 16: 1, 17: 2, 50: 2, 99: 2, 100: 9} {
		if got := percentile(batches, percent); got != want {
			t.Errorf("%d %%: got %d, want %d", percent, got, want)
		}
	}
	if got := percentile(nil, 50); got != 0 {
		t.Errorf("of nothing: %d", got)
	}
}

func TestRatiosAreToRedisServerInTheSameRun(t *testing.T) {
	with := func(pipeline int, server string, rates ...float64) *row {
		r := &row{Operation: "get", Clients: 1, Pipeline: pipeline, Server: server}
		for _, rate := range rates {
			r.Runs = append(r.Runs, figures{answer: answer{Rate: rate}, Total: 1000 / rate})
		}
		return r
	}
	farpool := with(1, "farpool RACE", 50, 100, 50)
	tab := table{Rows: []*row{with(1, redisName, 100, 100, 200), farpool, with(16, redisName, 1, 1, 1)}}
	tab.summarize()
	if want := (spread{0.25, 0.5, 1}); farpool.RateRatio != want {
		t.Errorf("rates: got %v, want %v", farpool.RateRatio, want)
	}
	if want := (spread{1, 2, 4}); farpool.CPURatio != want {
		t.Errorf("CPU: got %v, want %v", farpool.CPURatio, want)
	}
	if want := (spread{50, 50, 100}); farpool.Rate != want {
		t.Errorf("got %v, want %v", farpool.Rate, want)
	}
}

func TestTablesHaveAsManyCellsAsTheirHead(t *testing.T) {
	tab := table{Generator: "built-in", ClientTLS: true, ValueBytes: 64, Keys: 10}
	for _, name := range []string{redisName, "farpool RCuckoo TLS", "memcached"} {
		tab.Rows = append(tab.Rows, &row{Operation: "set", Clients: 50, Pipeline: 16, Server: name, Runs: []figures{
			{answer: answer{Rate: 1000}, CPU: map[string]float64{"shard": 2, "node": 1}, Total: 3, Trips: 2},
			{answer: answer{Rate: 3000}, CPU: map[string]float64{"shard": 4, "node": 2}, Total: 6, Trips: 2},
		}})
	}
	tab.summarize()
	var out bytes.Buffer
	tab.markdown(&out)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 7 || !strings.Contains(lines[0], "64-byte values over 10 keys, load by the built-in generator, TLS with clients") {
		t.Fatalf("%s", out.String())
	}
	for _, line := range lines[2:] {
		if got, want := strings.Count(line, "|"), strings.Count(lines[2], "|"); got != want {
			t.Errorf("%d cells where the head has %d: %s", got, want, line)
		}
	}
	if want := "| SET | 50 | 16 | farpool RCuckoo TLS | 2000 (1000–3000) | 1.00 |"; !strings.HasPrefix(lines[5], want) || !strings.Contains(lines[5], "| 3.0 + 1.5 | 2.00 |") {
		t.Errorf("%s", lines[5])
	}
}

func TestProcessorTimeIsReadBehindTheName(t *testing.T) {
	got, err := spentTime("7 (a ) 1 2 3) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 9 9 20 0 1 0 100 1 1\n")
	if err != nil || got != 2*time.Second {
		t.Errorf("got %v, %v", got, err)
	}
	for _, wrong := range []string{"", "7 (a) S 1", "7 (a) S 1 7 7 0 -1 4194560 100 0 0 0 x 50 9"} {
		if got, err := spentTime(wrong); err == nil {
			t.Errorf("%q: got %v", wrong, got)
		}
	}
}

func TestWhatRedisBenchmarkPrintsIsRead(t *testing.T) {
	const head = `"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"` + "\n"
	got, err := readRedisBenchmark([]byte(head + `"GET","68266.67","11.853","11.696","11.855","11.975","12.007","12.1"` + "\n"))
	if want := (answer{68266.67, 11.855, 12.007}); err != nil || got != want {
		t.Errorf("got %v, %v", got, err)
	}
	for _, wrong := range []string{"", head, head + `"GET","fast","1","1","1","1","1","1"` + "\n", "\"test\",\"rps\"\n\"GET\",\"1\"\n"} {
		if got, err := readRedisBenchmark([]byte(wrong)); err == nil {
			t.Errorf("%q: got %v", wrong, got)
		}
	}
}

func TestMetricsAreAddedByLabel(t *testing.T) {
	const page = "# HELP farpool_pool_trips_total x\nfarpool_pool_trips_total{operation=\"get\",worker=\"0\"} 3\nfarpool_pool_trips_total{operation=\"get\",worker=\"1\"} 4\n" +
		"farpool_pool_trips_total{operation=\"put\",worker=\"0\"} 100\nfarpool_pool_trips_total_more{operation=\"get\"} 100\n"
	got, err := sumOf(bufio.NewScanner(strings.NewReader(page)), "farpool_pool_trips_total", `operation="get"`)
	if err != nil || got != 7 {
		t.Errorf("got %g, %v", got, err)
	}
	if _, err := sumOf(bufio.NewScanner(strings.NewReader(page)), "farpool_pool_trips_total", `operation="del"`); err == nil {
		t.Error("a label that nothing has gave a sum")
	}
}

func TestRequestsOfDialects(t *testing.T) {
	for name, want := range map[string][2]string{
		"resp":      {"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000042\r\n$3\r\nabc\r\n", "*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000042\r\n"},
		"memcached": {"set key:000000000042 0 0 3\r\nabc\r\n", "get key:000000000042\r\n"},
	} {
		d := dialects[name]
		if got := string(d.set(nil, 42, []byte("abc"))); got != want[0] {
			t.Errorf("%s: %q", name, got)
		}
		if got := string(d.get(nil, 42)); got != want[1] {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestRepliesOfDialects(t *testing.T) {
	for _, c := range []struct {
		dialect, operation, reply string
		good                      bool
	}{
		{"resp", "set", "+OK\r\n", true},
		{"resp", "set", "-OOM no memory\r\n", false},
		{"resp", "get", "$3\r\nabc\r\n", true},
		{"resp", "get", "$3\r\nabcd\r\n", false},
		{"resp", "get", "$4\r\nabcd\r\n", false},
		{"resp", "get", "$-1\r\n", false},
		{"resp", "get", "$3\r\nab", false},
		{"resp", "get", "\n", false},
		{"resp", "get", "-ERR 3\r\n", false},
		{"memcached", "set", "STORED\r\n", true},
		{"memcached", "set", "SERVER_ERROR out of memory storing object\r\n", false},
		{"memcached", "get", "VALUE key:000000000042 0 3\r\nabc\r\nEND\r\n", true},
		{"memcached", "get", "VALUE key:000000000042 0 4\r\nabcd\r\nEND\r\n", false},
		{"memcached", "get", "END\r\n", false},
		{"memcached", "get", "VALUE key:000000000042 0 3\r\nabc\r\nVALUE", false},
	} {
		err := load{operation: c.operation, size: 3}.read(dialects[c.dialect], bufio.NewReader(strings.NewReader(c.reply)))
		if (err == nil) != c.good {
			t.Errorf("%s, %s answered with %q: %v", c.dialect, c.operation, c.reply, err)
		}
	}
}

// serve answers SETs and GETs of one connection as redis-server would, from a value of three bytes, and counts them.
func serve(connection net.Conn, operations *[]string) {
	defer connection.Close()
	reader, writer := bufio.NewReader(connection), bufio.NewWriter(connection)
	for {
		var words []string
		line, err := reader.ReadString('\n')
		if err != nil {
			return
		}
		for range line[1] - '0' {
			if _, err := reader.ReadString('\n'); err != nil {
				return
			}
			word, err := reader.ReadString('\n')
			if err != nil {
				return
			}
			words = append(words, strings.TrimSpace(word))
		}
		*operations = append(*operations, words[0])
		reply := map[string]string{"SET": "+OK\r\n", "GET": "$3\r\nabc\r\n"}[words[0]]
		if _, err := writer.WriteString(reply); err != nil {
			return
		}
		// Nobody reads replies while a pipeline is being written.
		if reader.Buffered() == 0 && writer.Flush() != nil {
			return
		}
	}
}

func TestBuiltInGeneratorSendsWhatItIsAskedFor(t *testing.T) {
	for _, operation := range []string{"set", "get"} {
		ends, counted := make(chan struct{}, 3), make([][]string, 3)
		connections := 0
		l := load{operation: operation, clients: 3, pipeline: 7, keys: 10, size: 3, requests: 100}
		got, err := drive(l, dialects["resp"], func() (net.Conn, error) {
			ours, theirs := net.Pipe()
			operations := &counted[connections]
			connections++
			go func() {
				serve(theirs, operations)
				ends <- struct{}{}
			}()
			return ours, nil
		})
		if err != nil || got.Rate <= 0 || got.P99 < got.P50 {
			t.Errorf("%s: got %v, %v", operation, got, err)
		}
		sum := 0
		for range counted {
			<-ends
		}
		for _, of := range counted {
			for _, each := range of {
				if each != strings.ToUpper(operation) {
					t.Fatalf("%s: the server saw %s", operation, each)
				}
			}
			sum += len(of)
		}
		if sum != l.requests {
			t.Errorf("%s: the server saw %d operations, want %d", operation, sum, l.requests)
		}
	}
}

func TestBuiltInGeneratorReportsAMissingValue(t *testing.T) {
	l := load{operation: "get", clients: 1, pipeline: 1, keys: 10, size: 4, requests: 1}
	_, err := drive(l, dialects["resp"], func() (net.Conn, error) {
		ours, theirs := net.Pipe()
		go serve(theirs, new([]string))
		return ours, nil
	})
	if err == nil || !strings.Contains(err.Error(), "a value of 4 bytes was answered with") {
		t.Errorf("got %v", err)
	}
}

func TestListsOfFlags(t *testing.T) {
	parse := func(args ...string) (options, error) {
		var o options
		flags := flag.NewFlagSet("bench", flag.ContinueOnError)
		flags.SetOutput(io.Discard)
		o.register(flags)
		return o, flags.Parse(args)
	}
	o, err := parse("-protocol", "race, RCUCKOO", "-tls", "on", "-pipelines", "1,16,64", "-values", "16,16384", "-memory", "512")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(o.protocols.values, []string{"RACE", "RCuckoo"}) || !reflect.DeepEqual(o.tls.values, []bool{true}) ||
		!reflect.DeepEqual(o.pipelines.values, []int{1, 16, 64}) || !reflect.DeepEqual(o.values.values, []int{16, 16384}) {
		t.Errorf("%v %v %v %v", o.protocols.values, o.tls.values, o.pipelines.values, o.values.values)
	}
	if few, many := o.keysOf(16384), o.keysOf(16); few != 512<<20/4/(16384+64) || many != 100_000 {
		t.Errorf("keys: %d of large values, %d of small ones", few, many)
	}
	if defaults, err := parse(); err != nil || !reflect.DeepEqual(defaults.tls.values, []bool{false, true}) {
		t.Errorf("%v, %v", defaults.tls.values, err)
	}
	for _, wrong := range [][]string{
		{"-protocol", "cuckoo"}, {"-protocol", ""}, {"-tls", "yes"}, {"-tls", "on,on"}, {"-pipelines", "0"}, {"-pipelines", "1,,16"},
		{"-clients", "1001"}, {"-values", "2097152"}, {"-values", "64b"},
	} {
		if _, err := parse(wrong...); err == nil {
			t.Errorf("%v was taken", wrong)
		}
	}
}

func TestOptionsThatCannotBeMeasuredAreRefused(t *testing.T) {
	for part, args := range map[string][]string{
		"-runs":          {"-runs", "0"},
		"-seconds":       {"-seconds", "100"},
		"no wire":        {"-wire", "verbs"},
		"-spin":          {"-spin", "2s"},
		"give more":      {"-memory", "64", "-values", "1048576"},
		"-memory must":   {"-memory", "1"},
		"`make daemons`": {"-bin", t.TempDir()},
	} {
		var o options
		flags := flag.NewFlagSet("bench", flag.ContinueOnError)
		o.register(flags)
		if err := flags.Parse(args); err != nil {
			t.Fatal(err)
		}
		if err := o.wrong(); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v: got %v, want %q in it", args, err, part)
		}
	}
}

func TestRequestsAreWholePipelines(t *testing.T) {
	for _, one := range []struct{ requests, pipeline, want int }{{1000, 16, 1008}, {1000, 1, 1000}, {64, 64, 64}, {65, 64, 128}} {
		if got := inBatches(one.requests, one.pipeline); got != one.want {
			t.Errorf("%d in pipelines of %d: %d, want %d", one.requests, one.pipeline, got, one.want)
		}
	}
}
