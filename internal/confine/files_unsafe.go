//go:build linux

package confine

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Files is what this process keeps of the machine's files. It is made ready
// ahead of time, since a proxy that is bound is waited for; and it is applied
// to every thread, once.
type Files struct {
	ruleset int // -1: the kernel has no Landlock
	handled uint64
}

// reading are the rights that change nothing.
const reading = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR

// changing are the rights to make, change and remove files.
const changing = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
	unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV

// handledBy are all rights to files, by the version of Landlock that has them.
func handledBy(abi int) uint64 {
	handled := uint64(reading)
	for _, w := range writing {
		if abi >= w.abi {
			handled |= w.rights
		}
	}
	if abi >= referABI {
		handled |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 5 {
		handled |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	return handled
}

// NewFiles begins with nothing.
func NewFiles() (*Files, error) {
	abi, err := LandlockABI()
	if err != nil || abi == 0 {
		return &Files{ruleset: -1}, err
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: handledBy(abi)}
	ruleset, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return nil, fmt.Errorf("making a Landlock ruleset: %w", errno)
	}
	return &Files{int(ruleset), attr.Handled_access_fs}, nil
}

// Read keeps what may be read and executed: files, and all below folders. What
// is missing is left out.
func (f *Files) Read(paths ...string) error {
	for _, path := range paths {
		if err := f.add(path, reading); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// Write keeps what may be read and changed, and not executed: files, in folders
// in which no folder, link, socket or device is made.
func (f *Files) Write(paths ...string) error {
	for _, path := range paths {
		if err := f.add(path, f.handled&changing); err != nil {
			return err
		}
	}
	return nil
}

// Unlink keeps folders whose entries may be taken away, and not made or opened.
func (f *Files) Unlink(paths ...string) error {
	for _, path := range paths {
		if err := f.add(path, unix.LANDLOCK_ACCESS_FS_REMOVE_FILE); err != nil {
			return err
		}
	}
	return nil
}

func (f *Files) add(path string, rights uint64) error {
	if f.ruleset < 0 {
		return nil
	}
	return addPath(f.ruleset, path, rights)
}

// Restrict takes everything else away, from every thread and for good. It needs
// no_new_privs, and a program that was built without cgo.
func (f *Files) Restrict() error {
	if f.ruleset < 0 {
		return nil
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(f.ruleset), 0, 0)
	unix.Close(f.ruleset)
	f.ruleset = -1
	if errno != 0 {
		return fmt.Errorf("restricting itself by Landlock: %w", errno)
	}
	return nil
}
