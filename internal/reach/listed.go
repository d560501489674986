package reach

import (
	"net/netip"
	"slices"
)

// Listed is what the lists say of a name, whatever port is asked for. The
// zero value is a name that nothing lists.
type Listed struct {
	// Web says that 443 and 80 may be asked for.
	Web bool
	// Ports are those that [internet] tcp opens, in order and once each.
	Ports []uint16
	// Entry is the wildcard that the name is listed by, as it was written,
	// the narrowest first: one of [internet] tcp where there are ports. It is
	// empty for a name that is listed by itself.
	Entry string
}

// Any reports whether the name is listed at all.
func (l Listed) Any() bool { return l.Web || len(l.Ports) > 0 }

// Listed looks a name up in the lists. An address is no name.
func (r *Rules) Listed(h Host) Listed {
	var l Listed
	if h.Name == "" || metadataName(h.Name) || loopbackName(h.Name) {
		return l
	}
	s := r.scope(Target{h, 443})
	l.Web = s.internet || s.lan
	itself := false
	// narrowest keeps the longest wildcard in entry, and sees a name's own.
	narrowest := func(entry *string, p Pattern) {
		if p.host == h {
			itself = true
		} else if text := p.String(); len(text) > len(*entry) {
			*entry = text
		}
	}
	var tcp string
	for _, e := range r.tcp {
		if e.Pattern.Matches(h) {
			narrowest(&tcp, e.Pattern)
			if !slices.Contains(l.Ports, e.Port) {
				l.Ports = append(l.Ports, e.Port)
			}
		}
	}
	slices.Sort(l.Ports)
	for _, p := range r.internet {
		if p.Matches(h) {
			narrowest(&l.Entry, p)
		}
	}
	for _, entry := range r.lan {
		itself = itself || entry.name == h.Name
		if l.Entry == "" && entry.any {
			l.Entry = "*"
		}
	}
	switch {
	case itself:
		l.Entry = ""
	case tcp != "":
		l.Entry = tcp
	}
	return l
}

// Names are the names that [internet] and [lan] list by themselves, and not
// by a wildcard, once each.
func (r *Rules) Names() []Host {
	var names []Host
	add := func(name string) {
		if h := (Host{Name: name}); name != "" && !slices.Contains(names, h) {
			names = append(names, h)
		}
	}
	for _, p := range r.internet {
		add(p.host.Name)
	}
	for _, e := range r.tcp {
		add(e.Pattern.host.Name)
	}
	for _, l := range r.lan {
		add(l.name)
	}
	return names
}

// Inside is a name's place in the sandbox: the address of its loopback that
// stands for the name, and the ports that are open there as endpoints.
type Inside struct {
	Name  string
	Addr  netip.Addr
	Ports []uint16
}

// FirstInside is the lowest address that a name is given. Those below it are
// used by others: 127.0.0.1 and 127.0.0.2 by lo itself, 127.0.0.53 by
// systemd-resolved, 127.0.1.1 by Debian's hosts file.
var FirstInside = netip.AddrFrom4([4]byte{127, 64, 0, 1})

// Endpoints are the places of the names with endpoints that are listed by
// themselves: theirs from the start, and the same for whoever asks.
func (r *Rules) Endpoints() []Inside {
	var list []Inside
	next := FirstInside
	for _, host := range r.Names() {
		if listed := r.Listed(host); len(listed.Ports) > 0 {
			list = append(list, Inside{host.Name, next, listed.Ports})
			next = next.Next()
		}
	}
	return list
}

// Wildcards counts the wildcards of [internet] and [lan], and those of
// [internet] tcp, each once however many ports it has.
func (r *Rules) Wildcards() (listing, tcp int) {
	list, ports := make(map[string]bool), make(map[string]bool)
	for _, p := range r.internet {
		if p.wild() {
			list[p.String()] = true
		}
	}
	for _, l := range r.lan {
		if l.any {
			list[l.String()] = true
		}
	}
	for _, e := range r.tcp {
		if e.Pattern.wild() {
			ports[e.Pattern.String()] = true
		}
	}
	return len(list), len(ports)
}

// WhyUnlisted says what would list a name.
func (r *Rules) WhyUnlisted(h Host) string {
	switch {
	case metadataName(h.Name):
		return refuseClass(Metadata, Target{Host: h}).Why
	case loopbackName(h.Name):
		return refuseClass(ThisMachine, Target{Host: h}).Why
	default:
		return refuseHost(Target{h, 443}).Why
	}
}

// Entry is one entry of a list.
type Entry struct {
	// Key is the list's, as in a spec: "[internet] allow".
	Key string
	// Text is the entry in its canonical form.
	Text string
}

// By are the entries that list an allowed target.
func (r *Rules) By(t Target) []Entry {
	var by []Entry
	for _, p := range r.internet {
		if p.Matches(t.Host) {
			by = append(by, Entry{"[internet] allow", p.String()})
		}
	}
	for _, e := range r.tcp {
		if e.Port == t.Port && e.Pattern.Matches(t.Host) {
			by = append(by, Entry{"[internet] tcp", e.String()})
		}
	}
	for _, l := range r.lan {
		if l.name != "" && l.name == t.Host.Name || t.Host.Name == "" && l.coversAddr(t.Host.Addr) || l.any && localName(t.Host.Name) {
			by = append(by, Entry{"[lan] allow", l.String()})
		}
	}
	return by
}
