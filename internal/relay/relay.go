// Package relay is lnk-relay, the first process inside a sandbox: process 1 of
// its pid namespace and, in the full wall, root of its outer user namespace.
//
// It makes the listening sockets that the proxy outside asks for and hands
// them over (package handoff); it starts the program in a user namespace
// nested in its own, confined (package confine); it forwards signals, reaps
// what the program leaves behind, and says how the program ended. When it
// ends, the kernel ends everything in the sandbox, and it ends with the
// runner, whose channel is its lifeline.
//
// It copies no byte of the program's traffic, but for what comes in by in.sock
// (in.go). It imports neither package net
// nor anything that it could do without: every sandbox has one.
package relay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/channel"
	"link.internal/lnk/internal/confine"
	"link.internal/lnk/internal/handoff"
	"link.internal/lnk/internal/idle"
)

// Exit codes of what lnk itself refuses, and of a program that can't be
// executed or found, as shells have them.
const (
	exitRefused       = 125
	exitNotExecutable = 126
	exitNotFound      = 127
)

// keptCapabilities are what the relay keeps while the program runs: it makes
// listeners on ports under 1024 when the proxy asks for more.
var keptCapabilities = []uint{unix.CAP_NET_BIND_SERVICE}

// Main is lnk-relay. It returns the exit code.
func Main(args []string) int {
	switch {
	case len(args) > 0 && args[0] == "connect":
		return connect(args[1:])
	case len(args) > 0 && args[0] == "nothing":
		return 0 // what lnk doctor has a sandbox do
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "lnk-relay: it is started by lnk inside a sandbox, as its first process; there, lnk-relay connect HOST:PORT leads standard input and output to a host")
		return exitRefused
	}
	runner := channel.NewChild(os.NewFile(channel.FD, "channel"))
	r := &relay{runner: runner, tty: -1}
	if err := r.run(); err != nil {
		failed := &channel.Failed{Code: exitRefused, Why: err.Error()}
		var notStarted *notStartedError
		if errors.As(err, &notStarted) {
			failed.Code = notStarted.code
		}
		failed.NoPowers = errors.As(err, new(*noPowersError))
		runner.Send(channel.FromRelay{Failed: failed})
		return failed.Code
	}
	return 0
}

type relay struct {
	runner *channel.Conn
	tty    int // the controlling terminal, or -1

	mu  sync.Mutex
	pid int // the program's, 0 once it has been reaped
}

// notStartedError is a program that can't be found or executed.
type notStartedError struct {
	code int
	err  error
}

func (e *notStartedError) Error() string { return e.err.Error() }

func (r *relay) run() error {
	if err := ignoreSignals(); err != nil {
		return err
	}
	// bwrap passes on whatever it inherits.
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("closing descriptors: %w", err)
	}
	// Should bwrap, which waits for this process, be killed, so is this one.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("tying itself to bwrap: %w", err)
	}
	if err := r.runner.Send(channel.FromRelay{Here: true}); err != nil {
		return err
	}
	var first channel.ToRelay
	if err := r.runner.Receive(&first); err != nil {
		return err
	}
	start := first.Start
	if start == nil || len(start.Args) == 0 {
		return errors.New("the runner's first message isn't start")
	}
	if err := checkMounts(start.Mounts); err != nil {
		return err
	}
	if err := preparations[start.Plain](start); err != nil {
		return err
	}
	for i, path := range start.Folders {
		folder := channel.FolderFD + i
		if err := serveIn(folder); err != nil {
			return fmt.Errorf("in.sock in %q: %w", path, err)
		}
		if start.Proxy {
			if err := r.serveProxy(folder, start.Plain); err != nil {
				return fmt.Errorf("no proxy serves this sandbox in %q: %w", path, err)
			}
		}
		if err := unix.Close(folder); err != nil {
			return fmt.Errorf("closing the socket folder: %w", err)
		}
	}
	if start.Terminal {
		tty, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("opening the terminal: %w", err)
		}
		r.tty = tty
	}
	pid, err := r.startProgram(start)
	if err != nil {
		return err
	}
	r.pid = pid
	if err := becomeUndumpable(); err != nil {
		return err
	}
	// What the program may not ask of the kernel, a relay that was taken over
	// may not either: AF_VSOCK leads out of its network namespace too.
	if err := confine.Self(); err != nil {
		return err
	}
	if err := r.runner.Send(channel.FromRelay{Started: true}); err != nil {
		return err
	}
	go r.serveRunner()
	idle.GiveBackSoon()
	return r.reap()
}

