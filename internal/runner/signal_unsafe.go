//go:build linux

package runner

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the kernel's struct of rt_sigaction(2), on amd64 and arm64.
type sigaction struct {
	handler, flags, restorer, mask uint64
}

// withDefault calls f while a signal has its default action. signal.Reset
// does not do it: the Go runtime keeps the handler that Notify installed, and
// a stop is lost in it.
func withDefault(s unix.Signal, f func()) error {
	var standard, before sigaction
	if err := setAction(s, &standard, &before); err != nil {
		return err
	}
	f()
	return setAction(s, &before, nil)
}

func setAction(s unix.Signal, action, before *sigaction) error {
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(action)), uintptr(unsafe.Pointer(before)), 8, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
