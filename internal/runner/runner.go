// Package runner carries out lnk sandbox run: it starts the proxy and the
// sandbox, waits for the program as a shell's job would be waited for, and
// leaves nothing behind.
//
//	lnk sandbox run            this package
//	 ├─ link-sandbox-proxy     startProxy: outside, in a session of its own
//	 └─ bwrap                  startSandbox: the wall
//	     └─ lnk-relay          process 1 inside
//	         └─ the program
//
// However the runner ends, the others end: the channels to both are their
// lifelines.
package runner

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/bind"
	"link.internal/lnk/internal/bridge"
	"link.internal/lnk/internal/channel"
	"link.internal/lnk/internal/idle"
	"link.internal/lnk/internal/peercred"
	"link.internal/lnk/internal/wall"
)

// ExitRefused is the exit code of all that lnk itself refuses.
const ExitRefused = 125

// Run is one sandboxed program.
type Run struct {
	Wall  *wall.Wall
	Rules bind.Binding
	// Network says that there is a proxy for the program, Host that the network
	// is the machine's own.
	Network, Host bool
	// Reached are the socket folders of proxies that run already; none: the
	// run has a proxy of its own.
	Reached []*peercred.Folder
	// Ports lead into the sandbox.
	Ports []bind.Port
	// Args is the program and its arguments, Env its whole environment.
	Args, Env []string
	UID, GID  int
	// Bwrap and Proxy are absolute paths of the programs to start.
	Bwrap, Proxy string
	// Stdin, Stdout and Stderr become the program's own.
	Stdin, Stdout, Stderr *os.File
	// UserNamespaces lets the program make its own.
	UserNamespaces bool
	// Limits are the sandbox's.
	Limits Limits
	// Commands are the programs that may be executed; nil: any.
	Commands *channel.Commands
	// Report is told what a person should know while the program runs.
	Report Reporter
	// Try has the full wall tried, whatever was found before.
	Try bool
	// NoTerminal keeps the terminal from the program.
	NoTerminal bool

	plain      *plainWall // nil: the full one
	started    bool
	endedBy    int // a signal that asked the program to end before it was started
	proxyEnded bool
}

// ownProxy reports whether the run starts a proxy: for the program's way out,
// or for the way in.
func (r *Run) ownProxy() bool { return r.Network && len(r.Reached) == 0 || len(r.Ports) > 0 }

// Plain says why the wall is the plain one; "" when it is the full one.
func (r *Run) Plain() string {
	if r.plain == nil {
		return ""
	}
	return r.plain.Why
}

// Reporter is told what happens. Its methods must not block for long.
type Reporter interface {
	// Refused is called once for each distinct refusal.
	Refused(channel.Refused)
	// Learnt is called once for each program that was executed, where that is asked for.
	Learnt(path string)
	// Step is called when a part of the start is done.
	Step(name string)
	// Done is called last, with what the proxy saw; nil where it can't be told.
	Done(summary *channel.Summary)
}

// Error is a run that lnk refused or that failed before the program ran.
type Error struct {
	// Code is the exit code: 125, 126 or 127.
	Code int
	Err  error
}

// Error is one line: what, where, what to do.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns what failed.
func (e *Error) Unwrap() error { return e.Err }

func refused(format string, args ...any) *Error {
	return &Error{ExitRefused, fmt.Errorf(format, args...)}
}