// serveProxy makes the listeners that the proxy asks for first, so that they
// are there when the program starts, and goes on serving its requests.
func (r *relay) serveProxy(folder int, plain bool) error {
	proxy, err := handoff.Dial(folder, plain)
	if err != nil {
		return err
	}
	if err := proxy.ServeNext(); err != nil {
		proxy.Close()
		return fmt.Errorf("the proxy's first request: %w", err)
	}
	go func() {
		defer proxy.Close()
		for proxy.ServeNext() == nil {
		}
	}()
	return nil
}

func (r *relay) startProgram(start *channel.Start) (int, error) {
	rules := confine.Rules()
	if start.UserNamespaces {
		rules = confine.UserNamespaces(rules)
	}
	if start.Plain {
		// The kernel lets it, as it has the relay's uid.
		rules = append(rules, confine.NotTheRelay(ownThreads())...)
	}
	if !start.Foreground {
		rules = append(rules, confine.NoTerminal())
	}
	var guard *guard
	ruleset := -1
	var err error
	if c := start.Commands; c != nil {
		if err := checkCommands(append(slices.Clone(c.Paths), c.Loaders...)); err != nil {
			return 0, err
		}
		guard = newGuard(c, r.runner)
		rules = append(rules, confine.Notices()...)
	}
	landlock := confine.Ruleset{WriteFDs: []int{channel.StdinFD, channel.StdinFD + 1, channel.StdinFD + 2}}
	for _, path := range start.Writable {
		landlock.Write = append(landlock.Write, string(path))
	}
	if guard != nil && !guard.learn {
		landlock.Listed, landlock.Execute = true, commandPaths(start.Commands)
	}
	if ruleset, err = landlock.Make(); err != nil {
		return 0, err
	}
	filter, err := confine.Filter(rules)
	if err != nil {
		return 0, err
	}
	if ruleset >= 0 {
		defer unix.Close(ruleset)
	}
	path, err := lookPath(string(start.Args[0]), string(start.Dir), start.Env)
	if err != nil {
		return 0, err
	}
	if guard != nil {
		guard.firstPath = path
		if !filepath.IsAbs(path) {
			guard.firstPath = filepath.Join(string(start.Dir), path)
		}
	}
	img := &image{
		stdio:    [3]int{channel.StdinFD, channel.StdinFD + 1, channel.StdinFD + 2},
		tty:      -1,
		landlock: ruleset,
	}
	if start.Foreground {
		img.tty = r.tty
	}
	for _, n := range start.Ignored {
		if n >= 1 && n <= 64 {
			img.ignored |= 1 << (n - 1)
		}
	}
	if img.files, err = fileLimits(start.Files); err != nil {
		return 0, err
	}
	img.setFilter(filter)
	if img.path, err = unix.BytePtrFromString(path); err != nil {
		return 0, err
	}
	if img.dir, err = unix.BytePtrFromString(string(start.Dir)); err != nil {
		return 0, err
	}
	if img.argv, err = pointers(start.Args); err != nil {
		return 0, err
	}
	if img.envv, err = pointers(start.Env); err != nil {
		return 0, err
	}
	pid, err := img.start(start, guard)
	var failed *startError
	if errors.As(err, &failed) && failed.atExec() {
		code := exitNotExecutable
		if errors.Is(err, unix.ENOENT) {
			code = exitNotFound
		}
		return 0, &notStartedError{code, fmt.Errorf("%q can't be executed: %w", path, errors.Unwrap(err))}
	}
	for fd := channel.StdinFD; fd < channel.StdinFD+3; fd++ {
		// The relay's copies would keep a pipe open after the program closed it.
		unix.Close(fd)
	}
	return pid, err
}

// ownThreads are the ids of this process's threads.
func ownThreads() []uint32 {
	entries, _ := os.ReadDir("/proc/self/task")
	var ids []uint32
	for _, entry := range entries {
		if id, err := strconv.ParseUint(entry.Name(), 10, 32); err == nil {
			ids = append(ids, uint32(id))
		}
	}
	return ids
}

func commandPaths(c *channel.Commands) []string {
	var paths []string
	for _, p := range append(slices.Clone(c.Paths), c.Loaders...) {
		paths = append(paths, string(p.Path))
	}
	return paths
}

