package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// report is all that was measured last, kept in results.json: RESULTS.md and
// the plots are made of it.
type report struct {
	Date string `json:"date"`
	// Machine is what it was measured on, Versions with what.
	Machine  string            `json:"machine"`
	Versions map[string]string `json:"versions"`
	// Missing are the peers that this machine hasn't, or that failed at a part.
	Missing []missing `json:"missing"`
	Rows    []row     `json:"rows"`
	Growth  []growth  `json:"growth"`
	// Steps are those of one start with a proxy, as --verbose tells them.
	Steps []string `json:"steps"`
}

type missing struct {
	Part string `json:"part,omitempty"` // empty: it isn't on PATH
	Name string `json:"name"`
}

// row is one figure.
type row struct {
	Part string `json:"part"` // of the benchmark, as BENCH names it
	What string `json:"what"`
	figure
	Beside []beside `json:"beside,omitempty"`
	Reach  string   `json:"reach,omitempty"`
}

// besides are what stands beside it, in words.
func (r row) besides() (lines []string) {
	for _, b := range r.Beside {
		lines = append(lines, fmt.Sprintf("%s %s: %s", b.Name, b.Sample.in(r.Unit), ratio(b.Ratio, r.Unit)))
	}
	return lines
}

// figure is what was measured: a sample, or words where it has several parts.
type figure struct {
	Sample *sample `json:"sample,omitempty"`
	Unit   string  `json:"unit,omitempty"`
	Text   string  `json:"text,omitempty"`
}

func (f figure) String() string {
	if f.Sample == nil {
		return f.Text
	}
	text := f.Sample.in(f.Unit)
	if f.Text != "" {
		text += "; " + f.Text
	}
	return text
}

// beside is what a user would have instead, measured in the same turns.
type beside struct {
	Name   string `json:"name"`
	Sample sample `json:"sample"`
	// Ratio is ours to it: the median of each turn's.
	Ratio float64 `json:"ratio"`
}

// growth is how figures grow with a number.
type growth struct {
	Part    string   `json:"part"`
	What    string   `json:"what"`
	Of      string   `json:"of"`      // what is counted
	Columns []string `json:"columns"` // what is measured, with its unit
	Points  []point  `json:"points"`
	Grows   string   `json:"grows"` // what of it does, in words
}

type point struct {
	N      int       `json:"n"`
	Values []float64 `json:"values"`
}

// load reads the last report, so that parts can be measured alone.
func load(path string) (report, error) {
	var r report
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

// with has also what an earlier report has of other parts than those that were
// measured now, in the order of all parts.
func (r report) with(earlier report, measured, all []string) *report {
	r.Rows, r.Growth = slices.Clone(r.Rows), slices.Clone(r.Growth)
	old := func(part string) bool { return !slices.Contains(measured, part) && slices.Contains(all, part) }
	for _, row := range earlier.Rows {
		if old(row.Part) {
			r.Rows = append(r.Rows, row)
		}
	}
	for _, g := range earlier.Growth {
		if old(g.Part) {
			r.Growth = append(r.Growth, g)
		}
	}
	r.Missing = slices.Clone(r.Missing)
	for _, m := range earlier.Missing {
		if old(m.Part) {
			r.Missing = append(r.Missing, m)
		}
	}
	if len(r.Steps) == 0 {
		r.Steps = earlier.Steps
	}
	slices.SortStableFunc(r.Rows, func(a, b row) int { return slices.Index(all, a.Part) - slices.Index(all, b.Part) })
	slices.SortStableFunc(r.Growth, func(a, b growth) int { return slices.Index(all, a.Part) - slices.Index(all, b.Part) })
	return &r
}

// write writes results.json and RESULTS.md.
func (r *report) write(folder string) error {
	data, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(folder+"/results.json", append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(folder+"/RESULTS.md", []byte(r.markdown()), 0o644)
}

func (r *report) markdown() string {
	var text strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&text, format, args...) }
	say("# Results\n\nWritten by `make bench` on %s, on %s.\n\n", r.Date, r.Machine)
	say("Each is a median, with its quartiles in brackets. What stands beside it was measured in turn with it, and the ratio is the median of the turns', so that it holds when the machine's speed drifts.\n")
	say("bwrap alone is given the arguments that lnk gives it, and true to run. [How these figures come about](../docs/performance.md), part by part.\n\n")
	var versions []string
	for name, version := range r.Versions {
		versions = append(versions, name+" "+version)
	}
	slices.Sort(versions)
	say("Measured with: %s.\n", strings.Join(versions, ", "))
	for _, m := range r.Missing {
		if m.Part == "" {
			say("Left out is %s, which isn't on PATH.\n", m.Name)
		} else {
			say("Left out of %s is %s, which failed at it.\n", m.Part, m.Name)
		}
	}
	say("\n| what | measured | beside: its figure, and ours to it | must reach |\n|---|---|---|---|\n")
	for _, row := range r.Rows {
		say("| %s | %s | %s | %s |\n", row.What, row.figure, strings.Join(row.besides(), "<br>"), row.Reach)
	}
	say("\n![Throughput, start-up and memory beside the peers](peers.svg)\n")
	if len(r.Growth) > 0 {
		say("\n## Growth\n\n![What grows, and how](growth.svg)\n")
	}
	for _, g := range r.Growth {
		say("\n### %s\n\n| %s | %s |\n|%s\n", g.What, g.Of, strings.Join(g.Columns, " | "), strings.Repeat("---:|", len(g.Columns)+1))
		for _, p := range g.Points {
			say("| %s |", thousands(p.N))
			for _, v := range p.Values {
				say(" %s |", digits(v))
			}
			say("\n")
		}
		say("\n%s\n", g.Grows)
	}
	say("\n## The steps of one start with a proxy\n\nAs `--verbose` tells them:\n\n")
	for _, step := range r.Steps {
		say("    %s\n", step)
	}
	return text.String()
}

// ratio is of what is better the less it is, but for rates, of which it is a share.
func ratio(r float64, unit string) string {
	if strings.HasSuffix(unit, "/s") {
		return fmt.Sprintf("%.0f %%", 100*r)
	}
	return fmt.Sprintf("%.2f ×", r)
}

// digits gives a number three digits, or all that it has before its point.
func digits(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.1 || v == 0:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}

func thousands(n int) string {
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}
