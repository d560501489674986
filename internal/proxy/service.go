package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"link.internal/lnk/internal/bind"
	"link.internal/lnk/internal/channel"
	"link.internal/lnk/internal/control"
	"link.internal/lnk/internal/egress"
	"link.internal/lnk/internal/names"
	"link.internal/lnk/internal/reach"
	"link.internal/lnk/internal/routes"
	"link.internal/lnk/internal/wire"
)

// Service answers every call of one sandbox: it is what a proxy is once it
// has rules. It is an http.Handler for both of the proxy's listeners.
type Service struct {
	rules      *reach.Rules
	interfaces *egress.Interfaces
	dialer     *egress.Dialer
	names      bool // every listed name has an address inside
	table      *names.Table
	records    names.MachineRecords
	// nameRecords bounds what refused names write to the log.
	nameRecords *rate.Limiter
	wire        *wire.Log
	wirePath    string // empty: none
	tally       *tally
	calls       calls
	ctx         context.Context // ends when the wire is stopped
	cancel      context.CancelFunc
	lingering   atomic.Int64 // requests whose clients have ended their direction
	gate        gate
	limiter     *rate.Limiter // nil: no limit
	refusals    refusals
	pages       onceAMinute
	forward     *httputil.ReverseProxy
	routes      *routes.Set
	toRoutes    *httputil.ReverseProxy
}

// ahead is what a proxy made before it had its rules; the zero value is nothing.
type ahead struct {
	listeners  *routes.Listeners // for programs of routes
	interfaces *egress.Interfaces
}

// NewService checks the rules and opens the log. refused is told of each
// first refusal of its kind, and must not block.
//
// defaultWire is where the log goes that nobody asked for, small and gone with
// the run; empty for none.
func NewService(rules bind.Binding, defaultWire string, made ahead, log *slog.Logger, refused func(channel.Refused)) (_ *Service, err error) {
	compiled, err := rules.Compile()
	if err != nil {
		return nil, err
	}
	upstream, err := bind.ParseUpstream(rules.Upstream)
	if err != nil {
		return nil, err
	}
	led, err := routes.New(rules, made.listeners, log)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			led.Close()
		}
	}()
	s := &Service{
		routes: led, names: rules.NamesOn(), table: names.NewTable(compiled.Endpoints()),
		rules: compiled, interfaces: cmp.Or(made.interfaces, &egress.Interfaces{}), tally: newTally(refused),
		refusals: refusals{limit: rules.PauseAfter},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if rules.PerMinute > 0 {
		s.limiter = rate.NewLimiter(rate.Limit(float64(rules.PerMinute)/60), rules.PerMinute)
	}
	path, limit := rules.Wire, int64(lastingWire)
	if path == "" {
		path, limit = defaultWire, passingWire
	}
	if path != "" {
		if s.wire, err = wire.OpenLog(path, rules.Agent, limit); err != nil {
			return nil, err
		}
		s.wirePath = path
	}
	s.records.Allowed = func() bool { return s.notRunning() == nil }
	s.nameRecords = rate.NewLimiter(namesASec, namesAtOnce)
	s.dialer = &egress.Dialer{Rules: compiled, Interfaces: s.interfaces, Upstream: upstream}
	s.forward, s.toRoutes = s.newForward(), s.newToRoutes()
	return s, nil
}

// The sizes at which a log is rotated: one that was asked for, and the one in
// a run's folder, which may be in memory.
const (
	lastingWire = 64 << 20
	passingWire = 1 << 20
)

// closeLimit bounds how long the records of ended calls are waited for.
const closeLimit = 2 * time.Second

// Close ends every open tunnel, waits for their records, and returns what was
// seen in all.
func (s *Service) Close() channel.Summary {
	s.Stop()
	s.calls.drain(closeLimit)
	s.routes.Close()
	s.wire.Close()
	return s.tally.summary()
}

// Stop ends every open call, and refuses every later one, for good.
func (s *Service) Stop() {
	s.gate.set(stopped, "its wire was stopped")
	s.cancel()
	s.calls.abortAll()
}

// Pause refuses new calls and lets open ones stand still. It reports whether
// the wire was running.
func (s *Service) Pause(why string) bool {
	if !s.gate.set(paused, why) {
		return false
	}
	s.calls.stand()
	return true
}

// Resume lets calls go on. It reports whether the wire was paused.
func (s *Service) Resume() bool {
	if !s.gate.set(running, "") {
		return false
	}
	s.calls.goOn()
	s.refusals.reset()
	return true
}

// Status is how the wire stands.
func (s *Service) Status() control.Status {
	current, why := s.gate.now()
	status := control.Status{
		State: map[state]string{running: "running", paused: "paused", stopped: "stopped"}[current], Why: why,
		Open: s.calls.number(),
	}
	s.tally.into(&status)
	return status
}