// Run starts everything, waits for the program, and returns its exit code, or
// an *Error. Signals stay taken: who goes on for long has signal.Reset.
func (r *Run) Run() (code int, err error) {
	job := newJob()
	defer job.close()

	for n, stream := range []*os.File{r.Stdin, r.Stdout, r.Stderr} {
		if info, err := stream.Stat(); err == nil && info.IsDir() {
			// From a folder's descriptor, .. leads out of every sandbox.
			return 0, refused("descriptor %d is a folder, from which all of the machine's files could be reached: redirect it elsewhere", n)
		}
	}
	// As it is now, whenever it is needed: a start in the full wall doesn't.
	state := sync.OnceValue(func() string { return machineState(r.Bwrap) })
	if !r.Try {
		// What would be refused by what was found before is tried anew.
		if r.plain = rememberedPlain(state); r.checkPlain() != nil {
			r.plain = nil
		}
	}
	about := About{PID: os.Getpid(), Started: time.Now().UTC(), Program: r.Args, Network: r.ownProxy(), Wire: r.Rules.Wire}
	for _, folder := range r.Reached {
		about.Reached = append(about.Reached, folder.Path())
		defer bridge.Sweep(folder)
	}
	var dir *folder
	var proxy *process
	if about.Network {
		job.takeSignals()
		if dir, err = newFolder(about); err != nil {
			return 0, refused("%w", err)
		}
		defer dir.Close()
		if proxy, err = r.startProxy(dir); err != nil {
			return 0, refused("starting the proxy: %w", err)
		}
		defer proxy.end()
		if err := proxy.conn.Send(channel.ToProxy{Serve: &channel.Serve{Binding: r.Rules, Wire: dir.wire()}}); err != nil {
			return 0, proxy.broken(err)
		}
		r.Report.Step("proxy started")
	}
	sandbox, err := r.startSandbox(dir)
	if err != nil {
		return 0, refused("starting the sandbox: %w", err)
	}
	defer func() { sandbox.end() }()
	if dir == nil {
		// While bwrap builds, which needs nothing of it, and ends with lnk.
		job.takeSignals()
		if dir, err = newFolder(about); err != nil {
			return 0, refused("%w", err)
		}
		defer dir.Close()
	}
	r.Report.Step("bwrap started")
	fromProxy := make(chan any, 16)
	if proxy != nil {
		if err := r.proxyReady(proxy); err != nil {
			return 0, err
		}
		r.Report.Step("proxy ready")
		go receiveProxy(proxy.conn, fromProxy)
	}
	forget := func() {}
	if r.Try && r.plain == nil {
		forget = forgetPlain
	}
	code, err = r.runIn(sandbox, job, fromProxy, forget)
	var missing *noPowers
	if r.plain == nil && errors.As(err, &missing) {
		// The full wall can't be had: nothing has been started in it.
		sandbox.end()
		if r.endedBy != 0 {
			return 128 + r.endedBy, nil
		}
		r.plain = &plainWall{Why: missing.why, For: state()}
		if err := r.checkPlain(); err != nil {
			return 0, err
		}
		job.restoreTerminal()
		r.Report.Step("the plain wall")
		again, err := r.startSandbox(dir)
		if err != nil {
			return 0, refused("starting the sandbox: %w", err)
		}
		sandbox = again
		code, err = r.runIn(sandbox, job, fromProxy, r.plain.remember)
		return r.finish(code, err, job, sandbox, proxy, fromProxy)
	}
	return r.finish(code, err, job, sandbox, proxy, fromProxy)
}

// finish waits until all has ended, and reports.
func (r *Run) finish(code int, err error, job *job, sandbox, proxy *process, fromProxy chan any) (int, error) {
	// Both end by themselves now; each is waited for below.
	if proxy != nil {
		proxy.conn.CloseWrite()
	}
	sandbox.end()
	job.restoreTerminal()
	var summary *channel.Summary
	if proxy != nil {
		if !r.proxyEnded {
			summary = r.drain(fromProxy)
		}
		proxy.end()
	}
	r.Report.Done(summary)
	return code, err
}

// checkPlain refuses what was asked for and the plain wall can't have.
func (r *Run) checkPlain() error {
	if r.plain == nil {
		return nil
	}
	err := r.Rules.CheckPlain()
	if err == nil && r.UserNamespaces {
		err = errors.New("--userns: no user namespace can be made inside the plain wall")
	}
	if err == nil && r.Wall.HostsGranted() && len(r.Rules.TCP) > 0 && r.Rules.NamesOn() {
		err = errors.New("--read /etc/hosts takes the place of the file that endpoints have their names in, in the plain wall")
	}
	if err != nil {
		return refused("%w, and this machine gives no other (%s): lnk doctor says what to do; --names=false reaches it through the proxy alone, as ssh does", err, r.plain.Why)
	}
	return nil
}

