// Package names is the DNS that a sandbox gets.
//
// A listed name is answered with an address of the sandbox's own loopback,
// one for each name (Table), on which the proxy listens and takes the address
// for the name. No name is looked up to be answered so: whether it exists
// shows when it is connected to. What isn't listed is answered NXDOMAIN.
//
// It promises: no question leaves this machine but for the SRV, TXT, MX,
// CNAME and HTTPS records of a listed name, a bounded number at a time and a
// second; no address but a loopback's is ever in an answer; and whatever a
// program sends, an answer costs a bounded time and memory.
//
// It serves RFC 1035 over UDP and TCP, with EDNS(0) (RFC 6891). It does not
// cache, recurse, or validate.
package names

import (
	"context"
	"encoding/binary"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/time/rate"

	"link.internal/lnk/internal/reach"
)

// TTL is how long a program may keep an address, in seconds.
const TTL = 60

const (
	// maxUDP is the longest answer over UDP: what a client offers, up to this.
	maxUDP = 4096
	// minUDP is what every client takes (RFC 1035, section 2.3.4).
	minUDP = 512
	// maxTCP is the longest message over TCP (RFC 1035, section 4.2.2).
	maxTCP = 65535
	// maxAdditional bounds the additional records of a question: OPT, and
	// what else a client may sign with.
	maxAdditional = 4
)

// The addresses that all wildcards have together. One with endpoints costs a
// listener for each of its ports.
const (
	webAddresses      = 16384
	endpointAddresses = 512
)

// Limits on questions that leave this machine, or wait for a listener.
const (
	maxWaiting    = 16
	lookupsASec   = 100
	lookupsAtOnce = 200
	waitTimeout   = 8 * time.Second
)

// Records looks up records that are no addresses.
type Records interface {
	// Lookup returns the records of a canonical name that are of the given
	// type, whoever they belong to after its CNAMEs, and the response code.
	// They are nobody's yet: their owners are what was answered.
	Lookup(ctx context.Context, name string, qtype uint16) ([]dns.RR, int, error)
}

// Server answers the questions of one sandbox, or of one listener.
type Server struct {
	Rules *reach.Rules
	Table *Table
	// Web gives an address to every listed name, and not to those with
	// endpoints alone.
	Web bool
	// Open sees to the listeners of an endpoint. It returns nil when they are
	// there, or else what waits for them.
	Open func(reach.Inside) (wait func(context.Context) error)
	// Records is nil where nothing is looked up.
	Records Records
	// Closed reports that nothing may leave now; nil: never.
	Closed func() bool
	// Stopped reports that nothing is answered any more; nil: never.
	Stopped func() bool
	// Refused is told of each name that was asked for and isn't listed; nil
	// for nobody.
	Refused func(reach.Host)

	waiting chan struct{}
	lookups *rate.Limiter
}

// Init makes a server ready to serve. Its fields are not changed afterwards.
func (s *Server) Init() {
	s.waiting = make(chan struct{}, maxWaiting)
	s.lookups = rate.NewLimiter(lookupsASec, lookupsAtOnce)
}

// later completes an answer that can't be given at once.
type later func(ctx context.Context)

const headerSize = 12 // RFC 1035, section 4.1.1

