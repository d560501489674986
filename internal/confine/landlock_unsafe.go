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

// ScopeRuleset makes a Landlock ruleset under which a program signals nobody
// but itself and its children, the relay not, and connects to no abstract
// socket but theirs. It returns -1 where the kernel's Landlock has no scopes:
// the namespaces then hold alone, and the relay ignores every signal.
func ScopeRuleset() (int, error) {
	abi, err := LandlockABI()
	if err != nil || abi < ScopeABI {
		return -1, err
	}
	attr := unix.LandlockRulesetAttr{Scoped: unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return -1, fmt.Errorf("making a Landlock ruleset: %w", errno)
	}
	return int(fd), nil
}
