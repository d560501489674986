package slot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits are what all of a slot's processes may take together; 0 is no limit.
type Limits struct {
	Memory    int64 // bytes
	Processes int
	CPUs      float64
}

// Cgroups are where the slots' cgroups are: below lnk.slice of version 2, or of
// each controller's own hierarchy where the host still has version 1. A slot's
// processes are killed and counted through version 2 in both cases, which
// systemd mounts beside version 1 (cgroups(7)).
type Cgroups struct {
	unified string            // lnk.slice in version 2
	v1      map[string]string // lnk.slice by controller, of those that are version 1's
	lock    *os.File          // of lnk.slice: who keeps slots here is one
	root    string            // of version 2
	v2      []string          // the controllers that version 2 has
}

// controllers are those that limits need.
var controllers = []string{"memory", "pids", "cpu"}

// sliceName is systemd's slice for all that the supervisor starts.
const sliceName = "lnk.slice"

// NewCgroups finds the hierarchies, and makes lnk.slice in each. A controller
// that limits need and the machine doesn't give is an error.
func NewCgroups(limits Limits) (*Cgroups, error) {
	unified, v1, err := hierarchies()
	if err != nil {
		return nil, err
	}
	if unified == "" {
		return nil, errors.New("no cgroup hierarchy of version 2 is mounted, by which slots are ended: boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2 on /sys/fs/cgroup/unified")
	}
	c := &Cgroups{unified: filepath.Join(unified, sliceName), root: unified, v1: make(map[string]string)}
	if err := mkdirAll(c.unified); err != nil {
		return nil, err
	}
	if c.lock, err = os.Open(c.unified); err != nil {
		return nil, err
	}
	if err := Lock(c.lock); err != nil {
		return nil, errors.New("another lnk-supervisor keeps slots on this machine: stop it first (systemctl stop lnk-supervisor)")
	}
	if _, err := os.Stat(filepath.Join(c.unified, "cgroup.kill")); err != nil {
		return nil, errors.New("this kernel's cgroups can't be killed as a whole: Linux 5.14 or newer is needed")
	}
	have, err := os.ReadFile(filepath.Join(unified, "cgroup.controllers"))
	if err != nil {
		return nil, err
	}
	for _, name := range controllers {
		needed := map[string]bool{"memory": limits.Memory > 0, "pids": limits.Processes > 0, "cpu": limits.CPUs > 0}[name]
		switch {
		case slices.Contains(strings.Fields(string(have)), name):
			if err := c.enable(name); err != nil && needed {
				return nil, err
			}
			c.v2 = append(c.v2, name)
		case v1[name] != "":
			c.v1[name] = filepath.Join(v1[name], sliceName)
			if err := mkdirAll(c.v1[name]); err != nil {
				return nil, err
			}
		case needed:
			off := map[string]string{"memory": `memory = ""`, "pids": "processes = 0", "cpu": "cpus = 0"}[name]
			return nil, fmt.Errorf("the machine has no cgroup controller %s, which a limit needs: do without that limit (%s below [limits]), or boot with it (cgroup_enable=%s)", name, off, name)
		}
	}
	return c, nil
}

// lockLimit bounds the wait for a lock: a child of a supervisor that was just
// killed has it until it is executed.
const lockLimit = time.Second

// Lock locks a file for as long as it is open.
func Lock(file *os.File) error {
	for deadline := time.Now().Add(lockLimit); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// Close lets another keep slots here.
func (c *Cgroups) Close() error { return c.lock.Close() }

// enable has the slots' cgroups have a controller of version 2. systemd, which
// keeps lnk.slice, may take it away again.
func (c *Cgroups) enable(name string) error {
	for _, folder := range []string{c.root, c.unified} {
		if err := write(folder, "cgroup.subtree_control", "+"+name); err != nil {
			return fmt.Errorf("the cgroup controller %s can't be had: %w", name, err)
		}
	}
	return nil
}

// hierarchies are the mount points of version 2 and of each controller of version 1.
func hierarchies() (unified string, v1 map[string]string, err error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", nil, err
	}
	defer file.Close()
	v1 = make(map[string]string)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		at, of := strings.Fields(before), strings.Fields(after)
		if !ok || len(at) < 5 || len(of) < 3 {
			continue
		}
		switch of[0] {
		case "cgroup2":
			if unified == "" {
				unified = at[4]
			}
		case "cgroup":
			for _, option := range strings.Split(of[2], ",") {
				if slices.Contains(controllers, option) {
					v1[option] = at[4]
				}
			}
		}
	}
	return unified, v1, lines.Err()
}

