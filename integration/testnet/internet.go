package testnet

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// dnsAddress is the internet's DNS server, which the machine's resolv.conf names.
const dnsAddress = "45.80.255.53"

// Internet is the other end of the machine's interface. Its methods may be
// called by several goroutines.
type Internet struct {
	DNS *DNS
	ns  netns.NsHandle
	own netns.NsHandle
	ca  *authority

	mu   sync.Mutex
	next byte
	v6   byte
}

// New makes the internet, and connects this machine to it. The process must
// have been through Reexec.
func New() (*Internet, error) {
	n := &Internet{}
	if err := n.connect(); err != nil {
		return nil, err
	}
	var err error
	if n.ca, err = newAuthority(); err != nil {
		return nil, err
	}
	if err := trust(n.ca.pem); err != nil {
		return nil, err
	}
	if err := n.addAddress(netip.MustParseAddr(dnsAddress)); err != nil {
		return nil, err
	}
	if n.DNS, err = n.serveDNS(); err != nil {
		return nil, err
	}
	return n, nil
}

// connect makes the namespace and the pair of interfaces between.
func (n *Internet) connect() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var err error
	if n.own, err = netns.Get(); err != nil {
		return fmt.Errorf("this network namespace: %w", err)
	}
	if n.ns, err = netns.New(); err != nil {
		return fmt.Errorf("making a network namespace: %w", err)
	}
	if err := netns.Set(n.own); err != nil {
		return err
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "machine0", PeerNamespace: netlink.NsFd(n.ns)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("making an interface: %w", err)
	}
	if err := up("lo"); err != nil {
		return err
	}
	if err := up("eth0", "10.77.0.2/24", "fd77::2/64"); err != nil {
		return err
	}
	for _, gateway := range []string{"10.77.0.1", "fd77::1"} {
		if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gateway)}); err != nil {
			return fmt.Errorf("routing by %s: %w", gateway, err)
		}
	}
	return n.in(func() error {
		if err := up("lo"); err != nil {
			return err
		}
		return up("machine0", "10.77.0.1/24", "fd77::1/64")
	})
}

// up gives an interface its addresses and starts it.
func up(name string, addresses ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	for _, address := range addresses {
		if err := addTo(link, address); err != nil {
			return err
		}
	}
	return nil
}

func addTo(link netlink.Link, address string) error {
	parsed, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	parsed.Flags = 0x02 // IFA_F_NODAD: usable at once
	if err := netlink.AddrAdd(link, parsed); err != nil {
		return fmt.Errorf("address %s: %w", address, err)
	}
	return nil
}

// in calls f on a thread that is in the internet. Sockets made there stay
// there, whichever thread uses them later.
func (n *Internet) in(f func() error) error {
	runtime.LockOSThread()
	if err := netns.Set(n.ns); err != nil {
		return err
	}
	err := f()
	if back := netns.Set(n.own); back != nil {
		return back // the thread stays locked, and ends with its goroutine
	}
	runtime.UnlockOSThread()
	return err
}

func (n *Internet) addAddress(addr netip.Addr) error {
	return n.in(func() error {
		link, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return addTo(link, netip.PrefixFrom(addr, addr.BitLen()).String())
	})
}

// Address makes up a public-looking IPv4 address.
func (n *Internet) Address() netip.Addr {
	n.mu.Lock()
	n.next++
	addr := netip.AddrFrom4([4]byte{45, 80, 1, n.next})
	n.mu.Unlock()
	must(n.addAddress(addr))
	return addr
}

// Address6 makes up a public-looking IPv6 address.
func (n *Internet) Address6() netip.Addr {
	n.mu.Lock()
	n.v6++
	addr := netip.AddrFrom16([16]byte{0x2a, 0x0a, 0x77, 15: n.v6})
	n.mu.Unlock()
	must(n.addAddress(addr))
	return addr
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Host makes a name with an address of its own.
func (n *Internet) Host(name string) netip.Addr {
	addr := n.Address()
	n.DNS.Set(name, addr)
	return addr
}

// Listen listens on an address of the internet.
func (n *Internet) Listen(addr netip.Addr, port uint16) net.Listener {
	var l net.Listener
	must(n.in(func() (err error) {
		config := net.ListenConfig{}
		config.SetMultipathTCP(false)
		l, err = config.Listen(context.Background(), "tcp", netip.AddrPortFrom(addr, port).String())
		return err
	}))
	return l
}

// Origin is a server of the internet, and what it saw.
type Origin struct {
	Addr     netip.Addr
	listener net.Listener

	mu       sync.Mutex
	accepted int
	requests []string
}

// Accepted is how many connections came.
func (o *Origin) Accepted() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.accepted
}

// Requests are the requests that came, each as "METHOD host path".
func (o *Origin) Requests() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.requests...)
}

// Close stops the server.
func (o *Origin) Close() { o.listener.Close() }

// Accept counts.
func (o *Origin) Accept() (net.Conn, error) {
	conn, err := o.listener.Accept()
	if err == nil {
		o.mu.Lock()
		o.accepted++
		o.mu.Unlock()
	}
	return conn, err
}

type originListener struct{ *Origin }

func (l originListener) Close() error   { return l.listener.Close() }
func (l originListener) Addr() net.Addr { return l.listener.Addr() }

// Serve starts a server whose connections are each given to f, which owns them.
func (n *Internet) Serve(addr netip.Addr, port uint16, f func(net.Conn)) *Origin {
	o := &Origin{Addr: addr, listener: n.Listen(addr, port)}
	go func() {
		for {
			conn, err := o.Accept()
			if err != nil {
				return
			}
			go f(conn)
		}
	}()
	return o
}

// Echo starts a server that sends back what it gets.
func (n *Internet) Echo(addr netip.Addr, port uint16) *Origin {
	return n.Serve(addr, port, func(conn net.Conn) {
		defer conn.Close()
		io.Copy(conn, conn)
	})
}

// HTTP starts an HTTP server. A nil handler answers every request with "hello
// from HOST\n".
func (n *Internet) HTTP(addr netip.Addr, port uint16, handler http.Handler) *Origin {
	o := &Origin{Addr: addr, listener: n.Listen(addr, port)}
	server := &http.Server{Handler: o.recording(handler), ErrorLog: log.New(io.Discard, "", 0)}
	go server.Serve(originListener{o})
	return o
}

// TLS starts an HTTPS server with a certificate that the machine trusts, for
// whatever name a client asks.
func (n *Internet) TLS(addr netip.Addr, port uint16, handler http.Handler) *Origin {
	o := &Origin{Addr: addr, listener: n.Listen(addr, port)}
	server := &http.Server{Handler: o.recording(handler), ErrorLog: log.New(io.Discard, "", 0)}
	go server.Serve(tls.NewListener(originListener{o}, &tls.Config{GetCertificate: n.ca.certificate}))
	return o
}

func (o *Origin) recording(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		o.requests = append(o.requests, r.Method+" "+r.Host+" "+r.URL.RequestURI())
		o.mu.Unlock()
		if handler == nil {
			fmt.Fprintf(w, "hello from %s\n", r.Host)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// In calls f on a thread that is in the internet's network namespace.
func (n *Internet) In(f func()) {
	must(n.in(func() error { f(); return nil }))
}
