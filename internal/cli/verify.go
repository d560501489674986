package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/box"
	"link.internal/lnk/internal/peercred"
)

// verified is a row of verify's table.
type verified struct {
	Who      string `json:"who"`
	Tried    string `json:"tried"`
	Expected string `json:"expected"`
	Seen     string `json:"seen"`
	Why      string `json:"why,omitempty"`
	OK       bool   `json:"ok"`
}

func newBoxVerify(o *boxOptions) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "verify",
		Short: "prove on this machine that no slot reaches another, by trying",
		Long: `Try, as each user of two slots, as a stranger, and from inside a sandbox of each
slot's agent, every way to the other that the threat model names, and the ways
that must be open beside them. It prints what was tried, what was expected and
what was seen; its exit code is 1 if anything was other than expected.

It binds nothing, and changes nothing of a slot's that is in use. Not tried, and
known: a lock on a file that all may read is seen by all who read it (flock(2)),
and so is that a program of the system's is executed (inotify(7)).`,
		Example: "  sudo lnk box verify\n  sudo lnk box verify --all",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("it tries as the users of slots, which only root can become: sudo lnk box verify")
			}
			slots, err := o.client().Slots(c.Context())
			if err != nil {
				return err
			}
			rows, err := verify(c.Context(), slots, o.socket)
			if err != nil {
				return err
			}
			failed := 0
			for _, row := range rows {
				if !row.OK {
					failed++
				}
			}
			if o.json {
				err = printJSON(c.OutOrStdout(), rows)
			} else {
				err = printVerified(c.OutOrStdout(), rows, all)
			}
			if err == nil && failed > 0 {
				return exitError(1)
			}
			return err
		},
	}
	c.Flags().BoolVar(&all, "all", false, "print every attempt, and not one line for those that are alike")
	return c
}

