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

// socketFolder is a socket folder, checked and held open.
type socketFolder struct{ *peercred.Folder }

// openFolder opens the socket folder: this user's with mode 0700, or one that
// is shared with an agent's user through a group, as the places say.
func openFolder(at Places) (*socketFolder, error) {
	f, err := peercred.OpenFolder(at.Dir)
	if err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	switch {
	case at.shared() && (f.GID != at.Group || f.Mode != peercred.SharedMode):
		err = fmt.Errorf("it is of group %d with mode %04o: it must be of group %d with mode %04o (--group)", f.GID, f.Mode, at.Group, peercred.SharedMode)
	case at.shared() && f.UID != at.AgentUser && f.UID != os.Geteuid() && f.UID != 0:
		err = fmt.Errorf("it is uid %d's: it must be the agent user's, uid %d's", f.UID, at.AgentUser)
	case !at.shared() && (f.UID != os.Geteuid() || f.Mode != peercred.PrivateMode):
		err = fmt.Errorf("it is uid %d's with mode %04o: it must be uid %d's with mode %04o", f.UID, f.Mode, os.Geteuid(), peercred.PrivateMode)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("the socket folder %s: %w", at.Dir, err)
	}
	return &socketFolder{f}, nil
}

// listen makes out.sock and local.sock, with their rights from their first
// moment: those that the process's umask leaves (see Main).
func (f *socketFolder) listen() (out, local *net.UnixListener, err error) {
	out, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: f.At(OutSocket)})
	if err != nil {
		return nil, nil, taken(f.Folder, OutSocket, err)
	}
	local, err = net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: f.At(handoff.SocketName)})
	if err != nil {
		out.Close()
		return nil, nil, taken(f.Folder, handoff.SocketName, err)
	}
	return out, local, nil
}

// controlSocket is the control socket, and the folder that it is in.
type controlSocket struct {
	*net.UnixListener
	folder *peercred.Folder
	name   string
}

// boundSuffix names the empty file that says of a control socket beside it that
// its proxy is bound, to whoever keeps proxies and isn't told of binds.
const boundSuffix = ".bound"

func (c *controlSocket) markBound() error {
	fd, err := unix.Openat(int(c.folder.File().Fd()), c.name+boundSuffix, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("making %s%s: %w", c.name, boundSuffix, err)
	}
	return unix.Close(fd)
}

// Close ends it, and takes its name away.
func (c *controlSocket) Close() error {
	err := c.UnixListener.Close()
	c.folder.Remove(c.name)
	c.folder.Remove(c.name + boundSuffix)
	c.folder.Close()
	return err
}

// listenControl makes the control socket. binder is the user beside this one
// who is let in; negative: none.
func listenControl(path string, binder int) (*controlSocket, error) {
	dir, name := filepath.Dir(path), filepath.Base(path)
	// It may be reached by links: it is named by whoever starts the proxy.
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("the control socket's folder %s: %w", dir, err)
	}
	f, err := peercred.OpenFolder(real)
	if err != nil {
		return nil, fmt.Errorf("the control socket: %w", err)
	}
	l, err := peercred.ListenPrivate(int(f.File().Fd()), name, binder)
	if errors.Is(err, unix.EEXIST) {
		err = unix.EADDRINUSE
	}
	if err != nil {
		defer f.Close()
		return nil, taken(f, name, err)
	}
	return &controlSocket{l, f, name}, nil
}

// taken says what to do where a socket is there already. It is never removed
// by itself: a proxy may be serving on it.
func taken(f *peercred.Folder, name string, err error) error {
	path := filepath.Join(f.Path(), name)
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("%s is there already: another proxy serves on it, or one was killed: then remove it", path)
	}
	return fmt.Errorf("making %s: %w", path, err)
}
