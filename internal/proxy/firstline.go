package proxy

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"link.internal/lnk/internal/reach"
)

// The HTTP server answers a request line that it can't parse by itself, and
// nobody would learn what was asked for. So the first line of a connection is
// looked at as it passes: what has the form of a proxy request and names no
// target is refused as such, with its code, its record and its line.

// judgeFirstLine answers a first line that names no target, and reports
// whether the connection goes on.
func (c *incoming) judgeFirstLine(line []byte) bool {
	service := c.proxy.service.Load()
	if service == nil {
		return true
	}
	method, what, err := badTarget(line)
	if err == nil {
		return true
	}
	if state, _ := service.gate.now(); state != running {
		return true // said by whoever serves it, if it is served at all
	}
	why := refusal{status: http.StatusBadRequest, code: reach.CodeName, why: err.Error()}
	service.refuse(&answer{conn: c.halfCloser}, call{start: time.Now(), from: c.from, method: method, what: what}, why)
	return false
}

// badTarget returns what is wrong with a request line that names no target
// though it has the form of a proxy request, and how to show it.
func badTarget(line []byte) (method, what string, err error) {
	text := string(line)
	method, rest, ok := strings.Cut(text, " ")
	if !ok || !httpguts.ValidHeaderFieldName(method) {
		return "", "", nil // a method is a token (RFC 9110, section 9.1), a header's line isn't
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
