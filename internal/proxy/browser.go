package proxy

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// fromPage reports whether a request to the proxy itself may be a web page's:
// its Host isn't this loopback, which a name that is pointed here carries
// (DNS rebinding), or a browser marks it as from another site. No Host is a
// sign too: every client that names the proxy sends one.
func fromPage(r *http.Request) bool {
	if !loopbackHost(r.Host) {
		return true
	}
	// A list, since a header may be sent twice.
	for _, origin := range r.Header.Values("Origin") {
		if origin != "http://"+r.Host {
			return true
		}
	}
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site != "same-origin" && site != "none" {
			return true
		}
	}
	return false
}

// loopbackHost reports whether a Host header names this loopback, with or
// without a port.
func loopbackHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if strings.EqualFold(name, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(name)
	return err == nil && addr.Zone() == "" && addr.IsLoopback() && !addr.Is4In6()
}

// onceAMinute lets one through a minute.
type onceAMinute struct {
	mu   sync.Mutex
	last time.Time
}

func (o *onceAMinute) allow(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.last.IsZero() && now.Sub(o.last) < time.Minute {
		return false
	}
	o.last = now
	return true
}
