// Package wall builds the arguments of bubblewrap: the namespaces of a
// sandbox, its file system, and the capabilities of the relay that bwrap
// starts in it.
//
// It promises: of the person's files, the sandbox has what was granted and
// nothing else; a grant reaches no protected path; and of grants that nest,
// the most specific holds, in whatever order they were given.
//
// It does not hold what is inside a granted folder: a socket that somebody
// listens on there can be connected to.
package wall

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Grants are what a person gave.
type Grants struct {
	// Read and Write are paths as they were written.
	Read, Write []string
	// Dir is the caller's working folder, as its shell names it.
	Dir string
	// Home is the path of the sandbox's own empty home: that of the caller's,
	// unless it is none that can be covered.
	Home string
	// Homes are all paths of the caller's home, by the environment and by
	// passwd: what is protected is so below each.
	Homes []string
	// Programs are lnk's own files, which no grant covers or lets be written.
	Programs []string
	// Hidden are folders that no grant shows: where runs have their sockets.
	Hidden []string
	// Relay is the path of lnk-relay on this machine.
	Relay string
	// Network says that there is a proxy inside.
	Network bool
	// HostNetwork says that the network is the machine's own.
	HostNetwork bool
	// HomeDir is the folder that is the home; empty: none is.
	HomeDir string
	// HomeSize is the most that an empty home may hold, and /tmp, in bytes; 0: no bound.
	HomeSize int64
	// Hosts are the names that have an address inside also without DNS.
	Hosts []Host
	// User and Group are who the program is.
	User, Group Identity
}

// Host is a line of the hosts file.
type Host struct {
	Addr netip.Addr
	Name string
}

// Identity is an entry of passwd or group.
type Identity struct {
	ID   int
	Name string
}

// maxUserNamespaces is a setting of each user namespace, which only its own
// capabilities can write.
const maxUserNamespaces = "/proc/sys/user/max_user_namespaces"

// RelayPath is where lnk-relay is inside every sandbox.
const RelayPath = "/run/lnk/lnk-relay"

// Wall is a planned sandbox.
type Wall struct {
	// Dir is where the program starts.
	Dir    string
	mounts mounts
	grants Grants
	pins   map[string]Pin
}

// Pin is a file or folder as it was when the sandbox was planned: bwrap
// mounts by path, so what it mounted is compared before anything is started.
type Pin struct {
	Path     string
	Dev, Ino uint64
	// Hidden says that an empty file system covers the path.
	Hidden bool
}

// Pinned are those that must be found in the sandbox.
func (w *Wall) Pinned() []Pin {
	var pins []Pin
	for _, m := range w.mounts.sorted() {
		if m.kind == hidden {
			pins = append(pins, Pin{Path: m.dest, Hidden: true})
		} else if pin, ok := w.pins[m.dest]; ok && w.mounts.isBind(m.dest) {
			pins = append(pins, pin)
		}
	}
	return pins
}

// pin opens a path that has no links, and refuses one that has come to have
// some meanwhile.
func (w *Wall) pin(real string) error {
	fd, err := unix.Open(real, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return pathError(&os.PathError{Op: "open", Path: real, Err: err})
	}
	defer unix.Close(fd)
	named, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil || named != real {
		return fmt.Errorf("%s was changed while it was looked at: try again", real)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%s: %w", real, err)
	}
	w.pins[real] = Pin{Path: real, Dev: st.Dev, Ino: st.Ino}
	return nil
}

// Plan resolves every grant, once and outside, and lays out the file system.
// Its errors say which grant, and what to do.
func Plan(g Grants) (*Wall, error) {
	w := &Wall{grants: g, mounts: newMounts(), pins: make(map[string]Pin)}
	w.system()
	w.private()
	if err := w.home(); err != nil {
		return nil, err
	}
	for _, path := range g.Read {
		if err := w.grant("--read", path, false); err != nil {
			return nil, err
		}
	}
	for _, path := range g.Write {
		if err := w.grant("--write", path, true); err != nil {
			return nil, err
		}
	}
	w.dropCovered()
	if err := w.workingFolder(); err != nil {
		return nil, err
	}
	if err := w.protect(); err != nil {
		return nil, err
	}
	return w, w.prepareHome()
}

