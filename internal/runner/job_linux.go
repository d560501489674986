package runner

import (
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/channel"
)

// job makes the sandbox behave as one job of the shell that lnk was started
// from. The program has a process group of its own inside, which can't signal
// the processes that share lnk's outside, a pipeline's others among them. So
// lnk lends it the terminal: at once where lnk has it alone, else when the
// program first reads or sets it, so that `lnk … | less` leaves it to less.
type job struct {
	tty     *os.File // the controlling terminal, nil without one
	group   int      // lnk's own process group
	lent    bool     // the program's group had the terminal last
	signals chan os.Signal
	ignored []int // by the caller, as nohup does; Go tells of SIGHUP and SIGINT
}

// forwarded are the signals that reach the program through its relay.
var forwarded = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
	unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT,
}

func newJob() *job {
	j := &job{group: unix.Getpgrp(), signals: make(chan os.Signal, 32)}
	for _, s := range []unix.Signal{unix.SIGHUP, unix.SIGINT} {
		if signal.Ignored(s) {
			j.ignored = append(j.ignored, int(s))
		}
	}
	// In the background, lnk writes and gives the terminal back unstopped.
	signal.Ignore(unix.SIGTTOU)
	if tty, err := os.OpenFile("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err == nil {
		j.tty = tty
	}
	return j
}

// takeSignals has signals forwarded, which by then would have ended lnk. Each
// of them is a turn between two threads of the Go runtime's, so it is done
// while others work, but before there is anything that would be left behind.
// It lasts until lnk ends: to give them back would be as many turns again.
func (j *job) takeSignals() {
	// A reader of standard error that is gone must not end the run: a write
	// fails instead. Notified and not ignored, which children would inherit.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	for _, s := range forwarded {
		if !j.ignores(s.(unix.Signal)) {
			signal.Notify(j.signals, s)
		}
	}
}

func (j *job) ignores(s unix.Signal) bool {
	for _, n := range j.ignored {
		if n == int(s) {
			return true
		}
	}
	return false
}

func (j *job) close() {
	if j.tty != nil {
		j.tty.Close()
	}
}

// inForeground reports whether lnk's own group has the terminal.
func (j *job) inForeground() bool {
	if j.tty == nil {
		return false
	}
	group, err := unix.IoctlGetInt(int(j.tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == j.group
}

// takesTerminal decides whether the program gets the terminal at its start:
// if lnk has it, and is no part of a pipeline whose others may want it.
func (j *job) takesTerminal(stdin, stdout *os.File) bool {
	j.lent = j.inForeground() && !isPipe(stdin) && !isPipe(stdout)
	return j.lent
}

func isPipe(f *os.File) bool {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return false
	}
	kind := st.Mode & unix.S_IFMT
	return kind == unix.S_IFIFO || kind == unix.S_IFSOCK
}

// forward passes a signal on. ends says that it asks the program to end.
func (j *job) forward(s os.Signal, relay *channel.Conn) (ends bool, err error) {
	n := s.(unix.Signal)
	if n == unix.SIGCONT {
		return false, j.resume(relay)
	}
	// A key pressed while lnk's own group has the terminal is for the whole
	// job, of which the program's group is a part that the kernel can't know.
	key := n == unix.SIGINT || n == unix.SIGQUIT || n == unix.SIGTSTP
	err = relay.Send(channel.ToRelay{Signal: int(n), Group: key && j.inForeground()})
	return n == unix.SIGTERM || n == unix.SIGHUP, err
}

// resume continues the program, with the terminal if lnk was given it.
func (j *job) resume(relay *channel.Conn) error {
	foreground := j.lent && j.inForeground()
	return relay.Send(channel.ToRelay{Continue: &channel.Continue{Foreground: foreground}})
}

// stopped is called when the program has stopped. A program that wants the
// terminal gets it if lnk has it; else lnk stops as the program did, so that
// the shell sees its job stopped, and goes on with it.
func (j *job) stopped(n int, relay *channel.Conn) {
	s := unix.Signal(n)
	if j.tty == nil {
		return
	}
	if (s == unix.SIGTTIN || s == unix.SIGTTOU) && j.inForeground() {
		j.lent = true
		j.resume(relay)
		return
	}
	j.suspend(s == unix.SIGTSTP && j.lent)
	j.dropContinues()
	j.resume(relay)
}

// dropContinues forgets the SIGCONT that ended a suspend: forwarded behind the
// resume it would let the program go on once more, and a stop between the two
// would be told when the program has the terminal, and stop lnk again.
func (j *job) dropContinues() {
	for range len(j.signals) {
		if s := <-j.signals; s != unix.SIGCONT {
			select {
			case j.signals <- s:
			default: // 32 others wait
			}
		}
	}
}

// suspendWait bounds the wait for a stop that the kernel leaves out, as it
// does for a group that no shell could continue.
const suspendWait = 200 * time.Millisecond

// suspend stops lnk, and returns when it is continued. The rest of lnk's
// process group is stopped with it only where Ctrl-Z would have done that,
// had the program not had the terminal. It is always SIGTSTP: the kernel
// leaves that out where no shell could continue the group.
func (j *job) suspend(group bool) {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, unix.SIGCONT)
	defer signal.Stop(continued)
	whom := os.Getpid()
	if group {
		whom = 0
	}
	stop := func() {
		unix.Kill(whom, unix.SIGTSTP)
		select {
		case <-continued:
		case <-time.After(suspendWait):
		}
	}
	if err := withDefault(unix.SIGTSTP, stop); err != nil {
		stop()
	}
}

// restoreTerminal takes the terminal back from a program that has ended.
func (j *job) restoreTerminal() {
	if j.tty == nil || !j.lent || j.inForeground() {
		return
	}
	unix.IoctlSetPointerInt(int(j.tty.Fd()), unix.TIOCSPGRP, j.group)
}
