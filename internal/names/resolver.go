package names

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// resolvConf is where this machine says whom to ask.
const resolvConf = "/etc/resolv.conf"

// attemptTimeout bounds the wait for one nameserver, before the next is asked.
const attemptTimeout = 2 * time.Second

// maxChain bounds the CNAMEs that are followed in an answer.
const maxChain = 16

// MachineRecords asks the nameservers of this machine's resolv.conf, as it is
// at the time.
type MachineRecords struct {
	// Allowed is asked before each question that leaves; nil: it may.
	Allowed func() bool

	mu      sync.Mutex
	read    os.FileInfo
	servers []string
}

// Lookup is that of Records. An answer counts only if it is to the very
// question that was asked; what else it holds is left out.
func (r *MachineRecords) Lookup(ctx context.Context, name string, qtype uint16) ([]dns.RR, int, error) {
	servers, err := r.nameservers()
	if err != nil {
		return nil, 0, err
	}
	query := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
	query.SetEdns0(1232, false) // what crosses any path unfragmented
	err = errors.New("no nameserver")
	for _, server := range servers {
		var reply *dns.Msg
		if reply, err = r.exchange(ctx, query, server); err != nil {
			continue
		}
		if reply.Rcode == dns.RcodeServerFailure || reply.Rcode == dns.RcodeRefused {
			err = fmt.Errorf("nameserver %s: %s", server, dns.RcodeToString[reply.Rcode])
			continue
		}
		return ofType(reply, query.Question[0]), reply.Rcode, nil
	}
	return nil, 0, err
}

func (r *MachineRecords) exchange(ctx context.Context, query *dns.Msg, server string) (*dns.Msg, error) {
	for _, network := range []string{"udp", "tcp"} {
		if r.Allowed != nil && !r.Allowed() {
			return nil, errors.New("no question may leave now")
		}
		client := dns.Client{Net: network, Timeout: attemptTimeout}
		reply, _, err := client.ExchangeContext(ctx, query, server)
		if err != nil {
			return nil, err
		}
		if !reply.Response || len(reply.Question) != 1 || reply.Question[0].Qtype != query.Question[0].Qtype ||
			!strings.EqualFold(reply.Question[0].Name, query.Question[0].Name) {
			return nil, fmt.Errorf("nameserver %s answered another question", server)
		}
		if !reply.Truncated {
			return reply, nil
		}
	}
	return nil, fmt.Errorf("nameserver %s: truncated over TCP", server)
}

// ofType keeps the records of the question's type that belong to its name, or
// to the name that its CNAMEs lead to.
func ofType(reply *dns.Msg, question dns.Question) []dns.RR {
	owner := question.Name
	for range maxChain {
		var records []dns.RR
		next := ""
		for _, rr := range reply.Answer {
			h := rr.Header()
			if h.Class != dns.ClassINET || !strings.EqualFold(h.Name, owner) {
				continue
			}
			if h.Rrtype == question.Qtype {
				records = append(records, rr)
			} else if cname, ok := rr.(*dns.CNAME); ok {
				next = cname.Target
			}
		}
		if len(records) > 0 || next == "" {
			return records
		}
		owner = next
	}
	return nil
}

// nameservers reads resolv.conf again when it has changed.
func (r *MachineRecords) nameservers() ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	info, err := os.Stat(resolvConf)
	if errors.Is(err, os.ErrNotExist) {
		return []string{"127.0.0.1:53"}, nil // resolv.conf(5)
	}
	if err != nil {
		return nil, fmt.Errorf("whom to ask: %w", err)
	}
	if r.read != nil && os.SameFile(r.read, info) && r.read.ModTime().Equal(info.ModTime()) && r.read.Size() == info.Size() {
		return r.servers, nil
	}
	config, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", resolvConf, err)
	}
	servers := []string{"127.0.0.1:53"}
	if len(config.Servers) > 0 {
		servers = nil
		for _, server := range config.Servers[:min(len(config.Servers), 3)] {
			servers = append(servers, net.JoinHostPort(server, "53"))
		}
	}
	r.read, r.servers = info, servers
	return servers, nil
}
