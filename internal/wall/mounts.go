package wall

import (
	"path/filepath"
	"slices"
	"strings"
)

// kind is what stands at a path of the sandbox.
type kind uint8

const (
	readOnly  kind = iota + 1 // a bind of the machine's
	readWrite                 // a writable bind
	tmpfs                     // empty, writable, gone with the run
	hidden                    // empty, read only: something protected
	link                      // a symbolic link
	proc
	dev
	made   // a file that lnk writes
	copied // a copy of one of the machine's
)

// mount is one entry of the sandbox's file system.
type mount struct {
	kind   kind
	dest   string // clean and absolute
	source string // of a bind; the text of a link; the bytes of a file
	perms  string // for a tmpfs, octal
	size   int64  // of a tmpfs, in bytes; 0: as the kernel has it
	// granted says that a person named it: it replaces what the sandbox
	// would have there by itself.
	granted bool
	// system says that the folder is the machine's own, where nobody but root
	// makes anything.
	system bool
}

// elsewhere reports whether what stands there is not what the machine has at
// that path: a home that lasts.
func (m mount) elsewhere() bool { return m.source != m.dest }

// mounts are the entries by path.
type mounts struct {
	byDest map[string]mount
}

func newMounts() mounts { return mounts{make(map[string]mount)} }

// add puts m in place of an entry that says less: a grant over the sandbox's
// own, writable over read only. A hidden one replaces all but a grant by its
// own name.
func (ms *mounts) add(m mount) {
	old, ok := ms.byDest[m.dest]
	if ok && old.granted && (!m.granted || old.kind == readWrite) {
		return
	}
	ms.byDest[m.dest] = m
}

func (ms *mounts) has(dest string) bool {
	_, ok := ms.byDest[dest]
	return ok
}

func (ms *mounts) isBind(dest string) bool {
	m := ms.byDest[dest]
	return m.kind == readOnly || m.kind == readWrite
}

// exists reports whether the sandbox has the path as a folder of its own: a
// mount, or a folder above one.
func (ms *mounts) exists(path string) bool {
	for dest, m := range ms.byDest {
		if m.kind != link && within(dest, path) {
			return true
		}
	}
	return false
}

// madeBelow reports whether the sandbox has files of its own in a folder.
func (ms *mounts) madeBelow(folder string) bool {
	for dest, m := range ms.byDest {
		if m.kind == made && folder != "/" && strings.HasPrefix(dest, folder+"/") {
			return true
		}
	}
	return false
}

// WritablePaths are where the sandbox may change something, by its mounts.
func (w *Wall) WritablePaths() []string {
	var paths []string
	for _, m := range w.mounts.sorted() {
		switch m.kind {
		case readWrite, tmpfs, dev, proc:
			paths = append(paths, m.dest)
		}
	}
	return paths
}

// covering returns the entry that path lies in: the nearest at or above it.
func (ms *mounts) covering(path string) (mount, bool) {
	for at := path; ; at = filepath.Dir(at) {
		if m, ok := ms.byDest[at]; ok {
			return m, true
		}
		if at == "/" || at == "." {
			return mount{}, false
		}
	}
}

// sorted returns the entries with parents first, so that the most specific is
// mounted over the others. A link or a copied file inside a bind is left out:
// it is there, and making it would change the machine's.
func (ms *mounts) sorted() []mount {
	list := make([]mount, 0, len(ms.byDest))
	for _, m := range ms.byDest {
		if m.kind == link || m.kind == made || m.kind == copied {
			above, ok := ms.covering(filepath.Dir(m.dest))
			if ok && (above.kind == readOnly || above.kind == readWrite) {
				continue
			}
		}
		// What a bind of the same kind already shows needs no mount.
		if m.kind == readOnly && m.source == m.dest && m.dest != "/" {
			above, ok := ms.covering(filepath.Dir(m.dest))
			if ok && above.kind == readOnly && above.source == above.dest {
				continue
			}
		}
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b mount) int {
		return slices.Compare(strings.Split(a.dest, "/"), strings.Split(b.dest, "/"))
	})
	return list
}
