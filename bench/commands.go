package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"link.internal/lnk/integration/testnet"
)

// executions starts a dynamic program n times, one after the other, and
// returns µs each.
func executions(n int) (float64, error) {
	start := time.Now()
	for range n {
		if err := exec.Command("/usr/bin/true").Run(); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(start).Microseconds()) / float64(n), nil
}

// commands measures what a list of programs costs.
func (b *bench) commands() error {
	bench := testnet.BinDir + "/bench"
	if err := b.paired("an execution under a list: both looks, and Landlock", "µs", "≤ 1.25 × one without", 15,
		measuredWith([]string{"--command", "true", "--command", bench}, "executions", "400"), []contender{{"without a list", measuredWith(nil, "executions", "400")}}); err != nil {
		return err
	}
	const many = "/srv/many"
	if err := os.Mkdir(many, 0o755); err != nil {
		return err
	}
	program, err := os.ReadFile("/usr/bin/true")
	if err != nil {
		return err
	}
	var entries []string
	for i := range 2000 {
		path := filepath.Join(many, fmt.Sprint(i))
		if err := os.WriteFile(path, program, 0o755); err != nil {
			return err
		}
		entries = append(entries, fmt.Sprintf("%q", path))
	}
	specOf := func(n int) (string, error) {
		path := filepath.Join(many, fmt.Sprintf("%d.toml", n))
		return path, os.WriteFile(path, []byte("read = [\".\"]\n[commands]\nallow = [\"true\","+strings.Join(entries[:n], ",")+"]\n"), 0o644)
	}
	bwrap, err := bwrapAlone(nil)
	if err != nil {
		return err
	}
	g := growth{
		What: "A list of programs", Of: "entries", Columns: []string{"`spec check`, ms", "`run --spec … -- true`, ms", "bwrap alone, ms"},
		Grows: "Each entry is looked for, opened, read for its interpreter, and gets its rule in Landlock and its line in the list of the relay.",
	}
	for _, n := range []int{1, 10, 100, 1000, 2000} {
		spec, err := specOf(n)
		if err != nil {
			return err
		}
		check, err := repeated(15, timed(testnet.Lnk, "sandbox", "spec", "check", spec))
		if err != nil {
			return err
		}
		run, alone, err := inTurn(25, timed(testnet.Lnk, "sandbox", "run", "--spec", spec, "--", "true"), contender{"bwrap alone", bwrap})
		if err != nil {
			return err
		}
		g.Points = append(g.Points, point{n, []float64{check.Median, run.Median, alone[0].Sample.Median}})
		switch n {
		case 1:
			b.add("`run --spec one.toml -- true`, a list of one", figure{Sample: run, Unit: "ms"}, "≤ 2.5 × bwrap", alone...)
		case 2000:
			b.add("resolving a list of 2,000 entries: `spec check` of them without that of one", one(check.Median-g.Points[0].Values[0], "ms"), "≤ 20 ms")
		}
	}
	b.grows(g)
	return nil
}
