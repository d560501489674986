package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strconv"
	"time"

	"link.internal/lnk/internal/bind"
	"link.internal/lnk/internal/channel"
	"link.internal/lnk/internal/egress"
	"link.internal/lnk/internal/reach"
	"link.internal/lnk/internal/wire"
)

// Service answers every call of one sandbox: it is what a proxy is once it
// has rules. It is an http.Handler for both of the proxy's listeners.
type Service struct {
	rules      *reach.Rules
	interfaces *egress.Interfaces
	direct     *egress.Direct
	wire       *wire.Log
	tally      *tally
	calls      calls
	forward    *httputil.ReverseProxy
}

// NewService checks the rules and opens the log. refused is told of each
// first refusal of its kind, and must not block.
func NewService(rules bind.Rules, log *slog.Logger, refused func(channel.Refused)) (*Service, error) {
	compiled, err := rules.Compile()
	if err != nil {
		return nil, err
	}
	s := &Service{rules: compiled, interfaces: &egress.Interfaces{}, tally: newTally(refused)}
	if rules.Wire != "" {
		if s.wire, err = wire.OpenLog(rules.Wire, rules.Agent); err != nil {
			return nil, err
		}
	}
	s.direct = &egress.Direct{Rules: compiled, Interfaces: s.interfaces}
	s.forward = s.newForward(log)
	return s, nil
}

// closeLimit bounds how long the records of ended calls are waited for.
const closeLimit = 2 * time.Second

// Close ends every open tunnel, waits for their records, and returns what was
// seen in all.
func (s *Service) Close() channel.Summary {
	s.calls.closeAll(closeLimit)
	s.wire.Close()
	return s.tally.summary()
}

// ServeHTTP answers one request.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.calls.enter() {
		writeRefusal(w, "every call", refusal{http.StatusServiceUnavailable, codeStopped, "its proxy is ending"})
		return
	}
	defer s.calls.leave()
	switch {
	case r.Method == http.MethodConnect:
		s.connect(w, r)
	case r.URL.IsAbs():
		s.forwardHTTP(w, r)
	default:
		// A request to the proxy itself. It has no routes.
		s.refuse(w, r, call{start: time.Now(), what: "the proxy itself"}, refusal{
			status: http.StatusNotFound, code: codeRoute,
			why: "it is a proxy: send it CONNECT, or a request with a whole http:// URL",
		})
	}
}

// call is what is known of a request as it is answered.
type call struct {
	start  time.Time
	target reach.Target
	what   string // the target as a person reads it
}

func (c call) record(r *http.Request, verdict wire.Verdict) wire.Record {
	record := wire.Record{
		From: from(r), Method: r.Method, Verdict: verdict, MS: time.Since(c.start).Milliseconds(),
	}
	if c.target.Port != 0 {
		record.Host, record.Port = c.target.Host.String(), c.target.Port
	}
	if r.Method != http.MethodConnect {
		record.Path = r.URL.EscapedPath()
	}
	return record
}

// fromKey is the context key of the listener that a connection came by.
type fromKey struct{}

func from(r *http.Request) string {
	name, _ := r.Context().Value(fromKey{}).(string)
	return name
}

// refusal is an answer that is not the origin's.
type refusal struct {
	status int
	code   reach.Code
	why    string
}

// The codes beside those of package reach.
const (
	codeStopped    reach.Code = "stopped"
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
		return refusal{status, refused.Decision.Code, refused.Decision.Why}
	}
	var unresolved *egress.ResolveError
	if errors.As(err, &unresolved) {
		return refusal{http.StatusBadGateway, codeUnresolved, "its name has no address here: " + lookupReason(unresolved)}
	}
	var timeout net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return refusal{http.StatusGatewayTimeout, codeUpstream, "it didn't answer in time"}
	}
	return refusal{http.StatusBadGateway, codeUpstream, "it didn't answer: " + dialReason(err)}
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
func (s *Service) refuse(w http.ResponseWriter, r *http.Request, c call, why refusal) {
	record := c.record(r, wire.Refused)
	record.Reason, record.Status = string(why.code), why.status
	s.wire.Append(record)
	s.tally.refused(c.what, why)
	writeRefusal(w, c.what, why)
}

func writeRefusal(w http.ResponseWriter, what string, why refusal) {
	body := "refused " + what + ": " + why.why + "\n"
	h := w.Header()
	clear(h)
	h.Set("Link-Refused", string(why.code))
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Connection", "close")
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
