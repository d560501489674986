package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/handoff"
	"link.internal/lnk/internal/names"
	"link.internal/lnk/internal/reach"
)

// Where the program finds its proxy, its nameserver, and the web by name.
const (
	proxyAddress = "127.0.0.1:40781"
	dnsAddress   = "127.0.0.1:53"
	anyHTTPS     = "0.0.0.0:443"
	anyHTTP      = "0.0.0.0:80"
)

// firstPlainPort is the lowest that is had without a capability.
const firstPlainPort = 1024

// maxEndpoints bounds the listeners of the names of wildcards, which are the
// sandbox's to make up.
const maxEndpoints = 1024

// serveLocal takes relays one at a time: it asks each for the listeners that
// this proxy serves, and serves those that it is handed until they or the
// relay end.
func (p *Proxy) serveLocal(ctx context.Context, local *net.UnixListener) {
	for {
		conn, err := local.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptBackoff)
			continue
		}
		if err := p.serveRelay(ctx, conn); err != nil && !errors.Is(err, io.EOF) {
			p.tellFailed(err)
		}
	}
}

func (p *Proxy) serveRelay(ctx context.Context, conn *net.UnixConn) error {
	file, err := conn.File()
	conn.Close()
	if err != nil {
		return err
	}
	defer file.Close()
	relay, err := handoff.NewProxyEnd(file)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g := &ground{proxy: p, ctx: ctx, relay: relay, asked: make(map[int]*opening), byAddr: make(map[netip.AddrPort]*opening)}
	defer g.close()
	// Known before it looks for a service, so that a bind is never missed.
	p.mu.Lock()
	p.grounds[g] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.grounds, g)
		p.mu.Unlock()
	}()
	if err := g.start(p.service.Load()); err != nil {
		return err
	}
	return g.receive()
}

// ground is the network of one sandbox: the sockets that its relay made and
// handed over.
type ground struct {
	proxy *Proxy
	ctx   context.Context // ends with the relay
	relay *handoff.ProxyEnd
	once  sync.Once // for all that a service brings

	mu     sync.Mutex
	lastID int
	asked  map[int]*opening
	byAddr map[netip.AddrPort]*opening // of endpoints
	// later counts the endpoints' listeners that were made on demand.
	later  int
	closed bool
	ends   []io.Closer
}

// opening is a listener that was asked for.
type opening struct {
	handoff.Listener
	serve func(*os.File) (io.Closer, error)
	// first are those without which nothing is started.
	first bool
	done  chan struct{}
	err   error // once done is closed
}

// start asks for the way to the proxy, which every sandbox has, and for what
// its service brings, if it has one yet.
func (g *ground) start(service *Service) error {
	wanted := []*opening{{Listener: handoff.Listener{Network: "tcp", Address: proxyAddress}, serve: g.serveHTTP}}
	if service != nil {
		g.once.Do(func() { wanted = append(wanted, g.brought(service)...) })
	}
	return g.askFirst(wanted)
}

// bound asks for what a service brings that came after the relay.
func (g *ground) bound(service *Service) {
	g.once.Do(func() {
		if err := g.askFirst(g.brought(service)); err != nil {
			g.proxy.tellFailed(err)
		}
	})
}

// brought are the listeners of DNS, of the web by name, and of the endpoints
// that are listed by themselves. In the plain wall there is no port under
// 1024: no DNS, and no web by name; the sandbox has the endpoints' names in
// its hosts file.
func (g *ground) brought(service *Service) []*opening {
	g.mu.Lock()
	defer g.mu.Unlock()
	var wanted []*opening
	if g.relay.Plain {
		for _, e := range service.rules.Endpoints() {
			for _, port := range e.Ports {
				if port >= firstPlainPort {
					wanted = append(wanted, g.endpoint(netip.AddrPortFrom(e.Addr, port)))
				}
			}
		}
		return wanted
	}
	web := service.namesWeb()
	server := service.nameServer("sandbox", web, g.open)
	server.Init()
	wanted = append(wanted,
		&opening{Listener: handoff.Listener{Network: "udp", Address: dnsAddress}, serve: func(f *os.File) (io.Closer, error) { return g.serveUDP(f, server) }},
		&opening{Listener: handoff.Listener{Network: "tcp", Address: dnsAddress}, serve: func(f *os.File) (io.Closer, error) { return g.serveTCP(f, server) }},
	)
	if web {
		for _, address := range []string{anyHTTPS, anyHTTP} {
			wanted = append(wanted, &opening{Listener: handoff.Listener{Network: "tcp", Address: address}, serve: g.serveByName})
		}
	}
	for _, e := range service.rules.Endpoints() {
		for _, port := range g.missing(e, web) {
			wanted = append(wanted, g.endpoint(netip.AddrPortFrom(e.Addr, port)))
		}
	}
	return wanted
}

