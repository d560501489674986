package wall

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// protectedInHome are the folders of a home that hold keys and other agents'
// files. No sandbox sees one, unless a grant names it or a folder in it.
var protectedInHome = []struct {
	path string
	// never: not even a grant that names it opens it.
	never bool
}{
	{".lnk", true},
	{"Link/Agents", false},
	{"Link/History", false},
}

// protect covers every protected path that a grant would show, makes lnk's
// own programs read only in writable grants, and pins what lies between, so
// that a protected path can't be got rid of by renaming a folder above it.
func (w *Wall) protect() error {
	for _, home := range w.homes() {
		for _, p := range protectedInHome {
			path := filepath.Join(home, p.path)
			if p.never {
				if err := w.refuseGrantsIn(path); err != nil {
					return err
				}
			}
			if err := w.hide(path); err != nil {
				return err
			}
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

// protectedAbove returns the protected folder that path lies in, or "".
func (w *Wall) protectedAbove(path string) string {
	for _, home := range w.homes() {
		for _, p := range protectedInHome {
			if folder := filepath.Join(home, p.path); within(path, folder) {
				return folder
			}
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
	if !ok || above.kind != readOnly && above.kind != readWrite {
		return nil
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("%s must be covered inside %s, which was granted, and can't be made: %w", path, above.dest, err)
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
			return fmt.Errorf("%s must be covered inside %s, which was granted, and %s is no folder: grant something narrower", path, from, at)
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
	if !ok || above.kind != readWrite {
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
			if !ok || covering.kind != readWrite {
				break
			}
			w.mounts.byDest[at] = mount{kind: readWrite, dest: at, source: at}
		}
	}
}
