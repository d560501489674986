//go:build linux

package relay

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/channel"
	"link.internal/lnk/internal/confine"
)

// The program is cloned here and not by os/exec for two reasons: between the
// clone into its user namespace and its execve stand Landlock and seccomp,
// for which os/exec has no place; and a second stage that were executed in
// between would cost as much as all the rest of the relay's start.
//
// The three functions are the ones that package syscall forks with. The
// runtime keeps them for other packages to link to (go.dev/issue/67401).

//go:linkname runtimeBeforeFork syscall.runtime_BeforeFork
func runtimeBeforeFork()

//go:linkname runtimeAfterFork syscall.runtime_AfterFork
func runtimeAfterFork()

//go:linkname runtimeAfterForkInChild syscall.runtime_AfterForkInChild
func runtimeAfterForkInChild()

// image is a program ready to be cloned and executed: every byte that the
// child needs, since it may not allocate.
type image struct {
	path     *byte
	argv     []*byte
	envv     []*byte
	dir      *byte
	stdio    [3]int
	tty      int    // -1: it is not given the terminal
	ignored  uint64 // a bit for each signal that stays ignored, from bit 0 for signal 1
	landlock int    // -1: none
	plain    bool   // without a user namespace of its own
	files    unix.Rlimit
	filter   unix.SockFprog

	// listened is where the child sends the listener for notices; -1: there are
	// none. message and its parts are what it sends.
	listened int
	message  unix.Msghdr
	iov      unix.Iovec
	control  [3]uint64 // a cmsghdr, and one descriptor
	one      byte

	released int // read end: 1 says that the uid and gid maps are written, 0 that they can't be
	report   int // write end, close-on-exec: a failed step
	action   sigaction
	caps     [2]unix.CapUserData
	capsHead unix.CapUserHeader
	setMask  uint64
	pid      int32
	failure  failure
}

// sigaction is the kernel's struct of rt_sigaction(2), on amd64 and arm64.
type sigaction struct {
	handler, flags, restorer, mask uint64
}

// The handler values of signal(7).
const (
	sigDefault = 0
	sigIgnore  = 1
)

// failure is what the child reports of the step that failed.
type failure struct {
	step  int32
	errno int32
}

// The steps of the child, in their order.
const (
	stepStdio int32 = iota
	stepDescriptors
	stepFiles
	stepDir
	stepPrivs
	stepCaps
	stepLandlock
	stepSeccomp
	stepListener
	stepRelease
	stepGroup
	stepTerminal
	stepSignals
	stepExec
)

var stepNames = [...]string{
	"its standard streams", "closing descriptors", "its limit on descriptors", "its working folder", "no_new_privs", "dropping capabilities", "Landlock", "seccomp",
	"handing over its notices", "waiting for its user namespace", "its process group", "taking the terminal", "its signals", "execve",
}

// startError is a step of the child that failed.
type startError failure

func (e *startError) Error() string {
	return fmt.Sprintf("%s: %v", stepNames[e.step], syscall.Errno(e.errno))
}

func (e *startError) Unwrap() error { return syscall.Errno(e.errno) }

// atExec reports whether everything but the program itself was in order.
func (e *startError) atExec() bool { return e.step == stepExec }

func (i *image) setFilter(filter []unix.SockFilter) {
	i.filter = unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
}