func (g *ground) askFirst(wanted []*opening) error {
	for _, o := range wanted {
		o.first = true
	}
	g.mu.Lock()
	g.expect(wanted)
	g.mu.Unlock()
	return g.ask(wanted)
}

// ask sends for listeners. The relay may have to wait with its answers, so
// more than a few are asked for beside whoever receives them.
func (g *ground) ask(wanted []*opening) error {
	listeners := make([]handoff.Listener, 0, len(wanted))
	for _, o := range wanted {
		listeners = append(listeners, o.Listener)
	}
	const few = 64
	if len(listeners) <= few {
		return g.relay.Ask(listeners)
	}
	go func() {
		if err := g.relay.Ask(listeners); err != nil {
			g.proxy.tellFailed(err)
			g.relay.Close()
		}
	}()
	return nil
}

// expect makes openings known to whoever receives, before they are asked for.
// g.mu is held.
func (g *ground) expect(wanted []*opening) {
	for _, o := range wanted {
		g.lastID++
		o.ID, o.done = g.lastID, make(chan struct{})
		g.asked[o.ID] = o
	}
}

// receive serves what the relay hands over, until the relay ends.
func (g *ground) receive() error {
	for {
		handed, err := g.relay.Receive()
		if err != nil {
			return err
		}
		g.mu.Lock()
		o := g.asked[handed.Listener.ID]
		delete(g.asked, handed.Listener.ID)
		g.mu.Unlock()
		var end io.Closer
		if err = handed.Err; err == nil {
			end, err = o.serve(handed.File)
		}
		g.settle(o, end, err)
	}
}

// settle tells whoever waits for a listener how it went.
func (g *ground) settle(o *opening, end io.Closer, err error) {
	g.mu.Lock()
	if end != nil {
		g.ends = append(g.ends, end)
	}
	o.err = err
	close(o.done)
	if err != nil && !o.first {
		// Whoever is in the way may be gone the next time.
		delete(g.byAddr, netip.MustParseAddrPort(o.Address))
		g.later--
	}
	g.mu.Unlock()
	switch {
	case err == nil && o.first:
		g.proxy.tellHanded(o.Address)
	case err != nil && o.first:
		g.proxy.tellFailed(err)
	}
}

// close gives up all listeners. Closing one waits for an accept that the
// inside may have made blocking, so nothing here waits for it.
func (g *ground) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, end := range g.ends {
		wake(end)
		go end.Close()
	}
	for _, o := range g.asked {
		o.err = net.ErrClosed
		close(o.done)
	}
	clear(g.asked)
}

// wake ends what waits in a system call on a socket that the inside has made
// blocking, and would hold a thread for ever.
func wake(end io.Closer) {
	conn, ok := end.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := conn.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
}

// missing are the ports of an endpoint that have no listener yet.
func (g *ground) missing(e reach.Inside, web bool) []uint16 {
	var ports []uint16
	for _, port := range e.Ports {
		if web && (port == 443 || port == 80) {
			continue // those on all addresses serve it
		}
		if g.byAddr[netip.AddrPortFrom(e.Addr, port)] == nil {
			ports = append(ports, port)
		}
	}
	return ports
}

// endpoint makes the asking for one endpoint's listener.
func (g *ground) endpoint(at netip.AddrPort) *opening {
	o := &opening{Listener: handoff.Listener{Network: "tcp", Address: at.String()}, serve: g.serveByName}
	g.byAddr[at] = o
	return o
}

