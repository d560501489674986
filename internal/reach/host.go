package reach

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// Host is what a request names: a domain name or an address, never both, in
// the one canonical form that is matched, resolved, dialled, sent and logged.
type Host struct {
	// Name is in lower case, made of A-labels, without a trailing dot.
	// It is empty when the host is an address.
	Name string
	// Addr is unmapped and has no zone. It is invalid when the host is a name.
	Addr netip.Addr
}

// String returns the canonical text: a name, or an address without brackets.
func (h Host) String() string {
	if h.Addr.IsValid() {
		return h.Addr.String()
	}
	return h.Name
}

// Target is a host and the port that is asked for.
type Target struct {
	Host Host
	Port uint16
}

// String returns host:port, with an IPv6 address in brackets.
func (t Target) String() string {
	port := strconv.Itoa(int(t.Port))
	if t.Host.Addr.Is6() {
		return "[" + t.Host.Addr.String() + "]:" + port
	}
	return t.Host.String() + ":" + port
}

// quote shows what was sent on one short line.
func quote(unsafe string) string {
	const most = 80
	if len(unsafe) > most {
		return strconv.Quote(unsafe[:most]) + "…"
	}
	return strconv.Quote(unsafe)
}

// maxNameLen is the longest name in text form (RFC 1035, section 2.3.4, less
// the length octet of the root and of the first label).
const maxNameLen = 253

// nameProfile maps as UTS #46 does for a look-up. Hyphens in the third and
// fourth place are let through: names in use have them.
var nameProfile = idna.New(
	idna.MapForLookup(),
	idna.BidiRule(),
	idna.CheckHyphens(false),
	idna.StrictDomainName(false),
)

// ParseHost makes what a program or a person wrote canonical: a name in any
// case, with or without one trailing dot, in Unicode or A-labels; an IPv4
// address in every spelling that inet_aton(3) takes; an IPv6 address, in
// brackets or bare. An address is recognised after the mapping, so that
// "127。0.0.1" is the address that a browser would make of it.
func ParseHost(unsafeHost string) (Host, error) {
	text := unsafeHost
	if strings.HasPrefix(text, "[") {
		inner, ok := strings.CutSuffix(text[1:], "]")
		if !ok {
			return Host{}, fmt.Errorf("%s has an unmatched bracket", quote(unsafeHost))
		}
		addr, err := parseIPv6(inner)
		if err != nil {
			return Host{}, fmt.Errorf("%s is not an IPv6 address", quote(unsafeHost))
		}
		return Host{Addr: addr}, nil
	}
	if strings.Contains(text, ":") {
		addr, err := parseIPv6(text)
		if err != nil {
			return Host{}, fmt.Errorf("%s is not a host name or address", quote(unsafeHost))
		}
		return Host{Addr: addr}, nil
	}
	name, err := canonicalName(text)
	if err != nil {
		return Host{}, fmt.Errorf("%s is not a host name or address: %w", quote(unsafeHost), err)
	}
	// A name whose last label is a number is an IPv4 address or nothing: no
	// such top-level domain can exist, and resolvers differ over what it is.
	if endsInNumber(name) {
		addr, err := parseIPv4(name)
		if err != nil {
			return Host{}, fmt.Errorf("%s is not an IPv4 address: %w", quote(unsafeHost), err)
		}
		return Host{Addr: addr}, nil
	}
	return Host{Name: name}, nil
}

func parseIPv6(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, err
	}
	if !addr.Is6() || addr.Zone() != "" {
		return netip.Addr{}, errors.New("not a plain IPv6 address")
	}
	return addr.Unmap(), nil
}

