package reach

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Pattern is one entry of [internet] allow: a host, every name below a
// suffix, or any host. The zero value matches nothing.
type Pattern struct {
	any    bool
	suffix string // with its leading dot
	host   Host
}

// ParsePattern reads "host", "*.suffix" or "*". An address that no listing
// could open is refused here, so that nobody believes it listed.
func ParsePattern(text string) (Pattern, error) {
	if text == "*" {
		return Pattern{any: true}, nil
	}
	if rest, ok := strings.CutPrefix(text, "*."); ok {
		host, err := ParseHost(rest)
		if err != nil {
			return Pattern{}, err
		}
		if host.Name == "" {
			return Pattern{}, fmt.Errorf("%q is a wildcard over an address, which has no names below it", text)
		}
		if loopbackName(host.Name) {
			return Pattern{}, fmt.Errorf("%q is this machine, which no sandbox reaches", text)
		}
		return Pattern{suffix: "." + host.Name}, nil
	}
	if strings.Contains(text, "*") {
		return Pattern{}, fmt.Errorf("%q: a wildcard is * alone or *. before a name", text)
	}
	if strings.Contains(text, "/") {
		return Pattern{}, fmt.Errorf("%q is not a host name or address: give the host alone, without scheme or path", text)
	}
	host, err := ParseHost(text)
	if err != nil {
		if name, port, ok := cutPort(text); ok {
			return Pattern{}, fmt.Errorf("%q has a port: list the host %s, and its port with --tcp %s:%s unless it is 443 or 80", text, name, name, port)
		}
		return Pattern{}, err
	}
	if metadataName(host.Name) {
		return Pattern{}, fmt.Errorf("%q is a cloud's metadata service, which no sandbox reaches", text)
	}
	if loopbackName(host.Name) {
		return Pattern{}, fmt.Errorf("%q is this machine, which no sandbox reaches", text)
	}
	if host.Addr.IsValid() {
		switch (Machine{}).Classify(host.Addr) {
		case Global:
		case Network:
			return Pattern{}, fmt.Errorf("%q is an address of a local network: list it with --lan-host", text)
		default:
			return Pattern{}, fmt.Errorf("%q is an address that no sandbox reaches", text)
		}
	}
	return Pattern{host: host}, nil
}

func cutPort(text string) (name, port string, ok bool) {
	if strings.Count(text, ":") != 1 {
		return "", "", false
	}
	t, err := ParseTarget(text)
	if err != nil {
		return "", "", false
	}
	_, port, _ = strings.Cut(text, ":")
	return t.Host.String(), port, true
}

// Matches reports whether the entry covers the host.
func (p Pattern) Matches(h Host) bool {
	switch {
	case p.any:
		return h.Name != "" || h.Addr.IsValid()
	case p.suffix != "":
		return len(h.Name) > len(p.suffix) && strings.HasSuffix(h.Name, p.suffix)
	case p.host.Name != "":
		return p.host.Name == h.Name
	default:
		return p.host.Addr.IsValid() && p.host.Addr == h.Addr
	}
}

// covers reports whether every host that q matches is matched by p.
func (p Pattern) covers(q Pattern) bool {
	switch {
	case p.any:
		return true
	case q.any:
		return false
	case q.suffix != "":
		return p.suffix != "" && strings.HasSuffix(q.suffix, p.suffix)
	default:
		return p.Matches(q.host)
	}
}

// wild reports whether the pattern stands for more than one host.
func (p Pattern) wild() bool { return p.any || p.suffix != "" }

// String returns the pattern as it is written in a flag.
func (p Pattern) String() string {
	switch {
	case p.any:
		return "*"
	case p.suffix != "":
		return "*" + p.suffix
	default:
		return p.host.String()
	}
}

// Endpoint is one entry of [internet] tcp: a pattern and the port it opens.
type Endpoint struct {
	Pattern Pattern
	Port    uint16
}

// ParseEndpoint reads "host:port" or "*.suffix:port".
func ParseEndpoint(text string) (Endpoint, error) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return Endpoint{}, fmt.Errorf("%q has no port: an endpoint is host:port", text)
	}
	host, portText := text[:i], text[i+1:]
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		return Endpoint{}, fmt.Errorf("%q: an IPv6 address needs brackets before a port", text)
	}
	port, err := ParsePort(portText)
	if err != nil {
		return Endpoint{}, err
	}
	pattern, err := parseAnyPattern(host)
	if err != nil {
		return Endpoint{}, err
	}
	return Endpoint{Pattern: pattern, Port: port}, nil
}

// parseAnyPattern is ParsePattern for endpoints, whose host may be one of
// [lan]: what it may lead to is judged by the list that covers it.
func parseAnyPattern(text string) (Pattern, error) {
	pattern, err := ParsePattern(text)
	if err == nil {
		return pattern, nil
	}
	host, hostErr := ParseHost(text)
	if hostErr == nil && host.Addr.IsValid() && (Machine{}).Classify(host.Addr) == Network {
		return Pattern{host: host}, nil
	}
	return Pattern{}, err
}

