package reach

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParseHost(t *testing.T) {
	for _, test := range []struct{ in, want string }{
		{"ok.test", "ok.test"}, {"OK.Test", "ok.test"}, {"ok.test.", "ok.test"}, {"a_b.test", "a_b.test"}, {"r3---sn-x.test", "r3---sn-x.test"},
		{"bücher.test", "xn--bcher-kva.test"}, {"BÜCHER.test", "xn--bcher-kva.test"}, {"xn--bcher-kva.test", "xn--bcher-kva.test"}, {"ok。test", "ok.test"},
		{"127.0.0.1", "127.0.0.1"}, {"127.1", "127.0.0.1"}, {"0x7f.1", "127.0.0.1"}, {"0177.1", "127.0.0.1"}, {"2130706433", "127.0.0.1"}, {"0x7f000001", "127.0.0.1"},
		{"127。0.0.1", "127.0.0.1"}, {"１２７.0.0.1", "127.0.0.1"}, {"127.0.0.1.", "127.0.0.1"}, {"0", "0.0.0.0"}, {"0x", "0.0.0.0"},
		{"[::1]", "::1"}, {"::1", "::1"}, {"[::ffff:1.2.3.4]", "1.2.3.4"}, {"2A0A:0::1", "2a0a::1"},
	} {
		got, err := ParseHost(test.in)
		if err != nil || got.String() != test.want {
			t.Errorf("ParseHost(%q) = %q, %v; want %q", test.in, got, err, test.want)
		}
	}
	for _, in := range []string{
		"", ".", "..", "a..b", ".a", "a..", "a b", "a\x00b", "a/b", "a@b", "a%2eb", "a#b", "a?b", `a\b`, "-a.test", "a-.test", "*", "*.a",
		"[::1", "::1]", "[ok.test]", "[127.0.0.1]", "[[::1]]", "[::1%25eth0]", "fe80::1%eth0", "1.2.3.4.5", "256.1.1.1", "1.2.3.256", "1.2.65536", "08.1.1.1", "4294967296", "a.123", "a.0x1",
		"\xff.test", strings.Repeat("a", 64) + ".test", strings.Repeat("a.", 127) + "test", "a:80", "ok.test:443",
	} {
		if got, err := ParseHost(in); err == nil {
			t.Errorf("ParseHost(%q) = %q; want an error", in, got)
		}
	}
}