func canonicalName(text string) (string, error) {
	name := text
	if isASCII(text) {
		name = strings.ToLower(text)
	} else {
		// Bound the work before the tables are walked.
		if len(text) > 4*maxNameLen {
			return "", errors.New("it is too long")
		}
		if !utf8.ValidString(text) {
			return "", errors.New("it is not UTF-8")
		}
		mapped, err := nameProfile.ToASCII(text)
		if err != nil {
			return "", errors.New("it has characters that no name has")
		}
		name = mapped
	}
	name = strings.TrimSuffix(name, ".")
	if name == "" {
		return "", errors.New("it is empty")
	}
	if len(name) > maxNameLen {
		return "", errors.New("it is too long")
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" {
			return "", errors.New("it has an empty label")
		}
		if len(label) > 63 {
			return "", errors.New("it has a label of more than 63 characters")
		}
		if label[0] == '-' || label[len(label)-1] == '-' {
			return "", errors.New("it has a label with a hyphen at its end")
		}
		for i := range len(label) {
			c := label[i]
			// The underscore is in no host name by RFC 952, and in many that are in use.
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return "", errors.New("it has characters that no name has")
			}
		}
	}
	return name, nil
}

func isASCII(text string) bool {
	for i := range len(text) {
		if text[i] >= 0x80 {
			return false
		}
	}
	return true
}

// endsInNumber is the URL Standard's "ends in a number" check.
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if strings.HasPrefix(last, "0x") {
		for _, c := range last[2:] {
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
		return true
	}
	for _, c := range last {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// parseIPv4 takes the spellings of inet_aton(3): one to four parts, each
// decimal, octal or hexadecimal, the last filling what is left.
func parseIPv4(text string) (netip.Addr, error) {
	parts := strings.Split(text, ".")
	if len(parts) > 4 {
		return netip.Addr{}, errors.New("it has more than four parts")
	}
	var value uint64
	for i, part := range parts {
		limit := uint64(256)
		if i == len(parts)-1 {
			limit = 1 << (8 * (5 - len(parts)))
		}
		base := 10
		switch {
		case strings.HasPrefix(part, "0x"):
			base, part = 16, part[2:]
			if part == "" {
				part = "0"
			}
		case len(part) > 1 && part[0] == '0':
			base, part = 8, part[1:]
		}
		n, err := strconv.ParseUint(part, base, 64)
		if err != nil || n >= limit {
			return netip.Addr{}, errors.New("a part is out of range")
		}
		if i == len(parts)-1 {
			value = value<<(8*(5-len(parts))) | n
		} else {
			value = value<<8 | n
		}
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), nil
}

// ParseTarget reads host:port as in the request target of CONNECT (RFC 9110,
// section 9.3.6): both must be there, an IPv6 address in brackets.
func ParseTarget(unsafeAuthority string) (Target, error) {
	i := strings.LastIndexByte(unsafeAuthority, ':')
	if i < 0 {
		return Target{}, fmt.Errorf("%s has no port", quote(unsafeAuthority))
	}
	return NewTarget(unsafeAuthority[:i], unsafeAuthority[i+1:])
}

// NewTarget makes a target of a host and a decimal port, both as written.
func NewTarget(unsafeHost, unsafePort string) (Target, error) {
	// Bare colons in a host before a port would be read two ways.
	if strings.Contains(unsafeHost, ":") && !strings.HasPrefix(unsafeHost, "[") {
		return Target{}, fmt.Errorf("%s is not a host name or address: an IPv6 address needs brackets", quote(unsafeHost))
	}
	host, err := ParseHost(unsafeHost)
	if err != nil {
		return Target{}, err
	}
	port, err := ParsePort(unsafePort)
	if err != nil {
		return Target{}, err
	}
	return Target{Host: host, Port: port}, nil
}

// ParsePort reads 1 to 65535 in plain decimal digits, without sign or leading zero.
func ParsePort(unsafePort string) (uint16, error) {
	for i := range len(unsafePort) {
		if unsafePort[i] < '0' || unsafePort[i] > '9' {
			return 0, fmt.Errorf("%s is not a port", quote(unsafePort))
		}
	}
	n, err := strconv.ParseUint(unsafePort, 10, 16)
	if err != nil || n == 0 || unsafePort[0] == '0' {
		return 0, fmt.Errorf("%s is not a port: it goes from 1 to 65535", quote(unsafePort))
	}
	return uint16(n), nil
}
