package runner

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Limits are what all of a sandbox's processes may take together. 0 is no limit.
type Limits struct {
	// Memory is in bytes, swap none; Processes counts threads too.
	Memory    uint64
	Processes int
	CPUs      float64
}

// ownThreads are those of bwrap and the relay, which are in the sandbox's
// cgroup with the program.
const ownThreads = 24

// systemdRun starts a process in a cgroup of its own, by asking systemd, and
// then executes it in its own place: same pid, same descriptors
// (systemd-run(1), --scope).
const systemdRun = "/usr/bin/systemd-run"

// scoped returns the command that starts bwrap in a scope with the limits, and
// the environment that it needs to reach systemd; nil for none.
func (l Limits) scoped(args []string) (command, env []string, err error) {
	if l == (Limits{}) {
		return args, nil, nil
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		return nil, nil, errors.New("limits need cgroup v2, which this machine doesn't have mounted at /sys/fs/cgroup: boot with systemd.unified_cgroup_hierarchy=1, or leave --memory, --processes and --cpus out")
	}
	if _, err := os.Stat(systemdRun); err != nil {
		return nil, nil, fmt.Errorf("limits need systemd, and %s isn't there: leave --memory, --processes and --cpus out", systemdRun)
	}
	command = []string{systemdRun, "--scope", "--quiet", "--collect"}
	if os.Geteuid() != 0 {
		command = append(command, "--user")
		env = append(env, "XDG_RUNTIME_DIR="+os.Getenv("XDG_RUNTIME_DIR"))
		if bus := os.Getenv("DBUS_SESSION_BUS_ADDRESS"); bus != "" {
			env = append(env, "DBUS_SESSION_BUS_ADDRESS="+bus)
		}
	}
	if l.Memory > 0 {
		command = append(command, "-p", "MemoryMax="+strconv.FormatUint(l.Memory, 10), "-p", "MemorySwapMax=0")
	}
	if l.Processes > 0 {
		command = append(command, "-p", "TasksMax="+strconv.Itoa(l.Processes+ownThreads))
	}
	if l.CPUs > 0 {
		command = append(command, "-p", fmt.Sprintf("CPUQuota=%d%%", max(1, int(math.Round(l.CPUs*100)))))
	}
	return append(append(command, "--"), args...), env, nil
}

// check reads back what holds for a process: systemd leaves out, without a
// word, what was not delegated to it.
func (l Limits) check(pid int) error {
	if l == (Limits{}) {
		return nil
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return fmt.Errorf("the sandbox's cgroup: %w", err)
	}
	path := ""
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			path = filepath.Join("/sys/fs/cgroup", rest)
		}
	}
	holds := func(file, want string) error {
		got, err := os.ReadFile(filepath.Join(path, file))
		if err != nil || strings.TrimSpace(string(got)) != want {
			controller, _, _ := strings.Cut(file, ".")
			return fmt.Errorf("the limit on %s doesn't hold: the controller isn't delegated to this user (systemctl edit user@.service: Delegate=memory pids cpu)", controller)
		}
		return nil
	}
	const pageSize = 4096
	if l.Memory > 0 {
		if err := holds("memory.max", strconv.FormatUint(l.Memory/pageSize*pageSize, 10)); err != nil {
			return err
		}
	}
	if l.Processes > 0 {
		if err := holds("pids.max", strconv.Itoa(l.Processes+ownThreads)); err != nil {
			return err
		}
	}
	if l.CPUs > 0 {
		if err := holds("cpu.max", fmt.Sprintf("%d 100000", max(1, int(math.Round(l.CPUs*100)))*1000)); err != nil {
			return err
		}
	}
	return nil
}
