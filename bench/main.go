// Command bench measures lnk against what it is made of, and writes
// bench/RESULTS.md. It needs root, for the namespaces of its internet, and
// the folder of built programs in LNK_BIN.
//
// Each figure is the median of paired runs, one of each in turn, so that a
// ratio holds when the machine's speed drifts.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

func main() {
	if len(os.Args) > 1 {
		client(os.Args[1:])
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	bin, err := programs()
	if err != nil {
		return err
	}
	entered, code, err := testnet.Reexec(bin)
	if err != nil {
		return err
	}
	if !entered {
		os.RemoveAll(bin)
		os.Exit(code)
	}
	internet, err := testnet.New()
	if err != nil {
		return err
	}
	b := &bench{internet: internet}
	parts := []struct {
		name    string
		measure func() error
	}{
		{"start", b.start}, {"commands", b.commands}, {"memory", b.memory}, {"binds", b.binds}, {"slots", b.slots}, {"download", b.download},
		{"connections", b.connections}, {"names", b.names}, {"gets", b.gets}, {"tunnels", b.tunnels},
	}
	// BENCH=binds,slots measures these anew, and keeps the other rows.
	only := os.Getenv("BENCH")
	for _, part := range parts {
		if only != "" && !slices.Contains(strings.Split(only, ","), part.name) {
			continue
		}
		fmt.Fprintln(os.Stderr, "measuring", part.name)
		if err := part.measure(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	if only != "" {
		if err := b.keepOthers("bench/RESULTS.md"); err != nil {
			return err
		}
	}
	return os.WriteFile("bench/RESULTS.md", []byte(b.results()), 0o644)
}

// programs copies what LNK_BIN has, and this program, to one folder. In the
// namespaces it is there already.
func programs() (string, error) {
	source := os.Getenv("LNK_BIN")
	if source == "" {
		return "", fmt.Errorf("LNK_BIN is not set: run make bench")
	}
	dir, err := os.MkdirTemp("", "lnk-bench-")
	if err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	for name, path := range map[string]string{
		"lnk": source + "/lnk", "lnk-relay": source + "/lnk-relay", "link-sandbox-proxy": source + "/link-sandbox-proxy", "lnk-supervisor": source + "/lnk-supervisor", "bench": self,
	} {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o755); err != nil {
			return "", err
		}
	}
	return dir, nil
}

type bench struct {
	internet *testnet.Internet
	rows     []row
	steps    []string
}

// keepOthers reads the rows that weren't measured now from the last results.
func (b *bench) keepOthers(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	measured := b.rows
	b.rows = nil
	take := func(what string) bool {
		i := slices.IndexFunc(measured, func(r row) bool { return r.what == what })
		if i >= 0 {
			b.rows = append(b.rows, measured[i])
			measured = slices.Delete(measured, i, i+1)
		}
		return i >= 0
	}
	for line := range strings.Lines(string(data)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		switch {
		case strings.HasPrefix(line, "    "):
			b.steps = append(b.steps, strings.TrimSpace(line))
		case len(cells) == 5 && strings.HasPrefix(line, "| ") && cells[0] != "| what":
			what := strings.TrimPrefix(cells[0], "| ")
			if !take(what) {
				b.rows = append(b.rows, row{what, cells[1], cells[2], cells[3], strings.TrimSuffix(cells[4], " |")})
			}
		}
	}
	b.rows = append(b.rows, measured...)
	return nil
}

type row struct{ what, measured, limit, ratio, reach string }

func (b *bench) results() string {
	var text strings.Builder
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	bwrap, _ := exec.Command("/usr/bin/bwrap", "--version").Output()
	fmt.Fprintf(&text, "# Results\n\nWritten by `make bench` on %s: Linux %s, %s, %s, %d processors.\nMedians of paired runs; the ratio is the median of each pair's. bwrap alone is given the arguments that lnk gives it, and true to run.\n\n",
		time.Now().UTC().Format("2006-01-02"), strings.TrimSpace(string(kernel)), strings.TrimSpace(string(bwrap)), runtime.Version(), runtime.NumCPU())
	text.WriteString("| what | measured | beside | ratio | must reach |\n|---|---|---|---|---|\n")
	for _, r := range b.rows {
		fmt.Fprintf(&text, "| %s | %s | %s | %s | %s |\n", r.what, r.measured, r.limit, r.ratio, r.reach)
	}
	text.WriteString("\nThe steps of one start with a proxy, as `--verbose` tells them:\n\n")
	for _, step := range b.steps {
		text.WriteString("    " + step + "\n")
	}
	return text.String()
}

// pairs runs two things in turn and returns each one's median and the median ratio.
func pairs(n int, one, other func() (float64, error)) (a, b, ratio float64, err error) {
	var as, bs, ratios []float64
	for i := range n + 1 {
		x, err := one()
		if err != nil {
			return 0, 0, 0, err
		}
		y, err := other()
		if err != nil {
			return 0, 0, 0, err
		}
		if i > 0 { // the first warms up
			as, bs, ratios = append(as, x), append(bs, y), append(ratios, x/y)
		}
	}
	return median(as), median(bs), median(ratios), nil
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// timed returns how long a command takes, in milliseconds.
func timed(name string, args ...string) func() (float64, error) {
	return func() (float64, error) {
		cmd := testnet.Command(name, args...)
		start := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("%s %v: %w: %s", name, args, err, out)
		}
		return float64(time.Since(start).Microseconds()) / 1000, nil
	}
}

// start measures the start and the end of a run against bwrap alone.
func (b *bench) start() error {
	bwrap, err := bwrapAlone(nil)
	if err != nil {
		return err
	}
	const n = 60
	for _, test := range []struct {
		what  string
		flags []string
		reach string
	}{
		{"`run -- true`, no network", nil, "≤ 2.5 × bwrap"},
		{"`run --internet-host x -- true`, proxy and relay up", []string{"--internet-host", "x.test"}, "≤ 5 × bwrap, ≤ 35 ms"},
	} {
		args := append(append([]string{"sandbox", "run"}, test.flags...), "--", "true")
		lnk, base, ratio, err := pairs(n, timed(testnet.Lnk, args...), bwrap)
		if err != nil {
			return err
		}
		b.rows = append(b.rows, row{test.what, fmt.Sprintf("%.1f ms", lnk), fmt.Sprintf("bwrap alone %.1f ms", base), fmt.Sprintf("%.2f ×", ratio), test.reach})
	}
	if err := b.startPlain(); err != nil {
		return err
	}
	out, err := testnet.Command(testnet.Lnk, "sandbox", "run", "--verbose", "--internet-host", "x.test", "--", "true").CombinedOutput()
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, " ms ") {
			b.steps = append(b.steps, strings.TrimSpace(strings.TrimPrefix(line, "lnk sandbox:")))
		}
	}
	return nil
}

