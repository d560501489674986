package wall

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// protectedPath is a folder that no sandbox sees, unless a grant names it or a
// folder in it.
type protectedPath struct {
	path string
	// never: not even a grant that names it opens it.
	never bool
}

// protectedInHome are those below each home, for keys and other agents' files.
var protectedInHome = []protectedPath{
	{".lnk", true},
	{"Link/Agents", false},
	{"Link/History", false},
}

// protect covers every protected path that a grant would show, makes lnk's
// own programs read only in writable grants, and pins what lies between, so
// that a protected path can't be got rid of by renaming a folder above it.
func (w *Wall) protect() error {
	for _, p := range w.protected() {
		if p.never {
			if err := w.refuseGrantsIn(p.path); err != nil {
				return err
			}
		}
		if err := w.hide(p.path); err != nil {
			return err
		}
	}
	for _, program := range w.grants.Programs {
		if err := w.keepReadOnly(program); err != nil {
			return err
		}
	}
	w.pinAll()
	return nil
}

// protected returns every protected path: by each of the home's names, and
// what that leads to where a link is on the way.
func (w *Wall) protected() []protectedPath {
	var all []protectedPath
	for _, home := range w.homes() {
		for _, p := range protectedInHome {
			all = append(all, protectedPath{filepath.Join(home, p.path), p.never})
		}
	}
	for _, path := range w.grants.Hidden {
		all = append(all, protectedPath{path, true})
	}
	for _, p := range all {
		if real := resolveExisting(p.path); real != p.path {
			all = append(all, protectedPath{real, p.never})
		}
	}
	return all
}

// resolveExisting follows the links of a path as far as it exists.
func resolveExisting(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	dir := filepath.Dir(path)
	if dir == path {
		return path
	}
	return filepath.Join(resolveExisting(dir), filepath.Base(path))
}

// protectedAbove returns the protected folder that path lies in, or "".
func (w *Wall) protectedAbove(path string) string {
	for _, p := range w.protected() {
		if within(path, p.path) {
			return p.path
		}
	}
	return ""
}

func (w *Wall) refuseGrantsIn(path string) error {
	for dest, m := range w.mounts.byDest {
		if m.granted && within(dest, path) {
			return fmt.Errorf("%s lies in %s, which no sandbox sees: it holds lnk's keys and settings", dest, path)
		}
	}
	return nil
}

// hide covers path if a bind shows it. It makes the folder where it doesn't
// exist yet, since nothing can be covered that isn't there, and somebody may
// make it while the sandbox runs.
func (w *Wall) hide(path string) error {
	if m, ok := w.mounts.byDest[path]; ok && m.granted {
		return nil
	}
	above, ok := w.mounts.covering(path)
	if !ok || above.kind != readOnly && above.kind != readWrite || above.elsewhere() {
		return nil
	}
	if above.kind == readOnly && resolveExisting(path) != path {
		return nil // a link that the sandbox can't change; what it leads to is hidden by itself
	}
	if _, err := os.Lstat(path); err != nil && above.system {
		return nil
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("%s must be covered inside %s, which the sandbox sees, and can't be made: %w", path, above.dest, err)
	}
	if err := plainFolders(above.dest, path); err != nil {
		return err
	}
	w.mounts.byDest[path] = mount{kind: hidden, dest: path}
	return nil
}

// plainFolders refuses a link between a grant and what is protected in it:
// nothing can be mounted on a link, so inside it could be replaced.
func plainFolders(from, path string) error {
	for at := path; at != from && at != "/"; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil {
			return fmt.Errorf("%s must be covered: %w", path, err)
		}
		if !info.IsDir() {
			return fmt.Errorf("%s must be covered inside %s, which the sandbox sees, and %s is no folder: grant something narrower", path, from, at)
		}
	}
	return nil
}

// keepReadOnly binds one of lnk's own files read only where a writable grant
// shows it.
func (w *Wall) keepReadOnly(program string) error {
	real, err := filepath.EvalSymlinks(program)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lnk's own %s: %w", program, err)
	}
	above, ok := w.mounts.covering(real)
	if !ok || above.kind != readWrite || above.elsewhere() {
		return nil
	}
	if above.dest == real {
		return fmt.Errorf("--write %s: it is lnk's own program, which no sandbox may write", real)
	}
	w.mounts.byDest[real] = mount{kind: readOnly, dest: real, source: real}
	return nil
}

// pinAll binds every folder between a writable bind and what is less than
// writable below it onto itself: a mount point can't be renamed (EBUSY).
func (w *Wall) pinAll() {
	for dest, m := range w.mounts.byDest {
		if m.kind != readOnly && m.kind != hidden {
			continue
		}
		for at := filepath.Dir(dest); at != "/"; at = filepath.Dir(at) {
			above, ok := w.mounts.byDest[at]
			if ok {
				if above.kind == readWrite && above.source == at {
					continue // pinned, or the grant itself
				}
				break
			}
			covering, ok := w.mounts.covering(at)
			if !ok || covering.kind != readWrite || covering.elsewhere() {
				break
			}
			w.mounts.byDest[at] = mount{kind: readWrite, dest: at, source: at}
		}
	}
}
