package proxy

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"link.internal/lnk/internal/bind"
	"link.internal/lnk/internal/channel"
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
		if n := p.waiting.Load(); n != 0 {
			t.Errorf("%d connections are counted when none is there", n)
		}
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
