package proxy

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"link.internal/lnk/internal/bind"
	"link.internal/lnk/internal/channel"
)

// origin answers at once, in memory.
type origin struct{}

func (origin) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {"text/plain"}}, Body: io.NopCloser(strings.NewReader("ok")), ContentLength: 2, Request: r}, nil
}

// What a call allocates is counted. A limit that is passed asks whether what was
// added is worth it.
func TestCost_Allocations(t *testing.T) {
	service, err := NewService(bind.Binding{Rules: bind.Rules{InternetHost: []string{"a.test"}, Wire: filepath.Join(t.TempDir(), "wire")}}, "", ahead{}, slog.New(slog.DiscardHandler), func(channel.Refused) {})
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	service.forward.Transport = origin{}
	for _, test := range []struct {
		name, method, target string
		status               int
		limit                float64
	}{
		{"a request", http.MethodGet, "http://a.test/", 200, 61},
		{"a request that is refused", http.MethodGet, "http://b.test/", 403, 20},
		{"a tunnel that is refused", http.MethodConnect, "b.test:443", 403, 30},
	} {
		t.Run(test.name, func(t *testing.T) {
			made := httptest.NewRequest(test.method, test.target, nil)
			recorder := httptest.NewRecorder()
			least := 1e9
			for range 3 { // what else the process does is counted too
				least = min(least, testing.AllocsPerRun(200, func() {
					recorder.Body.Reset()
					clear(recorder.Header())
					service.ServeHTTP(recorder, made)
				}))
			}
			if recorder.Code != test.status {
				t.Fatalf("status %d: %s", recorder.Code, recorder.Body)
			}
			if least > test.limit {
				t.Errorf("%.0f allocations; the limit is %.0f", least, test.limit)
			} else {
				t.Logf("%.0f allocations of %.0f", least, test.limit)
			}
		})
	}
}

func TestCost_AllocationsOfATunnel(t *testing.T) {
	service, err := NewService(bind.Binding{Rules: bind.Rules{InternetHost: []string{"a.test"}}}, "", ahead{}, slog.New(slog.DiscardHandler), func(channel.Refused) {})
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	c, bad := newCall(httptest.NewRequest(http.MethodConnect, "a.test:80", nil))
	if bad != nil {
		t.Fatal(bad)
	}
	const limit = 14
	least := 1e9
	for range 3 {
		var pairs [51][4]halfCloser
		for i := range pairs {
			client, near := stream(t)
			far, origin := stream(t)
			pairs[i] = [4]halfCloser{client, near, far, origin}
			client.Close() // both ends have nothing to say
			origin.Close()
		}
		next := 0
		least = min(least, testing.AllocsPerRun(len(pairs)-1, func() {
			service.tunnel(pairs[next][1], pairs[next][2], established, nil, c)
			next++
		}))
	}
	if least > limit {
		t.Errorf("%.0f allocations; the limit is %d", least, limit)
	} else {
		t.Logf("%.0f allocations of %d", least, limit)
	}
}

// Memory is given back after a burst, once it is quiet, and once.
func TestCalls_GiveBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var given atomic.Int32
		c := &calls{giveBack: func() { given.Add(1) }}
		at := func(n int) {
			for range n {
				c.enter()
			}
			for range n {
				c.leave()
			}
		}
		wait := func(d time.Duration, want int32) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := given.Load(); got != want {
				t.Errorf("given back %d times, want %d", got, want)
			}
		}
		at(burst - 1)
		wait(2*quietAfter, 0)
		at(burst)
		wait(quietAfter-time.Second, 0)
		at(1) // not quiet yet
		wait(quietAfter-time.Second, 0)
		wait(2*time.Second, 1)
		at(1)
		wait(2*quietAfter, 1)
		at(burst)
		c.enter() // one that stays
		wait(2*quietAfter, 1)
		c.leave()
		wait(2*quietAfter, 2)
		at(burst)
		c.abortAll()
		wait(2*quietAfter, 2)
	})
}
