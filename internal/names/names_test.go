package names

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"link.internal/lnk/internal/reach"
)

func TestTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(nil)
		wild := Share{"*.test", 3}
		addr := func(name string, share Share) netip.Addr {
			t.Helper()
			a, err := table.Address(name, share)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return a
		}
		a, b, c := addr("a.test", wild), addr("b.test", wild), addr("c.test", wild)
		if a == b || b == c || a == c || !a.IsLoopback() || addr("a.test", wild) != a {
			t.Fatalf("%v %v %v", a, b, c)
		}
		if _, err := table.Address("d.test", wild); !errors.Is(err, ErrFull) {
			t.Fatalf("a full share: %v", err)
		}
		// Others are undisturbed.
		fixed := addr("fixed.test", Share{})
		if other := addr("d.other", Share{"*.other", 3}); other == a || other == fixed {
			t.Errorf("%v is given twice", other)
		}
		// One has a connection, one was asked for again, one was idle for an hour.
		name, leave, ok := table.Enter(a)
		if !ok || name != "a.test" {
			t.Fatalf("%q %v", name, ok)
		}
		time.Sleep(reuseAfter - time.Second)
		addr("b.test", wild)
		if _, err := table.Address("d.test", wild); !errors.Is(err, ErrFull) {
			t.Fatalf("within the hour: %v", err)
		}
		time.Sleep(time.Second)
		if d := addr("d.test", wild); d != c {
			t.Errorf("d.test is at %v, not in the place of c.test", d)
		}
		if name, _ := table.Name(c); name != "d.test" {
			t.Errorf("%v stands for %q", c, name)
		}
		if _, err := table.Address("c.test", wild); !errors.Is(err, ErrFull) {
			t.Errorf("a.test has a connection, b.test and d.test are new: %v", err)
		}
		leave()
		time.Sleep(reuseAfter - time.Second)
		if _, err := table.Address("e.test", wild); err != nil && !errors.Is(err, ErrFull) {
			t.Error(err)
		}
		time.Sleep(time.Second)
		seen := map[netip.Addr]bool{addr("e.test", wild): true, addr("f.test", wild): true, addr("g.test", wild): true}
		if len(seen) != 3 || seen[fixed] {
			t.Errorf("%v", seen)
		}
		if got := addr("fixed.test", Share{}); got != fixed {
			t.Errorf("a name that is listed by itself moved to %v", got)
		}
	})
	table := NewTable(nil)
	for _, strange := range []string{"127.0.0.1", "127.64.0.1", "10.0.0.1", "::1", "255.255.255.255", "::ffff:127.64.0.1"} {
		if _, _, ok := table.Enter(netip.MustParseAddr(strange)); ok {
			t.Errorf("%s stands for a name", strange)
		}
	}
}

// However names and connections race for the addresses of a full share, a
// connection is to the name that its address stood for.
func TestTable_Race(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(nil)
		share := Share{"*", 4}
		var wg sync.WaitGroup
		for worker := range 16 {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(uint64(worker), 1))
				for range 300 {
					name := fmt.Sprintf("%d.test", random.IntN(40))
					addr, err := table.Address(name, share)
					if err != nil {
						time.Sleep(time.Duration(random.IntN(90)) * time.Minute)
						continue
					}
					// Within what a program may keep an address for.
					time.Sleep(time.Duration(random.IntN(TTL)) * time.Second)
					got, leave, ok := table.Enter(addr)
					if !ok || got != name {
						t.Errorf("%s led to %q", name, got)
						continue
					}
					time.Sleep(time.Duration(random.IntN(180)) * time.Minute)
					if now, _ := table.Name(addr); now != name {
						t.Errorf("%s went to %q under a connection", name, now)
					}
					leave()
				}
			})
		}
		wg.Wait()
	})
}

type noRecords struct{}

func (noRecords) Lookup(context.Context, string, uint16) ([]dns.RR, int, error) {
	return nil, 0, errors.New("nothing here")
}

