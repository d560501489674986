package handoff

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ProxyEnd is the proxy's end of one relay's connection. Ask may be called by
// several goroutines, Receive by one.
type ProxyEnd struct {
	// Plain is what the relay said of its wall: no port under 1024 can be had.
	Plain bool

	conn *os.File
	raw  rawConn

	mu    sync.Mutex
	asked map[int]Listener // not yet answered
}

type rawConn interface {
	Read(f func(fd uintptr) bool) error
	Write(f func(fd uintptr) bool) error
}

// NewProxyEnd takes over an accepted connection of type SOCK_SEQPACKET, which
// must be non-blocking, and waits for the relay's hello.
func NewProxyEnd(conn *os.File) (*ProxyEnd, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("local.sock: %w", err)
	}
	p := &ProxyEnd{conn: conn, raw: raw, asked: make(map[int]Listener)}
	message, file, err := p.receive()
	if err != nil {
		return nil, err
	}
	closeFile(file)
	if message.Hello != 1 || file != nil {
		return nil, errors.New("local.sock: a relay of another version")
	}
	p.Plain = message.Plain
	return p, nil
}

// Close ends the connection and unblocks Receive.
func (p *ProxyEnd) Close() error { return p.conn.Close() }

// Ask asks the relay for listeners, whose ids must be new and not zero. It
// waits while the relay has more to answer than its socket holds, so whoever
// receives must not be the one who asks for many.
func (p *ProxyEnd) Ask(listeners []Listener) error {
	for _, l := range listeners {
		if _, err := netip.ParseAddrPort(l.Address); err != nil || l.ID == 0 {
			return fmt.Errorf("local.sock: bad listener %+v", l)
		}
	}
	if err := p.expect(listeners); err != nil {
		return err
	}
	for len(listeners) > 0 {
		n := min(len(listeners), maxAsked)
		part := toRelay{Listen: listeners[:n], More: n < len(listeners)}
		listeners = listeners[n:]
		data, err := json.Marshal(part)
		if err != nil {
			return fmt.Errorf("local.sock: %w", err)
		}
		if len(data) > MaxMessage {
			return fmt.Errorf("local.sock: a message of %d bytes", len(data))
		}
		if err := p.send(data); err != nil {
			return err
		}
	}
	return nil
}

func (p *ProxyEnd) expect(listeners []Listener) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.asked)+len(listeners) > MaxListeners {
		return fmt.Errorf("local.sock: more than %d listeners", MaxListeners)
	}
	for _, l := range listeners {
		p.asked[l.ID] = l
	}
	return nil
}

// maxAsked is how many listeners one message asks for: each takes some 60 bytes.
const maxAsked = 128

func (p *ProxyEnd) send(data []byte) error {
	var sendErr error
	err := p.raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendmsg(int(fd), data, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		return !errors.Is(sendErr, unix.EAGAIN)
	})
	if err == nil {
		err = sendErr
	}
	if err != nil {
		return fmt.Errorf("local.sock: %w", err)
	}
	return nil
}

// Handed is the relay's answer for one listener.
type Handed struct {
	Listener Listener
	// File is the socket, checked, owned by the caller. It is nil when Err is set.
	File *os.File
	// Err says why there is none: the relay couldn't make it, or what it
	// handed isn't what was asked for and has been closed.
	Err error
}

// Receive waits for the next answer. Its error is the connection's: io.EOF
// when the relay is gone, another when it broke the protocol.
func (p *ProxyEnd) Receive() (Handed, error) {
	message, file, err := p.receive()
	if err != nil {
		return Handed{}, err
	}
	id := message.Listening
	if id == 0 {
		id = message.Failed
	}
	p.mu.Lock()
	listener, ok := p.asked[id]
	delete(p.asked, id)
	p.mu.Unlock()
	if !ok {
		closeFile(file)
		return Handed{}, fmt.Errorf("local.sock: an answer to what wasn't asked (id %d)", id)
	}
	if message.Failed != 0 {
		closeFile(file)
		return Handed{Listener: listener, Err: fmt.Errorf("inside the sandbox: %.200q", message.Error)}, nil
	}
	if message.lost {
		return Handed{Listener: listener, Err: errors.New("the proxy has no descriptor free (RLIMIT_NOFILE)")}, nil
	}
	if file == nil {
		return Handed{Listener: listener, Err: errors.New("handed no descriptor")}, nil
	}
	if err := Check(int(file.Fd()), listener); err != nil {
		closeFile(file)
		return Handed{Listener: listener, Err: fmt.Errorf("handed a descriptor that isn't %s %s: %w", listener.Network, listener.Address, err)}, nil
	}
	return Handed{Listener: listener, File: file}, nil
}

func closeFile(file *os.File) {
	if file != nil {
		file.Close()
	}
}