// start clones the program, into a user namespace of its own in which the
// relay's uid and gid 0 are the caller's, drops the relay's own capabilities
// but the kept ones, and returns the program's pid when its execve has
// succeeded. In the plain wall there is neither to map nor to drop.
//
// Where there is a guard, it serves from the program's own execve on.
func (i *image) start(start *channel.Start, guard *guard) (int, error) {
	var release, report [2]int
	if err := unix.Pipe2(release[:], unix.O_CLOEXEC); err != nil {
		return 0, err
	}
	defer unix.Close(release[1])
	if err := unix.Pipe2(report[:], unix.O_CLOEXEC); err != nil {
		unix.Close(release[0])
		return 0, err
	}
	defer unix.Close(report[0])
	i.released, i.report, i.plain, i.listened = release[0], report[1], start.Plain, -1
	listened := [2]int{-1, -1}
	if guard != nil {
		var err error
		if listened, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err != nil {
			return 0, err
		}
		defer unix.Close(listened[0])
		i.listened = listened[1]
		i.prepareMessage()
	}
	i.capsHead = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	syscall.ForkLock.Lock()
	pid, errno := i.clone()
	syscall.ForkLock.Unlock()
	unix.Close(release[0])
	unix.Close(report[1])
	if guard != nil {
		unix.Close(listened[1])
	}
	if errno != 0 {
		return 0, withoutPowers(fmt.Errorf("cloning into a user namespace: %w", errno))
	}
	if !start.Plain {
		if err := mapIDs(pid, start.UID, start.GID); err != nil {
			// Nobody writes the maps of the dying either, which says nothing of
			// powers: one that lives says that it waited.
			unix.Write(release[1], []byte{0})
			reported := readReport(report[0], start.Plain)
			var waited *startError
			switch {
			case reported == nil:
				return 0, fmt.Errorf("the program's process was ended from outside before it was started: %w", err)
			case errors.As(reported, &waited) && waited.step == stepRelease:
				return 0, withoutPowers(err)
			}
			return 0, reported
		}
	}
	unix.Write(release[1], []byte{1})
	if !start.Plain {
		// They have done their work, and the program begins meanwhile.
		if err := keepCapabilities(keptCapabilities...); err != nil {
			unix.Kill(pid, unix.SIGKILL)
			return 0, err
		}
	}
	if guard != nil {
		fd, err := receiveListener(listened[0])
		if err == nil {
			guard.listener, guard.first = confine.Listener{FD: fd}, pid
			go guard.serve()
		} else if !errors.Is(err, io.EOF) {
			unix.Kill(pid, unix.SIGKILL)
			return 0, err
		} // else the child has reported why
	}
	if err := readReport(report[0], start.Plain); err != nil {
		return 0, err
	}
	return pid, nil
}

// readReport waits until the child has executed the program or is gone, and
// returns the step that it failed at, if any.
func readReport(from int, plain bool) error {
	var failed failure
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&failed)), unsafe.Sizeof(failed))
	n, err := unix.Read(from, raw)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(from, raw)
	}
	switch {
	case err != nil:
		return err
	case n == 0:
		return nil
	case n != len(raw) || int(failed.step) >= len(stepNames):
		return errors.New("bug: a report of another length")
	}
	reported := startError(failed)
	if failed.step == stepCaps && !plain {
		return withoutPowers(&reported) // there were none in its user namespace
	}
	return &reported
}

// prepareMessage makes the message by which the child hands a descriptor over,
// whose number it fills in (cmsg(3)).
func (i *image) prepareMessage() {
	header := (*unix.Cmsghdr)(unsafe.Pointer(&i.control[0]))
	header.Level, header.Type = unix.SOL_SOCKET, unix.SCM_RIGHTS
	header.SetLen(unix.CmsgLen(4))
	i.iov.Base = &i.one
	i.iov.SetLen(1)
	i.message.Iov = &i.iov
	i.message.SetIovlen(1)
	i.message.Control = (*byte)(unsafe.Pointer(&i.control[0]))
	i.message.SetControllen(len(i.control) * 8)
}