// answer reads one message and answers it, in at most size bytes. Where then
// is not nil, the answer holds once it has run. A nil reply is no answer.
func (s *Server) answer(query []byte, udp bool) (reply *dns.Msg, then later, size int) {
	size = maxTCP
	if udp {
		size = minUDP
	}
	if len(query) < headerSize {
		return nil, nil, 0
	}
	field := func(n int) uint16 { return binary.BigEndian.Uint16(query[2*n:]) }
	bits := field(1)
	if bits&0x8000 != 0 {
		return nil, nil, 0 // it is an answer itself
	}
	fail := func(code int) (*dns.Msg, later, int) {
		m := new(dns.Msg)
		m.Id, m.Response, m.Rcode = field(0), true, code
		m.Opcode, m.RecursionDesired = int(bits>>11&0xf), bits&0x0100 != 0
		return m, nil, size
	}
	if bits>>11&0xf != dns.OpcodeQuery {
		return fail(dns.RcodeNotImplemented)
	}
	// One question (RFC 9619), and nothing more that costs time to read.
	if field(2) != 1 || field(3) != 0 || field(4) != 0 || field(5) > maxAdditional {
		return fail(dns.RcodeFormatError)
	}
	var request dns.Msg
	if err := request.Unpack(query); err != nil || len(request.Question) != 1 {
		return fail(dns.RcodeFormatError)
	}
	reply = new(dns.Msg).SetReply(&request)
	reply.RecursionAvailable, reply.Compress = true, true
	if opt := request.IsEdns0(); opt != nil {
		if udp {
			size = min(max(int(opt.UDPSize()), minUDP), maxUDP)
		}
		reply.SetEdns0(maxUDP, false)
		if opt.Version() != 0 {
			reply.Rcode = dns.RcodeBadVers
			return reply, nil, size
		}
	}
	return reply, s.resolve(reply), size
}

// resolve fills in the answer to a reply's question, or returns what will.
func (s *Server) resolve(reply *dns.Msg) later {
	question := reply.Question[0]
	if question.Qclass != dns.ClassINET || s.Stopped != nil && s.Stopped() {
		reply.Rcode = dns.RcodeRefused
		return nil
	}
	asked := strings.ToLower(strings.TrimSuffix(question.Name, "."))
	switch {
	case asked == "":
		return nil // the root: there, with no records
	case asked == "localhost" || strings.HasSuffix(asked, ".localhost"):
		loopback(reply) // RFC 6761, section 6.3
		return nil
	case strings.HasSuffix(asked, reverseSuffix):
		s.reverse(reply, asked)
		return nil
	}
	host, listed := s.listed(asked)
	if !listed.Any() {
		reply.Rcode = dns.RcodeNameError
		if s.Refused != nil && host.Name != "" && !strings.HasSuffix(host.Name, ".arpa") {
			s.Refused(host)
		}
		return nil
	}
	switch question.Qtype {
	case dns.TypeA, dns.TypeANY: // of ANY, one kind is enough (RFC 8482, section 4.1)
		if host.Name == asked && (s.Web || len(listed.Ports) > 0) {
			return s.address(reply, host, listed)
		}
	case dns.TypeSRV, dns.TypeTXT, dns.TypeMX, dns.TypeCNAME, dns.TypeHTTPS:
		if s.Records != nil {
			return s.records(reply, asked, host)
		}
	}
	return nil // NOERROR, with no records (RFC 2308, section 2.2)
}