// receive reads one message with at most one descriptor.
func (p *ProxyEnd) receive() (toProxy, *os.File, error) {
	buf := make([]byte, MaxMessage)
	// Room for exactly one descriptor. CmsgSpace would have room for two on
	// 64-bit machines, by its padding.
	oob := make([]byte, unix.CmsgLen(4))
	var n, oobn, flags int
	var recvErr error
	err := p.raw.Read(func(fd uintptr) bool {
		n, oobn, flags, _, recvErr = unix.Recvmsg(int(fd), buf, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		return !errors.Is(recvErr, unix.EAGAIN) && !errors.Is(recvErr, unix.EINTR)
	})
	if err == nil {
		err = recvErr
	}
	if err != nil {
		if errors.Is(err, os.ErrClosed) || errors.Is(err, unix.ECONNRESET) {
			err = io.EOF
		}
		return toProxy{}, nil, err
	}
	file, err := onlyDescriptor(oob[:oobn])
	if err != nil {
		return toProxy{}, nil, err
	}
	if n == 0 {
		closeFile(file)
		return toProxy{}, nil, io.EOF
	}
	if flags&unix.MSG_TRUNC != 0 || flags&unix.MSG_CTRUNC != 0 && file != nil {
		closeFile(file)
		return toProxy{}, nil, errors.New("local.sock: more than one descriptor, or a message too long")
	}
	var message toProxy
	if err := decode(buf[:n], &message); err != nil {
		closeFile(file)
		return toProxy{}, nil, err
	}
	// One that this process had no number free for: cut off, and none came.
	message.lost = flags&unix.MSG_CTRUNC != 0
	return message, file, nil
}

func onlyDescriptor(oob []byte) (*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("local.sock: %w", err)
	}
	var only *os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if only != nil {
				unix.Close(fd)
				continue
			}
			only = os.NewFile(uintptr(fd), "handed")
		}
	}
	return only, nil
}

// Check tells whether fd is a socket of the stated network, bound to the
// stated address, listening if it is TCP, in a network namespace that is not
// this process's own. The first thing asked of it is a socket option, which a
// descriptor of any other kind refuses at once: fstat(2) on one of a
// filesystem in user space would wait for whoever serves it.
func Check(fd int, l Listener) error {
	want, err := netip.ParseAddrPort(l.Address)
	if err != nil {
		return err
	}
	domain, kind, protocol, listening := unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP, 1
	if want.Addr().Is6() {
		domain = unix.AF_INET6
	}
	if l.Network == "udp" {
		kind, protocol, listening = unix.SOCK_DGRAM, unix.IPPROTO_UDP, 0
	}
	for _, option := range []struct {
		name string
		opt  int
		want int
	}{
		{"domain", unix.SO_DOMAIN, domain},
		{"type", unix.SO_TYPE, kind},
		{"protocol", unix.SO_PROTOCOL, protocol},
		{"listening state", unix.SO_ACCEPTCONN, listening},
	} {
		got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option.opt)
		if err != nil {
			return fmt.Errorf("its %s: %w", option.name, err)
		}
		if got != option.want {
			return fmt.Errorf("its %s is %d, not %d", option.name, got, option.want)
		}
	}
	theirs, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return fmt.Errorf("its network namespace: %w", err)
	}
	ours, err := ownNetworkNamespace()
	if err != nil {
		return err
	}
	if theirs == ours {
		return errors.New("it is of this machine's own network namespace")
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return fmt.Errorf("its address: %w", err)
	}
	if got := addrPort(name); got != want {
		return fmt.Errorf("its address is %s", got)
	}
	return nil
}

// Supported reports why this kernel can't tell a socket of the sandbox from
// one of the machine's, nil where it can.
func Supported() error {
	if _, err := ownNetworkNamespace(); err != nil {
		return fmt.Errorf("%w: a network needs Linux 5.14 (SO_NETNS_COOKIE)", err)
	}
	return nil
}

// ownNetworkNamespace is the cookie of this process's network namespace
// (socket(7), SO_NETNS_COOKIE, Linux 5.14).
func ownNetworkNamespace() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("this process's network namespace: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("this process's network namespace: %w", err)
	}
	return cookie, nil
}

func addrPort(name unix.Sockaddr) netip.AddrPort {
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// PrepareAccepted sets anew what a connection inherits from a listener that
// the sandbox made and may have changed: a lingering close, which blocks; a
// low-water mark, which holds bytes back; a socket filter, which reads or
// drops them.
func PrepareAccepted(fd int) error {
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}); err != nil {
		return fmt.Errorf("SO_LINGER: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1); err != nil {
		return fmt.Errorf("SO_RCVLOWAT: %w", err)
	}
	// A filter that was locked can't be taken off: EPERM.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("SO_DETACH_FILTER: %w", err)
	}
	return nil
}
