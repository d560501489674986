package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// libexec is where a package puts lnk's sisters.
const libexec = "/usr/lib/lnk"

// bwrapPath is bubblewrap, never whatever PATH says.
const bwrapPath = "/usr/bin/bwrap"

// dropInherited keeps every descriptor that lnk was started with, beside 0, 1
// and 2, from whatever it starts.
func dropInherited() error {
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("this kernel has no close_range (Linux 5.11): %w", err)
	}
	return nil
}

// sisters are lnk's own programs.
type sisters struct {
	self, relay, proxy string
}

// findSisters looks beside lnk itself, and then where a package puts them.
func findSisters() (sisters, error) {
	self, err := os.Executable()
	if err != nil {
		return sisters{}, fmt.Errorf("finding lnk's own path: %w", err)
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return sisters{}, fmt.Errorf("finding lnk's own path: %w", err)
	}
	s := sisters{self: self}
	for _, sister := range []struct {
		name string
		path *string
	}{{"lnk-relay", &s.relay}, {"link-sandbox-proxy", &s.proxy}} {
		if *sister.path, err = findSister(filepath.Dir(self), sister.name); err != nil {
			return sisters{}, err
		}
	}
	return s, nil
}

func findSister(beside, name string) (string, error) {
	for _, folder := range []string{beside, libexec} {
		path := filepath.Join(folder, name)
		if unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is neither in %s nor in %s: install lnk whole (make install, or its package)", name, beside, libexec)
}

// checkBwrap refuses a machine without bubblewrap.
func checkBwrap() error {
	err := unix.Access(bwrapPath, unix.X_OK)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("bubblewrap is missing at %s: install it (apt install bubblewrap, or dnf install bubblewrap)", bwrapPath)
	default:
		return fmt.Errorf("bubblewrap at %s can't be executed: %w", bwrapPath, err)
	}
}

// all are the files that no sandbox may write.
func (s sisters) all() []string { return []string{s.self, s.relay, s.proxy, bwrapPath} }
