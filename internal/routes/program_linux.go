package routes

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A route's program gets, as a service that systemd starts by its socket does
// (sd_listen_fds(3)):
//
//	descriptor 3   a Unix socket that listens: it accepts, and serves HTTP/1.1
//	descriptor 4   one line of JSON, what it is given, and the end of file
//	environment    the proxy's, with LISTEN_FDS=2, LISTEN_FDNAMES=http:given and LISTEN_PID
//
// The socket has no name, and outlives the program: calls wait in it while the
// program is started anew. It is started by the first call, confined as the
// proxy is, and ends with it.
const (
	// ExecFlag makes link-sandbox-proxy set LISTEN_PID and become a program.
	ExecFlag = "--route-program"

	listenBacklog = 512
	// quick is how soon an end is a failure to start.
	quick = time.Second
	// steady is how long a program runs until its next end is the first again.
	steady       = 10 * time.Second
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 30 * time.Second
	// endGrace is how long a program has to end.
	endGrace = 2 * time.Second
)

// Exec becomes the program, which is given by its path.
func Exec(args []string) error {
	env := append(os.Environ(), "LISTEN_PID="+strconv.Itoa(os.Getpid()))
	return fmt.Errorf("executing %q: %w", args[0], unix.Exec(args[0], args, env))
}

// program is one that serves a route. Of its processes there is one at a time.
type program struct {
	prefix string
	args   []string // args[0] is a path
	given  []byte   // with its end of line
	log    *slog.Logger
	listen *os.File // the listening socket
	at     *os.File // its file, which has no name any more (O_PATH)

	answered atomic.Bool // a call, since it was started

	once   sync.Once // the first call starts it
	ctx    context.Context
	cancel context.CancelFunc
	over   chan struct{} // closed when it isn't started any more

	mu      sync.Mutex
	begun   bool
	failing string // how it ended, while it waits to be started again; or ""
}

func newProgram(prefix string, args []string, given json.RawMessage, log *slog.Logger) (*program, error) {
	path, err := exec.LookPath(args[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, fmt.Errorf("its program: %w", err)
	}
	p := &program{prefix: prefix, args: append([]string{path}, args[1:]...), log: log, over: make(chan struct{})}
	line := bytes.NewBuffer(nil)
	if given == nil {
		given = json.RawMessage("{}")
	}
	if err := json.Compact(line, given); err != nil {
		return nil, fmt.Errorf("given: %w", err)
	}
	p.given = append(line.Bytes(), '\n')
	if p.listen, p.at, err = listenNameless(); err != nil {
		return nil, fmt.Errorf("making its socket: %w", err)
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

// listenNameless makes a listening socket that nobody but who holds its file
// can connect to. It is never open to others (its mode is 0600 before it has a
// name), and listens only when its name is gone.
func listenNameless() (listen, at *os.File, err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	listen = os.NewFile(uintptr(fd), "route")
	name := filepath.Join(os.TempDir(), "lnk-route-"+rand.Text())
	fail := func(err error) (*os.File, *os.File, error) {
		listen.Close()
		return nil, nil, err
	}
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return fail(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		return fail(fmt.Errorf("%s: %w", name, err))
	}
	atFD, err := unix.Open(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	unix.Unlink(name)
	if err != nil {
		return fail(err)
	}
	if err := unix.Listen(fd, listenBacklog); err != nil {
		unix.Close(atFD)
		return fail(err)
	}
	return listen, os.NewFile(uintptr(atFD), name), nil
}

// files are the program's file, and those that its arguments name.
func (p *program) files() []string {
	files := p.args[:1:1]
	for _, arg := range p.args[1:] {
		if info, err := os.Stat(arg); filepath.IsAbs(arg) && err == nil && info.Mode().IsRegular() {
			files = append(files, arg)
		}
	}
	return files
}

func (p *program) dial(ctx context.Context) (net.Conn, error) {
	p.once.Do(func() {
		p.mu.Lock()
		p.begun = p.ctx.Err() == nil
		begun := p.begun
		p.mu.Unlock()
		if begun {
			go p.keep()
		}
	})
	if why := p.why(); why != "" {
		return nil, fmt.Errorf("%s: %s", p.prefix, why)
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", p.at.Fd()))
}

func (p *program) why() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failing
}

func (p *program) setFailing(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing = why
}

// keep starts the program, and again whenever it has ended.
func (p *program) keep() {
	defer close(p.over)
	// A parent-death signal is of the thread that started it.
	runtime.LockOSThread()
	backoff, failed := firstBackoff, 0
	for {
		begun := time.Now()
		err := p.run()
		if p.ctx.Err() != nil {
			return
		}
		lived := time.Since(begun)
		p.log.Warn("a route's program ended", "route", p.prefix, "how", err)
		if lived >= steady {
			backoff = firstBackoff
		}
		// One that answered did start.
		if failed++; lived >= quick || p.answered.Swap(false) {
			failed = 0
		}
		if failed > 1 {
			// Who waits for it would wait for long.
			p.setFailing(fmt.Sprintf("its program ended at its start (%v)", err))
			p.refuseWaiting()
		}
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(backoff):
		}
		p.setFailing("")
		backoff = min(2*backoff, maxBackoff)
	}
}

// run starts it and waits for its end, and that of what it started.
func (p *program) run() error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	defer write.Close()
	cmd := exec.Command("/proc/self/exe", append([]string{ExecFlag}, p.args...)...)
	cmd.Args[0] = "link-sandbox-proxy"
	cmd.Env = append(os.Environ(), "LISTEN_FDS=2", "LISTEN_FDNAMES=http:given")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.ExtraFiles = []*os.File{p.listen, read}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	read.Close()
	go func() {
		// It may be more than a pipe holds; a program that ends breaks it.
		io.Copy(write, bytes.NewReader(p.given))
		write.Close()
	}()
	group := processGroup{leader: cmd.Process.Pid}
	stop := context.AfterFunc(p.ctx, func() {
		group.signal(unix.SIGTERM)
		time.AfterFunc(endGrace, func() { group.signal(unix.SIGKILL) })
	})
	defer stop()
	// Not yet reaped, its process group can't be another's.
	for unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	group.end()
	if err := cmd.Wait(); err != nil {
		return err
	}
	return fmt.Errorf("exit status 0")
}

// processGroup is a program and what it started.
type processGroup struct {
	mu     sync.Mutex
	leader int // 0: it has ended
}

func (g *processGroup) signal(n unix.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.leader != 0 {
		unix.Kill(-g.leader, n)
	}
}

// end kills what is left when the leader has ended, and no signal comes after it.
func (g *processGroup) end() {
	g.signal(unix.SIGKILL)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leader = 0
}

// refuseWaiting ends the calls that wait for the program.
func (p *program) refuseWaiting() {
	fd := int(p.listen.Fd())
	for {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(poll, 0); err != nil || n == 0 {
			return
		}
		conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		unix.Close(conn)
	}
}

// close ends it, and waits for its end.
func (p *program) close() {
	p.cancel()
	p.once.Do(func() {})
	p.mu.Lock()
	begun := p.begun
	p.mu.Unlock()
	if begun {
		<-p.over
	}
	p.listen.Close()
	p.at.Close()
}
