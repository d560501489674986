package wall

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// home puts the folder that lasts at the home's path. It is the user's own,
// and nobody else's to read.
func (w *Wall) home() error {
	if w.grants.HomeDir == "" {
		return nil
	}
	path := w.grants.HomeDir
	if len(w.grants.Homes) > 0 && (path == "~" || strings.HasPrefix(path, "~/")) {
		path = w.grants.Homes[0] + path[1:]
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(w.grants.Dir, path)
	}
	fail := func(format string, args ...any) error {
		return fmt.Errorf("--home %s: %w", w.grants.HomeDir, fmt.Errorf(format, args...))
	}
	real, _, err := resolve(filepath.Clean(path))
	if err != nil {
		return fail("%w", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(real, &st); err != nil {
		return fail("%w", err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fail("it is no folder")
	case int(st.Uid) != w.grants.User.ID:
		return fail("it is another user's")
	case st.Mode&0o077 != 0:
		return fail("others may look into it: chmod 700 %s", real)
	case within(real, "/proc") || within(real, "/dev") || within(real, "/tmp") && within(w.grants.Home, real):
		return fail("it can't be a home")
	}
	for _, own := range append(w.homes(), w.grants.Home) {
		if within(own, real) {
			return fail("it is your own home, or holds it: name a folder for it alone")
		}
	}
	if protected := w.protectedAbove(real); protected != "" {
		return fail("it lies in %s, which no sandbox sees", protected)
	}
	for _, p := range w.protected() {
		if within(p.path, real) {
			return fail("it holds %s, which no sandbox sees", p.path)
		}
	}
	for _, program := range w.grants.Programs {
		if at, err := filepath.EvalSymlinks(program); err == nil && within(at, real) {
			return fail("it holds %s, which is lnk's own", at)
		}
	}
	if err := w.pin(real); err != nil {
		return fail("%w", err)
	}
	pin := w.pins[real]
	pin.Path = w.grants.Home
	w.pins[w.grants.Home] = pin
	w.mounts.add(mount{kind: readWrite, dest: w.grants.Home, source: real})
	return nil
}

// prepareHome makes what is mounted over below a home that lasts. A program
// that had that home may have left a link on the way, which bwrap would follow
// before the sandbox's own root is there: so every folder is gone to as itself.
func (w *Wall) prepareHome() error {
	if w.grants.HomeDir == "" {
		return nil
	}
	home, ok := w.mounts.byDest[w.grants.Home]
	if !ok || home.kind != readWrite || !home.elsewhere() {
		return fmt.Errorf("--home %s: a grant of %s takes its place: leave one out", w.grants.HomeDir, w.grants.Home)
	}
	root, err := unix.Open(home.source, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("--home %s: %w", w.grants.HomeDir, err)
	}
	defer unix.Close(root)
	for dest, m := range w.mounts.byDest {
		below, ok := strings.CutPrefix(dest, w.grants.Home+"/")
		if !ok {
			continue
		}
		if err := makeBelow(root, below, m); err != nil {
			return fmt.Errorf("--home %s: what is there at %s isn't what a grant would lie on, and was put there by a program in the sandbox: remove it (%w)", w.grants.HomeDir, below, err)
		}
	}
	return nil
}

// makeBelow makes the folders of a path below a folder, following no link, and
// at its end what a mount of that kind lies on.
func makeBelow(root int, path string, m mount) error {
	parts := strings.Split(path, "/")
	last := len(parts)
	isFolder := m.kind != link
	if m.kind == readOnly || m.kind == readWrite {
		info, err := os.Stat(m.source)
		isFolder = err == nil && info.IsDir()
	}
	if !isFolder {
		last-- // a file, or a link, is bwrap's to make in its folder
	}
	at := root
	for _, part := range parts[:last] {
		if err := unix.Mkdirat(at, part, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		next, err := unix.Openat(at, part, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if at != root {
			unix.Close(at)
		}
		if err != nil {
			return err
		}
		at = next
	}
	if at != root {
		defer unix.Close(at)
	}
	if isFolder {
		return nil
	}
	var st unix.Stat_t
	err := unix.Fstatat(at, parts[last], &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) || err == nil && (st.Mode&unix.S_IFMT == unix.S_IFREG) != (m.kind == link) {
		return nil
	}
	if err == nil {
		err = unix.EEXIST
	}
	return err
}