// systemFolders are read only in every sandbox. /etc is not: see etc.go.
var systemFolders = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store"}

// ownFolders are the sandbox's own: no grant of them or below means anything.
var ownFolders = []string{"/proc", "/dev", filepath.Dir(RelayPath)}

// mixedFolders hold entries of the sandbox's own beside the machine's, so a
// grant of one is a grant of each entry.
var mixedFolders = []string{"/etc", "/var"}

// refusedFolders can't be granted as a whole: they hold sockets that are the
// machine's, or lnk's own.
var refusedFolders = map[string]string{
	"/run": "the machine's sockets lie there, and connecting asks for no write permission: name what you need in it",
	"/tmp": "other programs' sockets lie there, those of lnk's runs among them: name a folder in it",
}

func (w *Wall) system() {
	for _, path := range systemFolders {
		info, err := os.Lstat(path)
		if err != nil {
			continue
		}
		if info.Mode()&os.ModeSymlink != 0 {
			if target, err := os.Readlink(path); err == nil {
				w.mounts.add(mount{kind: link, dest: path, source: target})
			}
			continue
		}
		if info.IsDir() && !emptyFolder(path) {
			w.mounts.add(mount{kind: readOnly, dest: path, source: path, system: true})
		}
	}
	w.etc()
}

// emptyFolder spares a mount: /opt is empty on most machines.
func emptyFolder(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	names, _ := f.Readdirnames(1)
	return len(names) == 0
}

func (w *Wall) private() {
	w.mounts.add(mount{kind: proc, dest: "/proc"})
	if w.grants.User.ID == 0 {
		// The machine's settings ask for its uid 0 and not for a capability,
		// and root's program has that uid. The relay writes one of them.
		w.mounts.add(mount{kind: readOnly, dest: "/proc/sys", source: "/proc/sys"})
		w.mounts.add(mount{kind: readWrite, dest: maxUserNamespaces, source: maxUserNamespaces})
		if _, err := os.Lstat("/proc/sysrq-trigger"); err == nil {
			w.mounts.add(mount{kind: readOnly, dest: "/proc/sysrq-trigger", source: "/proc/sysrq-trigger"})
		}
	}
	w.mounts.add(mount{kind: dev, dest: "/dev"})
	w.mounts.add(mount{kind: tmpfs, dest: "/tmp", perms: "1777", size: w.grants.HomeSize})
	w.mounts.add(mount{kind: link, dest: "/var/tmp", source: "/tmp"})
	w.mounts.add(mount{kind: link, dest: "/var/run", source: "/run"})
	if w.grants.HomeDir == "" {
		w.mounts.add(mount{kind: tmpfs, dest: w.grants.Home, perms: "0700", size: w.grants.HomeSize})
	}
	w.mounts.add(mount{kind: readOnly, dest: RelayPath, source: w.grants.Relay})
}

// grant adds what a person named: the file or folder itself, at its real
// path, and the links by which it was named.
func (w *Wall) grant(flag, unsafePath string, writable bool) error {
	if unsafePath == "" {
		return fmt.Errorf("%s needs a path", flag)
	}
	path := unsafePath
	if len(w.grants.Homes) > 0 && (path == "~" || strings.HasPrefix(path, "~/")) {
		// A shell expands it before a space, not after "=".
		path = w.grants.Homes[0] + path[1:]
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(w.grants.Dir, path)
	}
	path = filepath.Clean(path)
	real, links, err := resolve(path)
	if err != nil {
		return fmt.Errorf("%s %s: %w", flag, unsafePath, err)
	}
	for _, own := range ownFolders {
		if within(path, own) || within(real, own) {
			return fmt.Errorf("%s %s: every sandbox has a %s of its own", flag, unsafePath, own)
		}
	}
	for _, l := range links {
		w.mounts.add(l)
	}
	kind := readOnly
	if writable {
		kind = readWrite
	}
	if real == "/" {
		return w.grantRoot(kind)
	}
	if why, bad := refusedFolders[real]; bad {
		return fmt.Errorf("%s %s: %s", flag, unsafePath, why)
	}
	if slices.Contains(mixedFolders, real) || w.mounts.madeBelow(real) {
		return w.grantEntries(real, kind)
	}
	if err := w.pin(real); err != nil {
		return fmt.Errorf("%s %s: %w", flag, unsafePath, err)
	}
	w.mounts.add(mount{kind: kind, dest: real, source: real, granted: true})
	return nil
}

