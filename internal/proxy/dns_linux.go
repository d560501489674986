package proxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"link.internal/lnk/internal/names"
	"link.internal/lnk/internal/reach"
)

// loopback is this machine's own, on which a proxy serves the names of its
// endpoints to a sandbox that somebody else made. 443 and 80 of every listed
// host are the machine's to give, so only endpoints have addresses here.
type loopback struct {
	proxy *Proxy
	ctx   context.Context

	mu     sync.Mutex
	ends   []net.Listener
	byAddr map[netip.AddrPort]bool
	later  int // those that were made on demand
}

// listenDNS answers over UDP and TCP at an address of the loopback, and
// listens on those of the endpoints that are listed by themselves.
func (p *Proxy) listenDNS(ctx context.Context, at netip.AddrPort) (*loopback, error) {
	l := &loopback{proxy: p, ctx: ctx, byAddr: make(map[netip.AddrPort]bool)}
	service := p.service.Load()
	server := service.nameServer("dns", false, l.open)
	server.Init()
	packets, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, fmt.Errorf("--dns %s: %w", at, err)
	}
	context.AfterFunc(ctx, func() { packets.Close() })
	stream, err := listenTCP(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("--dns %s: %w", at, err)
	}
	l.ends = append(l.ends, stream)
	for _, e := range service.rules.Endpoints() {
		if err := l.listen(e, false); err != nil {
			l.Close()
			return nil, fmt.Errorf("--dns: %s on this machine's loopback: %w", e.Name, err)
		}
	}
	go server.ServeUDP(ctx, packets)
	go server.ServeTCP(ctx, stream)
	return l, nil
}

// listenTCP listens for TCP alone: multipath TCP would pass all else.
func listenTCP(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	return config.Listen(ctx, "tcp", at.String())
}

// open sees to an endpoint's listeners. They are made at once.
func (l *loopback) open(e reach.Inside) func(context.Context) error {
	if err := l.listen(e, true); err != nil {
		return func(context.Context) error {
			l.proxy.service.Load().endpointFailed(e, err)
			return err
		}
	}
	return nil
}

func (l *loopback) listen(e reach.Inside, demanded bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, port := range e.Ports {
		at := netip.AddrPortFrom(e.Addr, port)
		if l.byAddr[at] {
			continue
		}
		if demanded && l.later >= maxEndpoints {
			return names.ErrFull
		}
		listener, err := listenTCP(l.ctx, at)
		if err != nil {
			return err
		}
		l.byAddr[at] = true
		if demanded {
			l.later++
		}
		l.ends = append(l.ends, listener)
		go l.serve(listener.(*net.TCPListener))
	}
	return nil
}

func (l *loopback) serve(listener *net.TCPListener) {
	for {
		conn, err := acceptTCP(listener)
		if err != nil {
			return
		}
		go l.proxy.serveByName(conn, "dns")
	}
}

// Close ends all listeners.
func (l *loopback) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range l.ends {
		end.Close()
	}
	return nil
}
