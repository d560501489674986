package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"link.internal/lnk/internal/reach"
)

// The HTTP server answers a request line that it can't parse by itself, and
// nobody would learn what was asked for. So the first line of a connection is
// looked at as it passes: what has the form of a proxy request and names no
// target is refused as such, with its code, its record and its line.

// maxFirstLine bounds how much of a line is looked at.
const maxFirstLine = 8 << 10

// firstLineConn looks at the first line that is read from a connection, and
// is then no more in the way than one test. A tunnel is copied without it.
type firstLineConn struct {
	halfCloser
	judge  func(line []byte) bool // false: answered, the connection is over
	line   []byte
	judged bool
}

// errAnswered ends a connection for the HTTP server without another answer:
// it gives none after an error of the network.
var errAnswered = &net.OpError{Op: "read", Err: errors.New("it was answered")}

// Read reads, and judges the first line when it is whole.
func (c *firstLineConn) Read(p []byte) (int, error) {
	n, err := c.halfCloser.Read(p)
	if c.judged || n == 0 {
		return n, err
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
	if !c.judge(line) {
		return 0, errAnswered
	}
	return n, err
}

// badTarget returns what is wrong with a request line that names no target
// though it has the form of a proxy request, and how to show it.
func badTarget(line []byte) (method, what string, err error) {
	text := string(line)
	method, rest, ok := strings.Cut(text, " ")
	if !ok {
		return "", "", nil
	}
	target, version, ok := cutLast(rest, " ")
	if !ok || !strings.HasPrefix(version, "HTTP/1.") {
		return "", "", nil
	}
	switch {
	case method == "CONNECT":
		_, err = reach.ParseTarget(target)
	case strings.HasPrefix(target, "/"):
		// The proxy's own, which may hold the URL secret.
	case strings.Contains(target, "://"):
		// What the server parses is judged by whoever forwards it.
		if _, parseErr := url.ParseRequestURI(target); parseErr != nil || strings.ContainsAny(target, " \x00") {
			err = errors.New("it is no URL")
		}
	}
	return method, clipQuote(target), err
}

func cutLast(text, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(text, sep)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(sep):], true
}

// refusalText is a refusal as it is written where there is no ResponseWriter.
func refusalText(what string, why refusal, status string) string {
	body := "refused " + what + ": " + why.why + "\n"
	return fmt.Sprintf("HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Length: %d\r\nContent-Type: text/plain; charset=utf-8\r\nLink-Refused: %s\r\n\r\n%s",
		why.status, status, len(body), why.code, body)
}

// firstLineListener wraps what it accepts.
type firstLineListener struct {
	net.Listener
	judge func(conn net.Conn, line []byte) bool
}

// Accept returns the next connection.
func (l *firstLineListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	stream, ok := conn.(halfCloser)
	if !ok {
		conn.Close()
		return nil, errors.New("bug: a listener of another kind")
	}
	return &firstLineConn{halfCloser: stream, judge: func(line []byte) bool { return l.judge(conn, line) }}, nil
}
