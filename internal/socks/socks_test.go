package socks

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"testing"
	"testing/iotest"
)

type server struct {
	io.Reader
	got bytes.Buffer
}

func (s *server) Write(p []byte) (int, error) { return s.got.Write(p) }

func payload(fails bool) string {
	if fails {
		return ""
	}
	return "payload"
}

func TestConnect(t *testing.T) {
	v4 := netip.MustParseAddrPort("45.80.1.2:443")
	for _, test := range []struct {
		name  string
		to    netip.AddrPort
		reply string
		want  string // what was asked
		fails bool
	}{
		{"IPv4", v4, "\x05\x00\x05\x00\x00\x01\x01\x02\x03\x04\x00\x50", "\x05\x01\x00\x05\x01\x00\x01\x2d\x50\x01\x02\x01\xbb", false},
		{"IPv6", netip.MustParseAddrPort("[2a0a::1]:80"), "\x05\x00\x05\x00\x00\x01\x01\x02\x03\x04\x00\x50", "\x05\x01\x00\x05\x01\x00\x04\x2a\x0a" + string(make([]byte, 13)) + "\x01\x00\x50", false},
		{"a bound IPv6 address", v4, "\x05\x00\x05\x00\x00\x04" + string(make([]byte, 18)), "", false},
		{"a bound name", v4, "\x05\x00\x05\x00\x00\x03\x02ab\x00\x50", "", false},
		{"a bound empty name", v4, "\x05\x00\x05\x00\x00\x03\x00\x00\x50", "", false},
		{"another version", v4, "\x04\x00", "", true},
		{"authentication", v4, "\x05\x02", "", true},
		{"no method", v4, "\x05\xff", "", true},
		{"refused", v4, "\x05\x00\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00", "", true},
		{"short", v4, "\x05\x00\x05\x00\x00\x01\x01", "", true},
		{"an unknown type", v4, "\x05\x00\x05\x00\x00\x09\x01\x02\x03\x04\x00\x50", "", true},
		{"a second version", v4, "\x05\x00\x04\x00\x00\x01\x01\x02\x03\x04\x00\x50", "", true},
		{"nothing", v4, "", "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &server{Reader: iotest.OneByteReader(bytes.NewReader([]byte(test.reply + payload(test.fails))))}
			err := Connect(s, test.to)
			if (err != nil) != test.fails {
				t.Fatalf("err = %v", err)
			}
			if test.want != "" && s.got.String() != test.want {
				t.Errorf("asked %q, want %q", s.got.String(), test.want)
			}
			if rest, _ := io.ReadAll(s); err == nil && string(rest) != "payload" {
				t.Errorf("what follows is %q", rest)
			}
		})
	}
	if err := Connect(&server{Reader: bytes.NewReader([]byte("\x05\x00\x05\x02\x00\x01"))}, v4); !errors.Is(err, ReplyError(2)) {
		t.Errorf("err = %v", err)
	}
}

func FuzzConnect(f *testing.F) {
	f.Add([]byte("\x05\x00\x05\x00\x00\x03\x02ab\x00\x50rest"))
	f.Fuzz(func(t *testing.T, reply []byte) {
		s := &server{Reader: bytes.NewReader(reply)}
		if Connect(s, netip.MustParseAddrPort("1.2.3.4:5")) == nil {
			rest, _ := io.ReadAll(s)
			if len(reply)-len(rest) < 2+4+2 {
				t.Fatalf("%q was enough", reply[:len(reply)-len(rest)])
			}
		}
	})
}
