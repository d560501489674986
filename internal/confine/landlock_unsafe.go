//go:build linux

package confine

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// LandlockABI is the version of Landlock that this kernel has (landlock(7)),
// 0 where it has none or it is turned off.
func LandlockABI() (int, error) {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch {
	case errno == 0:
		return int(version), nil
	case errors.Is(errno, unix.ENOSYS), errors.Is(errno, unix.EOPNOTSUPP), errors.Is(errno, unix.EPERM):
		// EPERM is a container's seccomp filter, older than Landlock.
		return 0, nil
	default:
		return 0, fmt.Errorf("asking for Landlock: %w", errno)
	}
}

// ScopeABI is the first version that scopes signals and abstract sockets.
const ScopeABI = 6

// Ruleset is what Landlock holds of a program, beside the mounts and the
// namespaces, which hold alone where the kernel has none.
type Ruleset struct {
	// Write are the folders and files in which anything may be changed: the
	// mounts that are writable. What is read only by its mount can't be
	// written by this rule either, pipes in it included.
	Write []string
	// WriteFDs are open files, devices and pipes that may be opened anew and
	// written, by /proc/self/fd: the standard streams.
	WriteFDs []int
	// Execute are the files, and the folders with all below them, that may be
	// executed, if Listed.
	Execute []string
	Listed  bool
}

// writing are the rights that change something, by the version of Landlock
// that has them (landlock(7)).
var writing = []struct {
	abi    int
	rights uint64
}{
	{1, unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM},
	{3, unix.LANDLOCK_ACCESS_FS_TRUNCATE},
}

// fileRights are those that a file can have.
const fileRights = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_EXECUTE |
	unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV

// referABI is the first version that can allow links and renames across
// folders; before, every ruleset over files forbids them.
const referABI = 2

// Make returns the ruleset's descriptor, or -1 where the kernel's Landlock
// can't hold any of it. A list of programs is an error there.
func (r Ruleset) Make() (int, error) {
	abi, err := LandlockABI()
	if err != nil {
		return -1, err
	}
	if r.Listed && abi == 0 {
		return -1, errors.New("this kernel has no Landlock")
	}
	if abi < referABI && !r.Listed {
		return -1, nil
	}
	var attr unix.LandlockRulesetAttr
	var write uint64
	if abi >= referABI {
		for _, w := range writing {
			if abi >= w.abi {
				write |= w.rights
			}
		}
		attr.Handled_access_fs = write | unix.LANDLOCK_ACCESS_FS_REFER
	}
	if r.Listed {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_EXECUTE
	}
	// Signals are for the program and its children, the relay not among them,
	// and so are abstract sockets.
	if abi >= ScopeABI {
		attr.Scoped = unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
	}
	ruleset, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return -1, fmt.Errorf("making a Landlock ruleset: %w", errno)
	}
	fd := int(ruleset)
	if abi >= referABI {
		err = addPath(fd, "/", unix.LANDLOCK_ACCESS_FS_REFER)
		for _, path := range r.Write {
			if err == nil {
				err = addPath(fd, path, write)
			}
		}
	}
	for _, stream := range r.WriteFDs {
		if err == nil && abi >= referABI {
			// A socket or pipe that lies in no file system has no rule, and needs none.
			if errno := addRule(fd, stream, write&fileRights); errno != 0 && errno != unix.EBADFD && errno != unix.EBADF {
				err = fmt.Errorf("a Landlock rule for descriptor %d: %w", stream, errno)
			}
		}
	}
	for _, path := range r.Execute {
		if err == nil && r.Listed {
			err = addPath(fd, path, unix.LANDLOCK_ACCESS_FS_EXECUTE)
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// addPath allows rights below a path, those of a file if it is one.
func addPath(ruleset int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%q: %w", path, err)
	}
	defer unix.Close(fd)
	if rights&^fileRights != 0 {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			rights &= fileRights
		}
	}
	if errno := addRule(ruleset, fd, rights); errno != 0 {
		return fmt.Errorf("a Landlock rule for %q: %w", path, errno)
	}
	return nil
}

func addRule(ruleset, fd int, rights uint64) unix.Errno {
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	const pathBeneath = 1 // LANDLOCK_RULE_PATH_BENEATH
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), pathBeneath, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	return errno
}
