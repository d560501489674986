package runner

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A run's folder is lnk-run-… in XDG_RUNTIME_DIR/lnk or /tmp. It is made as
// lnk-new-…, locked, and renamed, so that a folder of the first name that can
// be locked is one whose runner is gone. It holds:
//
//	run.json       what is run (About)
//	net/           the socket folder, which ties the proxy to the sandbox
//	control.sock   the proxy's
//	wire           the log, unless another was named; and wire.1
//
// Without a network there is run.json alone.
const (
	runPrefix = "lnk-run-"
	newPrefix = "lnk-new-"

	aboutName   = "run.json"
	netName     = "net"
	controlName = "control.sock"
	wireName    = "wire"
)

// folder is the folder of one run, locked for as long as it lives.
type folder struct {
	path string
	lock *os.File // the folder itself, flocked
	base *os.File
}

// newFolder makes the folder, and removes those of this user's runs that were
// killed.
func newFolder(about About) (*folder, error) {
	base, err := openBase()
	if err != nil {
		return nil, err
	}
	sweep(base)
	// While one is being made, nobody takes it for a stale one.
	making(base, unix.LOCK_SH)
	defer making(base, unix.LOCK_UN)
	f := &folder{base: base}
	name := rand.Text()
	fail := func(err error) (*folder, error) {
		if f.lock != nil {
			removeFolder(base, int(f.lock.Fd()), newPrefix+name)
			f.lock.Close()
		}
		base.Close()
		return nil, fmt.Errorf("making the run's folder in %s: %w", base.Name(), err)
	}
	if err := unix.Mkdirat(int(base.Fd()), newPrefix+name, 0o700); err != nil {
		return fail(err)
	}
	fd, err := unix.Openat(int(base.Fd()), newPrefix+name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	f.lock = os.NewFile(uintptr(fd), name)
	// The umask may have taken some away.
	if err := unix.Fchmod(fd, 0o700); err != nil {
		return fail(err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fail(err)
	}
	if about.Network {
		if err := unix.Mkdirat(fd, netName, 0o700); err != nil {
			return fail(err)
		}
		if err := unix.Fchmodat(fd, netName, 0o700, 0); err != nil {
			return fail(err)
		}
	}
	if err := about.write(fd); err != nil {
		return fail(err)
	}
	if err := unix.Renameat2(int(base.Fd()), newPrefix+name, int(base.Fd()), runPrefix+name, unix.RENAME_NOREPLACE); err != nil {
		return fail(err)
	}
	f.path = filepath.Join(base.Name(), runPrefix+name)
	return f, nil
}

// openBase opens where run folders are made: a folder in which nobody else
// can rename or remove what is this user's.
func openBase() (*os.File, error) {
	if base, err := openRuntimeFolder(); err == nil {
		return base, nil
	}
	return openTmp()
}

// errNoFolder is a place for runs that isn't there.
var errNoFolder = errors.New("no such place for runs")

func openTmp() (*os.File, error) {
	base, err := os.OpenFile("/tmp", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("no place for the run's folder: XDG_RUNTIME_DIR is none, and /tmp: %w", err)
	}
	if err := checkBase(base); err != nil {
		base.Close()
		return nil, fmt.Errorf("no place for the run's folder: /tmp: %w", err)
	}
	return base, nil
}

// runtimeFolder is where runs are in the user's runtime directory, which
// nobody else can make first; empty without one. It has a folder of its own
// there so that the wall can keep it out of grants.
func runtimeFolder() string {
	path := os.Getenv("XDG_RUNTIME_DIR")
	if !filepath.IsAbs(path) {
		return ""
	}
	return filepath.Join(filepath.Clean(path), "lnk")
}

// Folders are those that hold runs' sockets, which no grant may show: this
// environment's, and the usual one, in which another's runs may be.
func Folders() []string {
	var folders []string
	for _, path := range []string{runtimeFolder(), fmt.Sprintf("/run/user/%d/lnk", os.Getuid())} {
		if path == "" || slices.Contains(folders, path) {
			continue
		}
		if info, err := os.Stat(filepath.Dir(path)); err == nil && info.IsDir() {
			folders = append(folders, path)
		}
	}
	return folders
}

func openRuntimeFolder() (*os.File, error) {
	path := runtimeFolder()
	if path == "" {
		return nil, errNoFolder
	}
	parent, err := os.OpenFile(filepath.Dir(path), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errNoFolder
	}
	defer parent.Close()
	if checkBase(parent) != nil {
		return nil, errNoFolder
	}
	if err := unix.Mkdirat(int(parent.Fd()), "lnk", 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, errNoFolder
	}
	fd, err := unix.Openat(int(parent.Fd()), "lnk", unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errNoFolder
	}
	base := os.NewFile(uintptr(fd), path)
	if checkBase(base) != nil || unix.Access(path, unix.W_OK) != nil {
		base.Close()
		return nil, errNoFolder
	}
	return base, nil
}

func checkBase(base *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(base.Fd()), &st); err != nil {
		return err
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return errors.New("it is another user's")
	}
	if st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return errors.New("others may remove what is in it: its sticky bit is missing (chmod +t)")
	}
	return nil
}

