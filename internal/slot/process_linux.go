package slot

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// process is one of a slot's two, started by this supervisor or by one before.
type process struct {
	PID int `json:"pid"`
	// Started is its start time in clock ticks after boot (proc_pid_stat(5)),
	// which with the boot's id tells it from another of its pid.
	Started uint64 `json:"started"`

	done chan struct{} // closed when it has ended
	how  string        // then: how, where that is known
}

// command is what is started for a slot.
type command struct {
	path string
	args []string
	env  []string
	uid  int
	gid  int
	more []uint32 // groups
	out  *os.File // standard output and error; closed once it is started
}

// start starts it in its part of the slot's cgroup, in a session of its own:
// it outlives the supervisor.
func (c *Cgroups) startProcess(number int, part string, cmd command) (*process, error) {
	p := &process{done: make(chan struct{})}
	run := exec.Command(cmd.path, cmd.args...)
	run.Dir, run.Env = "/", cmd.env
	if cmd.out != nil {
		run.Stdout, run.Stderr = cmd.out, cmd.out
		defer cmd.out.Close()
	}
	err := c.Start(number, part, func(cgroupFD int) error {
		run.SysProcAttr = &syscall.SysProcAttr{
			Credential:  &syscall.Credential{Uid: uint32(cmd.uid), Gid: uint32(cmd.gid), Groups: cmd.more},
			Setsid:      true,
			UseCgroupFD: true, CgroupFD: cgroupFD,
		}
		return run.Start()
	})
	if err != nil {
		return nil, fmt.Errorf("starting slot %d's %s: %w", number, part, err)
	}
	p.PID = run.Process.Pid
	// A child that isn't reaped has its pid.
	var startErr error
	if p.Started, startErr = startTime(p.PID); startErr != nil {
		run.Process.Kill()
		run.Wait()
		return nil, fmt.Errorf("slot %d's %s can't be looked at in /proc (hidepid?): %w", number, part, startErr)
	}
	// By a descriptor that is polled: a thread that waits for each of a thousand
	// processes would weigh more than all the rest of the supervisor.
	wait, err := waitEnd(p.PID)
	if err != nil {
		run.Process.Kill()
		run.Wait()
		return nil, err
	}
	go func() {
		defer close(p.done)
		wait()
		p.how = "exit status 0"
		if err := run.Wait(); err != nil {
			p.how = err.Error()
		}
	}()
	return p, nil
}

// waitEnd returns what waits for a process's end (pidfd_open(2): the
// descriptor is then readable).
func waitEnd(pid int) (wait func(), err error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, err
	}
	return func() {
		defer file.Close()
		raw.Read(func(fd uintptr) bool { return ended(int(fd)) })
	}, nil
}

// adopt finds a process again that an earlier supervisor started: by its pid,
// held open before it is looked at, so that it can't become another's.
func (c *Cgroups) adopt(number int, p *process) error {
	wait, err := waitEnd(p.PID)
	if err != nil {
		return err
	}
	started, err := startTime(p.PID)
	if err != nil || started != p.Started || !c.Has(number, p.PID) {
		// It isn't the one; what waits for it goes when it does.
		go wait()
		return fmt.Errorf("process %d is not slot %d's any more", p.PID, number)
	}
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		wait()
		p.how = "it ended"
	}()
	return nil
}

func ended(pidfd int) bool {
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 1
}

// startTime is field 22 of /proc/PID/stat.
func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name in field 2 may have any character, a bracket too.
	_, rest, ok := strings.Cut(string(data[max(0, strings.LastIndexByte(string(data), ')')):]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return 0, errors.New("/proc has another form")
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// bootID tells boots apart (random(4)).
func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}
