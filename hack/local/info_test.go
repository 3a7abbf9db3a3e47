// SPDX-License-Identifier: Apache-2.0

//go:build daemons

package local

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"farpool.dev/farpool/e2e/chaos"
)

// TestInfoIsReadByRedisTools has the tools that people watch Redis with read the figures of a compute shard: Debian's redis_exporter, and redis-cli --stat.
func TestInfoIsReadByRedisTools(t *testing.T) {
	begun := time.Now()
	c := start(t, nil)
	served := time.Now()

	var port ports
	port.next = 20000 + os.Getpid()%10000 + 100
	at, err := port.take()
	if err != nil {
		t.Fatal(err)
	}
	exporter := exec.CommandContext(t.Context(), "prometheus-redis-exporter", "-redis.addr", "redis://"+c.Target.Shards[0], "-web.listen-address", at)
	exporter.Stderr = t.Output()
	if err := exporter.Start(); err != nil {
		t.Fatalf("%v; hack/deps installs it", err)
	}
	t.Cleanup(func() { _ = exporter.Process.Kill(); _ = exporter.Wait() })
	scrape := func() (page map[string]float64) {
		t.Helper()
		err := chaos.Eventually(t.Context(), chaos.Patience, func() (err error) {
			if page, err = chaos.Scrape(at); err == nil && (page["redis_up"] != 1 || page["redis_exporter_last_scrape_error"] != 0) {
				err = fmt.Errorf("redis_exporter cannot read the shard: up %g, errors %g", page["redis_up"], page["redis_exporter_last_scrape_error"])
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return page
	}
	before := scrape()

	const keys, size = 500, 100
	client := c.Target.Connect(0)
	t.Cleanup(func() { _ = client.Close() })
	for i := range keys {
		if err := client.Set(t.Context(), fmt.Sprint("key:", i), strings.Repeat("x", size), 0).Err(); err != nil {
			t.Fatal(err)
		}
		if got, err := client.Get(t.Context(), fmt.Sprint("key:", i)).Result(); err != nil || len(got) != size {
			t.Fatalf("key %d has %q: %v", i, got, err)
		}
	}
	after := scrape()
	within := func(name string, value, least, most float64) {
		t.Helper()
		if value < least || value > most {
			t.Errorf("%s is %g, and should be %g to %g", name, value, least, most)
		}
	}
	// The scrapes' own commands are a few, and so are those with which a client introduces itself.
	within("redis_commands_processed_total", after["redis_commands_processed_total"]-before["redis_commands_processed_total"], 2*keys, 2*keys+50)
	within("redis_keyspace_hits_total", after["redis_keyspace_hits_total"]-before["redis_keyspace_hits_total"], keys, keys)
	within("redis_net_input_bytes_total", after["redis_net_input_bytes_total"]-before["redis_net_input_bytes_total"], keys*size, keys*(2*size+200))
	within("redis_uptime_in_seconds", after["redis_uptime_in_seconds"], time.Since(served).Seconds()-2, time.Since(begun).Seconds()+1)
	within("redis_uptime_in_seconds", after["redis_uptime_in_seconds"]-before["redis_uptime_in_seconds"], 0, time.Since(served).Seconds()+1)
	// What the shard has allocated: more than a megabyte of buffers, less than what the kernel holds for it, and nothing of the 64 MiB of the memory node.
	within("redis_memory_used_bytes", after["redis_memory_used_bytes"], 1<<20, 64<<20)
	within("redis_memory_used_rss_bytes", after["redis_memory_used_rss_bytes"], after["redis_memory_used_bytes"]/2, 1<<30)
	within("redis_connected_clients", after["redis_connected_clients"], 1, 10)

	host, shardPort, err := net.SplitHostPort(c.Target.Shards[0])
	if err != nil {
		t.Fatal(err)
	}
	// Its output is a screen's, which is not written line by line to anything else.
	stat := exec.CommandContext(t.Context(), "stdbuf", "-oL", "redis-cli", "-h", host, "-p", shardPort, "-i", "0.2", "--stat")
	stat.Stderr = t.Output()
	out, err := stat.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := stat.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.AfterFunc(chaos.Patience, func() { _ = stat.Process.Kill() })
	defer deadline.Stop()
	var requests []float64
	for lines := bufio.NewScanner(out); len(requests) < 3 && lines.Scan(); {
		// keys       mem      clients blocked requests            connections
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[0] == "keys" || strings.HasPrefix(fields[0], "-") {
			continue
		}
		number := func(text string) float64 {
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatalf("redis-cli --stat says %q: %v", lines.Text(), err)
			}
			return value
		}
		if !strings.HasSuffix(fields[1], "M") {
			t.Errorf("redis-cli --stat says %q: memory of some megabytes is wanted", lines.Text())
		}
		within("clients", number(fields[2]), 1, 10)
		within("blocked", number(fields[3]), 0, 0)
		within("connections", number(fields[len(fields)-1]), 2, 100)
		requests = append(requests, number(fields[4]))
	}
	_ = stat.Process.Kill()
	_ = stat.Wait()
	if len(requests) < 3 {
		t.Fatalf("redis-cli --stat has shown %d lines in %s", len(requests), chaos.Patience)
	}
	within("requests", requests[0], after["redis_commands_processed_total"], after["redis_commands_processed_total"]+50)
	for i := 1; i < len(requests); i++ {
		within("requests since the line before: its own INFO", requests[i]-requests[i-1], 1, 1)
	}
}
