package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

// memory measures what an idle proxy and relay weigh, and a whole sandbox
// beside the peers'.
func (b *bench) memory() error {
	up := []string{peersClient, "idle"}
	command := append([]string{testnet.Lnk, "sandbox", "run", "--internet-host", "x.test", "--read", peersClient, "--"}, up...)
	err := idle(command, func(int) error {
		for _, p := range []struct{ what, name, reach string }{
			{"an idle proxy (PSS)", "link-sandbox-proxy", "≤ 8 MiB"}, {"an idle relay (PSS)", "/run/lnk/lnk-relay", "≤ 3.5 MiB"},
		} {
			pss, err := pssOf(p.name)
			if err != nil {
				return err
			}
			b.add(p.what, one(pss, "MiB"), p.reach)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var others []contender
	for _, s := range b.peers.sandboxes {
		if s.proxied {
			others = append(others, contender{s.name, wholeSandbox(s.args("x.test", up...))})
		}
	}
	return b.paired("a whole sandbox with its proxy, idle (PSS of all its processes but the program)", "MiB", "", 3, wholeSandbox(command), nil, others...)
}

// idle runs f while a command, which says that it is up, is idle.
func idle(command []string, f func(pid int) error) error {
	cmd := asUser(command[0], command[1:]...)
	if err := startUp(cmd); err != nil {
		return err
	}
	defer func() {
		cmd.Process.Signal(unix.SIGTERM)
		cmd.Wait()
	}()
	time.Sleep(2 * time.Second)
	return f(cmd.Process.Pid)
}

// wholeSandbox returns what all processes weigh that a command starts, in MiB.
func wholeSandbox(command []string) func() (float64, error) {
	return func() (total float64, err error) {
		before := processes()
		err = idle(command, func(int) error {
			for pid, name := range processes() {
				if _, was := before[pid]; was || name == "bench" {
					continue
				}
				pss, err := pssOfPID(pid)
				if err != nil {
					return err
				}
				total += pss
			}
			return nil
		})
		return total, err
	}
}

// processes are the names of all, by pid.
func processes() map[int]string {
	found := make(map[int]string)
	paths, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, path := range paths {
		var pid int
		fmt.Sscan(filepath.Base(filepath.Dir(path)), &pid)
		if name, err := os.ReadFile(path); err == nil {
			found[pid] = strings.TrimSpace(string(name))
		}
	}
	return found
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