// runIn has the relay of a started sandbox start the program, and waits for
// it. started is called once the program has been executed.
func (r *Run) runIn(sandbox *process, job *job, fromProxy chan any, started func()) (int, error) {
	if r.Limits != (Limits{}) {
		// The relay is there, so bwrap has been executed in its scope.
		var first channel.FromRelay
		if err := sandbox.conn.Receive(&first); err != nil {
			return 0, sandbox.broken(err)
		}
		if err := r.Limits.check(sandbox.pid); err != nil {
			return 0, refused("%w", err)
		}
	}
	if err := sandbox.conn.Send(channel.ToRelay{Start: r.startMessage(job, sandbox)}); err != nil {
		return 0, sandbox.broken(err)
	}
	fromRelay := make(chan any, 16)
	go receiveRelay(sandbox.conn, fromRelay)
	return r.wait(job, sandbox, fromProxy, fromRelay, started)
}

func (r *Run) startMessage(job *job, sandbox *process) *channel.Start {
	start := &channel.Start{
		Dir: []byte(r.Wall.Dir), UID: r.UID, GID: r.GID, Proxy: r.Network,
		Host: r.Host, Plain: r.plain != nil, Files: sandbox.files(), Commands: r.Commands,
		UserNamespaces: r.UserNamespaces,
		Terminal:       job.tty != nil && !r.NoTerminal, Ignored: job.ignored,
	}
	for _, folder := range r.Reached {
		start.Folders = append(start.Folders, []byte(folder.Path()))
	}
	if r.ownProxy() {
		start.Folders = append(start.Folders, []byte("the run's folder"))
	}
	start.Foreground = start.Terminal && job.takesTerminal(r.Stdin, r.Stdout)
	for _, m := range r.Wall.Pinned() {
		start.Mounts = append(start.Mounts, channel.Mount{Path: []byte(m.Path), Dev: m.Dev, Ino: m.Ino, Hidden: m.Hidden})
	}
	for _, path := range r.Wall.WritablePaths() {
		start.Writable = append(start.Writable, []byte(path))
	}
	for _, arg := range r.Args {
		start.Args = append(start.Args, []byte(arg))
	}
	for _, entry := range r.Env {
		start.Env = append(start.Env, []byte(entry))
	}
	return start
}

// readyTimeout bounds the wait for a proxy that neither says that it is ready
// nor ends.
const readyTimeout = 20 * time.Second

// proxyReady waits for the proxy's first message.
func (r *Run) proxyReady(proxy *process) error {
	timer := time.AfterFunc(readyTimeout, func() { proxy.kill() })
	defer timer.Stop()
	var first channel.FromProxy
	if err := proxy.conn.Receive(&first); err != nil {
		return proxy.broken(err)
	}
	if first.Failed != "" {
		return refused("the proxy: %s", first.Failed)
	}
	if !first.Ready {
		return refused("bug: the proxy's first message isn't that it is ready")
	}
	return nil
}

// proxyGone and relayGone are the ends of the channels.
type (
	proxyGone struct{}
	relayGone struct{ err error }
)

func receiveProxy(conn *channel.Conn, events chan<- any) {
	for {
		var m channel.FromProxy
		if err := conn.Receive(&m); err != nil {
			events <- proxyGone{}
			return
		}
		events <- m
	}
}

func receiveRelay(conn *channel.Conn, events chan<- any) {
	for {
		var m channel.FromRelay
		if err := conn.Receive(&m); err != nil {
			events <- relayGone{err}
			return
		}
		events <- m
	}
}

// killGrace is how long a program that was told to end has for it.
const killGrace = 3 * time.Second