// Unprivileged reports whether the endpoint is all that it can be also where
// there is neither DNS nor a port under 1024 inside: it is one name's, on a
// port from 1024, or it is an address, which has no name.
func (e Endpoint) Unprivileged() bool {
	if e.Pattern.host.Addr.IsValid() {
		return true
	}
	return e.Pattern.host.Name != "" && e.Port >= 1024
}

// String returns the endpoint as it is written in a flag.
func (e Endpoint) String() string {
	if e.Pattern.host.Addr.Is6() {
		return fmt.Sprintf("[%s]:%d", e.Pattern, e.Port)
	}
	return fmt.Sprintf("%s:%d", e.Pattern, e.Port)
}

// LAN is one entry of [lan] allow: a name, an address, a range, or the
// private ranges. The zero value matches nothing.
type LAN struct {
	any    bool
	name   string
	prefix netip.Prefix
}

// ParseLAN reads a name, an address, a range in CIDR form, or "*".
func ParseLAN(text string) (LAN, error) {
	if text == "*" {
		return LAN{any: true}, nil
	}
	if strings.Contains(text, "*") {
		return LAN{}, fmt.Errorf("%q: a wildcard of [lan] is * alone", text)
	}
	if strings.Contains(text, "/") {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return LAN{}, fmt.Errorf("%q is not a range such as 192.168.1.0/24", text)
		}
		if prefix.Addr().Is4In6() {
			return LAN{}, fmt.Errorf("%q is an IPv4 range in IPv6 form: write it as IPv4", text)
		}
		if prefix.Masked() != prefix {
			return LAN{}, fmt.Errorf("%q has bits set beyond its length: it would be %s", text, prefix.Masked())
		}
		if prefix.Bits() == 0 {
			return LAN{}, fmt.Errorf("%q is every address: list the network's own range, or *", text)
		}
		if class := (Machine{}).Classify(prefix.Addr()); class == ThisMachine || class == Metadata || (class == Reserved && prefix.Bits() >= 8) {
			return LAN{}, fmt.Errorf("%q is a range that no sandbox reaches", text)
		}
		return LAN{prefix: prefix}, nil
	}
	host, err := ParseHost(text)
	if err != nil {
		return LAN{}, err
	}
	if metadataName(host.Name) {
		return LAN{}, fmt.Errorf("%q is a cloud's metadata service, which no sandbox reaches", text)
	}
	if host.Name != "" {
		if loopbackName(host.Name) {
			return LAN{}, fmt.Errorf("%q is this machine, which no sandbox reaches", text)
		}
		return LAN{name: host.Name}, nil
	}
	switch (Machine{}).Classify(host.Addr) {
	case Network, Global:
	default:
		return LAN{}, fmt.Errorf("%q is an address that no sandbox reaches", text)
	}
	return LAN{prefix: netip.PrefixFrom(host.Addr, host.Addr.BitLen())}, nil
}

// String returns the entry as it is written in a flag.
func (l LAN) String() string {
	switch {
	case l.any:
		return "*"
	case l.name != "":
		return l.name
	case l.prefix.IsSingleIP():
		return l.prefix.Addr().String()
	default:
		return l.prefix.String()
	}
}

// coversPattern reports whether the entry lists every host of the pattern.
func (l LAN) coversPattern(p Pattern) bool {
	if p.any {
		return false
	}
	if p.suffix != "" {
		return l.any && localName(p.suffix[1:])
	}
	if p.host.Addr.IsValid() {
		return l.coversAddr(p.host.Addr)
	}
	return l.name == p.host.Name || l.any && localName(p.host.Name)
}

func (l LAN) coversAddr(addr netip.Addr) bool {
	if l.any {
		return isPrivate(addr)
	}
	return l.prefix.IsValid() && l.prefix.Contains(addr)
}

// metadataName reports whether a name is a cloud's name for its metadata service.
func metadataName(name string) bool {
	switch name {
	case "metadata.google.internal", "metadata.goog", "metadata", "metadata.google",
		"instance-data", "instance-data.ec2.internal",
		"metadata.azure.com", "metadata.azure.internal",
		"metadata.tencentyun.com", "metadata.platformequinix.com", "metadata.packet.net",
		"metadata.oraclecloud.com":
		return true
	}
	return strings.HasSuffix(name, ".metadata.google.internal") || strings.HasSuffix(name, ".metadata.goog")
}

// loopbackName reports whether a name is this machine's by definition (RFC
// 6761, section 6.3), whatever a resolver says.
func loopbackName(name string) bool {
	return name == "localhost" || strings.HasSuffix(name, ".localhost") ||
		name == "localhost.localdomain" || name == "localhost6" || name == "localhost6.localdomain6" ||
		name == "ip6-localhost" || name == "ip6-loopback"
}

// localSuffixes are the domains that are no internet's: RFC 6762 and its
// appendix G, RFC 8375, and .internal as reserved by ICANN in 2024.
var localSuffixes = []string{
	".local", ".internal", ".home.arpa", ".lan", ".home", ".corp", ".private", ".intranet",
}

// localName reports whether a name is no internet's: a single label, or one
// under a domain that the public DNS does not have.
func localName(name string) bool {
	if name == "" || loopbackName(name) || metadataName(name) {
		return false
	}
	if !strings.Contains(name, ".") {
		return true
	}
	for _, suffix := range localSuffixes {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

var errNothingCovers = errors.New("its host is not one it may reach")
