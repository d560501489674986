// Package socks is SOCKS version 5 (RFC 1928) on the wire, as a client that
// asks an address of a server without authentication.
//
// It sends its greeting and its request at once, so a connection costs one
// round trip: a server that wants no authentication must read them one after
// the other in any case. It takes not one byte more than the replies, so what
// the far end sends first is still in the connection.
//
// It does not send names, and it does not authenticate.
package socks

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// The bytes of RFC 1928.
const (
	version        = 5 // section 3
	methodNone     = 0 // section 3: no authentication required
	commandConnect = 1 // section 4
	reserved       = 0
	addressIPv4    = 1 // section 5
	addressName    = 3
	addressIPv6    = 4
	succeeded      = 0 // section 6
)

// ReplyError is a server's refusal (section 6).
type ReplyError byte

// Error names it in the RFC's words.
func (e ReplyError) Error() string {
	names := [...]string{
		1: "general SOCKS server failure", 2: "connection not allowed by ruleset", 3: "network unreachable", 4: "host unreachable",
		5: "connection refused", 6: "TTL expired", 7: "command not supported", 8: "address type not supported",
	}
	if int(e) < len(names) && names[e] != "" {
		return "SOCKS upstream: " + names[e]
	}
	return fmt.Sprintf("SOCKS upstream: reply %d", byte(e))
}

// Connect asks the server at the other end of conn for a connection to to.
// When it returns nil, conn is that connection.
func Connect(conn io.ReadWriter, to netip.AddrPort) error {
	if _, err := conn.Write(request(to)); err != nil {
		return fmt.Errorf("SOCKS upstream: %w", err)
	}
	var method [2]byte
	if _, err := io.ReadFull(conn, method[:]); err != nil {
		return fmt.Errorf("SOCKS upstream: %w", err)
	}
	if method[0] != version {
		return fmt.Errorf("SOCKS upstream: it speaks version %d, not 5", method[0])
	}
	if method[1] != methodNone {
		return errors.New("SOCKS upstream: it wants authentication")
	}
	return readReply(conn)
}

// request is the greeting and the request together.
func request(to netip.AddrPort) []byte {
	out := []byte{version, 1, methodNone, version, commandConnect, reserved}
	if addr := to.Addr().Unmap(); addr.Is4() {
		out = append(out, addressIPv4)
		out = append(out, addr.AsSlice()...)
	} else {
		out = append(out, addressIPv6)
		out = append(out, addr.AsSlice()...)
	}
	return append(out, byte(to.Port()>>8), byte(to.Port()))
}

// readReply reads a reply of section 6, whose bound address may have any form
// and tells nothing that is needed.
func readReply(conn io.Reader) error {
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return fmt.Errorf("SOCKS upstream: %w", err)
	}
	if head[0] != version {
		return fmt.Errorf("SOCKS upstream: a reply of version %d, not 5", head[0])
	}
	if head[1] != succeeded {
		return ReplyError(head[1])
	}
	length := 0
	switch head[3] {
	case addressIPv4:
		length = 4
	case addressIPv6:
		length = 16
	case addressName:
		var n [1]byte
		if _, err := io.ReadFull(conn, n[:]); err != nil {
			return fmt.Errorf("SOCKS upstream: %w", err)
		}
		length = int(n[0])
	default:
		return fmt.Errorf("SOCKS upstream: a reply with address type %d", head[3])
	}
	rest := make([]byte, length+2)
	if _, err := io.ReadFull(conn, rest); err != nil {
		return fmt.Errorf("SOCKS upstream: %w", err)
	}
	return nil
}
