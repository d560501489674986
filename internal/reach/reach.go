// Package reach decides what a sandbox may reach. It is pure: a request goes
// in, a decision comes out, and nothing is looked up, dialled or remembered.
//
// It promises to whoever dials:
//   - The zero value of every type refuses.
//   - One canonical form of a host (Host) is matched, and it is the one to
//     resolve, dial, send and log.
//   - Decide judges what can be judged before a look-up, and DecideAddr every
//     address that a look-up gave. Dial only what DecideAddr allowed.
//
// It does not know whether a name exists, and it does not count.
package reach

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// Code says why a request was refused, in the word that is sent as
// Link-Refused and logged.
type Code string

// The codes that this package gives. Those of a proxy's own state are the
// proxy's.
const (
	CodeHost        Code = "host"
	CodePort        Code = "port"
	CodeThisMachine Code = "this-machine"
	CodeNetwork     Code = "network"
	CodeMetadata    Code = "metadata"
	CodeReserved    Code = "reserved"
	CodeName        Code = "name"
)

// Decision is an answer. The zero value is a refusal.
type Decision struct {
	Allowed bool
	// Code is the reason of a refusal, empty when allowed.
	Code Code
	// Why is the reason as a person reads it, with the flag that would allow
	// it where one would: "add it to [internet] allow (--internet-host a.test)".
	Why string
	// LAN says that [lan] allowed the address: it is dialled from here,
	// whatever the upstream. Decide leaves it unset for a name.
	LAN bool
}

// Rules are the lists that a sandbox was given. The zero value reaches nothing.
type Rules struct {
	internet []Pattern
	tcp      []Endpoint
	lan      []LAN
}

// NewRules reads the lists as flags, a spec and a bind have them. The error
// names the entry and what to do about it.
func NewRules(internetHost, tcp, lanHost []string) (*Rules, error) {
	r := &Rules{}
	for _, text := range internetHost {
		p, err := ParsePattern(text)
		if err != nil {
			return nil, fmt.Errorf("--internet-host: %w", err)
		}
		r.internet = append(r.internet, p)
	}
	for _, text := range lanHost {
		l, err := ParseLAN(text)
		if err != nil {
			return nil, fmt.Errorf("--lan-host: %w", err)
		}
		r.lan = append(r.lan, l)
	}
	for _, text := range tcp {
		e, err := ParseEndpoint(text)
		if err != nil {
			return nil, fmt.Errorf("--tcp: %w", err)
		}
		if !r.covers(e.Pattern) {
			return nil, fmt.Errorf("--tcp %s: %w: add --internet-host %s", text, errNothingCovers, quoteWildcard(e.Pattern.String()))
		}
		r.tcp = append(r.tcp, e)
	}
	return r, nil
}

func (r *Rules) covers(p Pattern) bool {
	return slices.ContainsFunc(r.internet, func(q Pattern) bool { return q.covers(p) }) ||
		slices.ContainsFunc(r.lan, func(l LAN) bool { return l.coversPattern(p) })
}

// quoteWildcard makes a pattern safe to paste into a shell.
func quoteWildcard(pattern string) string {
	if pattern != "" && pattern[0] == '*' {
		return "'" + pattern + "'"
	}
	return pattern
}

// scope is what the lists say of a target, before any address is known.
type scope struct {
	internet bool // the host is listed, and this port of it
	host     bool // the host is listed
	lan      bool // a name that may lead to [lan]'s addresses
	lanNamed bool // [lan] lists this very name
}

func (r *Rules) scope(t Target) scope {
	var s scope
	if t.Host.Name != "" && (metadataName(t.Host.Name) || loopbackName(t.Host.Name)) {
		return s
	}
	s.host = slices.ContainsFunc(r.internet, func(p Pattern) bool { return p.Matches(t.Host) })
	s.internet = s.host && (t.Port == 443 || t.Port == 80 || r.Endpoint(t))
	if t.Host.Name != "" {
		for _, l := range r.lan {
			if l.name == t.Host.Name && l.name != "" {
				s.lanNamed = true
			} else if l.any && localName(t.Host.Name) {
				s.lan = true
			}
		}
		s.lan = s.lan || s.lanNamed
	}
	return s
}

// Endpoint reports whether [internet] tcp lists this host and port.
func (r *Rules) Endpoint(t Target) bool {
	return slices.ContainsFunc(r.tcp, func(e Endpoint) bool { return e.Port == t.Port && e.Pattern.Matches(t.Host) })
}