// sweep removes the folders of this user's runs whose runner is gone. What it
// can't lock is in use; what isn't a folder of this user's is left alone.
func sweep(base *os.File) {
	none := making(base, unix.LOCK_EX|unix.LOCK_NB)
	defer making(base, unix.LOCK_UN)
	names, err := base.Readdirnames(-1)
	if err != nil {
		return
	}
	for _, name := range names {
		made := strings.HasPrefix(name, runPrefix)
		if !made && !strings.HasPrefix(name, newPrefix) {
			continue
		}
		fd, err := unix.Openat(int(base.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && int(st.Uid) == os.Geteuid() && (made || none || old(st)) && unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			removeFolder(base, fd, name)
		}
		unix.Close(fd)
	}
}

// making locks the folder that runs are made in, if it is the user's own: in
// /tmp, anybody could hold the lock. It reports whether it did.
func making(base *os.File, how int) bool {
	return base.Name() != "/tmp" && unix.Flock(int(base.Fd()), how) == nil
}

// old reports whether a folder that has no lock yet has had the time to get one.
func old(st unix.Stat_t) bool {
	return time.Since(time.Unix(st.Mtim.Unix())) > time.Minute
}

// removeFolder removes a folder that is open as fd and what a run has in it.
// The sandbox's relay could make entries in net/, so each is removed as it is.
func removeFolder(base *os.File, fd int, name string) {
	if netFD, err := unix.Openat(fd, netName, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
		removeEntries(netFD)
		unix.Close(netFD)
		unix.Unlinkat(fd, netName, unix.AT_REMOVEDIR)
	}
	removeEntries(fd)
	unix.Unlinkat(int(base.Fd()), name, unix.AT_REMOVEDIR)
}

func removeEntries(fd int) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return
	}
	dir := os.NewFile(uintptr(dup), "run folder")
	defer dir.Close()
	entries, _ := dir.Readdirnames(-1)
	for _, entry := range entries {
		unix.Unlinkat(fd, entry, 0)
	}
}

// Close removes the folder.
func (f *folder) Close() {
	removeFolder(f.base, int(f.lock.Fd()), filepath.Base(f.path))
	f.lock.Close()
	f.base.Close()
}

func (f *folder) net() string     { return filepath.Join(f.path, netName) }
func (f *folder) control() string { return filepath.Join(f.path, controlName) }
func (f *folder) wire() string    { return filepath.Join(f.path, wireName) }

// reference opens the socket folder for the relay to inherit, by descriptor only.
func (f *folder) reference() (*os.File, error) {
	fd, err := unix.Openat(int(f.lock.Fd()), netName, unix.O_NOFOLLOW|unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the run's folder: %w", err)
	}
	return os.NewFile(uintptr(fd), f.path), nil
}

// Base is where runs have their folders.
func Base() (string, error) {
	base, err := openBase()
	if err != nil {
		return "", err
	}
	defer base.Close()
	return base.Name(), nil
}