func mkdirAll(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

func write(folder, name, value string) error {
	return os.WriteFile(filepath.Join(folder, name), []byte(value), 0)
}

// The cgroups of a slot's two parts.
const (
	proxyPart   = "proxy"
	sandboxPart = "sandbox"
)

func (c *Cgroups) name(number int) string { return fmt.Sprintf("slot-%d", number) }

// folders are all of a slot's cgroups, version 2's first.
func (c *Cgroups) folders(number int) []string {
	all := []string{filepath.Join(c.unified, c.name(number))}
	for _, name := range controllers {
		if folder, ok := c.v1[name]; ok && !slices.Contains(all, filepath.Join(folder, c.name(number))) {
			all = append(all, filepath.Join(folder, c.name(number)))
		}
	}
	return all
}

// Make makes a slot's cgroups with its limits, and reads back that they hold.
func (c *Cgroups) Make(number int, limits Limits) error {
	for _, name := range c.v2 {
		c.enable(name) // what is missing is seen below, as a limit that can't be set
	}
	for _, folder := range c.folders(number) {
		if err := mkdirAll(folder); err != nil {
			return err
		}
	}
	slot := c.folders(number)[0]
	if len(c.v1) < len(controllers) {
		// So that the proxy's part can have limits of its own.
		write(slot, "cgroup.subtree_control", "+memory")
	}
	for _, folder := range c.folders(number) {
		for _, part := range []string{proxyPart, sandboxPart} {
			if err := mkdirAll(filepath.Join(folder, part)); err != nil {
				return err
			}
		}
	}
	const period = 100000 // µs
	quota := strconv.FormatInt(int64(math.Round(limits.CPUs*period)), 10)
	for _, set := range []struct {
		wanted             bool
		controller         string
		v2, v2value        string
		v1, v1value        string
		before, beforeText string // of version 1
	}{
		{limits.Memory > 0, "memory", "memory.max", fmt.Sprint(limits.Memory), "memory.limit_in_bytes", fmt.Sprint(limits.Memory), "", ""},
		{limits.Processes > 0, "pids", "pids.max", fmt.Sprint(limits.Processes), "pids.max", fmt.Sprint(limits.Processes), "", ""},
		{limits.CPUs > 0, "cpu", "cpu.max", fmt.Sprintf("%s %d", quota, period), "cpu.cfs_quota_us", quota, "cpu.cfs_period_us", fmt.Sprint(period)},
	} {
		if !set.wanted {
			continue
		}
		folder, file, value := slot, set.v2, set.v2value
		if of, ok := c.v1[set.controller]; ok {
			folder, file, value = filepath.Join(of, c.name(number)), set.v1, set.v1value
			if set.before != "" {
				if err := write(folder, set.before, set.beforeText); err != nil {
					return err
				}
			}
		}
		if err := write(folder, file, value); err != nil {
			return fmt.Errorf("slot %d's limit %s: %w", number, set.controller, err)
		}
		if set.controller == "memory" && value != fmt.Sprint(limits.Memory&^int64(os.Getpagesize()-1)) {
			value = fmt.Sprint(limits.Memory &^ int64(os.Getpagesize()-1))
		}
		if got, err := os.ReadFile(filepath.Join(folder, file)); err != nil || strings.TrimSpace(string(got)) != value {
			return fmt.Errorf("slot %d's limit %s is %q and not %q: %w", number, set.controller, strings.TrimSpace(string(got)), value, err)
		}
	}
	return c.noSwap(number, limits)
}

// noSwap keeps a slot out of swap: a proxy holds secrets, and what a limit of
// memory doesn't count isn't limited. A machine that has no swap, or doesn't
// count it, has no such files.
func (c *Cgroups) noSwap(number int, limits Limits) error {
	type file struct{ folder, name, value string }
	slot := c.folders(number)[0]
	files := []file{{filepath.Join(slot, proxyPart), "memory.swap.max", "0"}}
	if limits.Memory > 0 {
		files = append(files, file{slot, "memory.swap.max", "0"})
	}
	if of, ok := c.v1["memory"]; ok {
		slot = filepath.Join(of, c.name(number))
		files = []file{{filepath.Join(slot, proxyPart), "memory.swappiness", "0"}}
		if limits.Memory > 0 {
			files = append(files, file{slot, "memory.memsw.limit_in_bytes", fmt.Sprint(limits.Memory)})
		}
	}
	for _, f := range files {
		if _, err := os.Stat(filepath.Join(f.folder, f.name)); err != nil {
			continue
		}
		if err := write(f.folder, f.name, f.value); err != nil {
			return fmt.Errorf("keeping slot %d out of swap: %w", number, err)
		}
	}
	return nil
}

// Start runs start in a way that the process that it starts is in a part's
// cgroups from its first instruction: that of version 2 by the descriptor
// that it is given (clone(2), CLONE_INTO_CGROUP), those of version 1 since
// the thread that it is started from is in them.
func (c *Cgroups) Start(number int, part string, start func(cgroupFD int) error) error {
	fd, err := unix.Open(filepath.Join(c.unified, c.name(number), part), unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("slot %d's cgroup: %w", number, err)
	}
	defer unix.Close(fd)
	if len(c.v1) == 0 {
		return start(fd)
	}
	done := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and is in no
		// slot's cgroup any more.
		runtime.LockOSThread()
		for _, folder := range c.v1 {
			if err := write(filepath.Join(folder, c.name(number), part), "tasks", strconv.Itoa(unix.Gettid())); err != nil {
				done <- fmt.Errorf("slot %d's cgroup: %w", number, err)
				return
			}
		}
		done <- start(fd)
	}()
	return <-done
}

