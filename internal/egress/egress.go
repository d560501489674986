// Package egress makes the connections that were allowed, and no others: it
// resolves a name once, has every address judged, pins the connection to a
// judged one, and judges again what is really being dialled.
//
// It promises: no packet leaves for an address that reach.DecideAddr did not
// allow for that very target at that very moment.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"link.internal/lnk/internal/bind"
	"link.internal/lnk/internal/reach"
)

// Dialer connects to what the rules allow, by an upstream or from here.
type Dialer struct {
	Rules      *reach.Rules
	Interfaces *Interfaces
	Upstream   bind.Upstream
	// Resolver is nil for this machine's own.
	Resolver Resolver
}

// Resolver looks names up. *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

const (
	// attemptDelay is when the next address is tried while one is still
	// being dialled (RFC 8305, section 5).
	attemptDelay = 250 * time.Millisecond
	// upstreamDelay is the same through a SOCKS upstream, which may be far.
	upstreamDelay = time.Second
	// lookupTimeout and dialTimeout bound what a caller waits for.
	lookupTimeout = 10 * time.Second
	dialTimeout   = 20 * time.Second
	// maxAddresses bounds how many addresses of one name are judged and dialled.
	maxAddresses = 16
)

// RefusedError is a decision that a target isn't reached. Every other error
// of Dial is about reaching it.
type RefusedError struct {
	Target   reach.Target
	Decision reach.Decision
}

// Error gives the target and why.
func (e *RefusedError) Error() string { return e.Target.String() + ": " + e.Decision.Why }

// ResolveError says that a name has no address, or that asking failed.
type ResolveError struct {
	Target reach.Target
	Err    error
}

// Error gives the name and what the resolver said.
func (e *ResolveError) Error() string {
	return fmt.Sprintf("looking up %s: %v", e.Target.Host, e.Err)
}

// Unwrap returns what the resolver said.
func (e *ResolveError) Unwrap() error { return e.Err }

