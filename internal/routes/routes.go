package routes

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	"link.internal/lnk/internal/bind"
	"link.internal/lnk/internal/peercred"
)

// The headers that a route's server is told by. What a client sends by these
// names is taken out.
const (
	CallerHeader = "Link-Caller"
	RouteHeader  = "Link-Route"
)

// Set is a proxy's routes. The nil Set has none.
type Set struct {
	table  table
	caller bind.Caller
	secret string
	log    *slog.Logger
}

// route is one of them.
type route struct {
	prefix  string
	host    string   // tells its connections from other routes'
	unix    string   // the path of a socket, or
	program *program // what is started
}

// New checks a binding's routes, and takes or makes what their programs will
// listen on. It starts nothing.
func New(b bind.Binding, ready *Listeners, log *slog.Logger) (*Set, error) {
	if err := b.CheckRoutes(); err != nil || len(b.Routes) == 0 {
		return nil, err
	}
	s := &Set{table: make(table), caller: *b.Caller, secret: b.URLSecret, log: log}
	for i, r := range b.Routes {
		added := &route{prefix: r.Prefix, host: fmt.Sprintf("route-%d", i), unix: r.Serve.Unix}
		s.table[r.Prefix] = added
		if len(r.Serve.Program) == 0 {
			continue
		}
		var err error
		if added.program, err = newProgram(r.Prefix, r.Serve.Program, r.Given, ready, log); err != nil {
			s.Close()
			return nil, fmt.Errorf("routes: %s: %w", r.Prefix, err)
		}
	}
	return s, nil
}

// Close ends the programs.
func (s *Set) Close() {
	if s == nil {
		return
	}
	var ended sync.WaitGroup
	for _, r := range s.table {
		if r.program != nil {
			ended.Go(r.program.close)
		}
	}
	ended.Wait()
}

// Files are what the programs are started from.
func (s *Set) Files() (files []string) {
	if s == nil {
		return nil
	}
	for _, r := range s.table {
		if r.program != nil {
			files = append(files, r.program.files()...)
		}
	}
	return files
}

// Errors of finding a route. Neither tells of a path, which may hold the URL secret.
var (
	ErrCaller = errors.New("it doesn't carry the caller's key, or its path the URL secret")
	ErrRoute  = errors.New("there is no such route")
)

// Call is one that was led to a route.
type Call struct {
	route *route
	rest  string // in normal form: "" or "/…"
	set   *Set
	keys  []string // headers that hold the key
}

// Find judges a request to the proxy itself, whose path begins with Root.
// Its error is ErrCaller or ErrRoute.
func (s *Set) Find(r *http.Request) (*Call, error) {
	if s == nil {
		return nil, ErrRoute
	}
	// As it was sent: what was parsed of it has lost which slash was encoded.
	escaped, _, _ := strings.Cut(r.RequestURI, "?")
	path, err := bind.NormalPath(escaped)
	if err != nil {
		return nil, ErrRoute
	}
	path, ok := strings.CutPrefix(path, Root)
	if !ok || path != "" && path[0] != '/' {
		return nil, ErrRoute
	}
	if s.secret != "" {
		first, behind, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		if !same(first, s.secret) {
			return nil, ErrCaller
		}
		path = "/" + behind
	}
	keys := s.carries(r.Header)
	if len(keys) == 0 {
		return nil, ErrCaller
	}
	found, rest := s.table.find(path)
	if found == nil {
		return nil, ErrRoute
	}
	return &Call{found, rest, s, keys}, nil
}

// carries returns the headers by which a call carries the caller's key: as a
// bearer token (RFC 6750, section 2.1), as the caller's password (RFC 7617) or
// as an API key.
func (s *Set) carries(h http.Header) (by []string) {
	if values := h.Values("Authorization"); len(values) == 1 {
		scheme, value, _ := strings.Cut(values[0], " ")
		value = strings.TrimLeft(value, " ")
		switch strings.ToLower(scheme) {
		case "bearer":
			if same(value, s.caller.Key) {
				by = append(by, "Authorization")
			}
		case "basic":
			decoded, err := base64.StdEncoding.DecodeString(value)
			if err == nil && same(string(decoded), s.caller.Name+":"+s.caller.Key) {
				by = append(by, "Authorization")
			}
		}
	}
	if values := h.Values("X-Api-Key"); len(values) == 1 && same(values[0], s.caller.Key) {
		by = append(by, "X-Api-Key")
	}
	return by
}

// same compares in a time that tells nothing of either.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// Prefix is its route's.
func (c *Call) Prefix() string { return c.route.prefix }

// Path is the call's path as it may be logged: without the URL secret, and
// without the query.
func (c *Call) Path() string { return Root + c.route.prefix + c.rest }

// Rewrite makes the request that the route's server gets: behind the prefix,
// without the key.
func (c *Call) Rewrite(out *http.Request) {
	rest := c.rest
	if rest == "" {
		rest = "/"
	}
	out.URL.Scheme = "http"
	out.URL.Host = c.route.host
	// What is in normal form is valid.
	out.URL.Path, _ = url.PathUnescape(rest)
	out.URL.RawPath = rest
	for _, name := range c.keys {
		out.Header.Del(name)
	}
	for name, values := range out.Header {
		// Servers take an underscore for a hyphen (RFC 3875, section 4.1.18).
		switch strings.ToLower(strings.ReplaceAll(name, "_", "-")) {
		case strings.ToLower(CallerHeader), strings.ToLower(RouteHeader):
			delete(out.Header, name)
			continue
		case "referer":
			if c.set.secret != "" {
				delete(out.Header, name)
			}
			continue
		}
		if slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, c.set.caller.Key) }) {
			delete(out.Header, name)
		}
	}
	// Trailers could say it all anew.
	out.Trailer = nil
	out.Header.Del("Trailer")
	out.Header.Set(CallerHeader, c.set.caller.Name)
	out.Header.Set(RouteHeader, c.route.prefix)
}

// Dial connects to the route's server, and starts its program if it has one
// and it wasn't needed before.
func (c *Call) Dial(ctx context.Context) (net.Conn, error) {
	if c.route.program != nil {
		return c.route.program.dial(ctx)
	}
	return peercred.DialOwned(ctx, c.route.unix, os.Geteuid(), 0)
}

// Answered is told of an answer of the route's server.
func (c *Call) Answered() {
	if c.route.program != nil {
		c.route.program.answered.Store(true)
	}
}

// Detail is what the route's program wrote last, which only the person may see.
func (c *Call) Detail() string {
	if c.route.program == nil {
		return ""
	}
	return c.route.program.lastSaid()
}

// Why says what is wrong with the route's server, in words for the caller.
func (c *Call) Why() string {
	if c.route.program != nil {
		return c.route.program.why()
	}
	return "its server doesn't answer"
}
