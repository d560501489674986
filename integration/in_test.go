package integration

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

// echoInside is a program that listens on ports of its loopback, greets, sends
// back what it gets to its end, and says "bye" behind that.
const echoInside = `import socket, sys, threading
def serve(c):
    c.sendall(b"hello\n")
    while True:
        d = c.recv(65536)
        if not d: break
        c.sendall(d)
    c.sendall(b"bye"); c.close()
def listen(family, host, port):
    s = socket.socket(family); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind((host, port)); s.listen(64)
    while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
threading.Thread(target=listen, args=(socket.AF_INET6, "::1", 3001), daemon=True).start()
threading.Timer(0.3, lambda: print("listening", flush=True)).start()
listen(socket.AF_INET, "127.0.0.1", 3000)`

// talk sends data by a connection, ends its direction, and returns what comes back.
func talk(t *testing.T, conn net.Conn, data []byte) string {
	t.Helper()
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	go func() {
		conn.Write(data)
		conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	// What was sent and not read resets it, where it is closed.
	if err != nil && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("after %d bytes: %v", len(got), err)
	}
	return string(got)
}

func dialPort(t *testing.T, port int) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// IN1: a port of this machine's loopback leads to one inside, with a network or without.
func TestIN1_Port(t *testing.T) {
	site(t, "ok.test")
	data := make([]byte, 3<<20)
	rand.Read(data)
	for _, network := range [][]string{nil, {"--internet-host", "ok.test"}, {"--network", "none"}} {
		flags := append([]string{"sandbox", "run", "--port", "18080:3000", "--port", "3001"}, network...)
		run := start(t, testnet.Command(testnet.Lnk, append(flags, "--", "/usr/bin/python3", "-c", echoInside)...))
		run.until("listening")
		want := "hello\n" + string(data) + "bye"
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if got := talk(t, dialPort(t, 18080), data); got != want {
					t.Errorf("%v: %d bytes came back, and %d were wanted", network, len(got), len(want))
				}
			})
		}
		wg.Wait()
		if got := talk(t, dialPort(t, 3001), []byte("x")); got != "hello\nxbye" {
			t.Errorf("::1: %q", got)
		}
		run.signal(unix.SIGTERM)
		run.wait().exits(143).leavesNothing()
		if conn, err := net.Dial("tcp", "127.0.0.1:18080"); err == nil {
			conn.Close()
			t.Error("the port is still there")
		}
	}
	// A way in is none out, and what nothing listens on is closed.
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--port", "18080:3999", "--", "sh", "-c", `cat /proc/net/tcp; env | grep -i proxy; echo up; read x`))
	run.until("up")
	if out := run.out.String(); strings.Contains(out, ":9F4D") || strings.Contains(out, "HTTP_PROXY") {
		t.Errorf("a sandbox without a network has a proxy: %s", out)
	}
	if got := talk(t, dialPort(t, 18080), nil); got != "" {
		t.Errorf("a closed port: %q", got)
	}
	run.write("\n")
	run.wait().exits(0)
}

// IN1: what can't be is refused before anything starts.
func TestIN1_BadPorts(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:18081")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for flag, want := range map[string]string{
		"0": "65535", "x": "PORT[:INSIDE]", "70000": "65535", "8080:": "PORT[:INSIDE]", "8080:0": "65535", ":80": "PORT[:INSIDE]", "1:2:3": "PORT[:INSIDE]", "18081": "address already in use",
		"18082 --port 18082:9": "two ports", "18082 --network host": "--network host",
	} {
		flags := append([]string{"--port"}, strings.Fields(flag)...)
		sandbox(t, flags, "touch ran; echo ran").exits(125).says(want).prints("").leavesNothing()
	}
}

// inSock starts a sandbox behind a proxy of its own, and returns its in.sock.
func inSock(t *testing.T) (path string, run *running) {
	t.Helper()
	dir, _ := aProxy(t)
	run = start(t, testnet.Command(testnet.Lnk, "sandbox", "wrap", "--reach", dir, "--", "/usr/bin/python3", "-c", echoInside))
	run.until("listening")
	return filepath.Join(dir, "in.sock"), run
}

// IN1: in.sock takes CONNECT PORT and nothing else.
func TestIN1_Protocol(t *testing.T) {
	path, _ := inSock(t)
	for request, want := range map[string]string{
		"CONNECT 3000\n": "OK\nhello\nbye", "CONNECT 3000\nabc": "OK\nhello\nabcbye", "CONNECT 3001\n": "OK\nhello\nbye",
		"CONNECT 3999\n": "ERR nothing listens on port 3999", "CONNECT 0\n": "ERR a port", "CONNECT 65536\n": "ERR a port", "CONNECT 03000\n": "ERR a port", "CONNECT -1\n": "ERR a port", "CONNECT\n": "ERR it takes",
		"connect 3000\n": "ERR it takes", "\n": "ERR it takes", "CONNECT 127.0.0.1:3000\n": "ERR a port", "CONNECT 3000\r\n": "ERR a port", "GET / HTTP/1.1\r\n\r\n": "ERR it takes", "CONNECT 30": "ERR the request has no end",
		strings.Repeat("x", 65): "ERR the request is too long",
	} {
		if got := talk(t, connect(t, path), []byte(request)); !strings.HasPrefix(got, want) || strings.HasPrefix(want, "OK") && got != want {
			t.Errorf("%q: %q", request, got)
		}
	}
	// A port in the range of those that are given to sockets that connect may be
	// given to the very one that connects to it, and speaks to itself then.
	for range 3000 {
		if got := talk(t, connect(t, path), []byte("CONNECT 40000\n")); !strings.HasPrefix(got, "ERR ") {
			t.Fatalf("where nothing listens: %q", got)
		}
	}
	// Those that ask for nothing keep nobody out.
	for range 100 {
		connect(t, path)
	}
	if got := talk(t, connect(t, path), []byte("CONNECT 3000\n")); got != "OK\nhello\nbye" {
		t.Errorf("%q", got)
	}
}