// wait serves the job until the program has ended.
func (r *Run) wait(job *job, sandbox *process, fromProxy, fromRelay chan any, started func()) (int, error) {
	var killTimer <-chan time.Time
	killedBy := 0
	for {
		select {
		case n := <-job.signals:
			ends, err := job.forward(n, sandbox.conn)
			if !r.started && (ends || n == unix.SIGINT || n == unix.SIGQUIT) {
				r.endedBy = int(n.(syscall.Signal))
			}
			if err != nil {
				continue // the relay is gone, which comes as an event
			}
			if ends && killTimer == nil {
				killTimer, killedBy = time.After(killGrace), int(n.(syscall.Signal))
			} else if ends {
				sandbox.conn.CloseWrite() // asked twice
			}
		case <-killTimer:
			// Its lifeline, and not a kill: the relay's own end is over when every
			// process of the sandbox is, and bwrap's comes after it.
			sandbox.conn.CloseWrite()
		case event := <-fromProxy:
			switch e := event.(type) {
			case channel.FromProxy:
				if err := r.fromProxy(e); err != nil {
					sandbox.conn.CloseWrite()
					return 0, err
				}
			case proxyGone:
				r.Report.Refused(channel.Refused{Code: "proxy", What: "everything from now on", Why: "its proxy has ended, so nothing is reached any more"})
				r.proxyEnded = true
			}
		case event := <-fromRelay:
			switch e := event.(type) {
			case channel.FromRelay:
				switch {
				case e.Started && !r.started:
					r.started = true
					if started != nil {
						started()
					}
					r.Report.Step("program started")
					defer idle.GiveBackSoon().Stop()
				case e.Failed != nil && e.Failed.NoPowers && !r.started:
					return 0, &noPowers{e.Failed.Why}
				case e.Failed != nil:
					code := ExitRefused
					if e.Failed.Code == 126 || e.Failed.Code == 127 {
						code = e.Failed.Code
					}
					return 0, &Error{code, errors.New(e.Failed.Why)}
				case e.Executed != nil && !e.Executed.Refused:
					r.Report.Learnt(string(e.Executed.Path))
				case e.Executed != nil && e.Executed.Unseen != "":
					r.Report.Refused(channel.Refused{Code: "command", What: "a program that was executed", Why: "it can't be looked at, which a list of programs needs (" + e.Executed.Unseen + ")"})
				case e.Executed != nil:
					why := "add it to [commands] allow"
					if e.Executed.Loader {
						why = "it starts any program, listed or not: list what it was to start"
					}
					r.Report.Refused(channel.Refused{Code: "command", What: string(e.Executed.Path), Why: why})
				case e.Stopped != 0:
					job.stopped(e.Stopped, sandbox.conn)
				case e.Exited != nil:
					return e.Exited.Code, nil
				}
			case relayGone:
				if killedBy != 0 {
					return 128 + killedBy, nil
				}
				if r.started && r.Limits.Memory > 0 {
					return 0, &Error{137, errors.New("the sandbox was ended as a whole, most likely because it took more memory than --memory allows")}
				}
				return 0, sandbox.broken(e.err)
			}
		}
	}
}

func (r *Run) fromProxy(m channel.FromProxy) error {
	switch {
	case m.Refused != nil:
		r.Report.Refused(*m.Refused)
	case m.Failed != "":
		return refused("the proxy: %s", m.Failed)
	case m.Handed != "":
		r.Report.Step("listening on " + m.Handed)
	}
	return nil
}

// drain reads what the proxy still says, to its end.
func (r *Run) drain(events <-chan any) (summary *channel.Summary) {
	timeout := time.After(killGrace)
	for {
		select {
		case event := <-events:
			switch e := event.(type) {
			case channel.FromProxy:
				r.fromProxy(e)
				if e.Summary != nil {
					return e.Summary
				}
			case proxyGone:
				return nil
			}
		case <-timeout:
			return nil
		}
	}
}

// oneLine makes one line of what a process wrote before it ended.
func oneLine(text string) string {
	var parts []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, "; ")
}
