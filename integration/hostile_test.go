package integration

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

// Any bytes to 40781: 400 or closed, never a crash, never a connection.
func TestHostile_RawBytesToTheProxy(t *testing.T) {
	plain, secure := site(t, "ok.test")
	sandbox(t, []string{"--internet-host", "ok.test"}, `python3 - <<'P'
import os, random, socket
random.seed(7)
seeds = [b"CONNECT ok.test:443 HTTP/1.1\r\nHost: ok.test:443\r\n\r\n", b"GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n"]
cases = [b"", b"\0" * 100, os.urandom(4096), b"\r\n" * 1000, b"CONNECT", b"CONNECT " + b"a" * 100000, b"GET http://ok.test/ HTTP/1.1\r\n" + b"X: y\r\n" * 20000 + b"\r\n",
    b"GET http://ok.test/ HTTP/9.9\r\n\r\n", b"GET http://ok.test/ HTTP/1.1\r\nHost : ok.test\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x05\x01\x00", b"GET ok.test HTTP/1.1\r\n\r\n", b"CONNECT http://ok.test:443/ HTTP/1.1\r\nHost: x\r\n\r\n", b"CONNECT /ok.test:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT ok.test:443 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", b"CONNECT ok.test:443 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://ok.test:443:443/ HTTP/1.1\r\nHost: x\r\n\r\n", b"GET http:ok.test HTTP/1.1\r\nHost: x\r\n\r\n", b"GET http:///x HTTP/1.1\r\nHost: ok.test\r\n\r\n", b"GET //ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n"]
for seed in seeds:
    for _ in range(150):
        b = bytearray(seed)
        for _ in range(random.randint(1, 6)):
            i = random.randrange(len(b)); b[i] = random.choice(b"\0\r\n :@#%?/\\[]\xff\x7f\t")
        if b"ok.test" not in bytes(b).lower(): cases.append(bytes(b))
for c in cases:
    s = socket.create_connection(("127.0.0.1", 40781)); s.settimeout(15)
    try:
        s.sendall(c); s.shutdown(socket.SHUT_WR)
        data = b""
        while True:
            more = s.recv(65536)
            if not more: break
            data += more
    except ConnectionError: data = b""
    s.close()
    status = data.split(b" ")[1] if data.startswith(b"HTTP/") else b"closed"
    if status not in (b"400", b"403", b"404", b"431", b"502", b"501", b"505", b"417", b"closed"): print("LEAK", status, c[:80])
print("alive")
P
curl -sS http://ok.test/`).exits(0).prints("alive\nhello from ok.test\n")
	if plain.Accepted() != 1 || secure.Accepted() != 0 {
		t.Errorf("the origin saw %d and %d connections", plain.Accepted(), secure.Accepted())
	}
}

// aProxy starts lnk sandbox proxy alone, as the ordinary user.
func aProxy(t *testing.T, flags ...string) (dir string, run *running) {
	t.Helper()
	dir = filepath.Join(testnet.Home, fmt.Sprintf("sockets-%d", rand.IntN(1e6)))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, testnet.UID, testnet.UID); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	run = start(t, testnet.Command(testnet.Lnk, append([]string{"sandbox", "proxy", "--dir", dir}, flags...)...))
	eventually(t, "local.sock is made", func() bool {
		_, err := os.Stat(filepath.Join(dir, "local.sock"))
		return err == nil
	})
	return dir, run
}

func connect(t *testing.T, path string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(15 * time.Second))
	return conn
}

// The proxy alone serves the same on out.sock; random bytes there do nothing.
func TestHostile_RawBytesToOutSock(t *testing.T) {
	plain, _ := site(t, "ok.test")
	dir, run := aProxy(t, "--internet-host", "ok.test")
	out := filepath.Join(dir, "out.sock")
	if info, err := os.Stat(out); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("out.sock: %v, %v", info, err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		conn := connect(t, out)
		junk := make([]byte, random.IntN(3000))
		for i := range junk {
			junk[i] = byte(random.Uint32())
		}
		conn.Write(junk)
		conn.(*net.UnixConn).CloseWrite()
		answer, _ := bufio.NewReader(conn).ReadString('\n')
		if answer != "" && !strings.HasPrefix(answer, "HTTP/1.1 400") && !strings.HasPrefix(answer, "HTTP/1.1 505") {
			t.Errorf("%q for %q", answer, junk)
		}
		conn.Close()
	}
	ask := func(line string) string {
		conn := connect(t, out)
		fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\n\r\n", line)
		answer, _ := bufio.NewReader(conn).ReadString('\n')
		return strings.TrimSpace(answer)
	}
	if got := ask("CONNECT ok.test:80"); got != "HTTP/1.1 200 Connection established" {
		t.Errorf("got %q", got)
	}
	if got := ask("CONNECT no.test:80"); got != "HTTP/1.1 403 Forbidden" {
		t.Errorf("got %q", got)
	}
	if plain.Accepted() != 1 {
		t.Errorf("%d connections", plain.Accepted())
	}
	run.signal(unix.SIGTERM)
	run.wait().exits(0)
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left in the folder: %v", entries)
	}
}

