package proxy

import (
	"bytes"
	"io"
	"net"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// stream makes a connected pair of TCP connections.
func stream(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			accepted <- conn
		}
	}()
	conn, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other := <-accepted
	t.Cleanup(func() { conn.Close(); other.Close() })
	return conn.(*net.TCPConn), other.(*net.TCPConn)
}

// Pauses at every moment lose and change no byte, and nothing hangs.
func TestPausesAreExact(t *testing.T) {
	client, near := stream(t)
	far, origin := stream(t)
	var g gate
	c := &calls{}
	p := &pair{near: near, far: far}
	if !c.open(p) {
		t.Fatal("not open")
	}
	go io.Copy(origin, origin) // an echo
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	var wg sync.WaitGroup
	var up, down int64
	wg.Go(func() { up, down = p.copyBoth([]byte("early"), &g) })
	wg.Go(func() {
		client.Write(sent)
		client.CloseWrite()
	})
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if g.set(paused, "test") {
				c.stand()
			}
			time.Sleep(200 * time.Microsecond)
			g.set(running, "")
			c.goOn()
			time.Sleep(300 * time.Microsecond)
		}
	})
	got := make([]byte, len("early")+len(sent))
	client.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(client, got); err != nil {
		t.Fatal(err)
	}
	origin.CloseWrite()
	close(stop)
	wg.Wait()
	if string(got[:5]) != "early" || !bytes.Equal(got[5:], sent) || up != int64(len(got)) || down != int64(len(got)) {
		t.Errorf("%d up, %d down, exact %v", up, down, bytes.Equal(got[5:], sent))
	}
}

// A stop ends a tunnel at every moment, a paused one too.
func TestStopEndsTunnels(t *testing.T) {
	for range 50 {
		client, near := stream(t)
		far, origin := stream(t)
		var g gate
		c := &calls{}
		p := &pair{near: near, far: far}
		c.open(p)
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.copyBoth(nil, &g)
		}()
		go client.Write([]byte("x"))
		go io.Copy(io.Discard, origin)
		go func() {
			if g.set(paused, "") {
				c.stand()
			}
		}()
		g.set(stopped, "")
		c.abortAll()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatal("the tunnel goes on")
		}
		if c.open(&pair{near: near, far: far}) {
			t.Error("one more was opened")
		}
	}
}

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		if state, _ := g.now(); state != running || !g.wait() {
			t.Error("it doesn't begin running")
		}
		if !g.set(paused, "why") || g.set(paused, "again") {
			t.Error("a pause")
		}
		waited := make(chan bool)
		go func() { waited <- g.wait() }()
		synctest.Wait()
		select {
		case <-waited:
			t.Error("it doesn't wait")
		default:
		}
		g.set(running, "")
		if !<-waited {
			t.Error("it isn't running")
		}
		g.set(stopped, "end")
		if g.set(running, "") || g.set(paused, "") || g.wait() {
			t.Error("a stop isn't final")
		}
	})
}

func TestRefusals(t *testing.T) {
	start := time.Unix(1000, 0)
	r := refusals{limit: 3}
	for i, test := range []struct {
		at   time.Duration
		want bool
	}{{0, false}, {time.Second, false}, {61 * time.Second, false}, {60500 * time.Millisecond, true}, {200 * time.Second, false}, {201 * time.Second, false}, {202 * time.Second, true}} {
		if got := r.add(start.Add(test.at)); got != test.want {
			t.Errorf("refusal %d: %v", i, got)
		}
	}
	r.reset()
	if r.add(start.Add(203 * time.Second)) {
		t.Error("a reset forgets nothing")
	}
	none := refusals{}
	for range 100 {
		if none.add(start) {
			t.Error("no limit is a limit")
		}
	}
}

func TestFromPage(t *testing.T) {
	for _, test := range []struct {
		host, origin, site string
		want               bool
	}{
		{"127.0.0.1:40781", "", "", false}, {"localhost:40781", "", "", false}, {"LOCALHOST", "", "", false}, {"[::1]:1", "", "", false}, {"127.9.9.9", "", "", false},
		{"", "", "", true}, {"evil.test", "", "", true}, {"localhost.evil.test", "", "", true}, {"127.0.0.1.evil.test", "", "", true}, {"[::ffff:127.0.0.1]", "", "", true}, {"0.0.0.0:1", "", "", true},
		{"127.0.0.1:1", "http://127.0.0.1:1", "same-origin", false}, {"127.0.0.1:1", "http://127.0.0.1:2", "", true}, {"127.0.0.1:1", "null", "", true}, {"127.0.0.1:1", "", "cross-site", true}, {"127.0.0.1:1", "", "none", false},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = test.host
		if test.origin != "" {
			r.Header.Set("Origin", test.origin)
		}
		if test.site != "" {
			r.Header.Set("Sec-Fetch-Site", test.site)
		}
		if got := fromPage(r); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}