// receiveListener takes over what the child hands over; io.EOF when it ends
// before.
func receiveListener(from int) (int, error) {
	buf, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(from, buf, oob, unix.MSG_CMSG_CLOEXEC)
	for errors.Is(err, unix.EINTR) {
		n, oobn, _, _, err = unix.Recvmsg(from, buf, oob, unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil {
		return -1, fmt.Errorf("the program's notices: %w", err)
	}
	if n == 0 {
		return -1, io.EOF
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return -1, fmt.Errorf("the program's notices: bug: %d messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, fmt.Errorf("the program's notices: bug: %d descriptors: %w", len(fds), err)
	}
	return fds[0], nil
}

// mapIDs maps the relay's own uid and gid, which are 0 here, to what the
// program sees (user_namespaces(7)). setgroups is denied for good, which the
// kernel asks for before an unprivileged gid_map.
func mapIDs(pid, uid, gid int) error {
	for _, m := range []struct{ file, text string }{
		{"setgroups", "deny"},
		{"gid_map", fmt.Sprintf("%d 0 1\n", gid)},
		{"uid_map", fmt.Sprintf("%d 0 1\n", uid)},
	} {
		if err := writeFile(fmt.Sprintf("/proc/%d/%s", pid, m.file), m.text); err != nil {
			return fmt.Errorf("mapping ids: %w", err)
		}
	}
	return nil
}

// clone is fork for the child: from the clone on it may neither allocate nor
// grow its stack, so it makes raw system calls only and calls nothing else.
//
//go:noinline
//go:norace
//go:nocheckptr
func (i *image) clone() (pid int, errno syscall.Errno) {
	flags := uintptr(unix.CLONE_NEWUSER) | uintptr(unix.SIGCHLD)
	if i.plain {
		flags = uintptr(unix.SIGCHLD)
	}
	runtimeBeforeFork()
	r1, _, e1 := syscall.RawSyscall6(unix.SYS_CLONE, flags, 0, 0, 0, 0, 0)
	if e1 != 0 || r1 != 0 {
		runtimeAfterFork()
		return int(r1), e1
	}
	runtimeAfterForkInChild()

	var step int32
	var one [1]byte
	step = stepStdio
	for n := range 3 {
		if _, _, e1 = syscall.RawSyscall(unix.SYS_DUP3, uintptr(i.stdio[n]), uintptr(n), 0); e1 != 0 {
			goto fail
		}
	}
	step = stepDescriptors
	if _, _, e1 = syscall.RawSyscall(unix.SYS_CLOSE_RANGE, 3, 0xffffffff, unix.CLOSE_RANGE_CLOEXEC); e1 != 0 {
		goto fail
	}
	step = stepFiles
	if _, _, e1 = syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&i.files)), 0, 0, 0); e1 != 0 {
		goto fail
	}
	step = stepDir
	if _, _, e1 = syscall.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(i.dir)), 0, 0); e1 != 0 {
		goto fail
	}

	step = stepPrivs
	if _, _, e1 = syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e1 != 0 {
		goto fail
	}
	// The bounding set first: without it an execve by uid 0, which the
	// program of a run by root is, would bring capabilities back. The plain
	// wall's relay has none to drop from it with, and no_new_privs alone keeps
	// them from coming back (execve(2)).
	step = stepCaps
	for n := uintptr(0); n < 64 && !i.plain; n++ {
		if _, _, e1 = syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, n, 0, 0, 0, 0); e1 == syscall.EINVAL && n > uintptr(unix.CAP_CHECKPOINT_RESTORE)-1 {
			break // past the kernel's last one
		} else if e1 != 0 {
			goto fail
		}
	}
	if _, _, e1 = syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0); e1 != 0 {
		goto fail
	}
	if _, _, e1 = syscall.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&i.capsHead)), uintptr(unsafe.Pointer(&i.caps)), 0); e1 != 0 {
		goto fail
	}

	if i.landlock >= 0 {
		step = stepLandlock
		if _, _, e1 = syscall.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(i.landlock), 0, 0); e1 != 0 {
			goto fail
		}
	}
	step = stepSeccomp
	if i.listened < 0 {
		if _, _, e1 = syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&i.filter))); e1 != 0 {
			goto fail
		}
	} else {
		// A signal doesn't take a call back that is being looked at, where the
		// kernel has that (Linux 6.0).
		r1, _, e1 = syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, uintptr(unsafe.Pointer(&i.filter)))
		if e1 == syscall.EINVAL {
			r1, _, e1 = syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&i.filter)))
		}
		if e1 != 0 {
			goto fail
		}
		step = stepListener
		*(*int32)(unsafe.Pointer(&i.control[2])) = int32(r1)
		if _, _, e1 = syscall.RawSyscall(unix.SYS_SENDMSG, uintptr(i.listened), uintptr(unsafe.Pointer(&i.message)), unix.MSG_NOSIGNAL); e1 != 0 {
			goto fail
		}
	}
	// What is above needs none of the relay's work on the maps; what a signal
	// or a terminal may do to it comes behind.
	step = stepRelease
	_, _, e1 = syscall.RawSyscall(unix.SYS_READ, uintptr(i.released), uintptr(unsafe.Pointer(&one)), 1)
	if e1 != 0 || one[0] != 1 {
		goto fail
	}

	// A process group of its own: a signal to the group must not reach the
	// processes outside that share the caller's.
	step = stepGroup
	if _, _, e1 = syscall.RawSyscall(unix.SYS_SETPGID, 0, 0, 0); e1 != 0 {
		goto fail
	}
	if i.tty >= 0 {
		// SIGTTOU is still ignored, as the relay has it.
		step = stepTerminal
		r1, _, _ = syscall.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
		i.pid = int32(r1)
		if _, _, e1 = syscall.RawSyscall(unix.SYS_IOCTL, uintptr(i.tty), unix.TIOCSPGRP, uintptr(unsafe.Pointer(&i.pid))); e1 != 0 {
			goto fail
		}
	}

	step = stepSignals
	for n := uint(1); n <= 64; n++ {
		if n == uint(unix.SIGKILL) || n == uint(unix.SIGSTOP) {
			continue
		}
		i.action.handler = sigDefault
		if i.ignored&(1<<(n-1)) != 0 {
			i.action.handler = sigIgnore
		}
		if _, _, e1 = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&i.action)), 0, 8, 0, 0); e1 != 0 {
			goto fail
		}
	}
	if _, _, e1 = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&i.setMask)), 0, 8, 0, 0); e1 != 0 {
		goto fail
	}

	step = stepExec
	_, _, e1 = syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(i.path)), uintptr(unsafe.Pointer(&i.argv[0])), uintptr(unsafe.Pointer(&i.envv[0])))