// grantRoot grants every entry of / but what a sandbox has of its own, and
// /run, /sys and their like, where the machine's sockets and knobs are.
func (w *Wall) grantRoot(kind kind) error {
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := "/" + entry.Name()
		switch path {
		case "/proc", "/dev", "/sys", "/run", "/tmp", "/lost+found":
			continue
		case "/etc", "/var":
			if err := w.grantEntries(path, kind); err != nil {
				return err
			}
			continue
		}
		w.grantEntry(path, entry, kind)
	}
	return nil
}

// grantEntries grants what a folder holds, one by one, where the sandbox has
// some of its entries of its own.
func (w *Wall) grantEntries(folder string, kind kind) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		path := folder + "/" + entry.Name()
		if slices.Contains(ownFolders, path) || w.mounts.has(path) && !w.mounts.isBind(path) {
			continue
		}
		if w.mounts.madeBelow(path) {
			if err := w.grantEntries(path, kind); err != nil {
				return err
			}
			continue
		}
		w.grantEntry(path, entry, kind)
	}
	return nil
}

func (w *Wall) grantEntry(path string, entry os.DirEntry, kind kind) {
	if entry.Type()&os.ModeSymlink != 0 {
		if target, err := os.Readlink(path); err == nil {
			w.mounts.add(mount{kind: link, dest: path, source: target})
		}
		return
	}
	if entry.IsDir() || entry.Type().IsRegular() {
		w.mounts.add(mount{kind: kind, dest: path, source: path, granted: true})
	}
}

// resolve follows path to what it names, as the kernel does now, and returns
// the links that were followed, so that both names work inside.
func resolve(path string) (real string, links []mount, err error) {
	const maxLinks = 40 // as in path_resolution(7)
	rest := strings.Split(strings.TrimPrefix(path, "/"), "/")
	real = "/"
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			real = filepath.Dir(real)
			continue
		}
		next := filepath.Join(real, part)
		info, err := os.Lstat(next)
		if err != nil {
			return "", nil, pathError(err)
		}
		if info.Mode()&os.ModeSymlink == 0 {
			real = next
			continue
		}
		if len(links) == maxLinks {
			return "", nil, fmt.Errorf("%s: too many links", path)
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", nil, pathError(err)
		}
		links = append(links, mount{kind: link, dest: next, source: target, granted: true})
		if filepath.IsAbs(target) {
			real = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return real, links, nil
}

// pathError says what is wrong without the name of a system call.
func pathError(err error) error {
	switch {
	case os.IsNotExist(err):
		return fmt.Errorf("it doesn't exist: make it first, or leave it out (%s)", errPath(err))
	case os.IsPermission(err):
		return fmt.Errorf("you may not look there (%s)", errPath(err))
	}
	return err
}

func errPath(err error) string {
	if pe, ok := err.(*os.PathError); ok {
		return pe.Path
	}
	return err.Error()
}

// within reports whether path is folder or below it. Both are clean.
func within(path, folder string) bool {
	return folder == "/" || strings.HasPrefix(path, folder) && (len(path) == len(folder) || path[len(folder)] == '/')
}

// dropCovered takes out the empty home where a grant of a folder above shows
// the person's own.
func (w *Wall) dropCovered() {
	home := w.grants.Home
	if m, ok := w.mounts.byDest[home]; !ok || m.kind != tmpfs || home == "/" {
		return
	}
	if above, ok := w.mounts.covering(filepath.Dir(home)); ok && above.granted {
		delete(w.mounts.byDest, home)
	}
}