func TestHostile_SocketFolder(t *testing.T) {
	proxy := func(args ...string) result {
		return finish(t, testnet.Command(testnet.Lnk, append([]string{"sandbox", "proxy"}, args...)...)).exits(125)
	}
	proxy().says("--dir")
	proxy("--dir", "relative").says("absolute")
	proxy("--dir", "/nowhere").says("/nowhere")
	proxy("--dir", "/tmp").says("mode")
	open := userFolder(t, "open-folder")
	proxy("--dir", open).says("0755", "0700")
	os.Chmod(open, 0o700)
	link := filepath.Join(testnet.Home, "folder-link")
	os.Symlink(open, link)
	defer os.Remove(link)
	proxy("--dir", link).says("folder-link")
	proxy("--dir", open, "--internet-host", "a b").says("a b")
	proxy("--dir", open, "extra").says("extra")
}

// relay is a relay that has been taken over: a connection to local.sock on
// which anything is sent.
type relay struct {
	t    *testing.T
	conn *net.UnixConn
}

func newRelay(t *testing.T, dir string) *relay {
	t.Helper()
	var conn *net.UnixConn
	// The socket is there a moment before it listens.
	eventually(t, "local.sock accepts", func() (ok bool) {
		var err error
		conn, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: filepath.Join(dir, "local.sock")})
		return err == nil
	})
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	r := &relay{t, conn}
	r.send(`{"hello":1}`)
	return r
}

func (r *relay) send(message string, fds ...int) {
	r.t.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := r.conn.WriteMsgUnix([]byte(message), oob, nil); err != nil {
		r.t.Fatal(err)
	}
}

// asked reads what the proxy asks for, the way to itself first of all.
func (r *relay) asked() (id int, address string) {
	r.t.Helper()
	buf := make([]byte, 16<<10)
	n, err := r.conn.Read(buf)
	if err != nil {
		r.t.Fatal(err)
	}
	var message struct {
		Listen []struct {
			ID               int
			Network, Address string
		}
	}
	if err := json.Unmarshal(buf[:n], &message); err != nil || len(message.Listen) == 0 {
		r.t.Fatalf("%s: %v", buf[:n], err)
	}
	return message.Listen[0].ID, message.Listen[0].Address
}

