package proxy

import (
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"link.internal/lnk/internal/reach"
	"link.internal/lnk/internal/wire"
)

// established is the answer to a CONNECT that holds. It has no headers, so
// that a client finds the tunnel's first byte right after it (RFC 9110,
// section 9.3.6).
const established = "HTTP/1.1 200 Connection established\r\n\r\n"

// connect answers CONNECT (RFC 9110, section 9.3.6). The target is read from
// the request line as it was sent: no header and no URL parser decides.
func (s *Service) connect(w http.ResponseWriter, r *http.Request) {
	c := call{start: time.Now(), what: clipQuote(r.RequestURI)}
	t, err := reach.ParseTarget(r.RequestURI)
	if err != nil {
		s.refuse(w, r, c, refusal{http.StatusBadRequest, reach.CodeName, err.Error()})
		return
	}
	c.target, c.what = t, t.String()
	if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
		s.refuse(w, r, c, refusal{http.StatusBadRequest, reach.CodeName, "CONNECT has no body"})
		return
	}
	far, err := s.direct.Dial(r.Context(), t)
	if err != nil {
		s.refuse(w, r, c, refusalOf(err))
		return
	}
	near, early, err := hijack(w)
	if err != nil {
		far.Close()
		return
	}
	s.tally.reached(c.what)
	s.tunnel(near, far, early, c.record(r, wire.Open), c.start)
}

// halfCloser is a stream whose two directions end apart.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// hijack takes the connection from the HTTP server, and what the client sent
// along with its request.
func hijack(w http.ResponseWriter) (near halfCloser, early []byte, err error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if n := buffered.Reader.Buffered(); n > 0 {
		early, _ = buffered.Reader.Peek(n)
	}
	// Both kinds of listener accept one of these: *net.TCPConn, *net.UnixConn.
	near, ok := conn.(halfCloser)
	if !ok {
		conn.Close()
		return nil, nil, http.ErrNotSupported
	}
	return near, early, nil
}

// tunnel says that the way is open and copies both ways until both ends have
// closed. It owns both connections.
func (s *Service) tunnel(near halfCloser, far *net.TCPConn, early []byte, record wire.Record, start time.Time) {
	end, ok := s.calls.open(near, far)
	if !ok {
		near.Close()
		far.Close()
		return
	}
	defer end()
	record.Address = far.RemoteAddr().String()
	record.Status = http.StatusOK
	s.wire.Append(record)
	var up, down int64
	if _, err := io.WriteString(near, established); err == nil {
		up, down = copyBoth(near, far, early)
	}
	near.Close()
	far.Close()
	s.tally.moved(up, down)
	record.Verdict, record.Time = wire.End, time.Time{}
	record.Up, record.Down, record.MS = up, down, time.Since(start).Milliseconds()
	s.wire.Append(record)
}

// copyBoth copies early and then near to far, and far to near, each direction
// until it ends, and passes each end on. io.Copy on the bare connections is a
// splice in the kernel, so nothing may wrap them: the bytes are counted by
// what it returns.
func copyBoth(near, far halfCloser, early []byte) (up, down int64) {
	var wg sync.WaitGroup
	wg.Go(func() {
		if len(early) > 0 {
			n, err := far.Write(early)
			up = int64(n)
			early = nil
			if err != nil {
				abort(near, far)
				return
			}
		}
		n, err := io.Copy(far, near)
		up += n
		finish(far, near, err)
	})
	n, err := io.Copy(near, far)
	down = n
	finish(near, far, err)
	wg.Wait()
	return up, down
}

// finish passes the end of one direction on: an orderly one as a half-close,
// a broken one as the end of both.
func finish(to, from halfCloser, err error) {
	if err != nil {
		abort(to, from)
		return
	}
	to.CloseWrite()
}

// abort makes both copies end now. Close is not enough: it is the owner's.
func abort(conns ...halfCloser) {
	for _, conn := range conns {
		conn.SetDeadline(time.Unix(1, 0))
	}
}

// calls are those under way, and the tunnels among them, so that all can be
// ended at once. The zero value has none.
type calls struct {
	mu      sync.Mutex
	closed  bool
	wg      sync.WaitGroup
	tunnels map[*pair]struct{}
}

type pair struct{ near, far halfCloser }

// enter counts a call in, unless all were ended for good.
func (c *calls) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Add(1)
	return true
}

// leave counts a call out, when its record is written.
func (c *calls) leave() { c.wg.Done() }

// open adds a tunnel, unless all were ended for good. end takes it off again.
func (c *calls) open(near, far halfCloser) (end func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false
	}
	if c.tunnels == nil {
		c.tunnels = make(map[*pair]struct{})
	}
	p := &pair{near, far}
	c.tunnels[p] = struct{}{}
	return func() {
		c.mu.Lock()
		delete(c.tunnels, p)
		c.mu.Unlock()
	}, true
}

// closeAll ends every tunnel, and every call that would still come, and waits
// for their records, limit at most.
func (c *calls) closeAll(limit time.Duration) {
	c.mu.Lock()
	c.closed = true
	for p := range c.tunnels {
		abort(p.near, p.far)
	}
	c.mu.Unlock()
	done := make(chan struct{})
	go func() {
		c.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(limit):
	}
}
