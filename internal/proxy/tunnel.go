package proxy

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"link.internal/lnk/internal/wire"
)

// halfCloser is a stream whose two directions end apart.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// tunnel greets the client, judges a TLS client's server name, and copies both
// ways until both ends have closed. It owns both connections. early is what
// the client has sent already.
func (s *Service) tunnel(near, far halfCloser, greeting string, early []byte, c call) {
	defer near.Close()
	defer far.Close()
	p := &pair{near: near, far: far}
	if !s.calls.open(p) {
		return
	}
	defer s.calls.close(p)
	var err error
	if greeting != "" {
		_, err = io.WriteString(near, greeting)
	}
	if err == nil && s.judgesServerName(c.target) {
		var why *refusal
		early, why, err = s.serverName(p, early, c.target)
		if why != nil {
			s.refused(c, *why)
			return
		}
	}
	s.tally.reached(c.what)
	if err != nil {
		// The client is gone, or the wire was stopped, before anything passed.
		record := c.record(wire.End)
		record.Address = address(far)
		s.wire.Append(record)
		return
	}
	record := c.record(wire.Open)
	record.Address = address(far)
	record.Status = http.StatusOK
	s.wire.Append(record)
	up, down := p.copyBoth(early, &s.gate)
	s.tally.moved(up, down)
	record.Verdict, record.Time = wire.End, time.Time{}
	record.Up, record.Down, record.MS = up, down, time.Since(c.start).Milliseconds()
	s.wire.Append(record)
}

// address is where a tunnel leads, if it is dialled from here.
func address(far net.Conn) string {
	if remote, ok := far.RemoteAddr().(*net.TCPAddr); ok {
		return remote.String()
	}
	return ""
}

// pair is a tunnel's two connections.
type pair struct {
	near, far halfCloser
	aborted   atomic.Bool
}

// copyBoth copies early and then near to far, and far to near, each direction
// until it ends, and passes each end on. io.Copy on the bare connections is a
// splice in the kernel, so nothing may wrap them: the bytes are counted by
// what it returns.
func (p *pair) copyBoth(early []byte, g *gate) (up, down int64) {
	var wg sync.WaitGroup
	wg.Go(func() {
		if len(early) > 0 {
			n, err := p.far.Write(early)
			up = int64(n)
			early = nil
			if err != nil {
				p.abort()
				return
			}
		}
		up += p.copyOne(p.far, p.near, g)
	})
	down = p.copyOne(p.near, p.far, g)
	wg.Wait()
	return up, down
}

// copyOne copies one direction, and passes its end on: an orderly one as a
// half-close, a broken one as the end of both. It stands still while the wire
// is paused; a pause ends the reading only, so no byte is lost on its way.
func (p *pair) copyOne(to, from halfCloser, g *gate) (total int64) {
	for {
		n, err := io.Copy(to, from)
		total += n
		switch {
		case err == nil:
			to.CloseWrite()
			return total
		case errors.Is(err, os.ErrDeadlineExceeded) && p.readAgain(from, g):
		default:
			p.abort()
			return total
		}
	}
}

// readAgain waits while the wire is paused, and lifts the deadline that the
// pause set. It reports whether there is any point in reading on.
func (p *pair) readAgain(from halfCloser, g *gate) bool {
	if p.aborted.Load() || !g.wait() {
		return false
	}
	from.SetReadDeadline(time.Time{})
	if p.aborted.Load() {
		p.abort() // its deadline may just have been lifted
		return false
	}
	return true
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// abort makes both copies end now. Closing is the owner's.
func (p *pair) abort() {
	p.aborted.Store(true)
	p.near.SetDeadline(longAgo)
	p.far.SetDeadline(longAgo)
}

// stand makes both copies stop reading until they find the wire running.
func (p *pair) stand() {
	p.near.SetReadDeadline(longAgo)
	p.far.SetReadDeadline(longAgo)
}

// calls are those under way, and the tunnels among them, so that all can be
// ended at once. The zero value has none.
type calls struct {
	mu      sync.Mutex
	ended   bool
	still   bool
	count   int
	empty   chan struct{} // closed when the last one leaves; nil unless waited for
	tunnels map[*pair]struct{}

	most     int         // at a time, since memory was last given back
	quiet    *time.Timer // runs while none is under way; nil before the first burst
	giveBack func()      // nil: freeMemory
}

// Thousands of calls leave as many stacks and buffers behind, which the runtime
// keeps for minutes. So after so many at a time, memory is given back when none
// has been under way for so long.
const (
	burst      = 64
	quietAfter = 5 * time.Second
)

// enter and leave count a call in and out.
func (c *calls) enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	c.most = max(c.most, c.count)
}

func (c *calls) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count--
	if c.count > 0 {
		return
	}
	if c.empty != nil {
		close(c.empty)
		c.empty = nil
	}
	switch {
	case c.most < burst || c.ended:
	case c.quiet == nil:
		c.quiet = time.AfterFunc(quietAfter, c.isQuiet)
	default:
		c.quiet.Reset(quietAfter)
	}
}

func (c *calls) isQuiet() {
	c.mu.Lock()
	if c.count > 0 || c.ended || c.most < burst {
		c.mu.Unlock()
		return // the last of those begins it again
	}
	c.most = 0
	giveBack := c.giveBack
	c.mu.Unlock()
	if giveBack == nil {
		giveBack = freeMemory
	}
	giveBack()
}

// freeMemory gives back what isn't used. A sync.Pool lets go of what it has
// with the second collection.
func freeMemory() {
	runtime.GC()
	debug.FreeOSMemory()
}

// number is how many are under way.
func (c *calls) number() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// open adds a tunnel, unless all were ended for good; close takes it off.
func (c *calls) open(p *pair) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	if c.tunnels == nil {
		c.tunnels = make(map[*pair]struct{})
	}
	c.tunnels[p] = struct{}{}
	if c.still {
		p.stand() // it was let in just before a pause
	}
	return true
}

func (c *calls) close(p *pair) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.tunnels, p)
}

// abortAll ends every tunnel, and every one that would still open.
func (c *calls) abortAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.quiet != nil {
		c.quiet.Stop()
	}
	for p := range c.tunnels {
		p.abort()
	}
}

// stand makes every tunnel stop reading, until the wire runs again.
func (c *calls) stand() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.still = true
	for p := range c.tunnels {
		p.stand()
	}
}

// goOn lets tunnels open as usual; each that stands finds out by itself.
func (c *calls) goOn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.still = false
}

// drain waits until no call is under way, limit at most.
func (c *calls) drain(limit time.Duration) {
	c.mu.Lock()
	if c.count == 0 {
		c.mu.Unlock()
		return
	}
	if c.empty == nil {
		c.empty = make(chan struct{})
	}
	empty := c.empty
	c.mu.Unlock()
	select {
	case <-empty:
	case <-time.After(limit):
	}
}
