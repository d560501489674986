// Package proxy is link-sandbox-proxy: the one way out of a sandbox, a
// filtering HTTP proxy outside it.
//
// It promises to the person who listed hosts: every byte that leaves went to
// a host and port that package reach allowed, at an address that package
// egress judged as it was dialled. It promises to the program inside: what
// was listed works as if it were direct, and what was not is refused at once,
// with the reason, and never with a stall.
//
// It trusts nothing that comes in by its sockets: out.sock, and the listeners
// that it is handed over local.sock (package handoff).
package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"link.internal/lnk/internal/bind"
	"link.internal/lnk/internal/bridge"
	"link.internal/lnk/internal/channel"
	"link.internal/lnk/internal/egress"
	"link.internal/lnk/internal/handoff"
	"link.internal/lnk/internal/idle"
	"link.internal/lnk/internal/routes"
)

// Limits on what a client may hold without sending anything.
const (
	headerTimeout = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 32 << 10
	// maxWaiting bounds the connections that are no tunnels: each may hold
	// some 200 KiB while its header is read.
	maxWaiting = 1024
	// maxTold bounds what waits for the runner.
	maxTold = 512
)

// Proxy serves one sandbox. Without a service it refuses every call.
type Proxy struct {
	log     *slog.Logger
	runner  *channel.Conn // nil without a runner
	service atomic.Pointer[Service]
	ready   func() // called once it serves
	// refused tells of each first refusal of its kind, where there is no runner.
	refused func(channel.Refused)

	told    chan channel.FromProxy
	toldMu  sync.Mutex
	ended   bool // told is closed
	summary channel.Summary
	waiting atomic.Int64 // connections that are no tunnels

	binding    sync.Mutex  // one bind at a time
	completing atomic.Bool // a bind holds, and isn't complete
	fatal      chan error  // ends the proxy
	ahead      ahead       // of the bind that is to come

	mu      sync.Mutex
	servers map[*http.Server]struct{}
	grounds map[*ground]struct{} // the sandboxes whose relays are there
}

// tell sends to the runner, if there is one. It never waits for it: what a
// runner that doesn't read would be told is left out.
func (p *Proxy) tell(message channel.FromProxy) {
	p.toldMu.Lock()
	defer p.toldMu.Unlock()
	if p.ended {
		return
	}
	select {
	case p.told <- message:
	default:
	}
}

// tellRunner sends what is told, until told is closed.
func (p *Proxy) tellRunner(done chan<- struct{}) {
	defer close(done)
	for message := range p.told {
		if p.runner != nil {
			p.runner.Send(message)
		}
	}
}

func (p *Proxy) tellFailed(err error) {
	p.log.Error("a listener in the sandbox", "err", err)
	p.tell(channel.FromProxy{Failed: "a listener in the sandbox: " + err.Error()})
}

func (p *Proxy) tellHanded(address string) { p.tell(channel.FromProxy{Handed: address}) }

// ServeHTTP refuses everything until there is a service.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	headRead(r)
	service := p.bound()
	if service == nil {
		writeRefusal(w, "every call", refusal{status: http.StatusServiceUnavailable, code: "unbound", why: "this proxy isn't bound to an agent yet"})
		return
	}
	service.ServeHTTP(w, r)
}

// serveHTTP answers on one listener until it ends. from is what the wire log
// calls it.
func (p *Proxy) serveHTTP(l net.Listener, from string) {
	server := &http.Server{
		Handler:           p,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log.New(io.Discard, "", 0),
		ConnState:         p.countConn,
		// OPTIONS * is a request to the proxy itself as any other.
		DisableGeneralOptionsHandler: true,
		BaseContext:                  func(net.Listener) context.Context { return withFrom(from) },
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, incomingKey{}, conn)
		},
	}
	p.mu.Lock()
	p.servers[server] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.servers, server)
		p.mu.Unlock()
	}()
	if err := server.Serve(&incomingListener{l, p, from}); !errors.Is(err, http.ErrServerClosed) {
		p.log.Debug("listener ended", "from", from, "err", err)
	}
}

// loopback4 is this machine's.
var loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// Places are where a proxy listens. Dir or Port is given, or both.
type Places struct {
	// Dir is the socket folder, an absolute path.
	Dir string
	// AgentUser is the user whose sandbox it serves, where that is another, and
	// Group the folder's; negative: this user's, and nobody's.
	AgentUser, Group int
	// Ports lead into the sandbox.
	Ports []bind.Port
	// Port is one on this machine's loopback; 0: none.
	Port int
	// DNS is an address of this machine's loopback, where names are answered;
	// invalid: nowhere.
	DNS netip.AddrPort
	// Control is the absolute path of the control socket; empty: none.
	Control string
	// Binder is the user who may use it beside this one; negative: nobody.
	Binder int
	// Blank says that there are no rules before one line on it brings them.
	Blank bool
}

// shared reports whether the socket folder is shared with an agent's user.
func (at Places) shared() bool { return at.AgentUser >= 0 }

// inside is the user whose sandbox it serves.
func (at Places) inside() int {
	if at.shared() {
		return at.AgentUser
	}
	return os.Geteuid()
}

// listenersAhead is how many programs the routes of a bind seldom have more of.
const listenersAhead = 2