const bwrapPath = "/usr/bin/bwrap"

// bwrapAlone runs true in bwrap with the very arguments that lnk gives it: the
// same namespaces and file system, without relay, nested namespace and runner.
func bwrapAlone(change func([]string) []string) (func() (float64, error), error) {
	args, err := bwrapArgs()
	if err != nil {
		return nil, err
	}
	if change != nil {
		args = change(args)
	}
	const firstExtra = 3
	var contents []string
	for i, arg := range args {
		if arg != "--file" {
			continue
		}
		args[i+1] = fmt.Sprint(firstExtra + len(contents))
		contents = append(contents, args[i+2])
	}
	args[len(args)-1] = "/usr/bin/true"
	return func() (float64, error) {
		cmd := testnet.Command(bwrapPath, args...)
		for _, path := range contents {
			file, err := os.Open(path)
			if err != nil {
				return 0, err
			}
			defer file.Close()
			cmd.ExtraFiles = append(cmd.ExtraFiles, file)
		}
		start := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("bwrap: %w: %s", err, out)
		}
		return float64(time.Since(start).Microseconds()) / 1000, nil
	}, nil
}

// bwrapArgs learns them from lnk, by standing in for bwrap once.
func bwrapArgs() ([]string, error) {
	const spy, list = "/mnt/spy", "/tmp/bwrap-args"
	if err := os.WriteFile(spy, []byte("#!/bin/sh\nfor a in \"$@\"; do printf '%s\\0' \"$a\"; done >"+list+"\n"), 0o755); err != nil {
		return nil, err
	}
	if err := unix.Mount(spy, "/usr/bin/bwrap", "", unix.MS_BIND, ""); err != nil {
		return nil, err
	}
	testnet.Command(testnet.Lnk, "sandbox", "run", "--", "true").Run() // the spy builds no sandbox
	if err := unix.Unmount("/usr/bin/bwrap", 0); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(list)
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), nil
}

// memory measures what an idle proxy and relay weigh.
func (b *bench) memory() error {
	cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "x.test", "--", "sh", "-c", "echo up; exec sleep 60")
	if err := startUp(cmd); err != nil {
		return err
	}
	defer func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Process.Kill()
		cmd.Wait()
	}()
	time.Sleep(2 * time.Second) // idle, as it would be
	for _, p := range []struct{ what, name, reach string }{
		{"an idle proxy (PSS)", "link-sandbox-proxy", "≤ 8 MiB"}, {"an idle relay (PSS)", "/run/lnk/lnk-relay", "≤ 3.5 MiB"},
	} {
		pss, err := pssOf(p.name)
		if err != nil {
			return err
		}
		b.rows = append(b.rows, row{p.what, fmt.Sprintf("%.1f MiB", pss), "", "", p.reach})
	}
	return nil
}

// pssOf is the proportional set size of the one process whose command line
// begins with, or whose program is, name.
func pssOf(name string) (float64, error) {
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range commands {
		command, _ := os.ReadFile(path)
		first, _, _ := strings.Cut(string(command), "\x00")
		if first != name && filepath.Base(first) != name {
			continue
		}
		var pid int
		fmt.Sscan(filepath.Base(filepath.Dir(path)), &pid)
		return pssOfPID(pid)
	}
	return 0, fmt.Errorf("no process %s", name)
}

// pssOfPID is the proportional set size of a process, in MiB.
func pssOfPID(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "Pss: %f kB", &kib); n == 1 {
			return kib / 1024, nil
		}
	}
	return 0, fmt.Errorf("process %d has no size", pid)
}
