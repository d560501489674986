package bind

import (
	"fmt"
	"path/filepath"
	"strings"

	"link.internal/lnk/internal/reach"
)

// Upstream is where the internet's traffic leaves from. The zero value is direct.
type Upstream struct {
	Kind UpstreamKind
	// Address is 127.0.0.1 and a port, or the absolute path of a Unix socket.
	Address string
}

// UpstreamKind is what an upstream speaks.
type UpstreamKind uint8

// The kinds of upstreams.
const (
	Direct UpstreamKind = iota
	SOCKSTCP
	SOCKSUnix
	HTTPProxy
)

// ParseUpstream reads direct, socks5://127.0.0.1:PORT, socks5:///PATH or
// http://127.0.0.1:PORT. An upstream elsewhere than on this machine is
// refused: nothing would keep others from reading or answering for it.
func ParseUpstream(text string) (Upstream, error) {
	fail := func() (Upstream, error) {
		return Upstream{}, fmt.Errorf("--upstream %q is none of direct, socks5://127.0.0.1:PORT, socks5:///PATH-OF-A-SOCKET, http://127.0.0.1:PORT", text)
	}
	if text == "" || text == "direct" {
		return Upstream{}, nil
	}
	if path, ok := strings.CutPrefix(text, "socks5://"); ok && strings.HasPrefix(path, "/") {
		if filepath.Clean(path) != path || path == "/" {
			return fail()
		}
		return Upstream{Kind: SOCKSUnix, Address: path}, nil
	}
	for scheme, kind := range map[string]UpstreamKind{"socks5://127.0.0.1:": SOCKSTCP, "http://127.0.0.1:": HTTPProxy} {
		if port, ok := strings.CutPrefix(text, scheme); ok {
			if _, err := reach.ParsePort(port); err != nil {
				return fail()
			}
			return Upstream{Kind: kind, Address: "127.0.0.1:" + port}, nil
		}
	}
	return fail()
}

// Resolves reports whether names are looked up on this machine.
func (u Upstream) Resolves() bool { return u.Kind != HTTPProxy }
