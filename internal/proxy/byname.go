package proxy

import (
	"context"
	"net"
	"time"

	"github.com/miekg/dns"

	"link.internal/lnk/internal/names"
	"link.internal/lnk/internal/reach"
	"link.internal/lnk/internal/wire"
)

// methodTCP is what the wire calls a connection to a name's own address, by a
// program that uses no proxy.
const methodTCP = "TCP"

// nameServer makes the DNS of one sandbox, or of one listener, which the wire
// calls from. open sees to an endpoint's listeners; web says that 443 and 80
// are listened on for all.
func (s *Service) nameServer(from string, web bool, open func(reach.Inside) func(context.Context) error) *names.Server {
	server := &names.Server{
		Rules: s.rules, Table: s.table, Web: web, Open: open,
		Closed: func() bool { return s.notRunning() != nil },
		Stopped: func() bool {
			current, _ := s.gate.now()
			return current == stopped
		},
		Refused: func(host reach.Host) { s.refusedName(host, from) },
	}
	if s.dialer.Upstream.Resolves() {
		server.Records = wiredRecords{s, from}
	}
	return server
}

// methodDNS is what the wire calls a name that was refused, and records that
// were looked up.
const methodDNS = "DNS"

// The records of refused names that are logged, of a second and at once.
const (
	namesASec   = 50
	namesAtOnce = 200
)

// refusedName logs, tells of and counts a name that isn't listed. It is no
// call, so it neither pauses the wire nor counts for the rate.
func (s *Service) refusedName(host reach.Host, from string) {
	why := refusal{code: reach.CodeHost, why: s.rules.WhyUnlisted(host)}
	if s.nameRecords.Allow() {
		s.wire.Append(wire.Record{From: from, Method: methodDNS, Host: host.String(), Verdict: wire.Refused, Reason: string(why.code)})
	}
	s.tally.unlisted(host.String(), why)
}

// wiredRecords looks records up as long as the wire runs, and logs that.
type wiredRecords struct {
	*Service
	from string
}

// Lookup is that of names.Records.
func (r wiredRecords) Lookup(ctx context.Context, name string, qtype uint16) ([]dns.RR, int, error) {
	start := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	found, code, err := r.records.Lookup(ctx, name, qtype)
	record := wire.Record{
		From: r.from, Method: methodDNS, Host: name, Path: dns.TypeToString[qtype], Verdict: wire.Allowed, MS: time.Since(start).Milliseconds(),
	}
	if err != nil {
		record.Reason = string(codeUnresolved)
	}
	r.wire.Append(record)
	return found, code, err
}

// namesWeb reports whether every listed name has an address, and not those of
// endpoints alone.
func (s *Service) namesWeb() bool { return s.names && s.dialer.Upstream.Resolves() }

// serveByName carries one connection to the host whose address it was made
// to: by the same decision as CONNECT, the same dialling, the same judgement
// of the server's name.
func (p *Proxy) serveByName(near *net.TCPConn, from string) {
	service := p.service.Load()
	if p.waiting.Add(1) > maxWaiting || service == nil {
		p.waiting.Add(-1)
		reset(near)
		return
	}
	far, c, leave := service.dialByName(near, from)
	p.waiting.Add(-1)
	if far == nil {
		reset(near)
		return
	}
	defer leave()
	service.tunnel(near, far, "", nil, c)
}

// dialByName finds out what a connection is to, and dials it. It returns no
// connection for one that is refused; else leave is called at its end.
func (s *Service) dialByName(near *net.TCPConn, from string) (far halfCloser, c call, leave func()) {
	at := near.LocalAddr().(*net.TCPAddr).AddrPort()
	name, leaveTable, ok := s.table.Enter(at.Addr())
	if !ok {
		// 443 or 80 of an address that stands for nothing: nobody listens there.
		return nil, c, nil
	}
	s.calls.enter()
	leave = func() {
		leaveTable()
		s.calls.leave()
	}
	c = call{start: time.Now(), from: from, method: methodTCP, target: reach.Target{Host: reach.Host{Name: name}, Port: at.Port()}}
	c.what = c.target.String()
	far, why := s.dialNow(c)
	if why != nil {
		s.refused(c, *why)
		leave()
		return nil, c, nil
	}
	return far, c, leave
}

// dialNow decides and dials a call that nobody can be answered.
func (s *Service) dialNow(c call) (halfCloser, *refusal) {
	if closed := s.notRunning(); closed != nil {
		return nil, closed
	}
	if s.limiter != nil && !s.limiter.Allow() {
		why := s.tooFast()
		return nil, &why
	}
	far, err := s.dialer.Dial(s.ctx, c.target)
	if closed := s.notRunning(); closed != nil {
		// Paused or stopped while it was being dialled.
		if err == nil {
			far.Close()
		}
		return nil, closed
	}
	if err != nil {
		why := refusalOf(err)
		return nil, &why
	}
	return far, nil
}

// reset ends a connection so that its program sees an error, and not the end
// of an empty answer.
func reset(conn *net.TCPConn) {
	conn.SetLinger(0)
	conn.Close()
}
