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
	notifFlags   = 0x40082104

	answerContinue = 1
	addFDSend      = 2
)

// Listener is where notices come.
type Listener struct{ FD int }

// WakeOnSameCPU has caller and listener take turns on one processor, where the
// kernel has that (Linux 6.6): each waits for the other anyway.
func (l Listener) WakeOnSameCPU() {
	const syncWakeUp = 1 // SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP, which is the argument itself
	unix.Syscall(unix.SYS_IOCTL, uintptr(l.FD), notifFlags, syncWakeUp)
}

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
	var buf [4096]byte
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