// Decide judges a target by its name and port. For an address it is the whole
// judgement; a name that is allowed here must still be looked up and each of
// its addresses given to DecideAddr.
func (r *Rules) Decide(t Target, m Machine) Decision {
	if t.Host.Name == "" {
		return r.DecideAddr(t, t.Host.Addr, m)
	}
	if t.Port == 0 {
		return refuse(CodeName, "it has no port")
	}
	if metadataName(t.Host.Name) {
		return refuseClass(Metadata, t)
	}
	if loopbackName(t.Host.Name) {
		return refuseClass(ThisMachine, t)
	}
	s := r.scope(t)
	switch {
	case s.internet || s.lan:
		return Decision{Allowed: true}
	case s.host:
		return refusePort(t)
	default:
		return refuseHost(t)
	}
}

// DecideAddr judges an address that a target leads to: the one it names, one
// that a look-up gave, or the one that is being dialled.
func (r *Rules) DecideAddr(t Target, addr netip.Addr, m Machine) Decision {
	if t.Port == 0 || !addr.IsValid() || addr.Zone() != "" {
		return refuse(CodeName, "it is no address and port")
	}
	addr = addr.Unmap()
	if t.Host.Addr.IsValid() && t.Host.Addr != addr {
		return refuse(CodeName, "the address is not the one that was asked for")
	}
	s := r.scope(t)
	class := m.Classify(addr)
	switch class {
	case Network, Global:
	default:
		return refuseClass(class, t)
	}
	if r.lanAllows(t, s, addr, class) {
		return Decision{Allowed: true, LAN: true}
	}
	if class == Network {
		return refuseClass(Network, t)
	}
	switch {
	case s.internet:
		return Decision{Allowed: true}
	case s.host:
		return refusePort(t)
	default:
		return refuseHost(t)
	}
}

// lanAllows reports whether [lan] opens the address: listed by itself or in a
// range, where the address was asked for; a private one, behind a name that
// is no internet's, by *; or one of a local network, behind a name that [lan]
// lists. No other name leads into the network, or is looked up for it.
func (r *Rules) lanAllows(t Target, s scope, addr netip.Addr, class Class) bool {
	if s.lanNamed && class == Network {
		return true
	}
	if t.Host.Name != "" && !s.lan {
		return false
	}
	return slices.ContainsFunc(r.lan, func(l LAN) bool { return l.coversAddr(addr) })
}

// InternetHost reports whether the target's host is on [internet] allow, port
// and address aside.
func (r *Rules) InternetHost(h Host) bool {
	return slices.ContainsFunc(r.internet, func(p Pattern) bool { return p.Matches(h) })
}

// AnyHost reports whether every host of the internet is listed.
func (r *Rules) AnyHost() bool {
	return slices.ContainsFunc(r.internet, func(p Pattern) bool { return p.any })
}

// Local reports whether a name is looked up here even where names are not:
// [lan] lists it by itself, or it is no internet's.
func (r *Rules) Local(h Host) bool {
	return localName(h.Name) || h.Name != "" && slices.ContainsFunc(r.lan, func(l LAN) bool { return l.name == h.Name })
}

func refuse(code Code, why string) Decision { return Decision{Code: code, Why: why} }

func refuseHost(t Target) Decision {
	if localName(t.Host.Name) {
		return refuse(CodeHost, "add it to [lan] allow (--lan-host "+t.Host.String()+")")
	}
	why := "add it to [internet] allow (--internet-host " + t.Host.String() + ")"
	if t.Port != 443 && t.Port != 80 {
		why += " and [internet] tcp (--tcp " + t.String() + ")"
	}
	return refuse(CodeHost, why)
}

func refusePort(t Target) Decision {
	return refuse(CodePort, "its port "+strconv.Itoa(int(t.Port))+" isn't open: add it to [internet] tcp (--tcp "+t.String()+")")
}

func refuseClass(class Class, t Target) Decision {
	switch class {
	case ThisMachine:
		return refuse(CodeThisMachine, "it is this machine, which no sandbox reaches")
	case Metadata:
		return refuse(CodeMetadata, "it is a cloud's metadata service, which no sandbox reaches")
	case Network:
		return refuse(CodeNetwork, "it is in a local network: add it to [lan] allow (--lan-host "+t.Host.String()+")")
	default:
		return refuse(CodeReserved, "its address is link-local, multicast or reserved, which no sandbox reaches")
	}
}