// open sees to the listeners of an endpoint, and returns what waits for those
// that aren't there yet.
func (g *ground) open(e reach.Inside) func(context.Context) error {
	service := g.proxy.service.Load()
	g.mu.Lock()
	ports := g.missing(e, service.namesWeb())
	if g.closed || g.later+len(ports) > maxEndpoints {
		closed := g.closed
		g.mu.Unlock()
		return func(context.Context) error {
			if !closed {
				service.endpointFailed(e, fmt.Errorf("it has %d endpoints by name already", maxEndpoints))
			}
			return names.ErrFull
		}
	}
	var wanted []*opening
	for _, port := range ports {
		wanted = append(wanted, g.endpoint(netip.AddrPortFrom(e.Addr, port)))
		g.later++
	}
	g.expect(wanted)
	var waiting []*opening
	for _, port := range e.Ports {
		if o := g.byAddr[netip.AddrPortFrom(e.Addr, port)]; o != nil && !o.ready() {
			waiting = append(waiting, o)
		}
	}
	g.mu.Unlock()
	if len(waiting) == 0 {
		return nil
	}
	if len(wanted) > 0 {
		if g.ask(wanted) != nil {
			g.relay.Close() // which ends the waiting too
		}
	}
	return func(ctx context.Context) error {
		for _, o := range waiting {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-o.done:
			}
			if o.err != nil {
				service.endpointFailed(e, o.err)
				return o.err
			}
		}
		return nil
	}
}

func (o *opening) ready() bool {
	select {
	case <-o.done:
		return o.err == nil
	default:
		return false
	}
}

func (g *ground) serveHTTP(file *os.File) (io.Closer, error) {
	l, err := newHandedListener(file)
	if err != nil {
		return nil, err
	}
	go g.proxy.serveHTTP(l, "sandbox")
	return l, nil
}

func (g *ground) serveTCP(file *os.File, server *names.Server) (io.Closer, error) {
	l, err := newHandedListener(file)
	if err != nil {
		return nil, err
	}
	go server.ServeTCP(g.ctx, l)
	return l, nil
}

func (g *ground) serveUDP(file *os.File, server *names.Server) (io.Closer, error) {
	packets, err := net.FilePacketConn(file)
	file.Close()
	if err != nil {
		return nil, err
	}
	conn, ok := packets.(*net.UDPConn)
	if !ok {
		packets.Close()
		return nil, errors.New("handed a socket that isn't UDP")
	}
	go server.ServeUDP(g.ctx, conn)
	return conn, nil
}

func (g *ground) serveByName(file *os.File) (io.Closer, error) {
	l, err := newHandedListener(file)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := l.accept()
			if err != nil {
				return
			}
			go g.proxy.serveByName(conn, "sandbox")
		}
	}()
	return l, nil
}

// endpointFailed says that an endpoint has no address inside, and why.
func (s *Service) endpointFailed(e reach.Inside, err error) {
	s.tally.refused(e.Name, refusal{code: reach.CodeName, why: "it can't be reached by its name inside, only through the proxy", detail: err.Error()})
}

// handedListener accepts on a socket that was made inside the sandbox.
type handedListener struct {
	*net.TCPListener
}

func newHandedListener(file *os.File) (*handedListener, error) {
	listener, err := net.FileListener(file)
	file.Close()
	if err != nil {
		return nil, err
	}
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		listener.Close()
		return nil, errors.New("handed a listener that isn't TCP")
	}
	return &handedListener{tcp}, nil
}

// acceptBackoff is how long to wait for descriptors to come free.
const acceptBackoff = 50 * time.Millisecond

// Accept returns the next connection, with the options that it inherited set
// anew. An error other than of this process's own limits means that the
// inside broke the listener, and ends it.
func (l *handedListener) Accept() (net.Conn, error) {
	conn, err := l.accept()
	if err != nil {
		return nil, err
	}
	return conn, nil
}

func (l *handedListener) accept() (*net.TCPConn, error) {
	for {
		conn, err := acceptTCP(l.TCPListener)
		if err != nil {
			return nil, net.ErrClosed
		}
		raw, err := conn.SyscallConn()
		if err == nil {
			var prepareErr error
			err = raw.Control(func(fd uintptr) { prepareErr = handoff.PrepareAccepted(int(fd)) })
			if err == nil {
				err = prepareErr
			}
		}
		if err != nil {
			conn.Close()
			continue
		}
		return conn, nil
	}
}

// acceptTCP waits where this process's own limits are what is missing.
func acceptTCP(l *net.TCPListener) (*net.TCPConn, error) {
	for {
		conn, err := l.AcceptTCP()
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			time.Sleep(acceptBackoff)
			continue
		}
		return conn, err
	}
}
