package proxy

import (
	"bytes"
	"errors"
	"net"
	"net/http"
)

// incoming is a connection as it was accepted. The HTTP server reads requests
// by it, and it looks at what is read first: a CONNECT is served here, and
// what names no target is answered here. It is then no more in the way than
// one test. A tunnel is copied without it.
type incoming struct {
	halfCloser
	proxy  *Proxy
	from   string // what the wire log calls its listener
	begun  bool   // something was read
	line   []byte // the first line, as far as it was read in pieces
	judged bool
	taken  bool // it is no longer the HTTP server's
	// answered says that the HTTP server has no more to say on it: it may have
	// been given the beginning of what was answered here.
	answered bool
}

// maxFirstLine bounds how much of a line is looked at.
const maxFirstLine = 8 << 10

// errAnswered ends a connection for the HTTP server without another answer:
// it gives none after an error of the network.
var errAnswered = &net.OpError{Op: "read", Err: errors.New("it was answered")}

// Read reads, and looks at each request's beginning. Only what a connection
// begins with is a CONNECT for sure: behind a request it may be another's body,
// whose head the HTTP server has already.
func (c *incoming) Read(p []byte) (int, error) {
	if c.answered {
		return 0, errAnswered
	}
	n, err := c.halfCloser.Read(p)
	if c.judged || n == 0 {
		return n, err
	}
	first := !c.begun
	c.begun = true
	if first && c.serveConnect(p[:n:n]) {
		c.answered = true
		return 0, errAnswered
	}
	end := bytes.IndexByte(p[:n], '\n')
	if end < 0 {
		end = n
	} else {
		c.judged = true
	}
	c.line = append(c.line, p[:end]...)
	if len(c.line) > maxFirstLine {
		c.judged = true // too long for any target: the server says so
		c.line = nil
		return n, err
	}
	if !c.judged {
		return n, err
	}
	line := bytes.TrimSuffix(c.line, []byte("\r"))
	c.line = nil
	if !c.judgeFirstLine(line) {
		c.answered = true
		return 0, errAnswered
	}
	return n, err
}

// Write writes what the HTTP server answers.
func (c *incoming) Write(p []byte) (int, error) {
	if c.answered {
		return 0, errAnswered
	}
	return c.halfCloser.Write(p)
}

// take returns the connection without what looks at it, to whoever makes it a
// tunnel. It no longer counts among those that are none.
func (c *incoming) take() halfCloser {
	if !c.taken {
		c.taken = true
		c.proxy.waiting.Add(-1)
	}
	return c.halfCloser
}

// incomingKey is the context key of a request's connection.
type incomingKey struct{}

// headRead is told that a request's head was read, so that its body isn't
// looked at as another's beginning.
func headRead(r *http.Request) {
	if c, ok := r.Context().Value(incomingKey{}).(*incoming); ok && r.Body != http.NoBody {
		c.judged = true // nothing else reads while there is a body
	}
}

// countConn is told by the HTTP server how a connection stands. It closes one
// that is one too many.
func (p *Proxy) countConn(conn net.Conn, state http.ConnState) {
	c, ok := conn.(*incoming)
	if !ok {
		return // unreachable: it is told of what it accepted
	}
	switch state {
	case http.StateNew:
		if p.waiting.Add(1) > maxWaiting {
			conn.Close()
		}
	case http.StateIdle:
		c.judged = false // the next request's line
	case http.StateHijacked, http.StateClosed:
		c.take()
	}
}

// incomingListener wraps what it accepts.
type incomingListener struct {
	net.Listener
	proxy *Proxy
	from  string
}

// Accept returns the next connection.
func (l *incomingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	stream, ok := conn.(halfCloser)
	if !ok {
		conn.Close()
		return nil, errors.New("bug: a listener of another kind")
	}
	return &incoming{halfCloser: stream, proxy: l.proxy, from: l.from}, nil
}