// ServeHTTP answers one request. What is judged first are the wire's own
// state and web pages, which count for nothing; then the rate; then the request.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.calls.enter()
	defer s.calls.leave()
	c, bad := newCall(r)
	if closed := s.notRunning(); closed != nil {
		s.refuse(w, c, *closed)
		return
	}
	if c.own && fromPage(r) {
		c.what = "a web page"
		s.refusePage(w, c)
		return
	}
	if s.limiter != nil && !s.limiter.Allow() {
		s.refuse(w, c, s.tooFast())
		return
	}
	switch {
	case bad != nil:
		s.refuse(w, c, *bad)
	case c.own:
		s.serveOwn(w, r, c)
	case r.Method == http.MethodConnect:
		s.connect(w, r, c)
	default:
		s.forwardHTTP(w, r, c)
	}
}

// notRunning is the refusal of a wire that is paused or stopped, nil of one
// that runs.
func (s *Service) notRunning() *refusal {
	current, why := s.gate.now()
	switch current {
	case running:
		return nil
	case paused:
		return &refusal{status: http.StatusServiceUnavailable, code: codePaused, why: why}
	default:
		return &refusal{status: http.StatusServiceUnavailable, code: codeStopped, why: why}
	}
}

// maxLingering bounds the requests that go on though their clients have ended
// their direction: most of those clients are gone.
const maxLingering = 64

// lingerGrace is how long an origin has to answer such a client.
const lingerGrace = 2 * time.Minute

// routeGrace is how long a route's server has: what it does costs, and its
// clients seldom end their direction before they have the answer.
const routeGrace = 10 * time.Second

// outliving returns a context that outlives one which the HTTP server ends as
// soon as the client has nothing more to send: the client may still read. It
// ends with the wire.
func (s *Service) outliving(client context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(client))
	ended := context.AfterFunc(s.ctx, cancel)
	gone := context.AfterFunc(client, func() {
		if s.lingering.Add(1) > maxLingering {
			cancel()
		}
		timer := time.AfterFunc(grace, cancel)
		context.AfterFunc(ctx, func() {
			timer.Stop()
			s.lingering.Add(-1)
		})
	})
	return ctx, func() {
		ended()
		gone()
		cancel()
	}
}

func (s *Service) refusePage(w http.ResponseWriter, c call) {
	why := refusal{status: http.StatusForbidden, code: codeBrowser, why: "a web page may not call the proxy"}
	if s.pages.allow(c.start) {
		record := c.record(wire.Refused)
		record.Reason, record.Status = string(why.code), why.status
		s.wire.Append(record)
	}
	writeRefusal(w, c.what, why)
}

// tooFast is the refusal of a call over the rate.
func (s *Service) tooFast() refusal {
	missing := 1 - s.limiter.Tokens()
	seconds := max(1, int(math.Ceil(missing/float64(s.limiter.Limit()))))
	return refusal{
		status: http.StatusTooManyRequests, code: codeRate, retryAfter: seconds,
		why: fmt.Sprintf("it made more than %d calls a minute (--per-minute): the next is allowed in %d s", s.limiter.Burst(), seconds),
	}
}

// call is what is known of a request, or of a connection, as it is answered.
type call struct {
	start  time.Time
	from   string // the listener that it came by
	method string
	path   string // of a request with a URL
	target reach.Target
	what   string // the target as a person reads it
	own    bool   // it is to the proxy itself
}

// newCall reads what a request asks for: of CONNECT the request line as it was
// sent (RFC 9110, section 9.3.6), of any other the URL in it (RFC 9112,
// section 3.2.2). No header decides. bad is for what is no target.
func newCall(r *http.Request) (c call, bad *refusal) {
	c = call{start: time.Now(), from: from(r), method: r.Method}
	// A path of the proxy's own may hold the URL secret.
	if r.Method != http.MethodConnect && r.URL.IsAbs() {
		c.path = r.URL.EscapedPath()
	}
	refuse := func(why string) (call, *refusal) {
		return c, &refusal{status: http.StatusBadRequest, code: reach.CodeName, why: why}
	}
	var err error
	switch {
	case r.Method == http.MethodConnect:
		c.what = clipQuote(r.RequestURI)
		if c.target, err = reach.ParseTarget(r.RequestURI); err != nil {
			return refuse(err.Error())
		}
		if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
			c.what = c.target.String()
			return refuse("CONNECT has no body")
		}
	case !r.URL.IsAbs():
		c.own, c.what = true, "the proxy itself"
		return c, nil
	default:
		c.what = clipQuote(r.RequestURI)
		if r.URL.Scheme != "http" || r.URL.Opaque != "" {
			return refuse("only http:// goes without a tunnel: use CONNECT for anything else")
		}
		if r.URL.User != nil {
			return refuse("a URL with a user is no request target")
		}
		host, port := r.URL.Host, "80"
		if h, p, err := net.SplitHostPort(r.URL.Host); err == nil {
			host = h
			if r.URL.Host[0] == '[' {
				host = "[" + h + "]"
			}
			if p != "" {
				port = p
			}
		}
		if c.target, err = reach.NewTarget(host, port); err != nil {
			return refuse(err.Error())
		}
	}
	c.what = c.target.String()
	return c, nil
}

