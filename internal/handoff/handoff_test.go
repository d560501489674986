package handoff

import (
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// ends makes a connected pair: a relay's descriptor, and the proxy's end.
func ends(t testing.TB) (relay int, proxy *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fds[1], true); err != nil {
		t.Fatal(err)
	}
	proxy = os.NewFile(uintptr(fds[1]), "local.sock")
	t.Cleanup(func() { unix.Close(fds[0]); proxy.Close() })
	return fds[0], proxy
}

// A listener of this very network namespace is what no relay may hand.
func TestServeNextAndReceive(t *testing.T) {
	fd, file := ends(t)
	relay := &RelayEnd{fd: fd}
	if err := relay.send(toProxy{Hello: 1}, -1); err != nil {
		t.Fatal(err)
	}
	proxy, err := NewProxyEnd(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := proxy.Ask([]Listener{{ID: 1, Network: "tcp", Address: "127.0.0.1:0"}, {ID: 2, Network: "tcp", Address: "192.0.2.1:80"}, {ID: 3, Network: "x", Address: "127.0.0.1:0"}}); err != nil {
		t.Fatal(err)
	}
	if err := relay.ServeNext(); err != nil {
		t.Fatal(err)
	}
	for id := 1; id <= 3; id++ {
		handed, err := proxy.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if handed.Listener.ID != id || handed.Err == nil || handed.File != nil {
			t.Errorf("%+v", handed)
		}
	}
	if err := proxy.Ask([]Listener{{ID: 0, Address: "127.0.0.1:1"}}); err == nil {
		t.Error("an id of zero was asked for")
	}
	if err := proxy.Ask(make([]Listener, MaxListeners+1)); err == nil {
		t.Error("too many were asked for")
	}
	proxy.Close()
	if err := relay.ServeNext(); !errors.Is(err, io.EOF) {
		t.Errorf("after the proxy's end: %v", err)
	}
}

// Whatever a relay sends, the proxy's end neither crashes nor keeps a descriptor.
func FuzzReceive(f *testing.F) {
	f.Add([]byte(`{"listening":1}`), true)
	f.Add([]byte(`{"failed":1,"error":"x"}`), false)
	f.Add([]byte(`{"hello":1}`), true)
	f.Fuzz(func(t *testing.T, message []byte, withFD bool) {
		if len(message) == 0 || len(message) > 60000 {
			return
		}
		fd, file := ends(t)
		relay := &RelayEnd{fd: fd}
		relay.send(toProxy{Hello: 1}, -1)
		proxy, err := NewProxyEnd(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := proxy.Ask([]Listener{{ID: 1, Network: "tcp", Address: "127.0.0.1:40781"}}); err != nil {
			t.Fatal(err)
		}
		var rights []byte
		if withFD {
			rights = unix.UnixRights(fd)
		}
		if err := unix.Sendmsg(fd, message, rights, nil, 0); err != nil {
			return
		}
		if handed, err := proxy.Receive(); err == nil && handed.File != nil {
			t.Fatalf("%q made a Unix socket a listener", message)
		}
	})
}
