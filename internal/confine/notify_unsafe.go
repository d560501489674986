//go:build linux

package confine

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Notice is a system call that waits for an answer: struct seccomp_notif
// (seccomp_unotify(2)).
type Notice struct {
	ID    uint64
	PID   uint32 // the thread's, as this process sees it
	Flags uint32
	Nr    int32
	Arch  uint32
	IP    uint64
	Args  [6]uint64
}

type noticeAnswer struct {
	id    uint64
	val   int64
	errno int32
	flags uint32
}

type noticeFD struct {
	id      uint64
	flags   uint32
	src     uint32
	newFD   uint32
	fdFlags uint32
}

// The requests of seccomp_unotify(2), on all architectures with their
// sizes in them.
const (
	notifRecv    = 0xc0502100
	notifSend    = 0xc0182101
	notifIDValid = 0x40082102
	notifAddFD   = 0x40182103

	answerContinue = 1
	addFDSend      = 2
)

// Listener is where notices come.
type Listener struct{ FD int }

// ErrGone is a notice whose caller has ended meanwhile.
var ErrGone = errors.New("its caller is gone")

func (l Listener) ioctl(request uintptr, argument unsafe.Pointer) (uintptr, error) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l.FD), request, uintptr(argument))
		switch errno {
		case 0:
			return n, nil
		case unix.EINTR:
		case unix.ENOENT:
			return 0, ErrGone
		default:
			return 0, errno
		}
	}
}

// Receive waits for a notice. Its caller may be gone by the time that it is
// read (ErrGone).
func (l Listener) Receive() (Notice, error) {
	var n Notice
	if _, err := l.ioctl(notifRecv, unsafe.Pointer(&n)); err != nil {
		return Notice{}, err
	}
	return n, nil
}

// Valid reports whether the caller still waits, so that what was read of its
// process was its process's.
func (l Listener) Valid(n Notice) bool {
	_, err := l.ioctl(notifIDValid, unsafe.Pointer(&n.ID))
	return err == nil
}

// Over reports that no process is left that could ask.
func (l Listener) Over() bool {
	fds := []unix.PollFd{{Fd: int32(l.FD)}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&unix.POLLHUP != 0
}

// Continue has the kernel carry the call out, with what its arguments point at
// by then: it must be held by something else.
func (l Listener) Continue(n Notice) error {
	return l.send(noticeAnswer{id: n.ID, flags: answerContinue})
}

// Refuse answers with an error.
func (l Listener) Refuse(n Notice, errno unix.Errno) error {
	return l.send(noticeAnswer{id: n.ID, errno: -int32(errno)})
}

func (l Listener) send(answer noticeAnswer) error {
	_, err := l.ioctl(notifSend, unsafe.Pointer(&answer))
	return err
}

// AnswerFD gives the caller a copy of fd as the call's result, in one step
// (Linux 5.14). closeOnExec is the copy's.
func (l Listener) AnswerFD(n Notice, fd int, closeOnExec bool) error {
	add := noticeFD{id: n.ID, flags: addFDSend, src: uint32(fd)}
	if closeOnExec {
		add.fdFlags = unix.O_CLOEXEC
	}
	_, err := l.ioctl(notifAddFD, unsafe.Pointer(&add))
	return err
}

// ReadString reads a text that ends with a zero byte from another process, of
// at most max bytes.
func ReadString(pid int, address uint64, max int) (string, error) {
	var text []byte
	buf := make([]byte, 4096)
	for len(text) < max {
		// To the end of a page: the next may not be there.
		n := min(4096-int(address%4096), max-len(text))
		local := unix.Iovec{Base: &buf[0]}
		local.SetLen(n)
		got, err := unix.ProcessVMReadv(pid, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(address), Len: n}}, 0)
		if err != nil {
			return "", fmt.Errorf("reading the memory of process %d: %w", pid, err)
		}
		for i, c := range buf[:got] {
			if c == 0 {
				return string(append(text, buf[:i]...)), nil
			}
		}
		text = append(text, buf[:got]...)
		address += uint64(got)
	}
	return "", unix.ENAMETOOLONG
}

// ExecuteRuleset makes a Landlock ruleset under which only what is listed is
// executed, files and what is below folders, with the scopes of ScopeRuleset.
// Every other access stays as it is: links and renames across folders, which
// Landlock refuses wherever it rules over files, are allowed again.
func ExecuteRuleset(paths []string) (int, error) {
	abi, err := LandlockABI()
	if err != nil {
		return -1, err
	}
	if abi == 0 {
		return -1, errors.New("this kernel has no Landlock")
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_EXECUTE}
	if abi >= 2 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	size := unsafe.Sizeof(attr.Handled_access_fs) // an older kernel takes no more
	if abi >= ScopeABI {
		attr.Scoped = unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
		size = unsafe.Sizeof(attr)
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return -1, fmt.Errorf("making a Landlock ruleset: %w", errno)
	}
	add := func(path string, access uint64) error {
		beneath, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		defer unix.Close(beneath)
		rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(beneath)}
		const pathBeneath = 1 // LANDLOCK_RULE_PATH_BENEATH
		if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, fd, pathBeneath, uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
			return fmt.Errorf("a Landlock rule for %q: %w", path, errno)
		}
		return nil
	}
	if abi >= 2 {
		err = add("/", unix.LANDLOCK_ACCESS_FS_REFER)
	}
	for _, path := range paths {
		if err != nil {
			break
		}
		err = add(path, unix.LANDLOCK_ACCESS_FS_EXECUTE)
	}
	if err != nil {
		unix.Close(int(fd))
		return -1, err
	}
	return int(fd), nil
}
