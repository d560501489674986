package relay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/channel"
	"link.internal/lnk/internal/commands"
	"link.internal/lnk/internal/confine"
)

// guard watches what is executed where there is a list of programs.
//
// Landlock is what holds: nothing is executed that it has no rule for. The
// guard closes two holes in that, and gives refusals their names:
//
//   - A loader is executed to start listed programs, and run by itself it
//     starts any. So whatever maps code from a file, as a loader does before
//     anything of it runs, waits until what is running has been looked at, and
//     is killed if it isn't listed. A program can keep its own filter from
//     asking for the call, but then nothing is mapped.
//   - A memfd lies in no folder, so Landlock doesn't rule over it. It is given
//     without the right to be executed (memfd_create(2), MFD_NOEXEC_SEAL).
//
// An execve's arguments are read to name what is refused, and to refuse it. A
// program can change them after that look, so nothing is allowed by it.
type guard struct {
	listener confine.Listener
	runner   *channel.Conn
	// learn allows and tells of everything.
	learn   bool
	files   map[fileID]bool
	folders []string
	loaders map[fileID]bool
	// first is the program's pid, whose first execve is the relay's own, of
	// firstPath.
	first     int
	firstPath string
	looked    bool // a process could be looked at, so others can
	told      map[string]bool
	// scripts has what a listed file's first line starts, "" for a program.
	scripts map[fileID]string
}

type fileID struct{ dev, ino uint64 }

// maxTold bounds the names that the runner is told of: they are the program's
// to make up.
const maxTold = 2048

func newGuard(c *channel.Commands, runner *channel.Conn) *guard {
	g := &guard{runner: runner, learn: c.Learn, files: make(map[fileID]bool), loaders: make(map[fileID]bool), told: make(map[string]bool), scripts: make(map[fileID]string)}
	for _, p := range c.Paths {
		if p.Folder {
			g.folders = append(g.folders, string(p.Path))
		} else {
			g.files[fileID{p.Dev, p.Ino}] = true
		}
	}
	for _, p := range c.Loaders {
		g.loaders[fileID{p.Dev, p.Ino}] = true
	}
	return g
}

// checkCommands compares what is to be listed with what was found outside.
func checkCommands(paths []channel.Command) error {
	for _, p := range paths {
		var st unix.Stat_t
		if err := unix.Lstat(string(p.Path), &st); err != nil || st.Dev != p.Dev || st.Ino != p.Ino {
			return fmt.Errorf("the program %q was changed while the sandbox was built: try again", p.Path)
		}
	}
	return nil
}

// serve answers until the sandbox ends. It is the only one that reads from
// the listener.
func (g *guard) serve() {
	// With signals on this thread alone, an answer is never torn in two.
	runtime.LockOSThread()
	g.listener.WakeOnSameCPU()
	for {
		n, err := g.listener.Receive()
		if errors.Is(err, confine.ErrGone) && !g.listener.Over() {
			continue
		}
		if err != nil {
			return // nobody is left who could ask
		}
		g.answer(n)
	}
}

func (g *guard) answer(n confine.Notice) {
	pid := int(n.PID)
	switch n.Nr {
	case unix.SYS_EXECVE:
		g.execute(n, pid, n.Args[0], unix.AT_FDCWD, 0)
	case unix.SYS_EXECVEAT:
		g.execute(n, pid, n.Args[1], int(int32(n.Args[0])), int(n.Args[4]))
	case unix.SYS_MMAP:
		g.loaded(n, pid)
	case unix.SYS_MEMFD_CREATE:
		g.memfd(n, pid)
	default:
		g.listener.Refuse(n, unix.ENOSYS)
	}
}

