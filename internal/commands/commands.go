// Package commands turns the entries of [commands] allow into the files that
// a sandbox may execute: links resolved, loaders added, and refused what
// could be made to hold another program.
//
// It promises: an entry that the sandbox could change, or put a program in,
// is refused. It does not hold the list: Landlock does, inside (package
// confine), with what the relay is told of each execution.
package commands

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// List is what may be executed. The zero value is nothing.
type List struct {
	// Any is every program.
	Any bool
	// Paths are files, and folders for all below them, by their real paths.
	Paths []Path
	// Loaders start listed programs, and are no programs of the list
	// themselves.
	Loaders []Path
	// Notes are lines for the person.
	Notes []string
}

// Path is a file or folder as it was found.
type Path struct {
	Path     string
	Folder   bool
	Dev, Ino uint64
}

// Where says where entries are looked for, and what the sandbox does with them.
type Where struct {
	// Path is the sandbox's PATH, Dir its working folder, Home what ~ is.
	Path, Dir, Home string
	// Visible reports whether the sandbox has this very file; Writable names
	// the grant by which it could change it, or something in it.
	Visible  func(real string) bool
	Writable func(real string) string
	// Linked names the grant by which a file with several names could be
	// changed by another of them.
	Linked func(real string, st unix.Stat_t) string
}

// MaxEntries bounds a list.
const MaxEntries = 10000

// Resolve finds every entry. The error names the entry, and what to do.
func Resolve(entries []string, w Where) (*List, error) {
	if len(entries) > MaxEntries {
		return nil, fmt.Errorf("%d entries are more than %d: list folders, ending in /", len(entries), MaxEntries)
	}
	l := &List{}
	r := resolver{Where: w, list: l, seen: make(map[[2]uint64]bool), loaders: make(map[string]bool)}
	for _, entry := range entries {
		if err := r.entry(entry); err != nil {
			return nil, fmt.Errorf("%q: %w", entry, err)
		}
	}
	if l.Any {
		l.Paths, l.Loaders = nil, nil
		return l, nil
	}
	for _, path := range standardLoaders {
		r.loader(path)
	}
	return l, nil
}

// standardLoaders are where loaders are by their platforms' rules, glibc's and
// musl's: not every program of a listed folder is looked into.
var standardLoaders = []string{
	"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib64/ld-linux-aarch64.so.1",
	"/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-aarch64.so.1", "/lib64/ld-lsb-x86-64.so.3",
}

type resolver struct {
	Where
	list    *List
	seen    map[[2]uint64]bool
	loaders map[string]bool
	block   [4096]byte
}

func (r *resolver) entry(entry string) error {
	switch {
	case entry == "":
		return errors.New("it is empty")
	case entry == "*":
		r.list.Any = true
		return nil
	case strings.Contains(entry, "*"):
		return errors.New("a wildcard is * alone: a folder ending in / stands for the programs in it")
	case strings.HasSuffix(entry, "/"):
		return r.folder(r.absolute(entry))
	case strings.Contains(entry, "/"):
		return r.file(entry, r.absolute(entry))
	}
	for _, folder := range filepath.SplitList(r.Path) {
		if !filepath.IsAbs(folder) {
			folder = filepath.Join(r.Dir, folder)
		}
		path := filepath.Join(folder, entry)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return r.file(entry, path)
		}
	}
	return errors.New("no program of that name is in PATH: name its path, or leave it out")
}

func (r *resolver) absolute(entry string) string {
	if entry == "~/" || strings.HasPrefix(entry, "~/") {
		entry = r.Home + entry[1:]
	}
	if !filepath.IsAbs(entry) {
		entry = filepath.Join(r.Dir, entry)
	}
	return filepath.Clean(entry)
}

// found is a file or folder as it was opened.
type found struct {
	real string
	st   unix.Stat_t
	head []byte // the first block of what is a regular file, and can be read
}

// open follows links, once and outside. A list may have thousands of entries,
// so each is opened once, and asked for all that matters. What head holds is
// overwritten by the next.
func (r *resolver) open(path string) (found, error) {
	var f found
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	readable := err == nil
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENXIO) {
		// It may be executed and not read, or is a socket.
		fd, err = unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return f, errors.New("there is no such file: leave it out, or correct it")
	case errors.Is(err, unix.ELOOP):
		return f, errors.New("its links lead in a circle")
	case err != nil:
		return f, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &f.st); err != nil {
		return f, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if f.real, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err != nil {
		return f, err
	}
	if readable && f.st.Mode&unix.S_IFMT == unix.S_IFREG {
		if n, err := unix.Pread(fd, r.block[:], 0); err == nil {
			f.head = r.block[:n]
		}
	}
	return f, nil
}

