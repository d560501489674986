package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/reach"
)

// established is the answer to a CONNECT that holds. It has no headers, so
// that a client finds the tunnel's first byte right after it (RFC 9110,
// section 9.3.6).
const established = "HTTP/1.1 200 Connection established\r\n\r\n"

// connect answers CONNECT.
func (s *Service) connect(w http.ResponseWriter, r *http.Request, c call) {
	ctx, cancel := s.outliving(r.Context(), lingerGrace)
	far, err := s.dialer.Dial(ctx, c.target)
	cancel()
	if closed := s.notRunning(); closed != nil {
		// Paused or stopped while it was being dialled.
		if err == nil {
			far.Close()
		}
		s.refuse(w, c, *closed)
		return
	}
	if err != nil {
		s.refuse(w, c, refusalOf(err))
		return
	}
	near, early, err := hijack(w)
	if err != nil {
		far.Close()
		return
	}
	s.tunnel(near, far, established, early, c)
}

// serveConnect serves a connection that begins with a whole and plain CONNECT,
// until it ends, and reports whether it did. Most connections begin so, and the
// HTTP server would read on behind the request to learn of the client's end,
// and have to be made to stop, which is a tenth of a connection. What is
// anything else, or comes in pieces, is the server's.
func (c *incoming) serveConnect(begins []byte) bool {
	const connect, end = http.MethodConnect + " ", "\r\n\r\n"
	if c.proxy.service.Load() == nil || !bytes.HasPrefix(begins, []byte(connect)) {
		return false
	}
	n := bytes.Index(begins, []byte(end))
	if n < 0 {
		return false
	}
	n += len(end)
	growStack()
	r := readPlain(begins[:n])
	if r == nil {
		return false
	}
	// The server's deadline was for the header.
	c.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithCancel(withFrom(c.from))
	defer cancel()
	a := &answer{conn: c.halfCloser, taken: c, early: begins[n:], stop: watchEnd(c.halfCloser, cancel)}
	defer a.stopWatching()
	c.proxy.ServeHTTP(a, r.WithContext(ctx))
	return true
}

// growStack makes the goroutine's stack as large as a call needs it, at once:
// grown by and by, it is copied each time, from as deep as it was then.
//
//go:noinline
func growStack() (used byte) {
	var room [callStack]byte
	return room[len(os.Args)%callStack]
}

// callStack is what a call has on the stack at most, but for what is rare.
const callStack = 5 << 10

// heads has what heads are parsed with.
var heads = sync.Pool{New: func() any { return bufio.NewReader(nil) }}

// readPlain parses a head, and returns nil where there is anything to it that
// others would answer, or do by themselves.
func readPlain(head []byte) *http.Request {
	for line := range bytes.Lines(head) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		if line[0] == ' ' || line[0] == '\t' || bytes.EqualFold(name, []byte("Host")) && !httpguts.ValidHostHeader(string(bytes.Trim(value, " \t\r\n"))) {
			return nil
		}
	}
	reader := heads.Get().(*bufio.Reader)
	defer func() {
		reader.Reset(nil)
		heads.Put(reader)
	}()
	reader.Reset(bytes.NewReader(head))
	r, err := http.ReadRequest(reader)
	// What is behind an end that it saw earlier is no head.
	if err != nil || reader.Buffered() > 0 || r.ProtoMajor != 1 || r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
		return nil
	}
	if _, err := reach.ParseTarget(r.RequestURI); err != nil {
		return nil
	}
	for name, values := range r.Header {
		if name == "Expect" || !httpguts.ValidHeaderFieldName(name) {
			return nil
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldValue(value) {
				return nil
			}
		}
	}
	return r
}

// answer is the http.ResponseWriter of a request that the HTTP server didn't
// read. It is for one refusal, with its whole body, or for a tunnel.
type answer struct {
	conn   halfCloser
	taken  *incoming // nil: it becomes no tunnel
	early  []byte
	stop   func() // ends the watch of the client; nil when it did
	header http.Header
	head   bytes.Buffer
}

// Header is http.ResponseWriter's.
func (a *answer) Header() http.Header {
	if a.header == nil {
		a.header = make(http.Header)
	}
	return a.header
}

// WriteHeader is http.ResponseWriter's.
func (a *answer) WriteHeader(status int) {
	a.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
	a.head.WriteString("HTTP/1.1 " + strconv.Itoa(status) + " " + http.StatusText(status) + "\r\n")
	a.header.Write(&a.head)
	a.head.WriteString("\r\n")
}

// Write is http.ResponseWriter's.
func (a *answer) Write(body []byte) (int, error) {
	a.head.Write(body)
	a.conn.SetWriteDeadline(time.Now().Add(headerTimeout))
	if _, err := a.conn.Write(a.head.Bytes()); err != nil {
		return 0, err
	}
	return len(body), nil
}

// take makes the connection a tunnel's.
func (a *answer) take() (near halfCloser, early []byte, err error) {
	if a.taken == nil {
		return nil, nil, http.ErrNotSupported
	}
	a.stopWatching()
	return a.taken.take(), a.early, nil
}

func (a *answer) stopWatching() {
	if a.stop != nil {
		a.stop()
		a.stop = nil
	}
}

// watchAfter is how long a call may take before its client is watched: by
// then, most are answered.
const watchAfter = 100 * time.Millisecond

// watchEnd calls ended if the client has nothing more to send, or is gone,
// before stop is called, which is once. What it has sent stays to be read.
func watchEnd(conn halfCloser, ended func()) (stop func()) {
	done := make(chan struct{})
	timer := time.AfterFunc(watchAfter, func() {
		defer close(done)
		if atEnd(conn) {
			ended()
		}
	})
	return func() {
		if timer.Stop() {
			return
		}
		conn.SetReadDeadline(longAgo)
		<-done
		conn.SetReadDeadline(time.Time{})
	}
}

// atEnd waits until there is something to read, and reports whether that is
// the end.
func atEnd(conn halfCloser) bool {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return true
	}
	var n int
	var peekErr error
	err = raw.Read(func(fd uintptr) bool {
		for {
			var one [1]byte
			if n, _, peekErr = unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT); peekErr != unix.EINTR {
				return peekErr != unix.EAGAIN
			}
		}
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	return err != nil || peekErr != nil || n == 0
}

// hijack takes the connection from the HTTP server, and what the client sent
// along with its request.
func hijack(w http.ResponseWriter) (near halfCloser, early []byte, err error) {
	if a, ok := w.(*answer); ok {
		return a.take()
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if n := buffered.Reader.Buffered(); n > 0 {
		early, _ = buffered.Reader.Peek(n)
	}
	c, ok := conn.(*incoming)
	if !ok {
		conn.Close()
		return nil, nil, http.ErrNotSupported
	}
	return c.take(), early, nil
}
