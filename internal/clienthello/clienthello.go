// Package clienthello reads the first message of a TLS connection, to learn
// which server it names. It reads nothing else of TLS, and changes nothing.
package clienthello

import (
	"encoding/binary"
	"errors"
)

// Hello is what is read of a TLS ClientHello to judge it.
type Hello struct {
	// ServerName is the host_name of the server_name extension (RFC 6066,
	// section 3), as it was sent; empty without one.
	ServerName string
	// Encrypted says that an encrypted ClientHello may name another server
	// (RFC 9849, section 5).
	Encrypted bool
}

// ErrMore says that the bytes so far begin a ClientHello and don't end it.
var ErrMore = errors.New("incomplete ClientHello")

// ErrNotHello is what is none.
var ErrNotHello = errors.New("not a TLS ClientHello")

// MaxSize bounds the bytes in which a ClientHello is found: its own, and the
// headers of the records that it is spread over.
const MaxSize = maxHello + maxRecord

// maxHello bounds the message.
const maxHello = 64 << 10

// Types and lengths of RFC 8446, sections 4 and 5, and RFC 6066.
const (
	recordHandshake  = 22
	recordHeader     = 5
	maxRecord        = 1 << 14
	handshakeHello   = 1
	extServerName    = 0
	nameTypeHost     = 0
	extEncryptedECH  = 0xfe0d
	handshakeHeader  = 4
	lenVersionRandom = 2 + 32
)

// Parse reads the first handshake message from the records of a
// TLS connection. It returns ErrMore until it is whole, and another error for
// what is no ClientHello or holds a name in two ways.
func Parse(data []byte) (Hello, error) {
	message, err := handshakeMessage(data)
	if err != nil {
		return Hello{}, err
	}
	in := reader{message}
	in.skip(lenVersionRandom)
	in.skip(in.length8())  // legacy_session_id
	in.skip(in.length16()) // cipher_suites
	in.skip(in.length8())  // legacy_compression_methods
	if in.bad() {
		return Hello{}, ErrNotHello
	}
	if len(in.data) == 0 {
		return Hello{}, nil // no extensions, as TLS 1.0 may
	}
	extensions := reader{in.take(in.length16())}
	if in.bad() || len(in.data) != 0 {
		return Hello{}, ErrNotHello
	}
	var hello Hello
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
				return Hello{}, ErrNotHello
			}
			seenName = true
			if hello.ServerName, err = hostName(body); err != nil {
				return Hello{}, err
			}
		case extEncryptedECH:
			hello.Encrypted = true
		}
	}
	if extensions.bad() {
		return Hello{}, ErrNotHello
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
			return nil, ErrMore
		}
		if data[0] != recordHandshake || len(data) > 1 && data[1] != 3 {
			return nil, ErrNotHello
		}
		if len(data) < recordHeader {
			return nil, ErrMore
		}
		length := int(binary.BigEndian.Uint16(data[3:]))
		if length == 0 || length > maxRecord {
			return nil, ErrNotHello
		}
		fragment := data[recordHeader:]
		whole := len(fragment) >= length
		if whole {
			fragment = fragment[:length]
		}
		message = append(message, fragment...)
		if len(message) > 0 && message[0] != handshakeHello {
			return nil, ErrNotHello
		}
		if want < 0 && len(message) >= handshakeHeader {
			want = handshakeHeader + (int(message[1])<<16 | int(message[2])<<8 | int(message[3]))
			if want > maxHello {
				return nil, ErrNotHello
			}
		}
		if !whole {
			if want >= 0 && len(message) >= want {
				continue
			}
			return nil, ErrMore
		}
		data = data[recordHeader+length:]
	}
}

// hostName reads a ServerNameList with its one host_name.
func hostName(body reader) (string, error) {
	list := reader{body.take(body.length16())}
	if body.bad() || len(body.data) != 0 {
		return "", ErrNotHello
	}
	kind := list.length8()
	name := list.take(list.length16())
	if list.bad() || len(list.data) != 0 || kind != nameTypeHost || len(name) == 0 {
		return "", ErrNotHello
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