func printVerified(w io.Writer, rows []verified, all bool) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "WHO\tTRIED\tEXPECTED\tSEEN\t")
	failed := 0
	counts := make(map[string]int)
	for _, row := range rows {
		if !row.OK {
			failed++
		} else if counts[row.Who]++; !all {
			continue
		}
		mark := ""
		if !row.OK {
			mark = "SURPRISE " + row.Why
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", row.Who, row.Tried, row.Expected, row.Seen, printable(mark))
	}
	if !all {
		for _, who := range whos(rows) {
			fmt.Fprintf(table, "%s\t%d attempts\tas expected\tas expected\t\n", who, counts[who])
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d attempts, %d surprises\n", len(rows), failed)
	return err
}

func whos(rows []verified) (names []string) {
	seen := make(map[string]bool)
	for _, row := range rows {
		if !seen[row.Who] {
			seen[row.Who] = true
			names = append(names, row.Who)
		}
	}
	return names
}

// who is somebody who tries.
type who struct {
	name     string
	uid, gid int
	groups   []uint32
	inside   *box.Slot // the slot in whose agent's sandbox it is; nil: outside
}

// strangerUID is of no user, and no slot's.
const strangerUID = 65533

// verify has everybody try everything.
func verify(ctx context.Context, slots []box.Slot, socket string) ([]verified, error) {
	var two []box.Slot
	for _, s := range slots {
		if s.State == "blank" || s.State == "bound" {
			two = append(two, s)
		}
	}
	if len(two) < 2 {
		return nil, fmt.Errorf("it needs two slots that run, and there are %d: lnk box add 2", len(two))
	}
	two = two[:2]
	// What somebody inside could reach, if the wall let it.
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer host.Close()
	outside, err := listenOutside()
	if err != nil {
		return nil, err
	}
	defer outside.Close()
	abstract := fmt.Sprintf("@lnk-verify-%d", os.Getpid())
	named, err := net.Listen("unix", abstract)
	if err != nil {
		return nil, err
	}
	defer named.Close()
	var rows []verified
	for i, own := range two {
		other := two[1-i]
		pids, ownPIDs := pidsOf(other), pidsOf(own)
		if len(pids) != 2 || len(ownPIDs) != 2 || len(cgroupFolders(other.Number)) == 0 {
			return nil, fmt.Errorf("the processes and cgroups of slots %d and %d can't be found: are they just being made anew?", own.Number, other.Number)
		}
		for _, w := range []who{
			{fmt.Sprintf("agent of slot %d", own.Number), own.Agent, own.Agent, []uint32{uint32(own.Group)}, nil},
			{fmt.Sprintf("proxy of slot %d", own.Number), own.Proxy, own.Proxy, []uint32{uint32(own.Group)}, nil},
			{fmt.Sprintf("inside slot %d", own.Number), own.Agent, own.Agent, []uint32{uint32(own.Group)}, &own},
			{"a stranger", strangerUID, strangerUID, nil, nil},
		} {
			list := foreign(other, pids)
			list = append(list, allowed(w, own)...)
			if w.uid == own.Agent {
				list = append(list, processAttempts(own.Number, "proxy, its own", ownPIDs["proxy"])...)
			}
			if w.inside != nil {
				list = append(list,
					attempt{"this machine's loopback", "tcp", host.Addr().String(), false},
					attempt{"an abstract socket of the machine's", "connect", abstract, false},
					attempt{"an address of this machine's", "tcp", outside.Addr().String(), false},
					attempt{"the supervisor's interface", "connect", socket, false},
					attempt{"its own proxy", "tcp", "127.0.0.1:40781", true},
				)
			}
			results, err := w.try(ctx, list)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			for n, a := range list {
				row := verified{Who: w.name, Tried: a.Name, Expected: outcome(a.Expected), Seen: outcome(results[n].Succeeded), Why: results[n].Error, OK: a.Expected == results[n].Succeeded}
				if results[n].Absent && w.inside == nil {
					row.Seen, row.OK = "not there", false
				}
				rows = append(rows, row)
			}
		}
	}
	return rows, nil
}

func outcome(succeeded bool) string {
	if succeeded {
		return "open"
	}
	return "closed"
}

// foreign are all ways to a slot, none of which is another's.
func foreign(s box.Slot, pids map[string]int) []attempt {
	n := s.Number
	list := []attempt{
		{fmt.Sprintf("slot %d's home", n), "list", s.Home, false},
		{fmt.Sprintf("slot %d's home, to write", n), "write", s.Home, false},
		{fmt.Sprintf("slot %d's log", n), "list", s.Wire, false},
		{fmt.Sprintf("slot %d's log, to write", n), "write", s.Wire, false},
		{fmt.Sprintf("slot %d's socket folder", n), "list", s.Folder, false},
		{fmt.Sprintf("slot %d's socket folder, to write", n), "write", s.Folder, false},
		{fmt.Sprintf("slot %d's proxy (out.sock)", n), "connect", s.Folder + "/out.sock", false},
		{fmt.Sprintf("slot %d's listeners (local.sock)", n), "hand", s.Folder + "/local.sock", false},
		{fmt.Sprintf("slot %d's way in (in.sock)", n), "connect", s.Folder + "/in.sock", false},
		{fmt.Sprintf("slot %d's control folder", n), "list", filepath.Dir(s.Control), false},
		{fmt.Sprintf("slot %d's control socket", n), "control", s.Control, false},
		{fmt.Sprintf("slot %d's runtime folder", n), "list", filepath.Join(filepath.Dir(s.Folder), "run"), false},
		{fmt.Sprintf("slot %d's record", n), "read", filepath.Join(filepath.Dir(s.Folder), "record.json"), false},
	}
	for part, pid := range pids {
		list = append(list, processAttempts(n, part, pid)...)
	}
	for _, folder := range cgroupFolders(n) {
		list = append(list,
			attempt{fmt.Sprintf("slot %d's cgroup, to join", n), "append", folder + "/cgroup.procs", false},
			attempt{fmt.Sprintf("slot %d's cgroup, to end", n), "append", folder + "/cgroup.kill", false},
		)
	}
	return list
}

// processAttempts are all ways to a process.
func processAttempts(number int, part string, pid int) []attempt {
	p := fmt.Sprintf("slot %d's %s", number, part)
	return []attempt{
		{p + ", by a signal", "signal", strconv.Itoa(pid), false},
		{p + ", traced", "trace", strconv.Itoa(pid), false},
		{p + ", its memory", "append", fmt.Sprintf("/proc/%d/mem", pid), false},
		{p + ", its environment", "read", fmt.Sprintf("/proc/%d/environ", pid), false},
		{p + ", its files", "list", fmt.Sprintf("/proc/%d/root", pid), false},
		{p + ", its descriptors", "list", fmt.Sprintf("/proc/%d/fd", pid), false},
	}
}

// listenOutside listens on an address of this machine's that is no loopback, or
// on the loopback where it has no other.
func listenOutside() (net.Listener, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			if l, err := net.Listen("tcp", net.JoinHostPort(n.IP.String(), "0")); err == nil {
				return l, nil
			}
		}
	}
	return net.Listen("tcp", "127.0.0.1:0")
}

