package reach

import (
	"net/netip"
	"slices"
)

// Class says where an address leads.
type Class uint8

// The zero Class is Reserved, which nothing reaches.
const (
	// Reserved is link-local, multicast, or a special-purpose block.
	Reserved Class = iota
	// Global is the internet.
	Global
	// ThisMachine is loopback, unspecified, or one of the machine's own.
	ThisMachine
	// Network is the network around this machine: private and shared ranges,
	// and the subnets of the machine's interfaces.
	Network
	// Metadata is a cloud's metadata or platform service.
	Metadata
)

// Machine is what the address rules need to know of the machine that dials.
// The zero value knows only what holds everywhere.
type Machine struct {
	// Addrs are the addresses of its own interfaces, unmapped.
	Addrs []netip.Addr
	// Subnets are the prefixes of those interfaces.
	Subnets []netip.Prefix
}

type block struct {
	prefix netip.Prefix
	class  Class
	source string
}

func b(prefix string, class Class, source string) block {
	return block{netip.MustParsePrefix(prefix), class, source}
}

// metadata holds the addresses at which clouds hand credentials to whoever asks.
var metadata = []block{
	b("169.254.169.254/32", Metadata, "AWS, Google Cloud, Azure, OpenStack and others: instance metadata"),
	b("169.254.170.2/32", Metadata, "AWS ECS: task credentials"),
	b("fd00:ec2::254/128", Metadata, "AWS: instance metadata over IPv6"),
	b("100.100.100.200/32", Metadata, "Alibaba Cloud: instance metadata"),
	b("168.63.129.16/32", Metadata, "Azure: WireServer"),
	b("192.0.0.192/32", Metadata, "Oracle Cloud: instance metadata of old"),
}

// blocks are the IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC
// 6890, as updated by RFC 8190), and multicast. The most specific prefix
// holds, so the list has no order to keep.
var blocks = []block{
	b("0.0.0.0/8", Reserved, "RFC 791, section 3.2: this network"),
	b("0.0.0.0/32", ThisMachine, "RFC 1122, section 3.2.1.3: this host; Linux connects to itself"),
	b("10.0.0.0/8", Network, "RFC 1918: private use"),
	b("100.64.0.0/10", Network, "RFC 6598: shared address space (CGNAT)"),
	b("127.0.0.0/8", ThisMachine, "RFC 1122, section 3.2.1.3: loopback"),
	b("169.254.0.0/16", Reserved, "RFC 3927: link local"),
	b("172.16.0.0/12", Network, "RFC 1918: private use"),
	b("192.0.0.0/24", Reserved, "RFC 6890, section 2.1: IETF protocol assignments"),
	b("192.0.0.0/29", Reserved, "RFC 7335: IPv4 service continuity prefix"),
	b("192.0.0.8/32", Reserved, "RFC 7600: IPv4 dummy address"),
	b("192.0.0.9/32", Reserved, "RFC 7723: Port Control Protocol anycast"),
	b("192.0.0.10/32", Reserved, "RFC 8155: TURN anycast"),
	b("192.0.0.170/31", Reserved, "RFC 8880 and RFC 7050: NAT64/DNS64 discovery"),
	b("192.0.2.0/24", Reserved, "RFC 5737: documentation (TEST-NET-1)"),
	b("192.31.196.0/24", Reserved, "RFC 7535: AS112-v4"),
	b("192.52.193.0/24", Reserved, "RFC 7450: AMT"),
	b("192.88.99.0/24", Reserved, "RFC 7526: deprecated 6to4 relay anycast"),
	b("192.168.0.0/16", Network, "RFC 1918: private use"),
	b("192.175.48.0/24", Reserved, "RFC 7534: direct delegation AS112 service"),
	b("198.18.0.0/15", Reserved, "RFC 2544: benchmarking"),
	b("198.51.100.0/24", Reserved, "RFC 5737: documentation (TEST-NET-2)"),
	b("203.0.113.0/24", Reserved, "RFC 5737: documentation (TEST-NET-3)"),
	b("224.0.0.0/4", Reserved, "RFC 1112, section 4: multicast"),
	b("240.0.0.0/4", Reserved, "RFC 1112, section 4: reserved"),
	b("255.255.255.255/32", Reserved, "RFC 8190 and RFC 919, section 7: limited broadcast"),

	// What IANA has not given out as global unicast is nobody's (RFC 4291,
	// section 2.4): only 2000::/3 is.
	b("::/0", Reserved, "RFC 4291, section 2.4: not global unicast"),
	b("2000::/3", Global, "RFC 4291, section 2.4: global unicast"),
	b("::/128", ThisMachine, "RFC 4291, section 2.5.2: unspecified"),
	b("::1/128", ThisMachine, "RFC 4291, section 2.5.3: loopback"),
	b("::ffff:0:0/96", Reserved, "RFC 4291, section 2.5.5.2: IPv4-mapped"),
	b("64:ff9b:1::/48", Reserved, "RFC 8215: local-use IPv4/IPv6 translation"),
	b("100::/64", Reserved, "RFC 6666: discard only"),
	b("100:0:0:1::/64", Reserved, "RFC 9780: dummy prefix"),
	b("2001::/23", Reserved, "RFC 2928: IETF protocol assignments"),
	b("2001::/32", Reserved, "RFC 4380 and RFC 8190: Teredo"),
	b("2001:1::1/128", Reserved, "RFC 7723: Port Control Protocol anycast"),
	b("2001:1::2/128", Reserved, "RFC 8155: TURN anycast"),
	b("2001:1::3/128", Reserved, "RFC 9665: DNS-SD service registration anycast"),
	b("2001:2::/48", Reserved, "RFC 5180: benchmarking"),
	b("2001:3::/32", Reserved, "RFC 7450: AMT"),
	b("2001:4:112::/48", Reserved, "RFC 7535: AS112-v6"),
	b("2001:10::/28", Reserved, "RFC 4843: deprecated ORCHID"),
	b("2001:20::/28", Reserved, "RFC 7343: ORCHIDv2"),
	b("2001:30::/28", Reserved, "RFC 9374: drone remote identification"),
	b("2001:db8::/32", Reserved, "RFC 3849: documentation"),
	b("2002::/16", Reserved, "RFC 3056: 6to4"),
	b("2620:4f:8000::/48", Reserved, "RFC 7534: direct delegation AS112 service"),
	b("3fff::/20", Reserved, "RFC 9637: documentation"),
	b("5f00::/16", Reserved, "RFC 9602: segment routing SIDs"),
	b("fc00::/7", Network, "RFC 4193: unique local"),
	b("fe80::/10", Reserved, "RFC 4291, section 2.5.6: link local"),
	b("fec0::/10", Reserved, "RFC 3879: deprecated site local"),
	b("ff00::/8", Reserved, "RFC 4291, section 2.7: multicast"),
}

