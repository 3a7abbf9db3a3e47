// SPDX-License-Identifier: Apache-2.0

package charts

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// exported are the metrics that the operator's and the data plane's sources name.
func exported(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	quoted := regexp.MustCompile(`"(farpool_[a-z0-9_]+)"`)
	made := regexp.MustCompile(`(?:gauge|counter)\("([a-z0-9_]+)",`)
	// The data plane's tables of numbers, and what it puts before the names in them: in a loop of its own, or by Samples.
	table := regexp.MustCompile(`(?s)constexpr auto (k\w+) = std::to_array<base::Count<.*?\n\}\);`)
	row := regexp.MustCompile(`\{&\w+::\w+,\s*"([a-z_]+)"`)
	prefixed := regexp.MustCompile(`"(farpool_[a-z_]+_)" \+ std::string\(\w+::(k\w+)\[i\]\.name\) \+ "_total"`)
	sampled := regexp.MustCompile(`\.(counters|gauges)\("(farpool_[a-z_]+_)", \w+(?:::\w+)*::(k\w+),`)
	rows, prefixes, gauges := map[string][]string{}, map[string]string{}, map[string]bool{}
	for _, tree := range []string{"../operator", "../dataplane"} {
		err := filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "_test.cc") {
				return err
			}
			if ext := filepath.Ext(path); ext != ".go" && ext != ".cc" && ext != ".h" {
				return nil
			}
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			// The operator's are put together from a prefix and a name.
			for _, match := range made.FindAllStringSubmatch(string(source), -1) {
				names["farpool_operator_"+match[1]] = true
			}
			for _, match := range quoted.FindAllStringSubmatch(string(source), -1) {
				names[match[1]] = true
			}
			for _, match := range table.FindAllStringSubmatch(string(source), -1) {
				for _, counter := range row.FindAllStringSubmatch(match[0], -1) {
					rows[match[1]] = append(rows[match[1]], counter[1])
				}
			}
			for _, match := range prefixed.FindAllStringSubmatch(string(source), -1) {
				prefixes[match[2]] = match[1]
			}
			for _, match := range sampled.FindAllStringSubmatch(string(source), -1) {
				prefixes[match[3]], gauges[match[3]] = match[2], match[1] == "gauges"
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(prefixes) < 8 {
		t.Fatalf("found %d tables of numbers that become metrics: the check looked in the wrong place", len(prefixes))
	}
	count := 0
	for of, prefix := range prefixes {
		if len(rows[of]) == 0 {
			t.Fatalf("found no numbers in the table %s: the check looked in the wrong place", of)
		}
		count += len(rows[of])
		for _, number := range rows[of] {
			if gauges[of] {
				names[prefix+number] = true
			} else {
				names[prefix+number+"_total"] = true
			}
		}
	}
	if count < 40 {
		t.Fatalf("found %d numbers in tables: the check looked in the wrong place", count)
	}
	if len(names) < 10 {
		t.Fatalf("found %d metrics in the sources: the check looked in the wrong place", len(names))
	}
	return names
}

// asked are the metrics of an expression, without the suffixes that Prometheus gives to histograms.
func asked(expression string, known map[string]bool) []string {
	var names []string
	for _, name := range regexp.MustCompile(`\bfarpool_[a-z0-9_]+`).FindAllString(expression, -1) {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base := strings.TrimSuffix(name, suffix); base != name && known[base] {
				name = base
			}
		}
		names = append(names, name)
	}
	return names
}

func balanced(expression string) bool {
	var open []rune
	pairs := map[rune]rune{')': '(', ']': '[', '}': '{'}
	for _, r := range regexp.MustCompile(`"[^"]*"`).ReplaceAllString(expression, "") {
		switch r {
		case '(', '[', '{':
			open = append(open, r)
		case ')', ']', '}':
			if len(open) == 0 || open[len(open)-1] != pairs[r] {
				return false
			}
			open = open[:len(open)-1]
		}
	}
	return len(open) == 0
}

func TestAlerts(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(chart, "files", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []struct {
				Alert       string            `json:"alert"`
				Expr        string            `json:"expr"`
				For         string            `json:"for"`
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.UnmarshalStrict(data, &rules); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	known := exported(t)
	count := 0
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			count++
			if !balanced(rule.Expr) {
				t.Errorf("%s: brackets do not match in %s", rule.Alert, rule.Expr)
			}
			for _, name := range asked(rule.Expr, known) {
				if !known[name] {
					t.Errorf("%s asks for %s, which nothing exports", rule.Alert, name)
				}
			}
			if s := rule.Labels["severity"]; s != "warning" && s != "critical" {
				t.Errorf("%s has severity %q", rule.Alert, s)
			}
			if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
				t.Errorf("%s says too little", rule.Alert)
			}
			// The runbook is a heading of the page for operators, and the page names the alert.
			heading, found := strings.CutPrefix(rule.Annotations["runbook_url"], "https://farpool.dev/docs/operations/#")
			title := ""
			for _, line := range strings.Split(string(page), "\n") {
				text := strings.TrimLeft(line, "# ")
				anchor := strings.ReplaceAll(strings.ToLower(regexp.MustCompile(`[^\w -]`).ReplaceAllString(text, "")), " ", "-")
				if strings.HasPrefix(line, "#") && anchor == heading {
					title = text
				}
			}
			if !found || title == "" {
				t.Errorf("%s has runbook_url %q, which docs/operations.md has not", rule.Alert, rule.Annotations["runbook_url"])
			}
			if !strings.Contains(string(page), "`"+rule.Alert+"`") {
				t.Errorf("docs/operations.md does not name alert %s", rule.Alert)
			}
		}
	}
	if count == 0 {
		t.Fatal("no alerts")
	}
}

func TestDashboard(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(chart, "files", "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	type target struct {
		Expr  string `json:"expr"`
		RefID string `json:"refId"`
	}
	type grid struct{ H, W, X, Y int }
	var dashboard struct {
		Title  string `json:"title"`
		UID    string `json:"uid"`
		Panels []struct {
			ID      int      `json:"id"`
			Title   string   `json:"title"`
			Type    string   `json:"type"`
			GridPos grid     `json:"gridPos"`
			Targets []target `json:"targets"`
		} `json:"panels"`
		Templating struct {
			List []struct {
				Name  string `json:"name"`
				Query any    `json:"query"`
			} `json:"list"`
		} `json:"templating"`
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	if dashboard.Title == "" || dashboard.UID == "" || len(dashboard.Panels) == 0 {
		t.Fatal("the dashboard has no title, uid or panels")
	}
	known := exported(t)
	ids := map[int]bool{}
	for i, panel := range dashboard.Panels {
		if ids[panel.ID] {
			t.Errorf("panel id %d twice", panel.ID)
		}
		ids[panel.ID] = true
		if g := panel.GridPos; g.W < 1 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("%s lies outside the grid", panel.Title)
		}
		for _, other := range dashboard.Panels[:i] {
			a, b := panel.GridPos, other.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%s lies over %s", panel.Title, other.Title)
			}
		}
		for _, q := range panel.Targets {
			if !balanced(q.Expr) {
				t.Errorf("%s: brackets do not match in %s", panel.Title, q.Expr)
			}
			names := asked(q.Expr, known)
			if len(names) == 0 {
				t.Errorf("%s asks for no metric of ours: %s", panel.Title, q.Expr)
			}
			for _, name := range names {
				if !known[name] {
					t.Errorf("%s asks for %s, which nothing exports", panel.Title, name)
				}
			}
		}
	}
}