// execute is the first look: at what is about to be executed.
func (g *guard) execute(n confine.Notice, pid int, address uint64, dir, flags int) {
	if pid == g.first {
		// It is the relay's own child, which executes what the relay found.
		g.first = 0
		if g.learn {
			g.refused(g.firstPath, 0)
		}
		g.listener.Continue(n)
		return
	}
	name, err := confine.ReadString(pid, address, unix.PathMax)
	if errors.Is(err, unix.EFAULT) || errors.Is(err, unix.ENAMETOOLONG) {
		g.listener.Continue(n) // the kernel says the same
		return
	}
	if err != nil {
		// A process that made itself unreadable: Landlock and the second look
		// hold, and its refusals have no name.
		g.listener.Continue(n)
		return
	}
	path := targetPath(pid, name, dir, flags)
	if g.known(path) {
		g.listener.Continue(n)
		return
	}
	refused := g.refused(path, 0)
	if refused == "" {
		g.listener.Continue(n)
		return
	}
	if !g.listener.Valid(n) {
		return
	}
	g.tell(refused)
	g.listener.Refuse(n, unix.EACCES)
}

// targetPath is a path by which this process finds what another's execve
// names. What /proc and /dev have for "self" would be this process's own.
func targetPath(pid int, name string, dir, flags int) string {
	switch {
	case name == "" && flags&unix.AT_EMPTY_PATH != 0:
		return fmt.Sprintf("/proc/%d/fd/%d", pid, dir)
	case !filepath.IsAbs(name) && dir == unix.AT_FDCWD:
		return fmt.Sprintf("/proc/%d/cwd/%s", pid, name)
	case !filepath.IsAbs(name):
		return fmt.Sprintf("/proc/%d/fd/%d/%s", pid, dir, name)
	}
	for _, own := range [][2]string{
		{"/proc/self/", ""}, {"/proc/thread-self/", ""}, {"/dev/fd/", "fd/"}, {"/dev/stdin", "fd/0"}, {"/dev/stdout", "fd/1"}, {"/dev/stderr", "fd/2"},
	} {
		if rest, ok := strings.CutPrefix(name, own[0]); ok {
			return fmt.Sprintf("/proc/%d/%s%s", pid, own[1], rest)
		}
	}
	return fmt.Sprintf("/proc/%d/root%s", pid, name)
}

// known is the quick look: a listed program, by its inode alone.
func (g *guard) known(path string) bool {
	if g.learn {
		return false
	}
	// The very file that is asked about: a path may name another by the next call.
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return false
	}
	id := fileID{st.Dev, st.Ino}
	if !g.files[id] {
		return false
	}
	interpreter, seen := g.scripts[id]
	if !seen {
		interpreter = commands.Interpreter(fmt.Sprintf("/proc/self/fd/%d", fd))
		g.scripts[id] = interpreter
	}
	return interpreter == ""
}

// maxInterpreters is how deep scripts may name scripts (execve(2)).
const maxInterpreters = 5

// refused names what isn't on the list of what a path would execute: the file,
// or what its first line starts. It is empty for what is, and for what is no
// program, of which the kernel says that.
func (g *guard) refused(path string, depth int) string {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o111 == 0 {
		return ""
	}
	self := fmt.Sprintf("/proc/self/fd/%d", fd)
	real, err := os.Readlink(self)
	if err != nil {
		return ""
	}
	if g.learn {
		if !g.isLoader(fileID{st.Dev, st.Ino}, real) {
			g.tell(real)
		}
	} else if !g.listed(fileID{st.Dev, st.Ino}, real) {
		return real
	}
	if depth < maxInterpreters {
		if interpreter := commands.Interpreter(self); interpreter != "" {
			return g.refused(interpreter, depth+1)
		}
	}
	return ""
}

// isLoader reports whether a file loads programs, which would be any: it is
// never listed, and lies in folders that are.
func (g *guard) isLoader(id fileID, real string) bool {
	return g.loaders[id] || commands.LoaderName(filepath.Base(real))
}

func (g *guard) listed(id fileID, real string) bool {
	if g.files[id] {
		return true
	}
	if g.isLoader(id, real) {
		return false
	}
	for _, folder := range g.folders {
		if strings.HasPrefix(real, folder+"/") {
			return true
		}
	}
	return false
}

