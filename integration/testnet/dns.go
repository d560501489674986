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

// Asked are the names that were asked for, in order, without the final dot.
func (d *DNS) Asked() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.log...)
}

func (n *Internet) serveDNS() (*DNS, error) {
	d := &DNS{answers: make(map[string]func() []netip.Addr)}
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
	answer := d.answers[name]
	d.mu.Unlock()
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
