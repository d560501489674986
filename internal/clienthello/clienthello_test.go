package clienthello

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// helloOf captures the ClientHello that crypto/tls sends.
func helloOf(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		tls.Client(client, config).HandshakeContext(ctx)
	}()
	head := make([]byte, recordHeader)
	if _, err := io.ReadFull(server, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(server, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

// split spreads a record over records of n bytes.
func split(record []byte, n int) []byte {
	var out []byte
	for body := record[recordHeader:]; len(body) > 0; {
		k := min(n, len(body))
		out = append(out, record[0], record[1], record[2], byte(k>>8), byte(k))
		out = append(out, body[:k]...)
		body = body[k:]
	}
	return out
}

func TestParse(t *testing.T) {
	with := helloOf(t, &tls.Config{ServerName: "ok.test"})
	without := helloOf(t, &tls.Config{InsecureSkipVerify: true})
	for _, test := range []struct {
		name string
		data []byte
		want string
		err  error
	}{
		{"a name", with, "ok.test", nil},
		{"no name", without, "", nil},
		{"in small records", split(with, 7), "ok.test", nil},
		{"byte by byte", split(with, 1), "ok.test", nil},
		{"with more behind", append(bytes.Clone(with), "data"...), "ok.test", nil},
		{"nothing", nil, "", ErrMore},
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), "", ErrNotHello},
		{"SSH", []byte("SSH-2.0-x\r\n"), "", ErrNotHello},
		{"an alert", []byte{21, 3, 1, 0, 2, 2, 40}, "", ErrNotHello},
		{"an empty record", []byte{22, 3, 1, 0, 0}, "", ErrNotHello},
		{"a ServerHello", []byte{22, 3, 1, 0, 4, 2, 0, 0, 0}, "", ErrNotHello},
		{"a huge message", []byte{22, 3, 1, 0, 4, 1, 255, 255, 255}, "", ErrNotHello},
		{"an empty hello", []byte{22, 3, 1, 0, 4, 1, 0, 0, 0}, "", ErrNotHello},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Parse(test.data)
			if !errors.Is(err, test.err) || got.ServerName != test.want {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	for n := range with {
		if _, err := Parse(with[:n]); !errors.Is(err, ErrMore) {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
	}
	// The name twice, and a name of two parts.
	name := []byte("\x00\x00\x00\x0c\x00\x0a\x00\x00\x07ok.test")
	at := bytes.Index(with, name)
	if at < 0 {
		t.Fatal("no name to change")
	}
	list := bytes.Clone(with)
	list[at+6] = 1 // another name type
	if _, err := Parse(list); !errors.Is(err, ErrNotHello) {
		t.Errorf("another name type: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(helloOf(f, &tls.Config{ServerName: "ok.test"}))
	f.Add(split(helloOf(f, &tls.Config{ServerName: "ok.test"}), 40))
	f.Add([]byte{22, 3, 1, 0, 4, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := Parse(data)
		if err != nil {
			if got != (Hello{}) {
				t.Fatalf("%+v with %v", got, err)
			}
			return
		}
		// What was enough stays enough, whatever follows.
		again, err := Parse(append(bytes.Clone(data), 0, 1, 2))
		if err != nil || again != got {
			t.Fatalf("%+v, then %+v, %v", got, again, err)
		}
	})
}
