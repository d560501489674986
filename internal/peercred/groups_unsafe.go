//go:build linux

package peercred

import (
	"fmt"
	"net"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Groups are the groups that the other end had when it connected, its own
// among them (unix(7), SO_PEERCRED; SO_PEERGROUPS).
func Groups(conn *net.UnixConn) ([]int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("asking for the groups of the other end: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	list := make([]uint32, 64)
	controlErr := raw.Control(func(fd uintptr) {
		if cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); credErr != nil {
			return
		}
		for {
			size := uint32(len(list)) * 4
			_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS, uintptr(unsafe.Pointer(&list[0])), uintptr(unsafe.Pointer(&size)), 0)
			if errno == unix.ERANGE && int(size) > 4*len(list) {
				list = make([]uint32, size/4)
				continue
			}
			if errno != 0 {
				credErr = errno
				return
			}
			list = list[:size/4]
			return
		}
	})
	if controlErr != nil || credErr != nil {
		return nil, fmt.Errorf("asking for the groups of the other end: %w", firstError(controlErr, credErr))
	}
	groups := []int{int(cred.Gid)}
	for _, gid := range list {
		if !slices.Contains(groups, int(gid)) {
			groups = append(groups, int(gid))
		}
	}
	return groups, nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