// listed looks up what a question's name is listed as: by itself, or as a
// service of a host that is, whose labels before the host's name (RFC 2782, RFC
// 8552) are the host's to answer.
func (s *Server) listed(asked string) (reach.Host, reach.Listed) {
	own, err := reach.ParseHost(asked)
	if err != nil || own.Name != asked {
		own = reach.Host{} // an address, or no name that a host has
	}
	for name := asked; ; {
		host, err := reach.ParseHost(name)
		if err == nil && host.Name == name {
			if listed := s.Rules.Listed(host); listed.Any() {
				return host, listed
			}
		}
		label, rest, ok := strings.Cut(name, ".")
		if !ok || !strings.HasPrefix(label, "_") || strings.Contains(label, `\`) {
			return own, reach.Listed{}
		}
		name = rest
	}
}

func loopback(reply *dns.Msg) {
	switch reply.Question[0].Qtype {
	case dns.TypeA:
		reply.Answer = []dns.RR{&dns.A{Hdr: header(reply), A: []byte{127, 0, 0, 1}}}
	case dns.TypeAAAA:
		reply.Answer = []dns.RR{&dns.AAAA{Hdr: header(reply), AAAA: []byte{15: 1}}}
	}
}

// header is that of a record of the very name and type that were asked for,
// in the case in which they were.
func header(reply *dns.Msg) dns.RR_Header {
	q := reply.Question[0]
	return dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: TTL}
}

const reverseSuffix = ".in-addr.arpa"

// reverse answers for the addresses of the table, and for no other.
func (s *Server) reverse(reply *dns.Msg, asked string) {
	reply.Rcode = dns.RcodeNameError
	labels := strings.Split(strings.TrimSuffix(asked, reverseSuffix), ".")
	if len(labels) != 4 {
		return
	}
	addr, err := netip.ParseAddr(labels[3] + "." + labels[2] + "." + labels[1] + "." + labels[0])
	if err != nil {
		return
	}
	name, ok := s.Table.Name(addr)
	if addr == netip.AddrFrom4([4]byte{127, 0, 0, 1}) {
		name, ok = "localhost", true
	}
	if !ok {
		return
	}
	reply.Rcode = dns.RcodeSuccess
	if reply.Question[0].Qtype == dns.TypePTR {
		reply.Answer = []dns.RR{&dns.PTR{Hdr: header(reply), Ptr: dns.Fqdn(name)}}
	}
}

// address answers with a name's own address, once its endpoints' listeners
// are there.
func (s *Server) address(reply *dns.Msg, host reach.Host, listed reach.Listed) later {
	addr, err := s.Table.Address(host.Name, s.share(listed))
	if err != nil {
		reply.Rcode = dns.RcodeServerFailure
		return nil
	}
	h := header(reply)
	h.Rrtype = dns.TypeA
	answer := func() { reply.Answer = []dns.RR{&dns.A{Hdr: h, A: addr.AsSlice()}} }
	if len(listed.Ports) == 0 {
		answer()
		return nil
	}
	wait := s.Open(reach.Inside{Name: host.Name, Addr: addr, Ports: listed.Ports})
	if wait == nil {
		answer()
		return nil
	}
	return func(ctx context.Context) {
		if err := wait(ctx); err != nil {
			reply.Rcode = dns.RcodeServerFailure
			return
		}
		answer()
	}
}

// share is the share of the table that a listed name's wildcard has.
func (s *Server) share(listed reach.Listed) Share {
	if listed.Entry == "" {
		return Share{}
	}
	listing, tcp := s.Rules.Wildcards()
	if len(listed.Ports) > 0 {
		return Share{"tcp " + listed.Entry, max(1, endpointAddresses/tcp)}
	}
	return Share{listed.Entry, max(1, webAddresses/listing)}
}

// records answers with what this machine's resolver has.
func (s *Server) records(reply *dns.Msg, asked string, host reach.Host) later {
	if s.Closed != nil && s.Closed() || !s.lookups.Allow() {
		reply.Rcode = dns.RcodeServerFailure
		return nil
	}
	return func(ctx context.Context) {
		found, code, err := s.Records.Lookup(ctx, asked, reply.Question[0].Qtype)
		switch {
		case s.Stopped != nil && s.Stopped():
			reply.Rcode = dns.RcodeRefused
			return
		case s.Closed != nil && s.Closed(), err != nil || code != dns.RcodeSuccess && code != dns.RcodeNameError:
			reply.Rcode = dns.RcodeServerFailure
			return
		case code == dns.RcodeNameError && asked != host.Name:
			reply.Rcode = dns.RcodeNameError
			return
		}
		// Of a host that has an address here, a record can be missing, and the
		// name can't.
		h := header(reply)
		for _, rr := range found {
			if rr = passable(rr, h.Name); rr != nil {
				h.Ttl = rr.Header().Ttl
				*rr.Header() = h
				reply.Answer = append(reply.Answer, rr)
			}
		}
	}
}

// pack is the message as it is sent: whole, or cut down to what fits, which
// tells the client to ask by TCP (RFC 2181, section 9).
func pack(reply *dns.Msg, size int) []byte {
	if reply.Len() > size {
		reply.Truncate(size)
	}
	data, err := reply.Pack()
	if err == nil && len(data) <= size {
		return data
	}
	failed := new(dns.Msg)
	failed.Id, failed.Response, failed.Rcode = reply.Id, true, dns.RcodeServerFailure
	data, err = failed.Pack()
	if err != nil {
		return nil
	}
	return data
}
