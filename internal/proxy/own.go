package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"syscall"

	"link.internal/lnk/internal/routes"
)

// serveOwn answers a request to the proxy itself: one of its routes, or nothing.
func (s *Service) serveOwn(w http.ResponseWriter, r *http.Request, c call) {
	led, err := s.routes.Find(r)
	if errors.Is(err, routes.ErrCaller) {
		c.what = "a route"
		s.refuse(w, c, refusal{status: http.StatusForbidden, code: codeCaller, why: err.Error()})
		return
	}
	if err != nil {
		why := "it is a proxy: send it CONNECT, or a request with a whole http:// URL"
		if strings.HasPrefix(r.URL.Path, routes.Root+"/") {
			c.what, why = "a route", err.Error()
		}
		s.refuse(w, c, refusal{status: http.StatusNotFound, code: codeRoute, why: why})
		return
	}
	c.path, c.what = led.Path(), "the route "+led.Prefix()
	// A call may be answered while its body is still sent.
	http.NewResponseController(w).EnableFullDuplex()
	s.pass(w, r, &forwarding{call: c, route: led, client: r.Context()}, s.toRoutes)
}

// newToRoutes makes what forwards to the routes' servers.
func (s *Service) newToRoutes() *httputil.ReverseProxy {
	transport := &http.Transport{
		Proxy: nil,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			f, ok := ctx.Value(forwardingKey{}).(*forwarding)
			if !ok || f.route == nil {
				return nil, errors.New("bug: a request without a route")
			}
			conn, err := f.route.Dial(ctx)
			if err != nil {
				return nil, &routeError{f.route, err}
			}
			return conn, nil
		},
		DisableCompression: true,
		// Of the next call's, nobody knows that it is the same route's.
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 256 << 10,
	}
	refused := func(err error) refusal {
		answer := refusal{status: http.StatusBadGateway, code: codeUpstream, why: "its server ended before it had answered"}
		var failed *routeError
		if errors.As(err, &failed) {
			answer.why, answer.detail = failed.why(), err.Error()
			if said := failed.route.Detail(); said != "" {
				answer.detail += ": " + said
			}
		}
		return answer
	}
	return s.newReverseProxy(retrying{transport}, refused, func(f *forwarding, out *http.Request) *http.Request {
		f.route.Rewrite(out)
		return out
	})
}

// retrying tries a call once more that has no body and whose connection ended
// before it was answered: a program that is ending may still have accepted it.
type retrying struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t retrying) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(r)
	if (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) && (r.Body == nil || r.Body == http.NoBody) && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		return t.RoundTripper.RoundTrip(r)
	}
	return response, err
}

// routeError is a route whose server can't be reached.
type routeError struct {
	route *routes.Call
	err   error
}

func (e *routeError) Error() string { return e.err.Error() }

func (e *routeError) Unwrap() error { return e.err }

func (e *routeError) why() string {
	if why := e.route.Why(); why != "" {
		return why
	}
	return "its server can't be reached"
}
