package testnet

import (
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/miekg/dns"
)

// DNS is the internet's DNS server. What it has no answer for is NXDOMAIN.
type DNS struct {
	mu      sync.Mutex
	answers map[string]func() []netip.Addr
	records map[string]dns.HandlerFunc
	log     []string
}

// Set gives a name its addresses, in place of what it had.
func (d *DNS) Set(name string, addrs ...netip.Addr) {
	d.SetFunc(name, func() []netip.Addr { return addrs })
}

// SetFunc has f answer for a name, anew at each question.
func (d *DNS) SetFunc(name string, f func() []netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers[strings.ToLower(name)] = f
}

// SetRecords gives a name records, each as a line of a zone file.
func (d *DNS) SetRecords(name string, lines ...string) {
	byType := make(map[uint16][]dns.RR)
	for _, line := range lines {
		rr, err := dns.NewRR(line)
		must(err)
		byType[rr.Header().Rrtype] = append(byType[rr.Header().Rrtype], rr)
	}
	for qtype, records := range byType {
		d.Handle(name, qtype, func(w dns.ResponseWriter, request *dns.Msg) {
			reply := new(dns.Msg).SetReply(request)
			reply.Answer = records
			if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
				size := dns.MinMsgSize
				if opt := request.IsEdns0(); opt != nil {
					size = int(opt.UDPSize())
				}
				reply.Truncate(size)
			}
			w.WriteMsg(reply)
		})
	}
}

// Handle has f answer for one type of a name's records.
func (d *DNS) Handle(name string, qtype uint16, f dns.HandlerFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.records[strings.ToLower(name)+" "+dns.TypeToString[qtype]] = f
}

// Asked are the names that were asked for, in order, without the final dot.
func (d *DNS) Asked() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.log...)
}

func (n *Internet) serveDNS() (*DNS, error) {
	d := &DNS{answers: make(map[string]func() []netip.Addr), records: make(map[string]dns.HandlerFunc)}
	var packets net.PacketConn
	err := n.in(func() (err error) {
		packets, err = net.ListenPacket("udp", net.JoinHostPort(dnsAddress, "53"))
		return err
	})
	if err != nil {
		return nil, err
	}
	stream := n.Listen(netip.MustParseAddr(dnsAddress), 53)
	go (&dns.Server{PacketConn: packets, Handler: d}).ActivateAndServe()
	go (&dns.Server{Listener: stream, Handler: d}).ActivateAndServe()
	return d, nil
}

// ServeDNS answers one question.
func (d *DNS) ServeDNS(w dns.ResponseWriter, request *dns.Msg) {
	reply := new(dns.Msg).SetReply(request)
	question := request.Question[0]
	name := strings.ToLower(strings.TrimSuffix(question.Name, "."))
	d.mu.Lock()
	d.log = append(d.log, name)
	answer, handler := d.answers[name], d.records[name+" "+dns.TypeToString[question.Qtype]]
	d.mu.Unlock()
	if handler != nil {
		handler(w, request)
		return
	}
	if answer == nil {
		reply.Rcode = dns.RcodeNameError
		w.WriteMsg(reply)
		return
	}
	for _, addr := range answer() {
		header := dns.RR_Header{Name: question.Name, Rrtype: question.Qtype, Class: dns.ClassINET}
		switch {
		case question.Qtype == dns.TypeA && addr.Is4():
			reply.Answer = append(reply.Answer, &dns.A{Hdr: header, A: addr.AsSlice()})
		case question.Qtype == dns.TypeAAAA && addr.Is6():
			reply.Answer = append(reply.Answer, &dns.AAAA{Hdr: header, AAAA: addr.AsSlice()})
		}
	}
	w.WriteMsg(reply)
}

// Get returns what a name has now.
func (d *DNS) Get(name string) []netip.Addr {
	d.mu.Lock()
	answer := d.answers[strings.ToLower(name)]
	d.mu.Unlock()
	if answer == nil {
		return nil
	}
	return answer()
}
