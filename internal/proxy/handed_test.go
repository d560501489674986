package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/bind"
	"link.internal/lnk/internal/channel"
	"link.internal/lnk/internal/handoff"
	"link.internal/lnk/internal/reach"
)

// However many questions ask for one endpoint at once, each has its answer as
// soon as the relay has given it.
func TestGround_OpenAtOnce(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[1])
	unix.SetNonblock(pair[0], true)
	unix.Sendto(pair[1], []byte(`{"hello":1}`), 0, nil)
	relay, err := handoff.NewProxyEnd(os.NewFile(uintptr(pair[0]), "local.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	go func() {
		buf := make([]byte, handoff.MaxMessage)
		for {
			n, err := unix.Read(pair[1], buf)
			if err != nil || n == 0 {
				return
			}
			var m struct{ Listen []handoff.Listener }
			json.Unmarshal(buf[:n], &m)
			for _, l := range m.Listen {
				unix.Sendto(pair[1], fmt.Appendf(nil, `{"failed":%d,"error":"x"}`, l.ID), 0, nil)
			}
		}
	}()
	service, err := NewService(bind.Binding{Rules: bind.Rules{InternetHost: []string{"*"}, TCP: []string{"*:7000"}}}, "", ahead{}, slog.New(slog.DiscardHandler), func(channel.Refused) {})
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{log: slog.New(slog.NewTextHandler(io.Discard, nil)), servers: make(map[*http.Server]struct{}), told: make(chan channel.FromProxy, 10)}
	p.service.Store(service)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g := &ground{proxy: p, ctx: ctx, relay: relay, asked: make(map[int]*opening), byAddr: make(map[netip.AddrPort]*opening)}
	go g.receive()
	var stalled atomic.Int32
	for i := range 300 {
		var wg sync.WaitGroup
		e := reach.Inside{Name: fmt.Sprintf("%d.test", i), Addr: netip.AddrFrom4([4]byte{127, 70, byte(i >> 8), byte(i)}), Ports: []uint16{7000}}
		for range 4 {
			wg.Go(func() {
				wait := g.open(e)
				if wait == nil {
					t.Error("a listener that failed is there")
					return
				}
				limited, stop := context.WithTimeout(ctx, 2*time.Second)
				defer stop()
				if errors.Is(wait(limited), context.DeadlineExceeded) {
					stalled.Add(1)
				}
			})
		}
		wg.Wait()
	}
	if stalled.Load() > 0 {
		t.Errorf("%d questions were left waiting", stalled.Load())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.later != 0 || len(g.byAddr) != 0 || len(g.asked) != 0 {
		t.Errorf("left: %d, %d, %d", g.later, len(g.byAddr), len(g.asked))
	}
}