// loaded is the second look, at what has been executed: it decides.
func (g *guard) loaded(n confine.Notice, pid int) {
	exe := fmt.Sprintf("/proc/%d/exe", pid)
	var st unix.Stat_t
	err := unix.Stat(exe, &st)
	id := fileID{st.Dev, st.Ino}
	if err == nil && !g.learn && g.files[id] {
		g.looked = true
		// If the caller was gone meanwhile, and another has its pid, this is an
		// answer to nobody.
		g.listener.Continue(n)
		return
	}
	real, linkErr := os.Readlink(exe)
	if !g.listener.Valid(n) {
		return
	}
	g.looked = g.looked || linkErr == nil
	switch {
	case g.looked && (errors.Is(err, unix.EACCES) || errors.Is(linkErr, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(linkErr, unix.EPERM)):
		// It made itself unreadable, after its own code had begun, or it is an
		// unreadable program, which no loader is. Where nothing at all can be
		// looked at, nothing runs.
		g.listener.Continue(n)
	case err == nil && linkErr == nil && g.learn:
		g.learnt(exe)
		g.listener.Continue(n)
	case err == nil && linkErr == nil && g.listed(id, real) && !strings.HasPrefix(real, "/memfd:"):
		g.listener.Continue(n)
	default:
		if linkErr != nil && !errors.Is(linkErr, unix.ENOENT) && !g.told[""] {
			g.told[""] = true
			g.runner.Send(channel.FromRelay{Executed: &channel.Executed{Refused: true, Unseen: linkErr.Error()}})
		}
		if linkErr == nil {
			g.tell(strings.TrimSuffix(real, " (deleted)"))
		}
		// It waits for this answer, so its pid is still its own.
		unix.Kill(pid, unix.SIGKILL)
	}
}

// learnt tells of what runs, but for the loaders, which are implied.
func (g *guard) learnt(exe string) {
	var st unix.Stat_t
	if unix.Stat(exe, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	if real, err := os.Readlink(exe); err == nil && filepath.IsAbs(real) && !g.isLoader(fileID{st.Dev, st.Ino}, real) {
		g.tell(real)
	}
}

// memfd gives a memory file without the right to be executed. The other flags,
// and sealing, are as they were asked for.
func (g *guard) memfd(n confine.Notice, pid int) {
	if g.learn {
		g.listener.Continue(n)
		return
	}
	name, err := confine.ReadString(pid, n.Args[0], 250)
	switch {
	case errors.Is(err, unix.EFAULT):
		g.listener.Refuse(n, unix.EFAULT)
		return
	case errors.Is(err, unix.ENAMETOOLONG):
		g.listener.Refuse(n, unix.EINVAL)
		return
	case err != nil:
		name = "unread" // its process can't be read; the name is for people
	}
	asked := int(uint32(n.Args[1]))
	flags := asked&^unix.MFD_EXEC | unix.MFD_NOEXEC_SEAL | unix.MFD_CLOEXEC
	fd, err := unix.MemfdCreate(name, flags)
	if err != nil {
		// Before Linux 6.3 it can't be given so, and not otherwise.
		errno := unix.ENOSYS
		if flags&unix.MFD_HUGETLB != 0 && !errors.Is(err, unix.EINVAL) {
			errors.As(err, &errno)
		}
		g.listener.Refuse(n, errno)
		return
	}
	defer unix.Close(fd)
	if asked&unix.MFD_ALLOW_SEALING == 0 {
		// MFD_NOEXEC_SEAL allows sealing, which wasn't asked for.
		unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL)
	}
	if err := g.listener.AnswerFD(n, fd, asked&unix.MFD_CLOEXEC != 0); err != nil && !errors.Is(err, confine.ErrGone) {
		g.listener.Refuse(n, unix.EMFILE)
	}
}

// tell says once what was refused, or learnt.
func (g *guard) tell(path string) {
	if g.told[path] || len(g.told) >= maxTold {
		return
	}
	g.told[path] = true
	var st unix.Stat_t
	loader := unix.Stat(path, &st) == nil && g.isLoader(fileID{st.Dev, st.Ino}, path)
	g.runner.Send(channel.FromRelay{Executed: &channel.Executed{Path: []byte(path), Refused: !g.learn, Loader: loader}})
}
