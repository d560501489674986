package routes

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"link.internal/lnk/internal/confine"
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
// proxy is, and ends with it, and so does all that it starts:
//
//	the proxy
//	 └─ link-sandbox-proxy --route-keeper    leads a process group, and ends it with itself
//	     └─ the program                      may not leave that group
const (
	// KeeperFlag makes link-sandbox-proxy keep a program.
	KeeperFlag = "--route-keeper"
	// ExecFlag makes it set LISTEN_PID and become the program.
	ExecFlag = "--route-program"

	// steady is how long a program runs until its end is no failure to start,
	// though it has answered nothing.
	steady       = time.Minute
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 30 * time.Second
	// endGrace is how long a program has to end.
	endGrace = 2 * time.Second
)

// Exec becomes the program, which is given by its path.
func Exec(args []string) error {
	if err := confine.StayInGroup(); err != nil {
		return err
	}
	env := append(os.Environ(), "LISTEN_PID="+strconv.Itoa(os.Getpid()))
	return fmt.Errorf("executing %q: %w", args[0], unix.Exec(args[0], args, env))
}

// Keep starts the program and waits for it, and returns its exit code. Should
// the proxy be killed, which tells it so by TERM (Pdeathsig), it kills the
// group, itself among it.
func Keep(args []string) int {
	proxy := os.Getppid()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM)
	if os.Getppid() != proxy || proxy == 1 {
		unix.Kill(0, unix.SIGKILL)
	}
	go func() {
		for range signals {
			// The proxy's own TERM is the program's as well, which may take its time.
			if os.Getppid() != proxy {
				unix.Kill(0, unix.SIGKILL)
			}
		}
	}()
	runtime.LockOSThread() // a parent-death signal is of the thread that started it
	cmd := exec.Command("/proc/self/exe", append([]string{ExecFlag}, args...)...)
	cmd.Args[0] = "link-sandbox-proxy"
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{os.NewFile(firstFD, "http"), os.NewFile(firstFD+1, "given")}
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "link-sandbox-proxy:", err)
		return 126
	}
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return cmd.ProcessState.ExitCode()
}

// firstFD is the first descriptor beyond the standard streams.
const firstFD = 3

// program is one that serves a route. Of its processes there is one at a time.
type program struct {
	prefix string
	args   []string // args[0] is a path
	given  []byte   // with its end of line
	log    *slog.Logger
	*listener

	answered atomic.Bool // a call, since it was started

	once   sync.Once // the first call starts it
	ctx    context.Context
	cancel context.CancelFunc
	over   chan struct{} // closed when it isn't started any more

	mu      sync.Mutex
	begun   bool
	failing string // how it ended, while it waits to be started again; or ""
	said    string // the last line that it wrote
}

func newProgram(prefix string, args []string, given json.RawMessage, ready *Listeners, log *slog.Logger) (*program, error) {
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
	if p.listener, err = ready.take(); err != nil {
		return nil, fmt.Errorf("making its socket: %w", err)
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
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
	return p.listener.dial(ctx)
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
		if failed++; p.answered.Swap(false) || lived >= steady {
			failed, backoff = 0, firstBackoff
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
	cmd := exec.Command("/proc/self/exe", append([]string{KeeperFlag}, p.args...)...)
	cmd.Args[0] = "link-sandbox-proxy"
	cmd.Env = append(os.Environ(), "LISTEN_FDS=2", "LISTEN_FDNAMES=http:given")
	// A pipe of its own: whatever holds it, the proxy's own streams are free.
	hear, say, err := os.Pipe()
	if err != nil {
		return err
	}
	defer hear.Close()
	defer say.Close()
	cmd.Stdout, cmd.Stderr = say, say
	cmd.ExtraFiles = []*os.File{p.file, read}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM}
	if err := cmd.Start(); err != nil {
		return err
	}
	read.Close()
	say.Close()
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		p.listenTo(hear)
	}()
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
	// All that could write has ended.
	<-heard
	if err := cmd.Wait(); err != nil {
		return err
	}
	return errors.New("exit status 0")
}

// What is logged of what a program writes.
const (
	maxSaid     = 1 << 10
	saidASecond = 10
	saidAtOnce  = 100
)

// listenTo logs what the program writes, some lines a second, and keeps the last.
func (p *program) listenTo(from io.Reader) {
	limiter := rate.NewLimiter(saidASecond, saidAtOnce)
	in := bufio.NewReaderSize(from, maxSaid)
	for {
		line, more, err := in.ReadLine()
		if err != nil {
			return
		}
		text := string(line)
		for more && err == nil { // the rest of a long one
			_, more, err = in.ReadLine()
		}
		p.mu.Lock()
		p.said = text
		p.mu.Unlock()
		if limiter.Allow() {
			p.log.Info("a route's program says", "route", p.prefix, "line", text)
		}
	}
}

// lastSaid is for the person alone: it may tell of what the program was given.
func (p *program) lastSaid() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said
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
	fd := int(p.file.Fd())
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
	p.listener.close()
}
