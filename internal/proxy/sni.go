package proxy

import (
	"errors"
	"os"
	"time"

	"link.internal/lnk/internal/clienthello"
	"link.internal/lnk/internal/reach"
)

// helloTimeout bounds the wait for a ClientHello.
const helloTimeout = 15 * time.Second

// judgesServerName reports whether a tunnel must be a TLS connection to the
// very host that was asked for: on 443, unless --tcp opens it for any use.
func (s *Service) judgesServerName(t reach.Target) bool {
	return t.Port == 443 && !s.rules.Endpoint(t)
}

// errGone is a tunnel that ended before its client had said anything to judge.
var errGone = errors.New("the tunnel ended")

// serverName reads a ClientHello and judges it. It returns what was read, to
// be passed on untouched; errGone where there is nothing to judge.
func (s *Service) serverName(p *pair, early []byte, t reach.Target) (read []byte, why *refusal, err error) {
	refuse := func(reason string) ([]byte, *refusal, error) {
		return nil, &refusal{code: codeSNI, why: reason + " (--tcp " + t.String() + " opens it for any use)"}, nil
	}
	// A name on a shared address must not carry another site's traffic.
	read = append(make([]byte, 0, 2048), early...)
	limit := time.Now().Add(helloTimeout)
	if !p.readBefore(limit) {
		return nil, nil, errGone
	}
	for {
		hello, err := clienthello.Parse(read)
		if err == nil {
			if reason := s.judgeHello(hello, t); reason != "" {
				return refuse(reason)
			}
			if !p.readBefore(time.Time{}) {
				return nil, nil, errGone
			}
			return read, nil, nil
		}
		if !errors.Is(err, clienthello.ErrMore) || len(read) >= clienthello.MaxSize {
			return refuse("what it sends on 443 isn't TLS")
		}
		n := len(read)
		if n == cap(read) {
			read = append(read, 0)[:n]
		}
		k, err := p.near.Read(read[n:cap(read)])
		read = read[:n+k]
		switch {
		case k > 0 || err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			current, _ := s.gate.now()
			if current == running && time.Now().After(limit) {
				return refuse("it opened no TLS connection on 443")
			}
			// A pause, which has its own time.
			if !p.readAgain(p.near, &s.gate) {
				return nil, nil, errGone
			}
			limit = time.Now().Add(helloTimeout)
			p.readBefore(limit)
		default:
			return nil, nil, errGone
		}
	}
}

// readBefore bounds the reading of the client, unless the tunnel was ended.
func (p *pair) readBefore(limit time.Time) bool {
	p.near.SetReadDeadline(limit)
	if p.aborted.Load() {
		p.abort() // its deadline may just have been lifted
		return false
	}
	return true
}

// judgeHello returns why a ClientHello isn't the target's, or "".
func (s *Service) judgeHello(hello clienthello.Hello, t reach.Target) string {
	if hello.Encrypted && !s.rules.AnyHost() {
		return "its TLS hides the server's name (encrypted ClientHello)"
	}
	if hello.ServerName == "" {
		if t.Host.Name == "" {
			return "" // a literal address needs none
		}
		return "its TLS names no server"
	}
	named, err := reach.ParseHost(hello.ServerName)
	if err != nil {
		return "its TLS names no host"
	}
	if named == t.Host || t.Host.Name == "" && s.rules.InternetHost(named) {
		return ""
	}
	return "its TLS names another server, " + named.String()
}