// A handed descriptor that isn't what was asked for is refused and closed.
func TestHandoff_WrongDescriptors(t *testing.T) {
	dir, run := aProxy(t, "--internet-host", "ok.test")
	proxyPID := fmt.Sprint(run.cmd.Process.Pid)
	countFDs := func() int {
		entries, _ := os.ReadDir("/proc/" + proxyPID + "/fd")
		return len(entries)
	}
	// What a handed listener must not be, by what makes it one.
	current := t // each test's sockets are closed at its end
	socket := func(domain, kind, protocol int, bind bool, listening bool) int {
		fd, err := unix.Socket(domain, kind, protocol)
		if err != nil {
			t.Fatal(err)
		}
		current.Cleanup(func() { unix.Close(fd) })
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		if bind {
			if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 40781, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
				t.Fatal(err)
			}
		}
		if listening {
			if err := unix.Listen(fd, 1); err != nil {
				t.Fatal(err)
			}
		}
		return fd
	}
	inNS := func(f func() int) int {
		var fd int
		internet.In(func() { fd = f() })
		return fd
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	pipe := make([]int, 2)
	unix.Pipe(pipe)
	for _, test := range []struct {
		name string
		fd   func() int
	}{
		{"a file", func() int { return int(null.Fd()) }},
		{"a pipe", func() int { return pipe[0] }},
		{"of the machine's namespace", func() int { return socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP, true, true) }},
		{"of another address", func() int {
			return inNS(func() int {
				fd := socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP, false, true)
				return fd
			})
		}},
		{"not listening", func() int {
			return inNS(func() int { return socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP, true, false) })
		}},
		{"UDP", func() int {
			return inNS(func() int { return socket(unix.AF_INET, unix.SOCK_DGRAM, 0, true, false) })
		}},
		{"IPv6", func() int {
			return inNS(func() int { return socket(unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP, false, true) })
		}},
		{"MPTCP", func() int {
			return inNS(func() int { return socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP, true, true) })
		}},
		{"a Unix socket", func() int { return socket(unix.AF_UNIX, unix.SOCK_STREAM, 0, false, false) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			outer := current
			current = t
			defer func() { current = outer }()
			r := newRelay(t, dir)
			id, address := r.asked()
			if address != "127.0.0.1:40781" {
				t.Fatalf("asked for %s", address)
			}
			before, said := countFDs(), strings.Count(run.stderr.String(), "handed a descriptor that isn't")
			r.send(fmt.Sprintf(`{"listening":%d}`, id), test.fd())
			eventually(t, "it is refused", func() bool {
				return strings.Count(run.stderr.String(), "handed a descriptor that isn't") == said+1
			})
			eventually(t, "the descriptor is closed", func() bool { return countFDs() <= before })
		})
	}
	for _, test := range []struct {
		name    string
		message string
		fds     []int
		ends    bool // the connection, which broke the protocol
	}{
		{"no descriptor", `{"listening":%d}`, nil, false},
		{"two descriptors", `{"listening":%d}`, []int{int(null.Fd()), pipe[0]}, true},
		{"many descriptors", `{"listening":%d}`, []int{int(null.Fd()), pipe[0], pipe[1], int(null.Fd()), pipe[0]}, true},
		{"a descriptor with a failure", `{"failed":%d,"error":"x"}`, []int{pipe[0]}, false},
		{"another id", `{"listening":99,"x":%d}`, []int{pipe[0]}, true},
		{"no JSON", `%d{{{`, []int{pipe[0]}, true},
		{"a message too long", `{"listening":%d,"error":"` + strings.Repeat("x", 20000) + `"}`, []int{pipe[0]}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRelay(t, dir)
			id, _ := r.asked()
			before := countFDs()
			r.send(fmt.Sprintf(test.message, id), test.fds...)
			if test.ends {
				if n, err := r.conn.Read(make([]byte, 100)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("the connection goes on: %v", err)
				}
			}
			eventually(t, "the descriptors are closed", func() bool { return countFDs() <= before })
		})
	}
	// The right one is still taken.
	site(t, "ok.test")
	r := newRelay(t, dir)
	id, _ := r.asked()
	// Its options are as bad as can be: a lingering close, a high low-water mark, a filter that lets nothing through.
	r.send(fmt.Sprintf(`{"listening":%d}`, id), inNS(func() int {
		fd := socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP, true, true)
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 30})
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1<<20)
		return fd
	}))
	var conn net.Conn
	internet.In(func() { conn, err = net.Dial("tcp4", "127.0.0.1:40781") })
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(conn, "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\n\r\n")
	if answer, _ := bufio.NewReader(conn).ReadString('\n'); !strings.Contains(answer, " 200 ") {
		t.Errorf("got %q", answer)
	}
	// A listener that is broken from inside is dropped, and doesn't spin.
	r.conn.Close()
	run.signal(unix.SIGTERM)
	if result := run.wait().exits(0); result.took > 30*time.Second {
		t.Errorf("it took %v", result.took)
	}
}

// A listener with a filter that can't be taken off serves nobody.
func TestHandoff_LockedFilter(t *testing.T) {
	dir, _ := aProxy(t, "--internet-host", "ok.test")
	site(t, "ok.test")
	r := newRelay(t, dir)
	id, _ := r.asked()
	var fd int
	internet.In(func() {
		var err error
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP); err != nil {
			t.Error(err)
			return
		}
		all := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff}}
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &all[0]}); err != nil {
			t.Error(err)
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1); err != nil {
			t.Error(err)
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 40781, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			t.Error(err)
		}
		unix.Listen(fd, 5)
	})
	r.send(fmt.Sprintf(`{"listening":%d}`, id), fd)
	unix.Close(fd)
	var conn net.Conn
	var err error
	internet.In(func() { conn, err = net.Dial("tcp4", "127.0.0.1:40781") })
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(conn, "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\n\r\n")
	if n, err := conn.Read(make([]byte, 100)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("it is served: %d bytes, %v", n, err)
	}
}