// IN1: a bridge leads to any folder's sandbox, by a port or by its standard streams.
func TestIN1_Bridge(t *testing.T) {
	path, _ := inSock(t)
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "bridge", "unix:"+path+":3000", "--listen", "18083"))
	eventually(t, "the bridge listens", func() bool { return strings.Contains(run.stderr.String(), "127.0.0.1:18083 leads to port 3000 inside") })
	data := bytes.Repeat([]byte("0123456789"), 1e5)
	if got := talk(t, dialPort(t, 18083), data); got != "hello\n"+string(data)+"bye" {
		t.Errorf("%d bytes came back", len(got))
	}
	run.signal(unix.SIGTERM)
	run.wait().exits(0)
	cmd := testnet.Command(testnet.Lnk, "sandbox", "bridge", "unix:"+path+":3000", "--stdio")
	cmd.Stdin = strings.NewReader("abc")
	finish(t, cmd).exits(0).prints("hello\nabcbye")
	for arg, want := range map[string]string{
		path + ":3000": "unix:", "unix:" + path: "ends with a port", "unix:" + path + ":0": "65535", "unix:/tmp/x.sock:80": "is called in.sock", "unix:/nowhere/in.sock:80": "/nowhere", "unix:in.sock": "ends with a port",
	} {
		lnk(t, "sandbox", "bridge", arg, "--stdio").exits(125).says(want)
	}
	lnk(t, "sandbox", "bridge", "unix:"+path+":3999", "--stdio").exits(125).says("nothing listens on port 3999")
}

// IN2, KU2: whatever is put in in.sock's place gets no byte.
func TestIN2KU2_Impostors(t *testing.T) {
	base, err := os.MkdirTemp("/srv", "impostor-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	os.Chmod(base, 0o755)
	dir := filepath.Join(base, "dir")
	os.Mkdir(dir, 0o700)
	os.Chown(dir, testnet.UID, testnet.UID)
	in := filepath.Join(dir, "in.sock")
	// The user's own socket elsewhere, such as a session bus, and a stranger's.
	own, stranger := filepath.Join(base, "own.sock"), filepath.Join(dir, "in.sock")
	stopOwn := serveAs(t, testnet.UID, own)
	for name, test := range map[string]struct {
		make func() (stop func())
		want string
	}{
		"a link to the user's own socket": {func() func() { os.Symlink(own, in); return stopOwn }, "not a socket"},
		"a link to nothing":               {func() func() { os.Symlink("/nowhere", in); return nil }, "not a socket"},
		"a file":                          {func() func() { os.WriteFile(in, nil, 0o666); return nil }, "not a socket"},
		"a folder":                        {func() func() { os.Mkdir(in, 0o777); return nil }, "not a socket"},
		"nothing":                         {func() func() { return nil }, "no such file"},
		"a fifo":                          {func() func() { unix.Mkfifo(in, 0o666); return nil }, "not a socket"},
		"a socket that a stranger serves": {func() func() { return serveAs(t, testnet.Stranger, stranger) }, fmt.Sprintf("served by uid %d", testnet.Stranger)},
		"a socket that root serves":       {func() func() { return serveAs(t, 0, stranger) }, "served by uid 0"},
		"a stranger's socket": {func() func() {
			stop := serveAs(t, testnet.UID, in)
			os.Chown(in, testnet.Stranger, testnet.Stranger)
			return stop
		}, fmt.Sprintf("owned by uid %d", testnet.Stranger)},
	} {
		stop := test.make()
		os.Chmod(dir, 0o700)
		cmd := testnet.Command(testnet.Lnk, "sandbox", "bridge", "unix:"+in+":3000", "--stdio")
		cmd.Stdin = strings.NewReader("secret")
		finish(t, cmd).exits(125).says(test.want)
		// And by the proxy's own way in.
		run := start(t, testnet.Command(testnet.Lnk, "sandbox", "proxy", "--dir", dir, "--port", "18084:3000"))
		eventually(t, "the proxy listens", func() bool {
			conn, err := net.Dial("tcp", "127.0.0.1:18084")
			if err != nil {
				return false
			}
			if got := talk(t, conn, []byte("secret")); got != "" {
				t.Errorf("%s: %q came back", name, got)
			}
			return true
		})
		run.signal(unix.SIGTERM)
		run.wait().exits(0)
		if stop != nil {
			time.Sleep(50 * time.Millisecond)
			stop()
		}
		os.RemoveAll(in)
	}
}

// IN2: an in.sock that its sandbox swaps all the time leads nowhere else.
func TestIN2_Swapped(t *testing.T) {
	path, _ := inSock(t)
	dir := filepath.Dir(path)
	other := filepath.Join(testnet.Home, "bus.sock")
	stop := serveAs(t, testnet.UID, other)
	defer os.Chmod(testnet.Home, 0o700)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		os.Symlink(other, dir+"/link")
		for {
			select {
			case <-done:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, dir+"/link", unix.RENAME_EXCHANGE)
			}
		}
	})
	served := 0
	for range 60 {
		cmd := testnet.Command(testnet.Lnk, "sandbox", "bridge", "unix:"+path+":3000", "--stdio")
		cmd.Stdin = strings.NewReader("x")
		if r := finish(t, cmd); r.code == 0 {
			r.prints("hello\nxbye")
			served++
		} else {
			r.says("not a socket")
		}
	}
	close(done)
	wg.Wait()
	stop()
	if served == 0 || served == 60 {
		t.Errorf("%d of 60 were served: nothing was swapped", served)
	}
}