func TestClassify(t *testing.T) {
	machine := Machine{
		Addrs:   []netip.Addr{netip.MustParseAddr("93.184.216.10"), netip.MustParseAddr("2a0a:1::5")},
		Subnets: []netip.Prefix{netip.MustParsePrefix("93.184.216.0/24"), netip.MustParsePrefix("2a0a:1::/64"), netip.MustParsePrefix("0.0.0.0/0")},
	}
	for _, test := range []struct {
		addr string
		want Class
	}{
		{"93.184.216.10", ThisMachine}, {"93.184.216.11", Network}, {"93.184.217.1", Global}, {"2a0a:1::5", ThisMachine}, {"2a0a:1::6", Network}, {"2a0a:2::6", Global},
		{"::ffff:93.184.216.10", ThisMachine}, {"64:ff9b::5db8:d80a", ThisMachine}, {"64:ff9b::5db8:d90a", Global}, {"64:ff9b::a00:1", Network},
		{"64:ff9b:1::808:808", Reserved}, {"64:ff9b:1::7f00:1", ThisMachine}, {"2002:808:808::1", Reserved}, {"2002:a00:1::1", Network}, {"::8.8.8.8", Reserved},
		{"2001:0:1::f5ff:fffe", Network}, // Teredo: 10.0.0.1 obfuscated
		{"8.8.8.8", Global}, {"1.1.1.1", Global}, {"2606:4700::1", Global},
		{"10.1.2.3", Network}, {"172.31.255.255", Network}, {"172.32.0.0", Global}, {"192.168.0.1", Network}, {"100.127.255.255", Network}, {"100.128.0.0", Global}, {"fd12::1", Network},
		{"127.255.255.255", ThisMachine}, {"0.0.0.0", ThisMachine}, {"::", ThisMachine}, {"::1", ThisMachine}, {"0.1.2.3", Reserved},
		{"169.254.169.254", Metadata}, {"169.254.170.2", Metadata}, {"fd00:ec2::254", Metadata}, {"100.100.100.200", Metadata}, {"168.63.129.16", Metadata}, {"192.0.0.192", Metadata},
		{"2002:a9fe:a9fe::", Metadata}, {"169.254.0.1", Reserved}, {"224.0.0.251", Reserved}, {"239.1.1.1", Reserved}, {"240.0.0.1", Reserved}, {"255.255.255.255", Reserved},
		{"192.0.0.8", Reserved}, {"192.0.2.1", Reserved}, {"192.31.196.1", Reserved}, {"192.52.193.1", Reserved}, {"192.88.99.1", Reserved}, {"192.175.48.1", Reserved},
		{"198.18.0.1", Reserved}, {"198.19.255.255", Reserved}, {"198.51.100.1", Reserved}, {"203.0.113.1", Reserved},
		{"100::1", Reserved}, {"2001:2::1", Reserved}, {"2001:10::1", Reserved}, {"2001:20::1", Reserved}, {"2001:db8::1", Reserved}, {"2620:4f:8000::1", Reserved},
		{"3fff::1", Reserved}, {"5f00::1", Reserved}, {"fe80::1", Reserved}, {"fec0::1", Reserved}, {"ff02::1", Reserved}, {"4000::1", Reserved}, {"::ffff:0:7f00:1", ThisMachine},
	} {
		if got := machine.Classify(netip.MustParseAddr(test.addr)); got != test.want {
			t.Errorf("Classify(%s) = %d, want %d", test.addr, got, test.want)
		}
	}
	if got := machine.Classify(netip.Addr{}); got != Reserved {
		t.Errorf("the zero address is %d", got)
	}
}