func (r *resolver) folder(path string) error {
	f, err := r.open(path)
	if err != nil {
		return err
	}
	real, st := f.real, f.st
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return errors.New("it is no folder: leave the / out")
	}
	if err := r.fixed(real); err != nil {
		return err
	}
	if real == "/" {
		return errors.New("it is every program there is: list * for that")
	}
	r.add(Path{real, true, st.Dev, st.Ino})
	return r.loadersOf(real)
}

func (r *resolver) file(entry, path string) error {
	f, err := r.open(path)
	if err != nil {
		return err
	}
	real, st := f.real, f.st
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return errors.New("it is a folder: end it in / for every program in it")
	default:
		return errors.New("it is no program")
	}
	if st.Mode&0o111 == 0 {
		return errors.New("it isn't executable")
	}
	if err := r.fixed(real); err != nil {
		return err
	}
	if LoaderName(filepath.Base(real)) {
		return errors.New("it starts any program, listed or not: list what it is to start")
	}
	if by := r.Linked(real, st); by != "" {
		return fmt.Errorf("it has other names (hard links), and the sandbox may write %s on the same disk, and so change it by one: list a copy", by)
	}
	if r.add(Path{real, false, st.Dev, st.Ino}) {
		if base := filepath.Base(real); multiCall[base] && filepath.Base(path) != base {
			r.list.Notes = append(r.list.Notes, fmt.Sprintf("the entry %s opens all of %s, which is one program with many names", entry, real))
		}
		if loader := interpreter(f.head); loader != "" {
			r.loader(loader)
		}
	}
	return nil
}

// multiCall are programs that are many: which of them runs is their name's to
// say, which no list sees.
var multiCall = map[string]bool{"busybox": true, "toybox": true, "coreutils": true, "busybox.static": true, "gnu-coreutils": true, "uutils": true}

// fixed refuses what the sandbox could change or doesn't see.
func (r *resolver) fixed(real string) error {
	if real == "/tmp" || strings.HasPrefix(real, "/tmp/") {
		return errors.New("what lies in /tmp can't be listed: the sandbox writes there")
	}
	if by := r.Writable(real); by != "" {
		return fmt.Errorf("the sandbox may write %s, and so put any program in it: list one that it can't write", by)
	}
	if !r.Visible(real) {
		return fmt.Errorf("the sandbox doesn't see %s: add --read %s", real, filepath.Dir(real))
	}
	return nil
}

func (r *resolver) add(p Path) bool {
	id := [2]uint64{p.Dev, p.Ino}
	if r.seen[id] {
		return false
	}
	r.seen[id] = true
	r.list.Paths = append(r.list.Paths, p)
	return true
}

func (r *resolver) loader(path string) {
	if r.loaders[path] {
		return
	}
	r.loaders[path] = true
	f, err := r.open(path)
	real, st := f.real, f.st
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || !r.Visible(real) || r.Writable(real) != "" {
		return
	}
	if !slices.ContainsFunc(r.list.Loaders, func(l Path) bool { return l.Dev == st.Dev && l.Ino == st.Ino }) {
		r.list.Loaders = append(r.list.Loaders, Path{real, false, st.Dev, st.Ino})
	}
}

// maxLooked bounds the files of a folder whose loaders are looked for.
const maxLooked = 4096

func (r *resolver) loadersOf(folder string) error {
	looked := 0
	return filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if looked > maxLooked {
			return filepath.SkipAll
		}
		if err != nil {
			return nil // what can't be read has no loader to add
		}
		if entry.Type().IsRegular() {
			looked++
			var st unix.Stat_t
			if unix.Lstat(path, &st) == nil && r.Linked(path, st) != "" {
				return fmt.Errorf("%s in it has other names (hard links), by which the sandbox may change it: list a copy", path)
			}
			if loader := interpreterOf(path); loader != "" {
				r.loader(loader)
			}
		}
		return nil
	})
}

// LoaderName reports whether a file's name is one of loaders, wherever it lies.
func LoaderName(base string) bool {
	return strings.HasPrefix(base, "ld-") && strings.Contains(base, ".so") || strings.HasPrefix(base, "ld.so") || strings.HasPrefix(base, "ld64.so")
}
