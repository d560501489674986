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

// serverName reads a ClientHello and judges it. It returns what was read, to
// be passed on untouched.
func (s *Service) serverName(p *pair, early []byte, t reach.Target) (read []byte, why *refusal) {
	refuse := func(reason string) ([]byte, *refusal) {
		return nil, &refusal{code: codeSNI, why: reason + " (--tcp " + t.String() + " opens it for any use)"}
	}
	// A name on a shared address must not carry another site's traffic.
	read = append(make([]byte, 0, 2048), early...)
	limit := time.Now().Add(helloTimeout)
	p.near.SetReadDeadline(limit)
	for {
		hello, err := clienthello.Parse(read)
		if err == nil {
			if reason := s.judgeHello(hello, t); reason != "" {
				return refuse(reason)
			}
			p.near.SetReadDeadline(time.Time{})
			return read, nil
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
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(limit) && p.readAgain(p.near, &s.gate) {
			p.near.SetReadDeadline(limit)
			continue
		}
		if err != nil && k == 0 {
			return refuse("it opened no TLS connection on 443")
		}
	}
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
