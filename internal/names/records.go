package names

import (
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// passable returns a record as it may be passed on, or nil. Records name
// hosts, which are reached if they are listed and not otherwise. What an
// HTTPS record says of a connection beyond that is taken out, where it can't
// hold here: an address that nothing is asked at, a key that would hide the
// server's name from the proxy, HTTP/3, which is no TCP (RFC 9460, sections 7
// and 9). Without it a client does as with no HTTPS record.
func passable(rr dns.RR, asked string) dns.RR {
	https, ok := rr.(*dns.HTTPS)
	if !ok {
		return rr
	}
	// One that sends clients to another host has them say this host's name
	// there (RFC 9460, section 2.5), which is another server's for the proxy.
	if https.Priority == 0 || https.Target != "." && !strings.EqualFold(https.Target, asked) {
		return nil
	}
	var kept []dns.SVCBKeyValue
	for _, value := range https.Value {
		switch v := value.(type) {
		case *dns.SVCBMandatory:
			// Checked below, against what is left.
			kept = append(kept, v)
		case *dns.SVCBAlpn:
			v.Alpn = slices.DeleteFunc(v.Alpn, func(id string) bool { return id == "h3" || len(id) > 3 && id[:3] == "h3-" })
			if len(v.Alpn) > 0 {
				kept = append(kept, v)
			}
		case *dns.SVCBECHConfig, *dns.SVCBIPv4Hint, *dns.SVCBIPv6Hint:
		case *dns.SVCBNoDefaultAlpn, *dns.SVCBPort:
			kept = append(kept, v)
		}
	}
	has := func(key dns.SVCBKey) bool {
		return slices.ContainsFunc(kept, func(v dns.SVCBKeyValue) bool { return v.Key() == key })
	}
	if !has(dns.SVCB_ALPN) && has(dns.SVCB_NO_DEFAULT_ALPN) {
		return nil // it spoke HTTP/3 alone
	}
	for _, v := range kept {
		if mandatory, ok := v.(*dns.SVCBMandatory); ok {
			if !slices.ContainsFunc(mandatory.Code, func(key dns.SVCBKey) bool { return !has(key) }) {
				continue
			}
			return nil
		}
	}
	https.Value = kept
	return https
}
