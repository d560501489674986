package runner

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/channel"
)

// process is one that the runner started, and the channel to it. It is
// started by package syscall: os/exec first clones a process of its own, to
// see whether pidfds work, which would be a thirtieth of a run's whole start.
type process struct {
	name string
	path string
	pid  int
	conn *channel.Conn
	log  logBuffer

	once sync.Once
	done chan struct{} // closed when it has been waited for

	mu     sync.Mutex
	reaped bool
	status syscall.WaitStatus
}

// logBuffer keeps the start of what a process writes to its standard error.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

const maxLog = 8 << 10

// Write keeps what fits and takes the rest.
func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p[:min(len(p), maxLog-l.text.Len())])
	return len(p), nil
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// startProxy starts link-sandbox-proxy on a socket folder. It has a session
// of its own: no signal of the terminal is for it, and it outlives a stop.
func (r *Run) startProxy(dir *folder) (*process, error) {
	args := []string{r.Proxy, "--channel", "--dir", dir.net(), "--control", dir.control()}
	for _, port := range r.Ports {
		args = append(args, "--port", port.String())
	}
	return start("the proxy", args, nil, &syscall.SysProcAttr{Setsid: true}, nil)
}

// startSandbox starts bwrap, and in it the relay, which then waits for its
// first message.
func (r *Run) startSandbox(dir *folder) (*process, error) {
	inherited := []*os.File{r.Stdin, r.Stdout, r.Stderr}
	for _, folder := range r.Reached {
		inherited = append(inherited, folder.File())
	}
	if r.ownProxy() {
		reference, err := dir.reference()
		if err != nil {
			return nil, err
		}
		defer reference.Close()
		inherited = append(inherited, reference)
	}
	args, files, err := r.Wall.Args(channel.StdinFD+len(inherited), r.plain != nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	// Out of reach of the terminal's signals, in the same session; and bwrap
	// and the relay can be killed together. No parent-death signal: see
	// wall.Args.
	command, env, err := r.Limits.scoped(append([]string{r.Bwrap}, args...))
	if err != nil {
		return nil, err
	}
	return start("the sandbox", command, env, &syscall.SysProcAttr{Setpgid: true}, append(inherited, files...))
}

// start starts a program in /, with a channel as descriptor 3 and more after
// it, and an environment that is empty unless it must reach systemd first.
// bwrap is dynamically linked and runs outside the sandbox: nothing of the
// program's environment is for it.
func start(name string, args, env []string, sys *syscall.SysProcAttr, more []*os.File) (*process, error) {
	conn, child, err := channel.Pair()
	if err != nil {
		return nil, err
	}
	defer child.Close()
	p := &process{name: name, path: args[0], conn: conn, done: make(chan struct{})}
	fail := func(err error) (*process, error) {
		conn.Close()
		return nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return fail(err)
	}
	defer null.Close()
	logRead, logWrite, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	defer logWrite.Close()
	files := append([]*os.File{null, logWrite, logWrite, child}, more...)
	fds := make([]uintptr, len(files))
	for i, f := range files {
		fds[i] = f.Fd()
	}
	p.pid, _, err = syscall.StartProcess(args[0], args, &syscall.ProcAttr{Dir: "/", Env: append([]string{}, env...), Files: fds, Sys: sys})
	runtime.KeepAlive(files)
	if err != nil {
		logRead.Close()
		return fail(fmt.Errorf("%s: %w", args[0], err))
	}
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		io.Copy(&p.log, logRead)
	}()
	go func() {
		defer close(p.done)
		// Not yet reaped, its process group can't be another's: what is left of
		// it, a relay that was being started, goes with it.
		waitExited(p.pid)
		p.kill()
		// To the end of file: every process that could write has ended, or one
		// that escaped holds it open.
		select {
		case <-logged:
		case <-time.After(endGrace):
		}
		logRead.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		for {
			if _, err := syscall.Wait4(p.pid, &p.status, 0, nil); err != syscall.EINTR {
				break
			}
		}
		p.reaped = true
	}()
	return p, nil
}

// waitExited waits for a child's end and leaves it to be reaped.
func waitExited(pid int) {
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != unix.EINTR {
			return
		}
	}
}

// endGrace is how long a process that has lost its lifeline has to end.
const endGrace = 3 * time.Second

// end closes the lifeline and waits for the process, which it kills if it
// doesn't end by itself. It may be called twice.
func (p *process) end() {
	p.once.Do(func() {
		timer := time.AfterFunc(endGrace, p.kill)
		defer timer.Stop()
		// Writing ends first, so that a last message is still received.
		p.conn.CloseWrite()
		<-p.done
		p.conn.Close()
	})
}

// kill kills its process group, whose leader it is.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		unix.Kill(-p.pid, unix.SIGKILL)
	}
}

// broken says why a process that should have answered did not.
func (p *process) broken(err error) error {
	p.end()
	said := oneLine(p.log.String())
	if scope, ok := strings.CutPrefix(said, "Failed to "); ok {
		return refused("limits need systemd's manager of this user's services, which can't be reached: failed to %s: log in by it, or loginctl enable-linger, or leave --memory, --processes and --cpus out", scope)
	}
	if strings.Contains(said, "in setuid mode") {
		return &noPowers{"bwrap is setuid root, and gives no capability (chmod u-s " + p.path + "): " + said}
	}
	if remedy := bwrapRemedy(p.path, said); remedy != "" {
		return refused("%s", remedy)
	}
	if said == "" {
		said = err.Error()
		if p.status.Signaled() {
			said += " (" + p.status.Signal().String() + ")"
		}
	}
	return refused("%s ended unexpectedly: %s", p.name, said)
}

// bwrapRemedy turns what bwrap says into what to do.
func bwrapRemedy(bwrap, said string) string {
	switch {
	case said == "":
		return ""
	case strings.Contains(said, "No permissions to creat"), // worded one way or another since 0.2
		strings.Contains(said, "Creating new namespace failed"),
		strings.Contains(said, "setting up uid map"):
		return "this machine lets this user make no user namespace, which the wall is made of: ask its administrator for user.max_user_namespaces above 0, and, where they are set, kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0; in a container, for a runtime that allows them, as Docker does with --security-opt seccomp=unconfined (bwrap: " + said + ")"
	case strings.Contains(said, "Unknown option"):
		return "bubblewrap is too old: it needs 0.5 or newer, and 0.8 for --home-size (" + said + ")"
	case strings.Contains(said, "setuid use of bubblewrap"):
		return "bwrap is setuid root, which it doesn't take any more: chmod u-s " + bwrap + " (" + said + ")"
	case strings.Contains(said, "mount proc"):
		return "no /proc can be mounted in a user namespace here, which the sandbox needs one of its own of: in a container, ask for one whose /proc isn't covered, as Docker gives with --security-opt systempaths=unconfined (" + said + ")"
	case strings.HasPrefix(said, "bwrap: "):
		return "bwrap can't build the sandbox: " + strings.TrimPrefix(said, "bwrap: ")
	}
	return ""
}

// files is the soft limit on descriptors that the process was started with,
// which is the caller's: the Go runtime raises its own, and gives those that
// it starts what it was given itself.
func (p *process) files() uint64 {
	var limit unix.Rlimit
	if err := unix.Prlimit(p.pid, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		return 0
	}
	return limit.Cur
}