func testServer(t testing.TB) *Server {
	t.Helper()
	rules, err := reach.NewRules([]string{"ok.test", "*.wild.test", "db.test"}, []string{"db.test:5432"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Rules: rules, Table: NewTable(rules.Endpoints()), Web: true, Records: noRecords{}, Open: func(reach.Inside) func(context.Context) error { return nil }}
	s.Init()
	return s
}

func question(t testing.TB, name string, qtype uint16) []byte {
	t.Helper()
	data, err := new(dns.Msg).SetQuestion(name, qtype).Pack()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Whatever is sent, the answer is none or a well-formed one to that message,
// that fits, and holds no address but a loopback's.
func FuzzAnswer(f *testing.F) {
	f.Add(question(f, "ok.test.", dns.TypeA), true)
	f.Add(question(f, "no.test.", dns.TypeANY), false)
	f.Add(question(f, "x.wild.test.", dns.TypeHTTPS), true)
	f.Add(question(f, "1.0.64.127.in-addr.arpa.", dns.TypePTR), true)
	// A name that points at itself, and one at another (RFC 1035, section 4.1.4).
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"), true)
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\xc0\x0c\x00\x01\x00\x01"), false)
	f.Add([]byte("\x00\x01\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff"), true)
	opt := new(dns.Msg).SetQuestion("ok.test.", dns.TypeA).SetEdns0(1232, true)
	opt.IsEdns0().SetVersion(1)
	data, _ := opt.Pack()
	f.Add(data, true)
	s := testServer(f)
	f.Fuzz(func(t *testing.T, message []byte, udp bool) {
		if len(message) > maxTCP {
			return
		}
		reply, then, size := s.answer(message, udp)
		if reply == nil {
			return
		}
		if then != nil {
			then(context.Background())
		}
		data := pack(reply, size)
		if len(data) < headerSize || len(data) > size || binary.BigEndian.Uint16(data) != binary.BigEndian.Uint16(message) || data[2]&0x80 == 0 {
			t.Fatalf("%x is answered with %x", message, data)
		}
		var m dns.Msg
		if err := m.Unpack(data); err != nil {
			t.Fatalf("%x is answered with %x: %v", message, data, err)
		}
		for _, rr := range m.Answer {
			if a, ok := rr.(*dns.A); ok && !a.A.IsLoopback() {
				t.Fatalf("an address: %v", a)
			}
		}
	})
}

// Whatever a resolver answers, what is passed on is of the type that was
// asked for, is owned by the name that was asked for, and holds no address.
func FuzzRecords(f *testing.F) {
	for _, line := range []string{
		`x.wild.test. 60 IN HTTPS 1 . alpn=h3,h2 ipv4hint=1.2.3.4 ipv6hint=::1 mandatory=alpn`, "x.wild.test. 60 IN HTTPS 0 evil.test.", "x.wild.test. 60 IN HTTPS 1 . no-default-alpn alpn=h3",
		`x.wild.test. 60 IN TXT "x"`, "x.wild.test. 60 IN CNAME x.wild.test.", "x.wild.test. 60 IN SRV 0 0 1 evil.test.",
	} {
		rr, err := dns.NewRR(line)
		if err != nil {
			f.Fatal(err)
		}
		m := new(dns.Msg).SetQuestion("x.wild.test.", rr.Header().Rrtype)
		m.Response, m.Answer = true, []dns.RR{rr}
		data, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, rr.Header().Rrtype)
	}
	f.Fuzz(func(t *testing.T, answer []byte, qtype uint16) {
		var from dns.Msg
		if from.Unpack(answer) != nil {
			return
		}
		reply := new(dns.Msg).SetReply(new(dns.Msg).SetQuestion("x.wild.test.", qtype))
		for _, rr := range ofType(&from, reply.Question[0]) {
			if rr.Header().Rrtype != qtype {
				t.Fatalf("%v for type %d", rr, qtype)
			}
			rr = passable(rr, "x.wild.test.")
			if rr == nil {
				continue
			}
			*rr.Header() = header(reply)
			reply.Answer = append(reply.Answer, rr)
			if https, ok := rr.(*dns.HTTPS); ok {
				for _, value := range https.Value {
					switch value.Key() {
					case dns.SVCB_ALPN, dns.SVCB_PORT, dns.SVCB_NO_DEFAULT_ALPN, dns.SVCB_MANDATORY:
					default:
						t.Fatalf("passed on: %v", https)
					}
					if strings.Contains(value.String(), "h3") {
						t.Fatalf("HTTP/3 is passed on: %v", https)
					}
				}
			}
		}
		if data := pack(reply, maxTCP); len(data) == 0 {
			t.Fatal("it can't be packed")
		}
	})
}

func BenchmarkAnswer(b *testing.B) {
	s := testServer(b)
	q := question(b, "ok.test.", dns.TypeA)
	b.ReportAllocs()
	for b.Loop() {
		reply, _, size := s.answer(q, true)
		pack(reply, size)
	}
}

// What an answer allocates is counted; a limit that is passed asks whether what
// was added is worth it.
func TestCost_AllocationsOfAnAnswer(t *testing.T) {
	s := testServer(t)
	q := question(t, "ok.test.", dns.TypeA)
	const limit = 15
	got := testing.AllocsPerRun(1000, func() {
		reply, _, size := s.answer(q, true)
		pack(reply, size)
	})
	if got > limit {
		t.Errorf("%.0f allocations; the limit is %d", got, limit)
	} else {
		t.Logf("%.0f allocations of %d", got, limit)
	}
}