// Dial decides, resolves, judges and connects.
func (d *Dialer) Dial(ctx context.Context, t reach.Target) (Conn, error) {
	machine, err := d.Interfaces.Machine()
	if err != nil {
		return nil, err
	}
	decision := d.Rules.Decide(t, machine)
	if !decision.Allowed {
		return nil, &RefusedError{t, decision}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	// Names that the upstream resolves are asked of nobody here. What is
	// dialled here is what [lan] reaches.
	if !d.Upstream.Resolves() && !decision.LAN && !d.Rules.Local(t.Host) {
		return d.throughHTTP(ctx, t)
	}
	addrs, err := d.addresses(ctx, t)
	if err != nil {
		return nil, &ResolveError{t, err}
	}
	judged, refusal := d.judge(t, addrs, machine)
	if len(judged) == 0 {
		return nil, &RefusedError{t, refusal}
	}
	return d.race(ctx, t, judged)
}

// candidate is an address that was judged, and whether [lan] allowed it.
type candidate struct {
	addr netip.Addr
	lan  bool
}

func (d *Dialer) addresses(ctx context.Context, t reach.Target) ([]netip.Addr, error) {
	if t.Host.Name == "" {
		return []netip.Addr{t.Host.Addr}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var resolver Resolver = net.DefaultResolver
	if d.Resolver != nil {
		resolver = d.Resolver
	}
	// The final dot keeps the machine's search list out of it.
	addrs, err := resolver.LookupNetIP(ctx, "ip", t.Host.Name+".")
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound && d.Rules.Local(t.Host) {
		addrs, err = getent(ctx, t.Host.Name)
	}
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		return nil, errors.New("no address")
	}
	return addrs, nil
}

// judge keeps the addresses that may be dialled, in order and once each. The
// refusal is that of the first that may not.
func (d *Dialer) judge(t reach.Target, addrs []netip.Addr, m reach.Machine) (judged []candidate, refusal reach.Decision) {
	seen := make(map[netip.Addr]bool, len(addrs))
	for _, addr := range addrs {
		addr = addr.Unmap()
		if seen[addr] || len(judged) == maxAddresses {
			continue
		}
		seen[addr] = true
		decision := d.Rules.DecideAddr(t, addr, m)
		if decision.Allowed && !decision.LAN && !d.Upstream.Resolves() {
			// A name that is no internet's and leads there: the upstream was to be asked.
			decision = reach.Decision{Code: reach.CodeHost, Why: "it is a name of no internet's, and leads into the internet"}
		}
		if decision.Allowed {
			judged = append(judged, candidate{addr, decision.LAN})
		} else if refusal.Code == "" {
			refusal = decision
		}
	}
	return interleave(judged), refusal
}

// interleave alternates the families, the first address's first (RFC 8305,
// section 4), keeping the resolver's order within each.
func interleave(all []candidate) []candidate {
	if len(all) < 3 {
		return all
	}
	var first, second []candidate
	for _, c := range all {
		if c.addr.Is4() == all[0].addr.Is4() {
			first = append(first, c)
		} else {
			second = append(second, c)
		}
	}
	mixed := make([]candidate, 0, len(all))
	for i := range max(len(first), len(second)) {
		if i < len(first) {
			mixed = append(mixed, first[i])
		}
		if i < len(second) {
			mixed = append(mixed, second[i])
		}
	}
	return mixed
}

// race dials one address after the other, each a little later or as soon as
// the one before has failed, and returns the first connection.
func (d *Dialer) race(ctx context.Context, t reach.Target, all []candidate) (Conn, error) {
	if len(all) == 1 {
		return d.attempt(ctx, t, all[0])
	}
	delay := attemptDelay
	if d.Upstream.Kind != bind.Direct {
		delay = upstreamDelay
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		conn Conn
		err  error
	}
	results := make(chan result)
	pending, next := 0, 0
	start := func() {
		c := all[next]
		next++
		pending++
		go func() {
			conn, err := d.attempt(ctx, t, c)
			results <- result{conn, err}
		}()
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	start()
	var firstErr error
	for pending > 0 {
		select {
		case <-timer.C:
			if next < len(all) {
				start()
				timer.Reset(delay)
			}
		case r := <-results:
			pending--
			if r.err == nil {
				cancel()
				for ; pending > 0; pending-- {
					if late := <-results; late.err == nil {
						late.conn.Close()
					}
				}
				return r.conn, nil
			}
			if firstErr == nil {
				firstErr = r.err
			}
			if next < len(all) && ctx.Err() == nil {
				start()
				timer.Reset(delay)
			}
		}
	}
	return nil, firstErr
}

// attempt connects to one judged address: what [lan] allows from here, the
// rest by the upstream, and never otherwise.
func (d *Dialer) attempt(ctx context.Context, t reach.Target, c candidate) (Conn, error) {
	switch {
	case c.lan || d.Upstream.Kind == bind.Direct:
		return d.connect(ctx, t, c.addr)
	case d.Upstream.Kind == bind.HTTPProxy:
		return nil, errors.New("bug: an address for an HTTP upstream")
	default:
		return d.throughSOCKS(ctx, netip.AddrPortFrom(c.addr, t.Port))
	}
}

func (d *Dialer) connect(ctx context.Context, t reach.Target, addr netip.Addr) (Conn, error) {
	dialer := net.Dialer{
		// Neither a fallback nor a second protocol: one judged address, TCP.
		FallbackDelay: -1,
		// What the kernel is about to be asked is judged, not what was meant.
		Control: func(_, address string, _ syscall.RawConn) error {
			return d.control(t, address)
		},
	}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(addr, t.Port).String())
	if err != nil {
		var refused *RefusedError
		if errors.As(err, &refused) {
			return nil, refused
		}
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

func (d *Dialer) control(t reach.Target, address string) error {
	dialled, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("dialling %q: %w", address, err)
	}
	machine, err := d.Interfaces.Machine()
	if err != nil {
		return err
	}
	if dialled.Port() != t.Port {
		return &RefusedError{t, reach.Decision{Code: reach.CodePort, Why: "another port was about to be dialled"}}
	}
	if decision := d.Rules.DecideAddr(t, dialled.Addr(), machine); !decision.Allowed {
		return &RefusedError{t, decision}
	}
	return nil
}
