package peercred

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The modes of a socket folder: its user's alone, or shared with a group. What
// is made in a shared one takes its group (inode(7), S_ISGID).
const (
	PrivateMode = 0o700
	SharedMode  = 0o2770
)

// Folder is a folder held open: what is made, found or changed in it is in this
// very folder, whatever its path comes to name.
type Folder struct {
	file *os.File
	// UID, GID and Mode (of chmod(2)) are as they were when it was opened.
	UID, GID int
	Mode     uint32
	dev, ino uint64
}

// Shared reports whether it is shared with a group.
func (f *Folder) Shared() bool { return f.Mode == SharedMode }

// Same reports whether two are one.
func (f *Folder) Same(other *Folder) bool { return f.dev == other.dev && f.ino == other.ino }

// OpenFolder opens a folder, at an absolute path that is no link in its last part.
func OpenFolder(path string) (*Folder, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("the folder %q is not an absolute path", path)
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the folder %s: %w", path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("the folder %s: %w", path, err)
	}
	return &Folder{os.NewFile(uintptr(fd), path), int(st.Uid), int(st.Gid), st.Mode & 0o7777, uint64(st.Dev), st.Ino}, nil
}

// Path is what it was opened by.
func (f *Folder) Path() string { return f.file.Name() }

// Real is its path without links.
func (f *Folder) Real() string {
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.file.Fd()))
	if err != nil {
		return f.Path()
	}
	return real
}

// File is its descriptor, opened with O_PATH.
func (f *Folder) File() *os.File { return f.file }

// Close closes it.
func (f *Folder) Close() error { return f.file.Close() }

// At names an entry of the folder through the open descriptor, which also
// keeps it shorter than a socket's address may be (unix(7)).
func (f *Folder) At(name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", f.file.Fd(), name)
}

// OnlySockets is an error where a folder has anything but sockets, or is one
// that everybody may write to.
func (f *Folder) OnlySockets() error {
	dir, err := os.Open(f.At("."))
	if err != nil {
		return err
	}
	defer dir.Close()
	if f.Mode&unix.S_ISVTX != 0 && f.Mode&0o002 != 0 {
		return errors.New("everybody may write to it")
	}
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type() != os.ModeSocket {
			return fmt.Errorf("it has %q", e.Name())
		}
	}
	return nil
}

// MakePrivate gives a folder of this user's the mode 0700.
func (f *Folder) MakePrivate() error {
	// Through /proc, as fchmod(2) takes no O_PATH descriptor.
	if err := unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", f.file.Fd()), PrivateMode); err != nil {
		return fmt.Errorf("the folder %s: making it its user's alone: %w", f.Path(), err)
	}
	f.Mode = PrivateMode
	return nil
}

// Remove takes an entry out of it, which may be gone already.
func (f *Folder) Remove(name string) { unix.Unlinkat(int(f.file.Fd()), name, 0) }

// DialOwned connects to a socket in the folder as DialOwned does by a path.
func (f *Folder) DialOwned(ctx context.Context, name string, owners ...int) (*net.UnixConn, error) {
	return dialOwned(ctx, int(f.file.Fd()), name, filepath.Join(f.Path(), name), owners)
}
