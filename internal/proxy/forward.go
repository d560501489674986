package proxy

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"time"

	"link.internal/lnk/internal/egress"
	"link.internal/lnk/internal/reach"
	"link.internal/lnk/internal/routes"
	"link.internal/lnk/internal/wire"
)

// idleOrigin is how long a connection to an origin is kept for its next request.
const idleOrigin = 30 * time.Second

// forwardHTTP answers a request with an http:// URL in its request line. The
// origin is sent its Host anew from the URL.
func (s *Service) forwardHTTP(w http.ResponseWriter, r *http.Request, c call) {
	machine, err := s.interfaces.Machine()
	if err != nil {
		s.refuse(w, c, refusalOf(err))
		return
	}
	t := c.target
	// Each request is decided, also on a connection to the origin that an
	// earlier one opened.
	if decision := s.rules.Decide(t, machine); !decision.Allowed {
		s.refuse(w, c, refusalOf(&egress.RefusedError{Target: t, Decision: decision}))
		return
	}
	s.pass(w, r, &forwarding{call: c, client: r.Context()}, s.forward)
}

// pass forwards a request that was allowed, and logs and counts it at its end.
func (s *Service) pass(w http.ResponseWriter, r *http.Request, f *forwarding, by *httputil.ReverseProxy) {
	c := f.call
	f.up.gate, f.down.gate = &s.gate, &s.gate
	grace := lingerGrace
	if f.route != nil {
		grace = routeGrace
	}
	ctx, cancel := s.outliving(r.Context(), grace)
	defer cancel()
	ctx = context.WithValue(ctx, forwardingKey{}, f)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: f.gotConn})
	// A body that breaks off ends ServeHTTP by a panic (http.ErrAbortHandler):
	// what left is logged all the same.
	defer func() {
		if f.answered {
			s.tally.reached(c.what)
		}
		s.tally.moved(f.up.n.Load(), f.down.n.Load())
		if !f.refused {
			record := c.record(wire.Allowed)
			record.Status, record.Address, record.Up, record.Down = f.status, f.address, f.up.n.Load(), f.down.n.Load()
			s.wire.Append(record)
		}
	}()
	by.ServeHTTP(w, r.WithContext(ctx))
}

// forwarding is what is learned of one request while it is forwarded.
type forwarding struct {
	call     call
	route    *routes.Call    // nil: it goes out
	client   context.Context // ends when the client has nothing more to send
	answered bool
	refused  bool
	status   int
	address  string
	up, down counter
}

// gotConn is told of the connection to the origin that is used.
func (f *forwarding) gotConn(info httptrace.GotConnInfo) { f.address = address(info.Conn) }

type forwardingKey struct{}

type targetKey struct{}

// counter counts what is read through it, and stands still with the wire.
type counter struct {
	io.ReadCloser
	gate *gate
	n    atomic.Int64
}

// Read reads and counts.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	if !c.gate.wait() {
		return 0, errStopped
	}
	return n, err
}

var errStopped = errors.New("the wire was stopped")

// upgraded is the body of a 101, which ReverseProxy also writes to.
type upgraded struct {
	*counter
	io.Writer
	up *counter
}

// CloseWrite passes the client's end on to the origin.
func (u upgraded) CloseWrite() error {
	if far, ok := u.Writer.(interface{ CloseWrite() error }); ok {
		return far.CloseWrite()
	}
	return http.ErrNotSupported
}

// Write writes and counts.
func (u upgraded) Write(p []byte) (int, error) {
	if !u.up.gate.wait() {
		return 0, errStopped
	}
	n, err := u.Writer.Write(p)
	u.up.n.Add(int64(n))
	return n, err
}

func (s *Service) newForward() *httputil.ReverseProxy {
	transport := &http.Transport{
		Proxy: nil,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			t, ok := ctx.Value(targetKey{}).(reach.Target)
			if !ok {
				return nil, errors.New("bug: a request without a target")
			}
			return s.dialer.Dial(ctx, t)
		},
		DisableCompression:  true,
		ForceAttemptHTTP2:   false,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     idleOrigin,
		// How long an origin that says nothing to Expect is waited for before
		// the body is sent (RFC 9110, section 10.1.1).
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		ReadBufferSize:         32 << 10,
		WriteBufferSize:        32 << 10,
	}
	return s.newReverseProxy(transport, refusalOf, func(f *forwarding, out *http.Request) *http.Request {
		t := f.call.target
		out.URL.Scheme = "http"
		out.URL.Host = t.String()
		out.Host = hostHeader(t)
		return out.WithContext(context.WithValue(out.Context(), targetKey{}, t))
	})
}

// newReverseProxy makes what forwards by a transport. rewrite says where a
// request goes, and refused how an error is answered.
func (s *Service) newReverseProxy(transport http.RoundTripper, refused func(error) refusal, rewrite func(*forwarding, *http.Request) *http.Request) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		BufferPool:    newBufferPool(),
		ErrorLog:      log.New(io.Discard, "", 0),
		Rewrite: func(p *httputil.ProxyRequest) {
			f := p.In.Context().Value(forwardingKey{}).(*forwarding)
			// The same map: its values come with the end of the body.
			p.Out.Trailer = p.In.Trailer
			// As they were sent: ReverseProxy takes out what it can't parse of
			// a query, and what says who is asking.
			p.Out.URL.RawQuery = p.In.URL.RawQuery
			for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if values, ok := p.In.Header[name]; ok {
					p.Out.Header[name] = values
				}
			}
			// What is upgraded is forwarded as it is, so not to another HTTP
			// (RFC 7540, section 3.2), whose requests nobody would decide.
			if strings.EqualFold(p.Out.Header.Get("Upgrade"), "h2c") {
				p.Out.Header.Del("Upgrade")
				p.Out.Header.Del("Connection")
				p.Out.Header.Del("Http2-Settings")
			}
			if p.Out.Body != nil && p.Out.Body != http.NoBody {
				f.up.ReadCloser = p.Out.Body
				p.Out.Body = &f.up
			}
			*p.Out = *rewrite(f, p.Out)
		},
		ModifyResponse: func(resp *http.Response) error {
			if !s.gate.wait() {
				return errStopped
			}
			f := resp.Request.Context().Value(forwardingKey{}).(*forwarding)
			f.answered, f.status = true, resp.StatusCode
			if f.route != nil {
				f.route.Answered()
			}
			f.down.ReadCloser = resp.Body
			if writer, ok := resp.Body.(io.Writer); ok {
				resp.Body = upgraded{&f.down, writer, &f.up}
			} else {
				resp.Body = &f.down
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			f := r.Context().Value(forwardingKey{}).(*forwarding)
			f.refused = true
			if current, why := s.gate.now(); current == stopped {
				s.refuse(w, f.call, refusal{status: http.StatusServiceUnavailable, code: codeStopped, why: why})
				return
			}
			if f.client.Err() != nil && errors.Is(err, context.Canceled) {
				f.refused = false // the client is gone, which says nothing of the origin
				return
			}
			s.refuse(w, f.call, refused(err))
		},
	}
}

// hostHeader is the Host that an origin is sent (RFC 9110, section 7.2).
func hostHeader(t reach.Target) string {
	text := t.String()
	if t.Port == 80 {
		return text[:len(text)-len(":80")]
	}
	return text
}
