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
	listed, free, ratio, err := pairs(15, measuredWith([]string{"--command", "true", "--command", bench}, "executions", "400"), measuredWith(nil, "executions", "400"))
	if err != nil {
		return err
	}
	b.rows = append(b.rows, row{"an execution under a list: both looks, and Landlock", fmt.Sprintf("%.0f µs", listed), fmt.Sprintf("without a list %.0f µs", free), fmt.Sprintf("%.2f ×", ratio), "≤ 1.25 ×"})

	const folder = "/srv/many"
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	program, err := os.ReadFile("/usr/bin/true")
	if err != nil {
		return err
	}
	var entries []string
	for i := range 2000 {
		path := filepath.Join(folder, fmt.Sprint(i))
		if err := os.WriteFile(path, program, 0o755); err != nil {
			return err
		}
		entries = append(entries, fmt.Sprintf("%q", path))
	}
	specOf := func(name string, entries ...string) (string, error) {
		path := filepath.Join(folder, name)
		return path, os.WriteFile(path, []byte("read = [\".\"]\n[commands]\nallow = [\"true\","+strings.Join(entries, ",")+"]\n"), 0o644)
	}
	one, err := specOf("one.toml")
	if err != nil {
		return err
	}
	many, err := specOf("many.toml", entries...)
	if err != nil {
		return err
	}
	all, few, _, err := pairs(25, timed(testnet.Lnk, "sandbox", "spec", "check", many), timed(testnet.Lnk, "sandbox", "spec", "check", one))
	if err != nil {
		return err
	}
	b.rows = append(b.rows, row{"resolving a list of 2,000 entries", fmt.Sprintf("%.1f ms", all-few), fmt.Sprintf("`spec check` %.1f ms, of one entry %.1f ms", all, few), "", "≤ 20 ms"})
	bwrap, err := bwrapAlone(nil)
	if err != nil {
		return err
	}
	for _, test := range []struct{ what, spec, reach string }{
		{"`run --spec one.toml -- true`, a list of one", one, "≤ 2.5 × bwrap"}, {"the same with a list of 2,000", many, ""},
	} {
		lnk, base, ratio, err := pairs(30, timed(testnet.Lnk, "sandbox", "run", "--spec", test.spec, "--", "true"), bwrap)
		if err != nil {
			return err
		}
		b.rows = append(b.rows, row{test.what, fmt.Sprintf("%.1f ms", lnk), fmt.Sprintf("bwrap alone %.1f ms", base), fmt.Sprintf("%.2f ×", ratio), test.reach})
	}
	return nil
}