func mustRules(t *testing.T, internet, tcp, lan []string) *Rules {
	t.Helper()
	r, err := NewRules(internet, tcp, lan)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestDecide(t *testing.T) {
	type list = []string
	for _, test := range []struct {
		name               string
		internet, tcp, lan []string
		target             string
		addr               string // one that the name leads to; empty: none is judged
		code               Code   // empty: allowed
	}{
		{name: "nothing listed", target: "ok.test:443", code: CodeHost},
		{name: "exact", internet: list{"ok.test"}, target: "ok.test:443", addr: "8.8.8.8"},
		{name: "another", internet: list{"ok.test"}, target: "a.ok.test:443", code: CodeHost},
		{name: "below a suffix", internet: list{"*.ok.test"}, target: "a.b.ok.test:80", addr: "8.8.8.8"},
		{name: "the suffix itself", internet: list{"*.ok.test"}, target: "ok.test:443", code: CodeHost},
		{name: "port", internet: list{"ok.test"}, target: "ok.test:22", code: CodePort},
		{name: "endpoint", internet: list{"ok.test"}, tcp: list{"ok.test:22"}, target: "ok.test:22", addr: "8.8.8.8"},
		{name: "another's endpoint", internet: list{"*"}, tcp: list{"ok.test:22"}, target: "no.test:22", code: CodePort},
		{name: "wildcard endpoint", internet: list{"*"}, tcp: list{"*.ok.test:22"}, target: "a.ok.test:22", addr: "8.8.8.8"},
		{name: "to a private address", internet: list{"*"}, target: "ok.test:443", addr: "10.0.0.1", code: CodeNetwork},
		{name: "to this machine", internet: list{"*"}, target: "ok.test:443", addr: "127.0.0.1", code: CodeThisMachine},
		{name: "to metadata", internet: list{"*"}, target: "ok.test:443", addr: "169.254.169.254", code: CodeMetadata},
		{name: "metadata by name", internet: list{"*"}, target: "metadata.google.internal:80", code: CodeMetadata},
		{name: "localhost", internet: list{"*"}, lan: list{"*"}, target: "localhost:80", code: CodeThisMachine},
		{name: "literal", internet: list{"8.8.8.8"}, target: "8.8.8.8:443"},
		{name: "literal by any", internet: list{"*"}, target: "8.8.8.8:443"},
		{name: "literal unlisted", internet: list{"ok.test"}, target: "8.8.8.8:443", code: CodeHost},
		{name: "private literal", internet: list{"*"}, target: "10.0.0.1:443", code: CodeNetwork},

		{name: "lan literal", lan: list{"192.168.1.0/24"}, target: "192.168.1.5:5000"},
		{name: "lan literal outside", lan: list{"192.168.1.0/24"}, target: "192.168.2.5:5000", code: CodeNetwork},
		{name: "lan any", lan: list{"*"}, target: "10.9.9.9:1"},
		{name: "lan any is not CGNAT", lan: list{"*"}, target: "100.64.0.1:80", code: CodeNetwork},
		{name: "CGNAT listed", lan: list{"100.64.0.0/10"}, target: "100.64.0.1:80"},
		{name: "lan any is not the internet", lan: list{"*"}, target: "8.8.8.8:80", code: CodeHost},
		{name: "lan name", lan: list{"nas.local"}, target: "nas.local:5000", addr: "192.168.1.5"},
		{name: "lan name to the internet", lan: list{"nas.local"}, target: "nas.local:80", addr: "8.8.8.8", code: CodeHost},
		{name: "lan name to this machine", lan: list{"nas.local"}, target: "nas.local:80", addr: "127.0.0.1", code: CodeThisMachine},
		{name: "lan any by a local name", lan: list{"*"}, target: "printer.lan:631", addr: "192.168.1.5"},
		{name: "lan any by a label", lan: list{"*"}, target: "printer:631", addr: "192.168.1.5"},
		{name: "lan any by a name of the internet", internet: list{"*"}, lan: list{"*"}, target: "evil.test:443", addr: "192.168.1.5", code: CodeNetwork},
		{name: "lan range by a name of the internet", internet: list{"*"}, lan: list{"192.168.1.0/24"}, target: "evil.test:443", addr: "192.168.1.5", code: CodeNetwork},
		{name: "lan range by a local name", lan: list{"192.168.1.0/24"}, target: "nas.local:5000", code: CodeHost},
		{name: "lan range holding metadata", lan: list{"169.0.0.0/8"}, target: "169.254.169.254:80", code: CodeMetadata},
		{name: "lan name not of the internet list", lan: list{"nas.local"}, target: "other.local:80", code: CodeHost},
		{name: "lan and tcp", lan: list{"db.lan"}, tcp: list{"db.lan:5432"}, target: "db.lan:5432", addr: "10.0.0.3"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := mustRules(t, test.internet, test.tcp, test.lan)
			target, err := ParseTarget(test.target)
			if err != nil {
				t.Fatal(err)
			}
			got := r.Decide(target, Machine{})
			if test.addr != "" {
				if !got.Allowed {
					t.Fatalf("refused before the look-up: %+v", got)
				}
				got = r.DecideAddr(target, netip.MustParseAddr(test.addr), Machine{})
			}
			if got.Allowed != (test.code == "") || got.Code != test.code {
				t.Errorf("got %+v, want code %q", got, test.code)
			}
			if !got.Allowed && got.Why == "" {
				t.Error("no reason")
			}
		})
	}
}

