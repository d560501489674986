// Command bench measures lnk against what it is made of, and against what a
// user would have instead, and writes bench/RESULTS.md with its plots. It needs
// root, for the namespaces of its internet, and the folder of built programs
// in LNK_BIN.
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
	// Tens of thousands of connections leave their ports waiting (tcp(7)). What
	// listens is below those.
	for name, value := range map[string]string{"tcp_tw_reuse": "1", "ip_local_port_range": "16384 65535"} {
		if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0); err != nil {
			return err
		}
	}
	internet, err := testnet.New()
	if err != nil {
		return err
	}
	b := &bench{internet: internet, report: report{
		Date: time.Now().UTC().Format(time.DateOnly), Machine: machine(), Versions: map[string]string{"Go": strings.TrimPrefix(runtime.Version(), "go")},
	}}
	if b.peers, err = findPeers(&b.report); err != nil {
		return err
	}
	parts := []struct {
		name    string
		measure func() error
	}{
		{"floors", b.floors}, {"start", b.start}, {"commands", b.commands}, {"memory", b.memory}, {"download", b.download}, {"connections", b.connections}, {"gets", b.gets},
		{"names", b.names}, {"tunnels", b.tunnels}, {"binds", b.binds}, {"slots", b.slots},
	}
	earlier, err := load(folder + "/results.json")
	if err != nil {
		return err
	}
	var all, measured []string
	for _, part := range parts {
		all = append(all, part.name)
	}
	// BENCH=binds,slots measures these anew, and keeps the other figures.
	only := all
	if given := os.Getenv("BENCH"); given != "" {
		only = strings.Split(given, ",")
	}
	for _, part := range parts {
		if !slices.Contains(only, part.name) {
			continue
		}
		fmt.Fprintln(os.Stderr, "measuring", part.name)
		b.part = part.name
		if err := part.measure(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		measured = append(measured, part.name)
		// What is measured is kept, whatever comes of the next.
		if err := b.report.with(earlier, measured, all).write(folder); err != nil {
			return err
		}
	}
	return nil
}

// folder is where the results are kept.
const folder = "bench"

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
	peers    peers
	part     string
	report   report
}

// add keeps a figure of the part that is being measured, and prints it.
func (b *bench) add(what string, f figure, reach string, others ...beside) {
	r := row{b.part, what, f, others, reach}
	b.report.Rows = append(b.report.Rows, r)
	fmt.Printf("%s: %s\n", what, f)
	for _, line := range r.besides() {
		fmt.Println("    beside", line)
	}
	if reach != "" {
		fmt.Println("    to reach:", reach)
	}
}

// paired measures ours and what it is held against in turn, and keeps the
// figure; then ours and each peer, in turns of their own: one that takes a
// hundred times as much leaves nothing in the caches for the next.
func (b *bench) paired(what, unit, reach string, n int, ours func() (float64, error), against []contender, peers ...contender) error {
	s, rest, err := inTurn(n, ours, against...)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for _, peer := range peers {
		_, one, err := inTurn(max(3, n/4), ours, peer)
		if err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s is left out of %q: %v\n", peer.name, what, err)
			b.report.Missing = append(b.report.Missing, missing{b.part, peer.name})
			continue
		}
		rest = append(rest, one...)
	}
	b.add(what, figure{Sample: s, Unit: unit}, reach, rest...)
	return nil
}

func (b *bench) grows(g growth) {
	g.Part = b.part
	b.report.Growth = append(b.report.Growth, g)
}

// one is a figure that was measured once.
func one(v float64, unit string) figure {
	return figure{Sample: &sample{v, v, v, 1}, Unit: unit}
}

func text(format string, args ...any) figure { return figure{Text: fmt.Sprintf(format, args...)} }

// machine says what this one is.
func machine() string {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	info, _ := os.ReadFile("/proc/cpuinfo")
	model := "unknown processors"
	for line := range strings.Lines(string(info)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			model = strings.TrimSpace(strings.TrimLeft(name, "\t: "))
			break
		}
	}
	return fmt.Sprintf("%d processors (%s), Linux %s", runtime.NumCPU(), model, strings.TrimSpace(string(kernel)))
}

// firstLine is the first line that a command prints.
func firstLine(name string, args ...string) string {
	out, _ := exec.Command(name, args...).CombinedOutput()
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return strings.TrimSpace(line)
}