// killLimit bounds how long killed processes are waited for.
const killLimit = 10 * time.Second

// Kill kills every process of a slot, and returns when none is left.
func (c *Cgroups) Kill(ctx context.Context, number int) error {
	slot := filepath.Join(c.unified, c.name(number))
	events, err := os.Open(filepath.Join(slot, "cgroup.events"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer events.Close()
	if err := write(slot, "cgroup.kill", "1"); err != nil {
		return fmt.Errorf("killing slot %d: %w", number, err)
	}
	deadline := time.Now().Add(killLimit)
	for {
		empty, err := unpopulated(events)
		if err != nil || empty {
			return err
		}
		wait := time.Until(deadline)
		if wait <= 0 || ctx.Err() != nil {
			return fmt.Errorf("slot %d has processes left that can't be killed", number)
		}
		// cgroup.events says when it changes (cgroups(7)).
		poll := []unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}}
		if _, err := unix.Poll(poll, int(min(wait, time.Second).Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func unpopulated(events *os.File) (bool, error) {
	buf := make([]byte, 256)
	n, err := events.ReadAt(buf, 0)
	if n == 0 && err != nil {
		return false, fmt.Errorf("cgroup.events: %w", err)
	}
	return strings.Contains(string(buf[:n]), "populated 0"), nil
}

// Remove takes a slot's cgroups away, which must be empty.
func (c *Cgroups) Remove(number int) error {
	var all error
	for _, folder := range c.folders(number) {
		for _, path := range []string{filepath.Join(folder, proxyPart), filepath.Join(folder, sandboxPart), folder} {
			if err := removeCgroup(path); err != nil {
				all = errors.Join(all, err)
			}
		}
	}
	return all
}

// removeCgroup removes one and what was made below it: systemd, or a program
// with the right to, may have made some.
func removeCgroup(path string) error {
	entries, _ := os.ReadDir(path)
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroup(filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	for range 50 {
		err := unix.Rmdir(path)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("removing the cgroup %s: %w", path, err)
		}
		time.Sleep(2 * time.Millisecond) // version 1 has nothing to wait by
	}
	return fmt.Errorf("removing the cgroup %s: it is in use", path)
}

// Has reports whether a process is in a slot's cgroup.
func (c *Cgroups) Has(number, pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return strings.Contains(path+"/", "/"+sliceName+"/"+c.name(number)+"/")
		}
	}
	return false
}

// Numbers are the slots that have a cgroup.
func (c *Cgroups) Numbers() (numbers []int) {
	entries, _ := os.ReadDir(c.unified)
	for _, e := range entries {
		if text, ok := strings.CutPrefix(e.Name(), "slot-"); ok {
			if n, err := strconv.Atoi(text); err == nil {
				numbers = append(numbers, n)
			}
		}
	}
	return numbers
}

// Memory is what a slot takes, in bytes, and whether that is known.
func (c *Cgroups) Memory(number int) (int64, bool) {
	folder, file := filepath.Join(c.unified, c.name(number)), "memory.current"
	if of, ok := c.v1["memory"]; ok {
		folder, file = filepath.Join(of, c.name(number)), "memory.usage_in_bytes"
	}
	data, err := os.ReadFile(filepath.Join(folder, file))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return n, err == nil
}