// workingFolder makes the folder that the program starts in: the caller's,
// read only unless a grant says more. Where the caller's is none that may be
// seen as a whole, the program starts in the sandbox's own at that path, or
// else in its empty home.
func (w *Wall) workingFolder() error {
	w.Dir = w.grants.Dir
	real, links, err := resolve(w.grants.Dir)
	if err != nil {
		return fmt.Errorf("the working folder %s: %w", w.grants.Dir, err)
	}
	if protected := w.protectedAbove(real); protected != "" && !w.Visible(real) {
		return fmt.Errorf("the working folder %s lies in %s, which no sandbox sees: start it elsewhere, or grant it with --read or --write", real, protected)
	}
	if !w.Visible(real) && w.tooWide(real) {
		if !w.mounts.exists(w.grants.Dir) {
			w.Dir = w.grants.Home
		}
		return nil
	}
	for _, l := range links {
		w.mounts.add(l)
	}
	if w.Visible(real) {
		return nil
	}
	if err := w.pin(real); err != nil {
		return fmt.Errorf("the working folder: %w", err)
	}
	w.mounts.add(mount{kind: readOnly, dest: real, source: real})
	return nil
}

// tooWide reports whether a folder holds more than a working folder may
// bring along unasked: the home, what holds it, and the places of which the
// sandbox has its own.
func (w *Wall) tooWide(real string) bool {
	for _, home := range append(w.homes(), w.grants.Home) {
		if within(home, real) {
			return true
		}
	}
	for _, own := range []string{"/proc", "/dev", "/sys", "/run", "/etc"} {
		if within(real, own) {
			return true
		}
	}
	return slices.Contains([]string{"/", "/tmp", "/var", "/var/tmp", "/home"}, real)
}

// Writable returns the folder by which the sandbox could write to an absolute
// path of the machine's, or "".
func (w *Wall) Writable(path string) string {
	real := resolveExisting(path)
	for _, m := range w.mounts.byDest {
		// A home that lasts lies elsewhere than its path says.
		if m.kind == readWrite && m.elsewhere() && within(real, m.source) {
			return m.source
		}
	}
	if m, ok := w.mounts.covering(real); ok && m.kind == readWrite && !m.elsewhere() {
		return m.dest
	}
	return ""
}

// WritableIn returns the grant by which the sandbox could change a file, or
// put one into a folder, or "".
func (w *Wall) WritableIn(real string) string {
	if m, ok := w.mounts.covering(real); ok && m.kind == readWrite {
		return m.dest
	}
	for dest, m := range w.mounts.byDest {
		if m.kind == readWrite && (within(dest, real) || within(real, m.source) || within(m.source, real)) {
			return m.source
		}
	}
	return ""
}

// LinkedIn returns the grant on a file's own disk by which a file with several
// names could be changed by another of them, if the caller may change it at
// all; or "".
func (w *Wall) LinkedIn(real string, st unix.Stat_t) string {
	if st.Nlink < 2 || st.Mode&unix.S_IFMT != unix.S_IFREG || unix.Access(real, unix.W_OK) != nil {
		return ""
	}
	for _, m := range w.mounts.byDest {
		var at unix.Stat_t
		if m.kind == readWrite && unix.Stat(m.source, &at) == nil && at.Dev == st.Dev {
			return m.source
		}
	}
	return ""
}

// Visible reports whether the sandbox has this very file of the machine's, at
// the same path. The path has no links in it.
func (w *Wall) Visible(real string) bool {
	m, ok := w.mounts.covering(real)
	return ok && (m.kind == readOnly || m.kind == readWrite) && m.source == m.dest
}

// homes are the paths of the caller's home, and what they lead to.
func (w *Wall) homes() []string {
	var homes []string
	for _, home := range w.grants.Homes {
		homes = append(homes, home)
		if real, err := filepath.EvalSymlinks(home); err == nil && real != home {
			homes = append(homes, real)
		}
	}
	return homes
}

// Explain says what the sandbox has of a file of the machine's, whose path has
// no links in it.
func (w *Wall) Explain(real string) string {
	if protected := w.protectedAbove(real); protected != "" && !w.Visible(real) {
		return "not seen: it lies in " + protected + ", which no sandbox sees unless a grant names it or a folder in it"
	}
	m, ok := w.mounts.covering(real)
	switch {
	case ok && m.kind == hidden:
		return "not seen: " + m.dest + " is covered"
	case !ok || !w.Visible(real):
		return "not seen: add --read or --write with it, or a folder above"
	case m.kind == readWrite:
		return "read and written, by the grant of " + m.dest
	case m.granted:
		return "read, by the grant of " + m.dest
	case m.system:
		return "read, as the system's folders are"
	default:
		return "read, by " + m.dest
	}
}