func (c call) record(verdict wire.Verdict) wire.Record {
	record := wire.Record{
		From: c.from, Method: c.method, Path: c.path, Verdict: verdict, MS: time.Since(c.start).Milliseconds(),
	}
	if c.target.Port != 0 {
		record.Host, record.Port = c.target.Host.String(), c.target.Port
	}
	return record
}

// fromKey is the context key of the listener that a connection came by.
type fromKey struct{}

func withFrom(from string) context.Context {
	return context.WithValue(context.Background(), fromKey{}, from)
}

func from(r *http.Request) string {
	name, _ := r.Context().Value(fromKey{}).(string)
	return name
}

// refusal is an answer that is not the origin's.
type refusal struct {
	status int
	code   reach.Code
	why    string
	// detail is for the person alone: it may tell of this machine.
	detail string
	// retryAfter is in seconds; 0: none.
	retryAfter int
}

// The codes beside those of package reach.
const (
	codePaused     reach.Code = "paused"
	codeStopped    reach.Code = "stopped"
	codeBrowser    reach.Code = "browser"
	codeRate       reach.Code = "rate"
	codeSNI        reach.Code = "sni"
	codeCaller     reach.Code = "caller"
	codeRoute      reach.Code = "route"
	codeUnresolved reach.Code = "unresolved"
	codeUpstream   reach.Code = "upstream"
)

// refusalOf puts an error of deciding or dialling into the table of answers.
func refusalOf(err error) refusal {
	var refused *egress.RefusedError
	if errors.As(err, &refused) {
		status := http.StatusForbidden
		if refused.Decision.Code == reach.CodeName {
			status = http.StatusBadRequest
		}
		return refusal{status: status, code: refused.Decision.Code, why: refused.Decision.Why}
	}
	var unresolved *egress.ResolveError
	if errors.As(err, &unresolved) {
		return refusal{status: http.StatusBadGateway, code: codeUnresolved, why: "its name has no address here: " + lookupReason(unresolved)}
	}
	var timeout net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return refusal{status: http.StatusGatewayTimeout, code: codeUpstream, why: "it didn't answer in time"}
	}
	var upstream *egress.UpstreamError
	if errors.As(err, &upstream) {
		return refusal{status: http.StatusBadGateway, code: codeUpstream, why: "the upstream is down or refused it", detail: upstream.Err.Error()}
	}
	return refusal{status: http.StatusBadGateway, code: codeUpstream, why: "it can't be reached: " + dialReason(err)}
}

// lookupReason and dialReason keep this machine's own addresses and resolvers
// out of what a sandbox is told.
func lookupReason(err error) string {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host"
	case errors.As(err, &dns) && dns.IsTimeout, errors.Is(err, context.DeadlineExceeded):
		return "the resolver didn't answer"
	default:
		return "the resolver failed"
	}
}

func dialReason(err error) string {
	var sys *os.SyscallError
	if errors.As(err, &sys) {
		return sys.Err.Error()
	}
	return "the connection failed"
}

// refuse answers a call that goes nowhere, logs and counts it, and ends the
// connection.
func (s *Service) refuse(w http.ResponseWriter, c call, why refusal) {
	s.refused(c, why)
	writeRefusal(w, c.what, why)
}

// refused logs and counts a call that goes nowhere.
func (s *Service) refused(c call, why refusal) {
	record := c.record(wire.Refused)
	record.Reason, record.Status = string(why.code), why.status
	s.wire.Append(record)
	s.tally.refused(c.what, why)
	s.countRefusal(why)
}

// countRefusal pauses the wire when there were too many. What the wire's own
// state refuses, and what came too fast, is no sign of a program gone astray.
func (s *Service) countRefusal(why refusal) {
	switch why.code {
	case codePaused, codeStopped, codeRate:
		return
	}
	if s.refusals.add(time.Now()) {
		reason := fmt.Sprintf("%d refusals in a minute paused it (--pause-after)", s.refusals.limit)
		if s.Pause(reason) {
			s.tally.paused(reason + ": lnk sandbox resume lets it go on")
		}
	}
}

// discardTimeout is how long what is still to come of a refused request is
// waited for, so that its client finds the answer.
const discardTimeout = 5 * time.Second

func writeRefusal(w http.ResponseWriter, what string, why refusal) {
	// The HTTP server would wait for the rest of its body for ever.
	if server, ok := w.(interface{ SetReadDeadline(time.Time) error }); ok {
		server.SetReadDeadline(time.Now().Add(discardTimeout))
	}
	body := "refused " + what + ": " + why.why + "\n"
	h := w.Header()
	clear(h)
	h.Set("Link-Refused", string(why.code))
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Connection", "close")
	if why.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(why.retryAfter))
	}
	w.WriteHeader(why.status)
	w.Write([]byte(body))
}

// clipQuote shows what a sandbox sent, whatever it is, on one line.
func clipQuote(unsafe string) string {
	if len(unsafe) > 100 {
		unsafe = unsafe[:100]
	}
	return strconv.Quote(unsafe)
}