fail:
	i.failure = failure{step, int32(e1)}
	syscall.RawSyscall(unix.SYS_WRITE, uintptr(i.report), uintptr(unsafe.Pointer(&i.failure)), unsafe.Sizeof(i.failure))
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 125, 0, 0)
	}
}

// sigPerThreadSyscall is the runtime's, behind syscall.AllThreadsSyscall.
const sigPerThreadSyscall = unix.Signal(33)

// ignoreSignals makes the relay deaf. It is the first process of its pid
// namespace, so a signal of the program's reaches it only where it has a
// handler, and Go has handlers that would dump its stacks or end it. Not so
// SIGURG, by which Go preempts itself, SIGCHLD, and the signal by which a
// system call is made on every thread: those handlers do nothing unasked.
func ignoreSignals() error {
	action := sigaction{handler: sigIgnore}
	for n := uintptr(1); n <= 64; n++ {
		switch unix.Signal(n) {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, sigPerThreadSyscall:
			continue
		}
		if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, n, uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0); errno != 0 {
			return fmt.Errorf("ignoring signal %d: %w", n, errno)
		}
	}
	return nil
}

// keepCapabilities drops all capabilities but those in keep, on every thread,
// and reads back what is left. The ambient ones go with the inheritable ones
// (capabilities(7)).
func keepCapabilities(keep ...uint) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data, back [2]unix.CapUserData
	for _, c := range keep {
		data[c/32].Effective |= 1 << (c % 32)
		data[c/32].Permitted |= 1 << (c % 32)
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&data)), 0); errno != 0 {
		return fmt.Errorf("dropping capabilities: %w", errno)
	}
	if err := unix.Capget(&head, &back[0]); err != nil {
		return fmt.Errorf("reading capabilities: %w", err)
	}
	if back != data {
		return fmt.Errorf("capabilities are %v after dropping all but %v", back, data)
	}
	return nil
}

// setForeground gives the terminal to a process group of this session (tty_ioctl(4)).
func setForeground(tty, pgid int) error {
	group := int32(pgid)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(tty), unix.TIOCSPGRP, uintptr(unsafe.Pointer(&group))); errno != 0 {
		return errno
	}
	return nil
}
