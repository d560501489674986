package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"link.internal/lnk/internal/bind"
	"link.internal/lnk/internal/peercred"
	"link.internal/lnk/internal/reach"
	"link.internal/lnk/internal/socks"
)

// Conn is a connection that was made: a *net.TCPConn, or a *net.UnixConn to a
// SOCKS server, never wrapped, so that a copy can be spliced in the kernel.
type Conn interface {
	net.Conn
	CloseWrite() error
}

// UpstreamError says that the upstream itself could not be used.
type UpstreamError struct{ Err error }

// Error says so.
func (e *UpstreamError) Error() string { return "the upstream: " + e.Err.Error() }

// Unwrap returns what went wrong.
func (e *UpstreamError) Unwrap() error { return e.Err }

// dial connects to the upstream itself.
func (d *Dialer) dialUpstream(ctx context.Context) (Conn, error) {
	if d.Upstream.Kind == bind.SOCKSUnix {
		conn, err := peercred.DialOwned(ctx, d.Upstream.Address, os.Geteuid(), 0)
		if err != nil {
			return nil, &UpstreamError{err}
		}
		return conn, nil
	}
	dialer := net.Dialer{FallbackDelay: -1}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, "tcp4", d.Upstream.Address)
	if err != nil {
		return nil, &UpstreamError{err}
	}
	return conn.(*net.TCPConn), nil
}

// handshake runs f on a new connection to the upstream, and closes it when f
// fails or ctx ends before.
func (d *Dialer) handshake(ctx context.Context, f func(Conn) error) (Conn, error) {
	conn, err := d.dialUpstream(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	err = f(conn)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, &UpstreamError{err}
	}
	return conn, nil
}

// throughSOCKS connects to a judged address.
func (d *Dialer) throughSOCKS(ctx context.Context, to netip.AddrPort) (Conn, error) {
	return d.handshake(ctx, func(conn Conn) error { return socks.Connect(conn, to) })
}

// maxAnswer bounds the head of an HTTP upstream's answer.
const maxAnswer = 16 << 10

// throughHTTP hands the target's name, or address, to an HTTP proxy (RFC
// 9110, section 9.3.6).
func (d *Dialer) throughHTTP(ctx context.Context, t reach.Target) (Conn, error) {
	return d.handshake(ctx, func(conn Conn) error {
		if _, err := fmt.Fprintf(conn, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", t); err != nil {
			return err
		}
		head, err := readHead(conn)
		if err != nil {
			return err
		}
		response, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), &http.Request{Method: http.MethodConnect})
		if err != nil {
			return fmt.Errorf("HTTP upstream: %w", err)
		}
		if response.StatusCode/100 != 2 {
			return fmt.Errorf("HTTP upstream: it answered %d", response.StatusCode)
		}
		return nil
	})
}

// readHead reads to the end of the header section and not one byte further:
// the tunnel's first bytes may follow at once.
func readHead(conn io.Reader) ([]byte, error) {
	var head []byte
	one := make([]byte, 1)
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) && !bytes.HasSuffix(head, []byte("\n\n")) {
		if len(head) == maxAnswer {
			return nil, errors.New("HTTP upstream: its answer has no end")
		}
		if _, err := io.ReadFull(conn, one); err != nil {
			return nil, fmt.Errorf("HTTP upstream: %w", err)
		}
		head = append(head, one[0])
	}
	return head, nil
}