// allowed are the ways that must be open, or the table would prove nothing.
func allowed(w who, own box.Slot) []attempt {
	n := own.Number
	open := func(name, kind, target string, expected bool) attempt {
		return attempt{fmt.Sprintf("slot %d's %s, its own", n, name), kind, target, expected}
	}
	agent, proxy := w.uid == own.Agent && w.inside == nil, w.uid == own.Proxy
	return []attempt{
		open("home", "list", own.Home, agent), open("log", "list", own.Wire, proxy), open("socket folder", "list", own.Folder, agent || proxy),
		open("proxy (out.sock)", "connect", own.Folder+"/out.sock", agent || proxy), open("way in (in.sock)", "connect", own.Folder+"/in.sock", agent || proxy),
		open("control socket", "control", own.Control, proxy),
	}
}

// pidsOf are a slot's processes, by what they are.
func pidsOf(s box.Slot) map[string]int {
	pids := make(map[string]int)
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range entries {
		var st unix.Stat_t
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || unix.Stat(dir, &st) != nil {
			continue
		}
		// A process that isn't dumpable is root's in /proc, so its real owner is asked for.
		status, _ := os.ReadFile(dir + "/status")
		switch {
		case strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t", s.Proxy)):
			pids["proxy"] = pid
		case strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t", s.Agent)):
			pids["sandbox"] = pid
		}
	}
	return pids
}

// cgroupFolders are a slot's in version 2, wherever that is mounted.
func cgroupFolders(number int) (folders []string) {
	for _, base := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		folder := fmt.Sprintf("%s/lnk.slice/slot-%d", base, number)
		if _, err := os.Stat(folder); err == nil {
			folders = append(folders, folder)
		}
	}
	return folders
}

// try has somebody try all of a list, by running this very program.
func (w who) try(ctx context.Context, list []attempt) ([]attempted, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	input, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	args := []string{self, "box", "probe"}
	if w.inside != nil {
		way, err := newWayOut(ctx, *w.inside, self)
		if err != nil {
			return nil, err
		}
		defer way.end()
		// Where lnk isn't one of the system's programs, it must be shown.
		args = []string{self, "sandbox", "wrap", "--reach", way.folder, "--read", filepath.Dir(self), "--", self, "box", "probe"}
	}
	cmd := w.command(ctx, args)
	cmd.Stdin = bytes.NewReader(input)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	var results []attempted
	if err := json.Unmarshal(out.Bytes(), &results); err != nil || len(results) != len(list) {
		return nil, fmt.Errorf("%d answers to %d attempts: %w", len(results), len(list), err)
	}
	return results, nil
}

func (w who) command(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "LANG=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(w.uid), Gid: uint32(w.gid), Groups: w.groups}}
	return cmd
}

// wayOut is a blank proxy of a slot's proxy's user, for a second sandbox of its
// agent: just what a slot has, without touching the slot's own.
type wayOut struct {
	base, folder string
	proxy        *exec.Cmd
}

func newWayOut(ctx context.Context, s box.Slot, self string) (*wayOut, error) {
	programs, err := findSisters()
	if err != nil {
		return nil, err
	}
	base, err := os.MkdirTemp("/run", "lnk-verify-")
	if err != nil {
		return nil, err
	}
	way := &wayOut{base: base, folder: base + "/net"}
	fail := func(err error) (*wayOut, error) {
		way.end()
		return nil, err
	}
	if err := os.Chmod(base, 0o711); err != nil {
		return fail(err)
	}
	for _, f := range []struct {
		path     string
		uid, gid int
		mode     uint32
	}{{way.folder, s.Agent, s.Group, peercred.SharedMode}, {base + "/control", s.Proxy, s.Proxy, 0o700}} {
		if err := os.Mkdir(f.path, 0o700); err != nil {
			return fail(err)
		}
		if err := os.Chown(f.path, f.uid, f.gid); err != nil {
			return fail(err)
		}
		if err := unix.Chmod(f.path, f.mode); err != nil {
			return fail(err)
		}
	}
	w := who{uid: s.Proxy, gid: s.Proxy, groups: []uint32{uint32(s.Group)}}
	// It starts the program behind -- once it serves.
	way.proxy = w.command(ctx, []string{programs.proxy, "--blank", "--control", base + "/control/control.sock", "--dir", way.folder,
		"--agent-user", strconv.Itoa(s.Agent), "--group", strconv.Itoa(s.Group), "--", "/bin/sh", "-c", "echo up; exec sleep 600"})
	out, err := way.proxy.StdoutPipe()
	if err != nil {
		return fail(err)
	}
	if err := way.proxy.Start(); err != nil {
		return fail(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		return fail(fmt.Errorf("a blank proxy of slot %d's doesn't serve: %w", s.Number, err))
	}
	return way, nil
}

func (w *wayOut) end() {
	if w.proxy != nil && w.proxy.Process != nil {
		w.proxy.Process.Signal(unix.SIGTERM)
		w.proxy.Wait()
	}
	os.RemoveAll(w.base)
}
