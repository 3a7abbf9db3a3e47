// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Web asks daemons over HTTP. No connection is kept: the process behind an address may have been killed since.
var Web = http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// Scrape reads the metrics page of a daemon at host:port; samples of one name are added up.
func Scrape(address string) (map[string]float64, error) {
	answer, err := Web.Get("http://" + address + "/metrics")
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return samples(answer.Body)
}

func samples(page io.Reader) (map[string]float64, error) {
	sums := map[string]float64{}
	lines := bufio.NewScanner(page)
	for lines.Scan() {
		line := lines.Text()
		space := strings.LastIndexByte(line, ' ')
		if space < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		value, err := strconv.ParseFloat(line[space+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metrics: %w in %q", err, line)
		}
		name, _, _ := strings.Cut(line[:space], "{")
		sums[name] += value
	}
	return sums, lines.Err()
}

// Counts in words, by name.
func Counts(of map[string]int) string {
	var parts []string
	for name, count := range of {
		if count > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", name, count))
		}
	}
	slices.Sort(parts)
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