// carriers are the IPv6 forms that hold an IPv4 address, and where in their
// sixteen bytes it stands. xor undoes Teredo's obfuscation.
var carriers = []struct {
	prefix netip.Prefix
	at     int
	xor    byte
	// usable forms lead wherever the IPv4 address does; the others nowhere.
	usable bool
}{
	{prefix: netip.MustParsePrefix("::/96"), at: 12},                      // RFC 4291, section 2.5.5.1: IPv4-compatible
	{prefix: netip.MustParsePrefix("64:ff9b::/96"), at: 12, usable: true}, // RFC 6052: NAT64
	{prefix: netip.MustParsePrefix("64:ff9b:1::/48"), at: 12},             // RFC 8215, with the whole /96 of RFC 6052
	{prefix: netip.MustParsePrefix("2002::/16"), at: 2},                   // RFC 3056: 6to4
	{prefix: netip.MustParsePrefix("2001::/32"), at: 12, xor: 0xff},       // RFC 4380, section 4: Teredo
	{prefix: netip.MustParsePrefix("::ffff:0:0:0/96"), at: 12},            // RFC 2765: IPv4-translated (SIIT)
}

// Classify says where an address leads from this machine. An IPv4-mapped
// address is its IPv4 address. An invalid address is Reserved.
func (m Machine) Classify(addr netip.Addr) Class {
	if !addr.IsValid() {
		return Reserved
	}
	addr = addr.WithZone("").Unmap()
	for _, known := range metadata {
		if known.prefix.Contains(addr) {
			return Metadata
		}
	}
	if slices.Contains(m.Addrs, addr) {
		return ThisMachine
	}
	class := classifyBlock(addr)
	if addr.Is6() && class != ThisMachine {
		if carried, usable, ok := carriedIPv4(addr); ok {
			inner := m.Classify(carried)
			if inner != Global {
				return inner
			}
			if usable {
				return Global
			}
			return Reserved
		}
	}
	// A machine's own subnet is its network even where the addresses are
	// public; what is reserved stays so.
	if class == Global {
		for _, subnet := range m.Subnets {
			if subnet.Bits() > 0 && subnet.Contains(addr) {
				return Network
			}
		}
	}
	return class
}

func classifyBlock(addr netip.Addr) Class {
	class, bits := Global, -1
	for _, known := range blocks {
		if known.prefix.Bits() > bits && known.prefix.Contains(addr) {
			class, bits = known.class, known.prefix.Bits()
		}
	}
	return class
}

func carriedIPv4(addr netip.Addr) (carried netip.Addr, usable, ok bool) {
	raw := addr.As16()
	for _, form := range carriers {
		if form.prefix.Contains(addr) {
			var v4 [4]byte
			for i := range v4 {
				v4[i] = raw[form.at+i] ^ form.xor
			}
			return netip.AddrFrom4(v4), form.usable, true
		}
	}
	return netip.Addr{}, false, false
}

// isPrivate says whether [lan] * covers the address: RFC 1918 and RFC 4193.
func isPrivate(addr netip.Addr) bool { return addr.IsPrivate() }