func TestZeroValuesRefuse(t *testing.T) {
	target := Target{Host: Host{Name: "ok.test"}, Port: 443}
	var zero Rules
	if (Decision{}).Allowed || zero.Decide(target, Machine{}).Allowed || zero.DecideAddr(target, netip.MustParseAddr("8.8.8.8"), Machine{}).Allowed {
		t.Error("a zero value allows")
	}
	all := mustRules(t, []string{"*"}, nil, []string{"*"})
	if all.Decide(Target{}, Machine{}).Allowed || all.DecideAddr(Target{}, netip.Addr{}, Machine{}).Allowed || all.DecideAddr(target, netip.Addr{}, Machine{}).Allowed {
		t.Error("a zero target is allowed")
	}
	if (Pattern{}).Matches(Host{}) || (Pattern{}).Matches(target.Host) || (LAN{}).coversAddr(netip.MustParseAddr("10.0.0.1")) {
		t.Error("a zero pattern matches")
	}
	// The address must be the one that was asked for.
	if all.DecideAddr(Target{Host: Host{Addr: netip.MustParseAddr("8.8.8.8")}, Port: 443}, netip.MustParseAddr("8.8.4.4"), Machine{}).Allowed {
		t.Error("another address is allowed")
	}
}

func TestRefusalsSayWhatToAdd(t *testing.T) {
	r := mustRules(t, []string{"ok.test"}, nil, nil)
	for _, test := range []struct{ target, want string }{
		{"no.test:443", "add it to [internet] allow (--internet-host no.test)"},
		{"ok.test:22", "its port 22 isn't open: add it to [internet] tcp (--tcp ok.test:22)"},
		{"10.0.0.1:80", "it is in a local network: add it to [lan] allow (--lan-host 10.0.0.1)"},
		{"no.test:22", "add it to [internet] allow (--internet-host no.test) and [internet] tcp (--tcp no.test:22)"},
	} {
		target, _ := ParseTarget(test.target)
		if got := r.Decide(target, Machine{}).Why; got != test.want {
			t.Errorf("%s: %q, want %q", test.target, got, test.want)
		}
	}
}

func FuzzParseTarget(f *testing.F) {
	for _, seed := range []string{"ok.test:443", "[::1]:80", "127。0.0.1:1", "0x7f.1:80", "xn--a:1", "*.a:1", "[::ffff:1.2.3.4]:65535"} {
		f.Add(seed)
	}
	all, _ := NewRules([]string{"*"}, nil, nil)
	f.Fuzz(func(t *testing.T, text string) {
		target, err := ParseTarget(text)
		if err != nil {
			return
		}
		// Canonical: reading its own text gives it again.
		again, err := ParseTarget(target.String())
		if err != nil || again != target {
			t.Fatalf("%q → %v → %v, %v", text, target, again, err)
		}
		if (target.Host.Name == "") == !target.Host.Addr.IsValid() || target.Port == 0 {
			t.Fatalf("%q → %+v", text, target)
		}
		if target.Host.Addr.Is4In6() || target.Host.Addr.Zone() != "" {
			t.Fatalf("%q → %v isn't canonical", text, target)
		}
		// Whatever is listed, only a global address is the internet.
		if target.Host.Addr.IsValid() && all.Decide(target, Machine{}).Allowed && (target.Host.Addr.IsPrivate() || target.Host.Addr.IsLoopback() || !target.Host.Addr.IsGlobalUnicast()) {
			t.Fatalf("%q is allowed", text)
		}
	})
}

func FuzzPatterns(f *testing.F) {
	f.Add("*.ok.test", "a.ok.test:443")
	f.Add("10.0.0.0/8", "10.1.1.1:22")
	f.Fuzz(func(t *testing.T, pattern, target string) {
		if p, err := ParsePattern(pattern); err == nil {
			if again, err := ParsePattern(p.String()); err != nil || again != p {
				t.Fatalf("%q → %v → %v, %v", pattern, p, again, err)
			}
			if !p.covers(p) {
				t.Fatalf("%v doesn't cover itself", p)
			}
		}
		if l, err := ParseLAN(pattern); err == nil {
			if again, err := ParseLAN(l.String()); err != nil || again != l {
				t.Fatalf("%q → %v → %v, %v", pattern, l, again, err)
			}
		}
		if e, err := ParseEndpoint(target); err == nil {
			if again, err := ParseEndpoint(e.String()); err != nil || again != e {
				t.Fatalf("%q → %v → %v, %v", target, e, again, err)
			}
		}
	})
}
