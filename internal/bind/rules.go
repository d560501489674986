// Package bind holds the one shape that the rules of a sandbox's network
// have: the flags of run and proxy, the tables of a spec and the line that
// binds a proxy all fill the same Rules.
package bind

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"

	"link.internal/lnk/internal/reach"
)

// Rules are what one sandbox's proxy is told. The zero value reaches nothing.
type Rules struct {
	// InternetHost lists host patterns: "host", "*.suffix", "*".
	InternetHost []string `json:"internet_host,omitempty"`
	// TCP lists endpoints beyond HTTPS on 443 and HTTP on 80: "host:port".
	TCP []string `json:"tcp,omitempty"`
	// LANHost lists what of the local network is reached: a name, an
	// address, a range, or "*" for the private ranges.
	LANHost []string `json:"lan_host,omitempty"`
	// Upstream is where the internet's traffic leaves from: direct,
	// socks5://127.0.0.1:PORT, socks5:///PATH, http://127.0.0.1:PORT. Empty: direct.
	Upstream string `json:"upstream,omitempty"`
	// Names says whether a listed name has an address inside, on which 443
	// and 80 lead to it, for programs that use no proxy. Nil: it has.
	Names *bool `json:"names,omitempty"`
	// PerMinute bounds the requests and tunnels of a minute. 0: no bound.
	PerMinute int `json:"per_minute,omitempty"`
	// PauseAfter is how many refusals in a minute pause the wire. 0: none do.
	PauseAfter int `json:"pause_after,omitempty"`
	// Wire is the absolute path of the log, one JSON object a line. Empty: none is kept.
	Wire string `json:"wire,omitempty"`
	// Agent is who the log says is calling.
	Agent string `json:"agent,omitempty"`
}

// Compile checks every entry and returns what decides.
func (r *Rules) Compile() (*reach.Rules, error) {
	if r.PerMinute < 0 {
		return nil, fmt.Errorf("--per-minute %d: it can't be negative", r.PerMinute)
	}
	if r.PauseAfter < 0 {
		return nil, fmt.Errorf("--pause-after %d: it can't be negative", r.PauseAfter)
	}
	rules, err := reach.NewRules(r.InternetHost, r.TCP, r.LANHost)
	if err != nil {
		return nil, err
	}
	listeners := 0
	for _, e := range rules.Endpoints() {
		listeners += len(e.Ports)
	}
	if listeners > maxTCP {
		return nil, fmt.Errorf("--tcp: %d endpoints of the names that are listed by themselves are more than %d: list a wildcard in place of its names, or fewer ports", listeners, maxTCP)
	}
	return rules, nil
}

// maxTCP bounds the endpoints: each has a listener in the sandbox.
const maxTCP = 1024

// NamesOn reports whether every listed name has an address inside.
func (r *Rules) NamesOn() bool { return r.Names == nil || *r.Names }

// CheckPlain refuses what the plain wall can't have: DNS, and with it the names
// of wildcards; and ports under 1024. Without names, endpoints are the proxy's
// alone, which has them in every wall.
func (r *Rules) CheckPlain() error {
	if r.Names != nil && *r.Names {
		return errors.New("--names=true: there is no DNS inside the plain wall")
	}
	if !r.NamesOn() {
		return nil
	}
	for _, text := range r.TCP {
		endpoint, err := reach.ParseEndpoint(text)
		if err != nil {
			return fmt.Errorf("--tcp: %w", err)
		}
		if !endpoint.Unprivileged() {
			return fmt.Errorf("--tcp %s has no name inside the plain wall", text)
		}
	}
	return nil
}

// Network reports whether anything is listed, so that a proxy is needed at all.
func (r *Rules) Network() bool {
	return len(r.InternetHost) > 0 || len(r.TCP) > 0 || len(r.LANHost) > 0
}

// AddFlags defines the flags of lnk sandbox run, lnk sandbox proxy and
// link-sandbox-proxy, which are the same by being these.
func (r *Rules) AddFlags(fs *flag.FlagSet) {
	fs.Var((*List)(&r.InternetHost), "internet-host", "a `HOST` it may reach: a name, *.suffix for the names below one, or * for any (repeatable)")
	fs.Var((*List)(&r.TCP), "tcp", "a `HOST:PORT` beyond HTTPS on 443 and HTTP on 80, of a host it may reach (repeatable)")
	fs.Var((*List)(&r.LANHost), "lan-host", "a `HOST` of your network: a name, an address, a range, or * for the private ranges (repeatable)")
	fs.StringVar(&r.Upstream, "upstream", "", "where its traffic leaves from: direct, or a `URL` socks5://127.0.0.1:PORT, socks5:///PATH, http://127.0.0.1:PORT")
	fs.BoolFunc("names", "give each host it may reach an address inside, for programs that use no proxy (`true` unless --names=false)", func(text string) error {
		on, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("it is true or false, and not %q", text)
		}
		r.Names = &on
		return nil
	})
	fs.IntVar(&r.PerMinute, "per-minute", 0, "allow `N` requests and tunnels a minute (0: no limit)")
	fs.IntVar(&r.PauseAfter, "pause-after", 0, "pause the wire after `N` refusals in a minute (0: never)")
	fs.StringVar(&r.Wire, "wire", "", "log every call to `FILE`, one JSON object a line")
	fs.StringVar(&r.Agent, "agent", "", "the `NAME` that the log gives as the caller")
}

// List is a flag that may be given more than once.
type List []string

// String joins the values.
func (l *List) String() string { return strings.Join(*l, ",") }

// Set adds one value. A comma is no separator: no entry has one.
func (l *List) Set(value string) error {
	*l = append(*l, value)
	return nil
}

// Type is what help shows for the value's kind.
func (l *List) Type() string { return "list" }
