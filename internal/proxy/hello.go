package proxy

import (
	"encoding/binary"
	"errors"
)

// clientHello is what is read of a TLS ClientHello to judge it.
type clientHello struct {
	// serverName is the host_name of the server_name extension (RFC 6066,
	// section 3), as it was sent; empty without one.
	serverName string
	// encrypted says that an encrypted ClientHello may name another server
	// (RFC 9849, section 5).
	encrypted bool
}

// errMore says that the bytes so far begin a ClientHello and don't end it.
var errMore = errors.New("incomplete ClientHello")

var errNotHello = errors.New("not a TLS ClientHello")

// Types and lengths of RFC 8446, sections 4 and 5, and RFC 6066.
const (
	recordHandshake  = 22
	recordHeader     = 5
	maxRecord        = 1 << 14
	handshakeHello   = 1
	extServerName    = 0
	nameTypeHost     = 0
	extEncryptedECH  = 0xfe0d
	maxHello         = 64 << 10
	handshakeHeader  = 4
	lenVersionRandom = 2 + 32
)

// parseClientHello reads the first handshake message from the records of a
// TLS connection. It returns errMore until it is whole, and another error for
// what is no ClientHello or holds a name in two ways.
func parseClientHello(data []byte) (clientHello, error) {
	message, err := handshakeMessage(data)
	if err != nil {
		return clientHello{}, err
	}
	in := reader{message}
	in.skip(lenVersionRandom)
	in.skip(in.length8())  // legacy_session_id
	in.skip(in.length16()) // cipher_suites
	in.skip(in.length8())  // legacy_compression_methods
	if in.bad() {
		return clientHello{}, errNotHello
	}
	if len(in.data) == 0 {
		return clientHello{}, nil // no extensions, as TLS 1.0 may
	}
	extensions := reader{in.take(in.length16())}
	if in.bad() || len(in.data) != 0 {
		return clientHello{}, errNotHello
	}
	var hello clientHello
	seenName := false
	for !extensions.bad() && len(extensions.data) > 0 {
		kind := extensions.length16()
		body := reader{extensions.take(extensions.length16())}
		if extensions.bad() {
			break
		}
		switch kind {
		case extServerName:
			// RFC 8446, section 4.2: no extension twice.
			if seenName {
				return clientHello{}, errNotHello
			}
			seenName = true
			if hello.serverName, err = hostName(body); err != nil {
				return clientHello{}, err
			}
		case extEncryptedECH:
			hello.encrypted = true
		}
	}
	if extensions.bad() {
		return clientHello{}, errNotHello
	}
	return hello, nil
}

// handshakeMessage joins the fragments of the first message, which may be
// spread over records (RFC 8446, section 5.1), without its header.
func handshakeMessage(data []byte) ([]byte, error) {
	var message []byte
	want := -1
	for {
		if want >= 0 && len(message) >= want {
			return message[handshakeHeader:want], nil
		}
		if len(data) == 0 {
			return nil, errMore
		}
		if data[0] != recordHandshake || len(data) > 1 && data[1] != 3 {
			return nil, errNotHello
		}
		if len(data) < recordHeader {
			return nil, errMore
		}
		length := int(binary.BigEndian.Uint16(data[3:]))
		if length == 0 || length > maxRecord {
			return nil, errNotHello
		}
		fragment := data[recordHeader:]
		whole := len(fragment) >= length
		if whole {
			fragment = fragment[:length]
		}
		message = append(message, fragment...)
		if len(message) > 0 && message[0] != handshakeHello {
			return nil, errNotHello
		}
		if want < 0 && len(message) >= handshakeHeader {
			want = handshakeHeader + (int(message[1])<<16 | int(message[2])<<8 | int(message[3]))
			if want > maxHello {
				return nil, errNotHello
			}
		}
		if !whole {
			if want >= 0 && len(message) >= want {
				continue
			}
			return nil, errMore
		}
		data = data[recordHeader+length:]
	}
}

// hostName reads a ServerNameList with its one host_name.
func hostName(body reader) (string, error) {
	list := reader{body.take(body.length16())}
	if body.bad() || len(body.data) != 0 {
		return "", errNotHello
	}
	kind := list.length8()
	name := list.take(list.length16())
	if list.bad() || len(list.data) != 0 || kind != nameTypeHost || len(name) == 0 {
		return "", errNotHello
	}
	return string(name), nil
}

// reader takes bytes from the front. Once it was asked for more than there
// is, it stays bad and gives nothing.
type reader struct{ data []byte }

// overrun marks a bad reader. It is never read from.
var overrun = make([]byte, 0)

func (r *reader) bad() bool { return r.data == nil }

func (r *reader) take(n int) []byte {
	if r.data == nil || len(r.data) < n {
		r.data = nil
		return overrun
	}
	taken := r.data[:n:n]
	r.data = r.data[n:]
	if r.data == nil {
		r.data = overrun
	}
	return taken
}

func (r *reader) skip(n int) { r.take(n) }

func (r *reader) length8() int {
	b := r.take(1)
	if len(b) < 1 {
		return 0
	}
	return int(b[0])
}

func (r *reader) length16() int {
	b := r.take(2)
	if len(b) < 2 {
		return 0
	}
	return int(binary.BigEndian.Uint16(b))
}