// fileLimits are the program's on descriptors: the caller's, and at most some
// fewer than all other processes of the user's have. A user's descriptors on
// their way in messages are counted together, and each sender may fill the
// count up to its own limit (unix(7), ETOOMANYREFS): no program may fill it so
// that another sandbox's relay can't hand a listener over.
func fileLimits(soft uint64) (unix.Rlimit, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return limit, fmt.Errorf("reading the limit on descriptors: %w", err)
	}
	limit.Max -= min(limit.Max/8, 4096)
	limit.Cur = min(limit.Cur, limit.Max)
	if soft > 0 {
		limit.Cur = min(soft, limit.Max)
	}
	return limit, nil
}

// checkMounts compares what bwrap mounted with what the runner had opened.
func checkMounts(mounts []channel.Mount) error {
	for _, m := range mounts {
		path := string(m.Path)
		if m.Hidden {
			var fs unix.Statfs_t
			if err := unix.Statfs(path, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
				return fmt.Errorf("%q was changed while the sandbox was built, and isn't covered: try again", path)
			}
			continue
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil || st.Dev != m.Dev || st.Ino != m.Ino {
			return fmt.Errorf("%q was changed while the sandbox was built: try again", path)
		}
	}
	return nil
}

func pointers(texts [][]byte) ([]*byte, error) {
	list := make([]*byte, 0, len(texts)+1)
	for _, text := range texts {
		p, err := unix.BytePtrFromString(string(text))
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		list = append(list, p)
	}
	return append(list, nil), nil
}

// lookPath finds a program as execvp(3) does, in the files and by the PATH
// that the program itself has.
func lookPath(name, dir string, env [][]byte) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	var search string
	for _, v := range env {
		if rest, ok := strings.CutPrefix(string(v), "PATH="); ok {
			search = rest
		}
	}
	var denied string
	for _, folder := range filepath.SplitList(search) {
		candidate := filepath.Join(folder, name)
		if !filepath.IsAbs(candidate) {
			candidate = filepath.Join(dir, candidate)
		}
		info, err := os.Stat(candidate)
		switch {
		case err == nil && !info.IsDir() && info.Mode()&0o111 != 0:
			return candidate, nil
		case err == nil && !info.IsDir():
			denied = candidate
		}
	}
	if denied != "" {
		return "", &notStartedError{exitNotExecutable, fmt.Errorf("%q is not executable", denied)}
	}
	return "", &notStartedError{exitNotFound, fmt.Errorf("%q is not found in the sandbox's PATH", name)}
}

// serveRunner carries out what the runner asks until the runner is gone, and
// the sandbox with it.
func (r *relay) serveRunner() {
	for {
		var message channel.ToRelay
		if err := r.runner.Receive(&message); err != nil {
			os.Exit(exitRefused)
		}
		switch {
		case message.Signal > 0 && message.Group:
			r.signalGroup(unix.Signal(message.Signal))
		case message.Signal > 0:
			r.signal(unix.Signal(message.Signal))
		case message.Continue != nil:
			if message.Continue.Foreground && r.tty >= 0 {
				r.toForeground()
			}
			r.signalGroup(unix.SIGCONT)
		}
	}
}

// signal sends to the program, unless it has been reaped.
func (r *relay) signal(n unix.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pid != 0 {
		unix.Kill(r.pid, n)
	}
}

func (r *relay) signalGroup(n unix.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pid != 0 {
		unix.Kill(-r.pid, n)
	}
}

func (r *relay) toForeground() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pid != 0 {
		setForeground(r.tty, r.pid)
	}
}

// reap waits for every process of the sandbox, which all become this one's
// children when their own parents end, until the program has ended.
func (r *relay) reap() error {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WUNTRACED, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("waiting for the program: %w", err)
		}
		if pid != r.pid {
			continue
		}
		if status.Stopped() {
			r.runner.Send(channel.FromRelay{Stopped: int(status.StopSignal())})
			continue
		}
		r.mu.Lock()
		r.pid = 0
		r.mu.Unlock()
		exited := &channel.Exited{Code: status.ExitStatus()}
		if status.Signaled() {
			exited = &channel.Exited{Code: 128 + int(status.Signal()), Signal: int(status.Signal())}
		}
		return r.runner.Send(channel.FromRelay{Exited: exited})
	}
}
