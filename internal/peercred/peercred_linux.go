// Package peercred knows who is at the other end of a Unix socket, and
// reaches a socket as itself: never through a link that somebody put in its
// place, and never another user's.
package peercred

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// UID is the user that the other end had when it listened, or connected
// (unix(7), SO_PEERCRED). 65534, which stands for every user that this user
// namespace doesn't map, is nobody's identity and an error.
func UID(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("asking who is at the other end: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, fmt.Errorf("asking who is at the other end: %w", err)
	}
	if credErr != nil {
		return 0, fmt.Errorf("asking who is at the other end: %w", credErr)
	}
	if cred.Uid == overflowUID {
		return 0, errors.New("the other end is nobody that this machine knows")
	}
	return int(cred.Uid), nil
}

// overflowUID is the kernel's (user_namespaces(7), /proc/sys/kernel/overflowuid).
const overflowUID = 65534

// DialOwned connects to the socket at path if it is one, not a link, owned by
// one of owners and served by one of them. The inode that was checked is the
// one that is connected to, whatever path comes to name meanwhile.
func DialOwned(ctx context.Context, path string, owners ...int) (*net.UnixConn, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("the socket %q is not an absolute path", path)
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the socket %s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("the socket %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("%s is not a socket", path)
	}
	if !slices.Contains(owners, int(st.Uid)) {
		return nil, fmt.Errorf("the socket %s is owned by uid %d", path, st.Uid)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, fmt.Errorf("the socket %s: %w", path, err)
	}
	unixConn := conn.(*net.UnixConn)
	uid, err := UID(unixConn)
	if err == nil && !slices.Contains(owners, uid) {
		err = fmt.Errorf("it is served by uid %d", uid)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("the socket %s: %w", path, err)
	}
	return unixConn, nil
}
