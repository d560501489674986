package proxy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/handoff"
	"link.internal/lnk/internal/peercred"
)

// OutSocket is the name in the socket folder of the socket that takes HTTP
// proxy requests.
const OutSocket = "out.sock"

// folder is a socket folder, held open: what is made in it is made in this
// very folder, whatever its path comes to name.
type folder struct {
	file *os.File
}

// openFolder opens a private socket folder: a directory, not reached through
// a link in its last part, that is this user's with mode 0700.
func openFolder(path string) (*folder, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("the socket folder %q is not an absolute path", path)
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the socket folder %s: %w", path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("the socket folder %s: %w", path, err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o7777 != 0o700 {
		unix.Close(fd)
		return nil, fmt.Errorf("the socket folder %s is uid %d's with mode %04o: it must be uid %d's with mode 0700",
			path, st.Uid, st.Mode&0o7777, os.Geteuid())
	}
	return &folder{os.NewFile(uintptr(fd), path)}, nil
}

func (f *folder) Close() error { return f.file.Close() }

// at names an entry of the folder through the open descriptor, which also
// keeps it shorter than a socket's address may be (unix(7)).
func (f *folder) at(name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", f.file.Fd(), name)
}

// listen makes out.sock and local.sock, open to this user alone from their
// first moment: the process's umask is 0177 (see Main).
func (f *folder) listen() (out, local *net.UnixListener, err error) {
	out, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: f.at(OutSocket)})
	if err != nil {
		return nil, nil, f.taken(OutSocket, err)
	}
	local, err = net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: f.at(handoff.SocketName)})
	if err != nil {
		out.Close()
		return nil, nil, f.taken(handoff.SocketName, err)
	}
	return out, local, nil
}

// controlSocket is the control socket, and the folder that it is in.
type controlSocket struct {
	*net.UnixListener
	folder *folder
	name   string
}

// Close ends it, and takes its name away.
func (c *controlSocket) Close() error {
	err := c.UnixListener.Close()
	unix.Unlinkat(int(c.folder.file.Fd()), c.name, 0)
	c.folder.Close()
	return err
}

// listenControl makes the control socket. binder is the user beside this one
// who is let in; negative: none.
func listenControl(path string, binder int) (*controlSocket, error) {
	dir, name := filepath.Dir(path), filepath.Base(path)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the control socket's folder %s: %w", dir, err)
	}
	f := &folder{os.NewFile(uintptr(fd), dir)}
	l, err := peercred.ListenPrivate(fd, name, binder)
	if errors.Is(err, unix.EEXIST) {
		err = unix.EADDRINUSE
	}
	if err != nil {
		defer f.Close()
		return nil, f.taken(name, err)
	}
	return &controlSocket{l, f, name}, nil
}

// taken says what to do where a socket is there already. It is never removed
// by itself: a proxy may be serving on it.
func (f *folder) taken(name string, err error) error {
	path := filepath.Join(f.file.Name(), name)
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("%s is there already: another proxy serves on it, or one was killed: then remove it", path)
	}
	return fmt.Errorf("making %s: %w", path, err)
}
