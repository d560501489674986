package handoff

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"golang.org/x/sys/unix"
)

// SocketName is the socket's name in the socket folder.
const SocketName = "local.sock"

// RelayEnd is the relay's end of a connected local.sock. It uses no package
// net, which would double what an idle relay weighs.
type RelayEnd struct {
	fd int
}

// Dial connects to local.sock in the folder that folderFD is open on, which
// need not be mounted where the relay runs, and says hello. plain says that the
// relay has no capability: no port under 1024 is to be asked for.
func Dial(folderFD int, plain bool) (*RelayEnd, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("local.sock: %w", err)
	}
	// Through the descriptor, the path is short however deep the folder lies.
	path := fmt.Sprintf("/proc/self/fd/%d/%s", folderFD, SocketName)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("connecting to local.sock: %w", err)
	}
	r := &RelayEnd{fd: fd}
	if err := r.send(toProxy{Hello: 1, Plain: plain}, -1); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Close gives up the connection, and with it all further asking.
func (r *RelayEnd) Close() { unix.Close(r.fd) }

// ServeNext waits for one request and makes each listener that it asks for.
// What can't be made is reported to the proxy, which tells the person. It
// returns io.EOF when the proxy is gone.
func (r *RelayEnd) ServeNext() error {
	for {
		more, err := r.serveMessage()
		if err != nil || !more {
			return err
		}
	}
}

// serveMessage serves one message, and reports whether more of the request follows.
func (r *RelayEnd) serveMessage() (more bool, err error) {
	buf := make([]byte, MaxMessage)
	n, err := ignoringEINTR(func() (int, error) { return unix.Read(r.fd, buf) })
	if err != nil {
		return false, fmt.Errorf("local.sock: %w", err)
	}
	if n == 0 {
		return false, io.EOF
	}
	var request toRelay
	if err := decode(buf[:n], &request); err != nil {
		return false, err
	}
	for _, l := range request.Listen {
		if err := r.hand(l); err != nil {
			return false, err
		}
	}
	return request.More, nil
}

// hand makes one listener and sends it. It keeps no copy: when the proxy goes
// away the kernel closes the socket, and connections to it are refused.
func (r *RelayEnd) hand(l Listener) error {
	fd, err := makeListener(l)
	if err != nil {
		return r.send(toProxy{Failed: l.ID, Error: err.Error()}, -1)
	}
	defer unix.Close(fd)
	err = r.send(toProxy{Listening: l.ID}, fd)
	if errors.Is(err, unix.ETOOMANYREFS) {
		// The user has as many descriptors on their way as it may (unix(7)),
		// which is nothing that asking again would not mend.
		return r.send(toProxy{Failed: l.ID, Error: "this user has too many descriptors on their way between processes"}, -1)
	}
	return err
}

func (r *RelayEnd) send(message toProxy, fd int) error {
	data, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("local.sock: %w", err)
	}
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	if err := unix.Sendmsg(r.fd, data, rights, nil, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("local.sock: %w", err)
	}
	return nil
}

// listenBacklog is what listen(2) is asked for; the kernel cuts it to somaxconn.
const listenBacklog = 4096

func makeListener(l Listener) (int, error) {
	at, err := netip.ParseAddrPort(l.Address)
	if err != nil {
		return -1, err
	}
	family := unix.AF_INET
	var address unix.Sockaddr = &unix.SockaddrInet4{Port: int(at.Port()), Addr: as4(at.Addr())}
	if at.Addr().Is6() {
		family = unix.AF_INET6
		address = &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	}
	// The protocol is stated: with 0 a library may make it MPTCP, which the
	// proxy refuses.
	kind, protocol := unix.SOCK_STREAM, unix.IPPROTO_TCP
	switch l.Network {
	case "tcp":
	case "udp":
		kind, protocol = unix.SOCK_DGRAM, unix.IPPROTO_UDP
	default:
		return -1, fmt.Errorf("unknown network %q", l.Network)
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return -1, err
	}
	if l.Network == "tcp" {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil && family == unix.AF_INET6 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	if err == nil {
		err = unix.Bind(fd, address)
	}
	if err == nil && l.Network == "tcp" {
		err = unix.Listen(fd, listenBacklog)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("listening on %s %s: %w", l.Network, l.Address, err)
	}
	return fd, nil
}

func ignoringEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func as4(addr netip.Addr) [4]byte {
	if addr = addr.Unmap(); addr.Is4() {
		return addr.As4()
	}
	return [4]byte{}
}