// Run serves until ctx ends or the runner is gone, and ends every call before
// it returns.
func (p *Proxy) Run(ctx context.Context, at Places) error {
	var ends []io.Closer // each unlinks its socket; the folder is closed last
	defer func() {
		for _, end := range slices.Backward(ends) {
			end.Close()
		}
	}()
	var f *socketFolder
	if at.Dir != "" {
		if err := handoff.Supported(); err != nil {
			return err
		}
		var err error
		if f, err = openFolder(at); err != nil {
			return err
		}
		ends = append(ends, f)
	}
	code, err := idle.OwnCode()
	if err != nil {
		p.log.Debug("memory", "err", err) // it is then as large as it is
	}
	// Nothing is served before the proxy has given up what it has no use for.
	var serve []func()
	if f != nil {
		out, local, err := f.listen()
		if err != nil {
			return err
		}
		ends = append(ends, out, local)
		serve = append(serve, func() { p.serveHTTP(out, "out.sock") }, func() { p.serveLocal(ctx, local) })
	}
	for _, port := range at.Ports {
		l, err := listenTCP(ctx, netip.AddrPortFrom(loopback4, port.Outside))
		if err != nil {
			return fmt.Errorf("--port %s: %w", port, err)
		}
		ends = append(ends, l)
		to := bridge.To{Folder: f.Folder, Owner: at.inside(), Port: port.Inside}
		serve = append(serve, func() { bridge.Serve(ctx, l, to, func(err error) { p.log.Debug("the way in", "err", err) }) })
	}
	if at.Port != 0 {
		l, err := listenTCP(ctx, netip.AddrPortFrom(loopback4, uint16(at.Port)))
		if err != nil {
			return fmt.Errorf("--listen %d: %w", at.Port, err)
		}
		ends = append(ends, l)
		serve = append(serve, func() { p.serveHTTP(l, "listen") })
	}
	var l *controlSocket
	if at.Control != "" {
		if l, err = listenControl(at.Control, at.Binder); err != nil {
			return err
		}
		ends = append(ends, l)
	}
	if err := giveUpCalls(); err != nil {
		return err
	}
	kept, err := keptFiles(at)
	if err != nil {
		return err
	}
	if at.Blank {
		// What it may write is known when it is bound; it holds nothing of
		// anyone's before.
		if p.ahead.listeners, err = routes.NewListeners(listenersAhead); err != nil {
			// Only a bind with programs needs one, and says what it lacks.
			p.log.Debug("sockets ahead of a bind", "err", err)
		}
		ends = append(ends, p.ahead.listeners)
		p.ahead.interfaces = &egress.Interfaces{}
	} else {
		if err := keepFiles(kept, p.service.Load()); err != nil {
			return err
		}
		if err := kept.Restrict(); err != nil {
			return err
		}
	}
	if at.DNS.IsValid() {
		l, err := p.listenDNS(ctx, at.DNS)
		if err != nil {
			return err
		}
		ends = append(ends, l)
	}
	if l != nil {
		serve = append(serve, func() { p.controlServer(at, l, kept).Serve(l.UnixListener) })
	}
	for _, f := range serve {
		go f()
	}
	if at.Blank {
		if err := errors.Join(p.rehearseBind(ctx, at), p.rehearseCall(ctx, at)); err != nil && ctx.Err() == nil {
			return err
		}
	}
	p.tell(channel.FromProxy{Ready: true})
	whenIdle := time.AfterFunc(idle.After, func() {
		if err := code.GiveBack(); err != nil {
			p.log.Debug("memory", "err", err)
		}
		if at.Blank && p.bound() == nil {
			// What the bind takes is to be there when it comes.
			if err := p.rehearseBind(ctx, at); err != nil {
				p.log.Debug("memory", "err", err)
			}
		}
	})
	defer whenIdle.Stop()
	if p.ready != nil {
		p.ready()
	}
	var failed error
	select {
	case <-ctx.Done():
	case failed = <-p.fatal:
	}
	p.mu.Lock()
	for server := range p.servers {
		// Close ends connections that are not hijacked. A handed listener's
		// close may block for ever, so it isn't waited for.
		go server.Close()
	}
	p.mu.Unlock()
	if service := p.service.Load(); service != nil {
		p.summary = service.Close()
	}
	return failed
}

// tellLast sends what is still to be told, and the summary behind it.
func (p *Proxy) tellLast(done <-chan struct{}) {
	p.toldMu.Lock()
	p.ended = true
	p.toldMu.Unlock()
	close(p.told)
	<-done
	p.runner.Send(channel.FromProxy{Summary: &p.summary})
}

// serveRunner takes the rules from the runner and returns a context that ends
// with it.
func (p *Proxy) serveRunner(ctx context.Context) (context.Context, error) {
	var first channel.ToProxy
	if err := p.runner.Receive(&first); err != nil {
		return nil, err
	}
	if first.Serve == nil {
		return nil, errors.New("the runner's first message isn't serve")
	}
	service, err := NewService(first.Serve.Binding, first.Serve.Wire, ahead{}, p.log, func(r channel.Refused) {
		p.tell(channel.FromProxy{Refused: &r})
	})
	if err != nil {
		return nil, err
	}
	p.service.Store(service)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		var ignored channel.ToProxy
		for p.runner.Receive(&ignored) == nil {
		}
	}()
	return ctx, nil
}

// fail tells the runner, or returns the error for the person to read.
func (p *Proxy) fail(err error) error {
	if p.runner != nil {
		p.runner.Send(channel.FromProxy{Failed: err.Error()})
	}
	return fmt.Errorf("link-sandbox-proxy: %w", err)
}
