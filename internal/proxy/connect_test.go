package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"link.internal/lnk/internal/bind"
	"link.internal/lnk/internal/channel"
	"link.internal/lnk/internal/reach"
)

// serving makes a proxy that serves on a listener of its own.
func serving(t *testing.T, rules bind.Rules) (service *Service, address string) {
	t.Helper()
	service, err := NewService(bind.Binding{Rules: rules}, "", ahead{}, slog.New(slog.DiscardHandler), func(channel.Refused) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { service.Close() })
	p := &Proxy{log: slog.New(slog.DiscardHandler), servers: make(map[*http.Server]struct{}), told: make(chan channel.FromProxy, 10)}
	p.service.Store(service)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		until(t, "none is counted when none is there", func() bool { return p.waiting.Load() == 0 })
	})
	go p.serveHTTP(l, "test")
	return service, l.Addr().String()
}

// never answers no question, and counts those that wait.
type never struct{ waiting atomic.Int64 }

func (r *never) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
	<-ctx.Done()
	return nil, ctx.Err()
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for range 1000 {
		if f() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("not within 5 s: %s", what)
}

// Clients that are gone while their calls are dialled leave few dials behind,
// whether their requests came at once or in pieces.
func TestConnect_ClientsGone(t *testing.T) {
	for _, pieces := range [][]string{{"CONNECT a.test:443 HTTP/1.1\r\nHost: x\r\n\r\n"}, {"CONNECT a.test:443 HTTP/1.1\r\n", "Host: x\r\n\r\n"}} {
		service, address := serving(t, bind.Rules{InternetHost: []string{"a.test"}})
		resolver := new(never)
		service.dialer.Resolver = resolver
		const n = maxLingering + 10
		var conns []net.Conn
		for range n {
			conn, err := net.Dial("tcp4", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for i, piece := range pieces {
				time.Sleep(time.Duration(i) * 2 * time.Millisecond)
				io.WriteString(conn, piece)
			}
			conns = append(conns, conn)
		}
		until(t, "all wait for the resolver", func() bool { return resolver.waiting.Load() == n })
		time.Sleep(2 * watchAfter) // they are watched by now
		if got := resolver.waiting.Load(); got != n {
			t.Fatalf("%d of %d wait while their clients do", got, n)
		}
		for _, conn := range conns {
			conn.Close()
		}
		until(t, "few are left", func() bool { return resolver.waiting.Load() == maxLingering })
		service.Stop()
		until(t, "a stop ends all", func() bool { return resolver.waiting.Load() == 0 })
		until(t, "nobody is counted", func() bool { return service.calls.number() == 0 })
	}
}

// A tunnel that took long to be dialled is one as any other: what its client
// sent in the meantime arrives, and no deadline of the header's is left on it.
func TestConnect_LateTunnel(t *testing.T) {
	for _, late := range []time.Duration{0, 3 * watchAfter} {
		upstream, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer upstream.Close()
		go func() {
			conn, err := upstream.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			reader := bufio.NewReader(conn)
			http.ReadRequest(reader)
			time.Sleep(late)
			io.WriteString(conn, established)
			io.Copy(conn, reader)
		}()
		service, _ := serving(t, bind.Rules{InternetHost: []string{"a.test"}, Upstream: "http://" + upstream.Addr().String()})
		p := &Proxy{}
		p.service.Store(service)
		client, near := stream(t)
		seen := &deadlines{TCPConn: near}
		served := make(chan error, 1)
		seen.SetReadDeadline(time.Now().Add(headerTimeout)) // the HTTP server's
		go func() {
			_, err := (&incoming{halfCloser: seen, proxy: p, from: "test"}).Read(make([]byte, 4096))
			served <- err
		}()
		io.WriteString(client, "CONNECT a.test:80 HTTP/1.1\r\nHost: x\r\n\r\nearly")
		time.Sleep(2 * watchAfter)
		io.WriteString(client, " late")
		client.CloseWrite()
		answer, err := io.ReadAll(client)
		if want := established + "early late"; err != nil || string(answer) != want {
			t.Errorf("dialled within %v: %q, %v", late, answer, err)
		}
		if err := <-served; err != errAnswered {
			t.Errorf("the server was told %v", err)
		}
		if seen.read.Load() != 0 {
			t.Error("a deadline is left on the tunnel")
		}
	}
}

// deadlines notes the last one for reading, 0 for none.
type deadlines struct {
	*net.TCPConn
	read atomic.Int64
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	if t.IsZero() {
		d.read.Store(0)
	} else {
		d.read.Store(t.UnixNano())
	}
	return d.TCPConn.SetReadDeadline(t)
}

// An origin that upgrades: what was asked for is said back, and then each byte.
type upgrading struct{ bodies chan string }

func (o upgrading) serve(t *testing.T) (upstream string) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				body = []byte(err.Error())
			}
			if r.Method == http.MethodPost {
				o.bodies <- string(body)
			}
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
		io.Copy(conn, conn)
	}))
	return "http://" + l.Addr().String()
}

