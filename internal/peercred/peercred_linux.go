// Package peercred knows who is at the other end of a Unix socket, and
// reaches a socket as itself: never through a link that somebody put in its
// place, and never another user's.
package peercred

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
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
	return dialOwned(ctx, unix.AT_FDCWD, path, path, owners)
}

// dialOwned is DialOwned for a name in a folder that is open. shown is what its
// errors call it.
func dialOwned(ctx context.Context, dirFD int, name, shown string, owners []int) (*net.UnixConn, error) {
	fd, err := unix.Openat(dirFD, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the socket %s: %w", shown, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("the socket %s: %w", shown, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("%s is not a socket", shown)
	}
	if !slices.Contains(owners, int(st.Uid)) || st.Uid == overflowUID {
		return nil, fmt.Errorf("the socket %s is owned by uid %d", shown, st.Uid)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, fmt.Errorf("the socket %s: %w", shown, err)
	}
	unixConn := conn.(*net.UnixConn)
	uid, err := UID(unixConn)
	if err == nil && !slices.Contains(owners, uid) {
		err = fmt.Errorf("it is served by uid %d", uid)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("the socket %s: %w", shown, err)
	}
	return unixConn, nil
}

// ListenPrivate makes a stream socket in the folder that dirFD is open on,
// open to this user alone, and to one other by an ACL entry if other isn't
// negative. Under its name it is there only when it listens, and with its
// rights as they are to be; a name that is taken is an error (EEXIST).
func ListenPrivate(dirFD int, name string, other int) (*net.UnixListener, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("making a socket: %w", err)
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close() // the listener has a descriptor of its own
	// The mode that the socket's file gets (unix(7)), before there is one.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return nil, fmt.Errorf("making a socket: %w", err)
	}
	temporary := "." + rand.Text()
	at := fmt.Sprintf("/proc/self/fd/%d/%s", dirFD, temporary)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: at}); err != nil {
		return nil, fmt.Errorf("making a socket: %w", err)
	}
	fail := func(err error) (*net.UnixListener, error) {
		unix.Unlinkat(dirFD, temporary, 0)
		return nil, err
	}
	if other >= 0 {
		const readWrite = 6
		if err := unix.Setxattr(at, "system.posix_acl_access", acl(uint32(other), readWrite, readWrite), 0); errors.Is(err, unix.EOPNOTSUPP) {
			return fail(errors.New("the file system has no access control lists, by which the binder is let in: put the socket on another"))
		} else if err != nil {
			return fail(fmt.Errorf("letting uid %d in: %w", other, err))
		}
	}
	if err := unix.Listen(fd, 128); err != nil {
		return fail(fmt.Errorf("making a socket: %w", err))
	}
	if err := unix.Renameat2(dirFD, temporary, dirFD, name, unix.RENAME_NOREPLACE); err != nil {
		return fail(err)
	}
	l, err := net.FileListener(file)
	if err != nil {
		unix.Unlinkat(dirFD, name, 0)
		return nil, fmt.Errorf("making a socket: %w", err)
	}
	return l.(*net.UnixListener), nil
}

// acl is a POSIX access ACL with rights for a file's own user and one other
// (acl(5); its form is the kernel's, linux/posix_acl_xattr.h).
func acl(uid uint32, own, other uint16) []byte {
	const (
		version            = 2
		userObj, user      = 0x01, 0x02
		groupObj, mask, no = 0x04, 0x10, 0x20
		undefined          = 0xffffffff
	)
	acl := binary.LittleEndian.AppendUint32(nil, version)
	for _, entry := range []struct {
		tag, rights uint16
		id          uint32
	}{{userObj, own, undefined}, {user, other, uid}, {groupObj, 0, undefined}, {mask, other, undefined}, {no, 0, undefined}} {
		acl = binary.LittleEndian.AppendUint16(acl, entry.tag)
		acl = binary.LittleEndian.AppendUint16(acl, entry.rights)
		acl = binary.LittleEndian.AppendUint32(acl, entry.id)
	}
	return acl
}

// AllowTraverse lets one other user go through a folder that is open, and
// neither read nor write it. The folder's mode is to be 0700.
func AllowTraverse(dirFD, uid int) error {
	const execute = 1
	if err := unix.Setxattr(fmt.Sprintf("/proc/self/fd/%d", dirFD), "system.posix_acl_access", acl(uint32(uid), 7, execute), 0); err != nil {
		return fmt.Errorf("letting uid %d through: %w", uid, err)
	}
	return nil
}