// Connections that were upgraded don't count among those that are no tunnels:
// serving looks at its end whether all are counted out.
func TestConnect_UpgradedAreCounted(t *testing.T) {
	_, address := serving(t, bind.Rules{InternetHost: []string{"a.test"}, Upstream: upgrading{}.serve(t)})
	for range 5 {
		conn, err := net.Dial("tcp4", address)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
		reader := bufio.NewReader(conn)
		response, err := http.ReadResponse(reader, nil)
		if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
			t.Fatal(response, err)
		}
		io.WriteString(conn, "x")
		if b, err := reader.ReadByte(); err != nil || b != 'x' {
			t.Errorf("%q, %v", b, err)
		}
		conn.Close()
	}
}

// A body is its request's, whatever it looks like: also where its head came
// along with the request before, or in one piece with it.
func TestConnect_BodiesLikeRequests(t *testing.T) {
	for _, body := range []string{
		"CONNECT a.test:80 HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT no.test:80 HTTP/1.1\r\nHost: x\r\n\r\nCONNECT a.test:80 HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT nowhere HTTP/1.1\r\n\r\n", "GET http://[::1/ HTTP/1.1\r\n\r\n",
	} {
		origin := upgrading{make(chan string, 1)}
		_, address := serving(t, bind.Rules{InternetHost: []string{"a.test"}, Upstream: origin.serve(t)})
		get := "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n"
		post := fmt.Sprintf("POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: %d\r\n\r\n", len(body))
		for _, pieces := range [][]string{{get + post, body}, {get, post, body}, {post, body}, {post + body}, {get + post + body[:3], body[3:]}} {
			conn, err := net.Dial("tcp4", address)
			if err != nil {
				t.Fatal(err)
			}
			for _, piece := range pieces {
				io.WriteString(conn, piece)
				time.Sleep(10 * time.Millisecond)
			}
			select {
			case got := <-origin.bodies:
				if got != body {
					t.Errorf("%q: the origin was sent %q", pieces, got)
				}
			case <-time.After(5 * time.Second):
				t.Errorf("%q: the origin was sent nothing", pieces)
			}
			conn.Close()
		}
	}
}

// A refused request ends its connection, whether its body comes or not.
func TestConnect_RefusedWithoutBody(t *testing.T) {
	for _, head := range []string{"CONNECT a.test:80 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n", "POST http://no.test/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"} {
		t.Run(head[:4], func(t *testing.T) {
			t.Parallel()
			_, address := serving(t, bind.Rules{InternetHost: []string{"a.test"}})
			conn, err := net.Dial("tcp4", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(2 * discardTimeout))
			io.WriteString(conn, head)
			answer, err := io.ReadAll(conn)
			if err != nil || !strings.Contains(string(answer), "Link-Refused: ") {
				t.Errorf("%v: %q", err, answer)
			}
		})
	}
}

// A head that is taken for a whole one is that: what comes behind it is behind
// it for net/http too.
func FuzzReadPlain(f *testing.F) {
	for _, seed := range []string{
		"CONNECT ok.test:443 HTTP/1.1\r\nHost: ok.test\r\n\r\n", "CONNECT ok.test:443 HTTP/1.1\nA: b\n\nx\r\n\r\n", "CONNECT [2a0a::1]:1 HTTP/1.0\r\nX: a\r\n b\r\n\r\n",
		"CONNECT ok.test:443 HTTP/1.1\r\nContent-Length: 3\r\n\r\n", "CONNECT ok.test:443 HTTP/1.1\r\n\r\r\n\r\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, head string) {
		if len(head) > 4096 || !strings.HasSuffix(head, "\r\n\r\n") || strings.Index(head, "\r\n\r\n") != len(head)-4 {
			return
		}
		r := readPlain([]byte(head))
		if r == nil {
			return
		}
		const early = "\x16\x03\x01"
		reader := bufio.NewReader(strings.NewReader(head + early))
		again, err := http.ReadRequest(reader)
		if err != nil || again.RequestURI != r.RequestURI || again.Method != r.Method {
			t.Fatalf("%q: %v", head, err)
		}
		if rest, _ := io.ReadAll(reader); string(rest) != early {
			t.Fatalf("%q: behind it is %q", head, rest)
		}
		if _, err := reach.ParseTarget(r.RequestURI); err != nil {
			t.Fatalf("%q: %v", head, err)
		}
	})
}
