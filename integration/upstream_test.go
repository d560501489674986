package integration

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"link.internal/lnk/integration/testnet"
)

// upstreamLog is what an upstream was asked for.
type upstreamLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *upstreamLog) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *upstreamLog) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}

// socksServer serves SOCKS5 on a listener of the machine. It answers as
// reply says, and then passes bytes on to the address it was asked for.
func socksServer(t *testing.T, l net.Listener, reply func(conn net.Conn, to netip.AddrPort)) *upstreamLog {
	t.Helper()
	t.Cleanup(func() { l.Close() })
	log := &upstreamLog{}
	go acceptEach(l, func(conn net.Conn) {
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		head := make([]byte, 3+4)
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		size := map[byte]int{1: 4, 4: 16}[head[6]]
		rest := make([]byte, size+2)
		if size == 0 {
			log.add(fmt.Sprintf("not an address: %x", head))
			return
		}
		if _, err := io.ReadFull(conn, rest); err != nil {
			return
		}
		addr, _ := netip.AddrFromSlice(rest[:size])
		to := netip.AddrPortFrom(addr, uint16(rest[size])<<8|uint16(rest[size+1]))
		log.add(to.String())
		reply(conn, to)
	})
	return log
}

// passOn connects to the internet and copies both ways.
func passOn(conn net.Conn, to netip.AddrPort, first string) {
	far, err := net.Dial("tcp", to.String())
	if err != nil {
		return
	}
	defer far.Close()
	io.WriteString(conn, first)
	go func() {
		io.Copy(far, conn)
		far.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(conn, far)
}

const socksOK = "\x05\x00\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"

// acceptEach gives each connection to f, and closes it after.
func acceptEach(l net.Listener, f func(net.Conn)) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			f(conn)
		}()
	}
}

func listenMachine(t *testing.T) (net.Listener, string) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
}

func TestUP1_BadUpstreams(t *testing.T) {
	for _, upstream := range []string{
		"socks5://example.com:1080", "socks5://127.0.0.1", "socks5://127.0.0.1:0", "socks5://127.0.0.1:65536", "socks5://127.0.0.1:1080/x", "socks5://u:p@127.0.0.1:1080",
		"socks5://", "socks5:///", "socks5:///a/../b", "socks5h://127.0.0.1:1080", "socks4://127.0.0.1:1080", "http://10.0.0.1:3128", "http://localhost:3128", "https://127.0.0.1:3128", "socks5://[::1]:1080", "Direct", "x",
	} {
		lnk(t, "sandbox", "run", "--internet-host", "ok.test", "--upstream", upstream, "--", "true").refusedInOneLine("--upstream", "socks5://127.0.0.1:PORT")
	}
	lnk(t, "sandbox", "run", "--internet-host", "ok.test", "--upstream", "direct", "--", "true").exits(0)
}

// UP2: addresses in order, the next after 250 ms.
func TestUP2_HappyEyeballs(t *testing.T) {
	good := internet.Address()
	origin := internet.HTTP(good, 80, nil)
	defer origin.Close()
	// Packets to an address that nobody has are dropped by a full backlog.
	dead := deadAddress(t)
	internet.DNS.Set("slow.test", dead, good)
	r := sandbox(t, []string{"--internet-host", "slow.test"}, `curl -sS -o /dev/null -w '%{http_code} %{time_total}' http://slow.test/`).exits(0)
	var code int
	var seconds float64
	fmt.Sscan(r.stdout, &code, &seconds)
	if code != 200 || seconds < 0.2 || seconds > 2 {
		t.Errorf("got %q", r.stdout)
	}
}

// deadAddress is one whose SYNs are not answered: its listener's queue is full.
func deadAddress(t *testing.T) netip.Addr {
	t.Helper()
	addr := internet.Address()
	internet.In(func() {
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { syscall.Close(fd) })
		if err := syscall.Bind(fd, &syscall.SockaddrInet4{Port: 80, Addr: addr.As4()}); err != nil {
			t.Error(err)
			return
		}
		syscall.Listen(fd, 0)
	})
	for range 2 {
		go func() {
			if conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(addr, 80).String(), 3*time.Second); err == nil {
				time.Sleep(5 * time.Second)
				conn.Close()
			}
		}()
	}
	time.Sleep(100 * time.Millisecond) // for the queue to fill
	return addr
}

// UC1, UP3: a SOCKS server in every manner of speaking; names are resolved
// here, a judged address is sent, and the bytes are exact.
func TestUP3UC1_SOCKS(t *testing.T) {
	addr := internet.Host("ok.test")
	echo := internet.Echo(addr, 80)
	defer echo.Close()
	internet.DNS.Set("inside.test", netip.MustParseAddr("10.77.0.1"))
	exact := python(`
s = tunnel(b"ok.test:80"); sent = os.urandom(300000)
import threading
threading.Thread(target=lambda: (s.sendall(sent), s.shutdown(socket.SHUT_WR))).start()
print(drain(s) == sent)`)
	for _, test := range []struct {
		name  string
		reply func(net.Conn, netip.AddrPort)
	}{
		{"plain", func(conn net.Conn, to netip.AddrPort) { passOn(conn, to, socksOK) }},
		{"byte by byte", func(conn net.Conn, to netip.AddrPort) {
			for i := range socksOK {
				io.WriteString(conn, socksOK[i:i+1])
				time.Sleep(time.Millisecond)
			}
			passOn(conn, to, "")
		}},
		{"bound IPv6", func(conn net.Conn, to netip.AddrPort) {
			passOn(conn, to, "\x05\x00\x05\x00\x00\x04"+string(make([]byte, 18)))
		}},
		{"bound name", func(conn net.Conn, to netip.AddrPort) { passOn(conn, to, "\x05\x00\x05\x00\x00\x03\x04name\x00\x50") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, port := listenMachine(t)
			log := socksServer(t, l, test.reply)
			flags := []string{"--internet-host", "*", "--upstream", "socks5://127.0.0.1:" + port}
			sandbox(t, flags, exact).exits(0).prints("True\n")
			if got := log.all(); !slices.Equal(got, []string{addr.String() + ":80"}) {
				t.Errorf("it was asked for %q", got)
			}
			sandbox(t, flags, connectStatus+`status CONNECT inside.test:80; status CONNECT 10.77.0.1:80; status CONNECT 127.0.0.1:80`).exits(0).prints("403 network\n403 network\n403 this-machine\n")
			if len(log.all()) != 1 {
				t.Errorf("it was asked for %q", log.all())
			}
		})
	}
	t.Run("first payload joined on", func(t *testing.T) {
		l, port := listenMachine(t)
		socksServer(t, l, func(conn net.Conn, _ netip.AddrPort) { io.WriteString(conn, socksOK+"banner\n") })
		sandbox(t, []string{"--internet-host", "*", "--upstream", "socks5://127.0.0.1:" + port}, python(`print(drain(tunnel(b"ok.test:80")))`)).exits(0).prints("b'banner\\n'\n")
	})
	for name, answer := range map[string]string{
		"another version": "\x04\x5a\x00\x00", "authentication": "\x05\x02", "refused": "\x05\x00\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00", "short": "\x05\x00\x05", "HTTP": "HTTP/1.1 400 Bad Request\r\n\r\n", "nothing": "",
	} {
		t.Run("lies: "+name, func(t *testing.T) {
			l, port := listenMachine(t)
			socksServer(t, l, func(conn net.Conn, _ netip.AddrPort) { io.WriteString(conn, answer) })
			sandbox(t, []string{"--internet-host", "*", "--upstream", "socks5://127.0.0.1:" + port}, connectStatus+`status CONNECT ok.test:80; status GET http://ok.test/`).
				exits(0).prints("502 upstream\n502 upstream\n").says("the upstream is down or refused it")
		})
	}
}

// UP4: a SOCKS server on a Unix socket: this user's or root's, no link.
func TestUP4_SOCKSSocket(t *testing.T) {
	addr := internet.Host("ok.test")
	origin := internet.HTTP(addr, 80, nil)
	defer origin.Close()
	dir := userFolder(t, "/tmp/exit")
	path := filepath.Join(dir, "exit.sock")
	listen := func(uid int) net.Listener {
		os.Remove(path)
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		if err := os.Chown(path, uid, uid); err != nil {
			t.Fatal(err)
		}
		os.Chmod(path, 0o777)
		return l
	}
	serve := func(conn net.Conn, to netip.AddrPort) { passOn(conn, to, socksOK) }
	flags := []string{"--internet-host", "ok.test", "--upstream", "socks5://" + path}
	get := `curl -sS -o /dev/null -w '%{http_code}\n' http://ok.test/`

	// Served by root, owned by the user; a remade socket works for the next connection.
	l := listen(testnet.UID)
	socksServer(t, l, serve)
	sandbox(t, flags, get).exits(0).prints("200\n")
	run := start(t, testnet.Command(testnet.Lnk, append(append([]string{"sandbox", "run"}, flags...), "--", "sh", "-c", connectStatus+"for i in 1 2 3; do read x; status CONNECT ok.test:80; done")...))
	run.write("\n")
	run.until("200 \n")
	l.Close()
	run.write("\n")
	run.until("200 \n502 upstream\n")
	socksServer(t, listen(0), serve)
	run.write("\n")
	run.until("200 \n502 upstream\n200 \n")
	run.wait().exits(0)

	// A stranger's: refused before a byte is sent.
	received := make(chan int, 10)
	stranger := listen(testnet.Stranger)
	defer stranger.Close()
	go func() {
		for {
			conn, err := stranger.Accept()
			if err != nil {
				return
			}
			n, _ := io.Copy(io.Discard, conn)
			received <- int(n)
			conn.Close()
		}
	}()
	sandbox(t, flags, get).exits(0).prints("502\n").says("owned by uid 20002")
	if err := os.Chown(path, testnet.UID, testnet.UID); err != nil {
		t.Fatal(err)
	}
	// Owned by the user, served by a stranger: the peer is asked.
	served := serveAs(t, testnet.Stranger, path)
	defer served()
	sandbox(t, flags, get).exits(0).prints("502\n").says("served by uid 20002")
	select {
	case n := <-received:
		if n > 0 {
			t.Errorf("%d bytes were sent to the stranger", n)
		}
	default:
	}
	// A link, a file, a folder, nothing.
	link := filepath.Join(dir, "link.sock")
	os.Symlink(path, link)
	defer os.Remove(link)
	for _, other := range []string{link, userFile(t, "/tmp/exit/file", "", 0o600), dir, filepath.Join(dir, "none")} {
		sandbox(t, []string{"--internet-host", "ok.test", "--upstream", "socks5://" + other}, get).exits(0).prints("502\n")
	}
}

// serveAs serves a Unix socket at path as another user, and keeps its owner the
// ordinary user.
func serveAs(t *testing.T, uid int, path string) (stop func()) {
	t.Helper()
	os.Remove(path)
	os.Chmod(filepath.Dir(path), 0o777)
	cmd := testnet.Command("/usr/bin/python3", "-c", `import socket,sys
s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print("up", flush=True)
while True:
    c, _ = s.accept(); d = c.recv(100)
    if d: print("GOT", d, flush=True)
    c.close()`, path)
	cmd.Dir = "/"
	cmd.SysProcAttr.Credential.Uid, cmd.SysProcAttr.Credential.Gid = uint32(uid), uint32(uid)
	run := start(t, cmd)
	run.until("up")
	if err := os.Chown(path, testnet.UID, testnet.UID); err != nil {
		t.Fatal(err)
	}
	os.Chmod(path, 0o777)
	return func() {
		if strings.Contains(run.out.String(), "GOT") {
			t.Errorf("the impostor got %s", run.out)
		}
	}
}

// UC2, UP5: an HTTP upstream is given names; nothing is looked up here.
func TestUP5UC2_HTTPUpstream(t *testing.T) {
	addr := internet.Address()
	// The name is known to the upstream alone.
	plain, secure := internet.HTTP(addr, 80, nil), internet.TLS(addr, 443, nil)
	defer plain.Close()
	defer secure.Close()
	internet.DNS.Set("nas.local", netip.MustParseAddr("10.77.0.1"))
	nas := internet.HTTP(netip.MustParseAddr("10.77.0.1"), 80, nil)
	defer nas.Close()
	l, port := listenMachine(t)
	log := &upstreamLog{}
	go acceptEach(l, func(conn net.Conn) {
		in := bufio.NewReader(conn)
		request, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		log.add(request.Method + " " + request.RequestURI)
		host, p, _ := net.SplitHostPort(request.RequestURI)
		if host == "denied.corp-site.test" {
			io.WriteString(conn, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
			return
		}
		if netip.MustParseAddrPort("127.0.0.1:"+p).Port() > 0 && strings.HasSuffix(host, "upstream.test") {
			host = addr.String()
		}
		passOn(conn, netip.MustParseAddrPort(net.JoinHostPort(host, p)), "HTTP/1.1 200 OK\r\nX: y\r\n\r\n")
	})
	before := len(internet.DNS.Asked())
	flags := []string{"--internet-host", "*", "--lan-host", "nas.local", "--upstream", "http://127.0.0.1:" + port}
	sandbox(t, flags, `curl -sS https://upstream.test/; curl -sS http://a.upstream.test/`).exits(0).prints("hello from upstream.test\nhello from a.upstream.test\n")
	sandbox(t, flags, connectStatus+`status CONNECT 10.0.0.1:443; status CONNECT 127.0.0.1:443; status CONNECT denied.corp-site.test:443; status CONNECT `+addr.String()+`:80`).
		exits(0).prints("403 network\n403 this-machine\n502 upstream\n200 \n")
	want := []string{"CONNECT upstream.test:443", "CONNECT a.upstream.test:80", "CONNECT denied.corp-site.test:443", "CONNECT " + addr.String() + ":80"}
	if got := log.all(); !slices.Equal(got, want) {
		t.Errorf("the upstream was asked for %q", got)
	}
	if asked := internet.DNS.Asked()[before:]; len(asked) > 0 {
		t.Errorf("looked up here: %q", asked)
	}
	// What [lan] lists is dialled from here; a host that isn't listed is refused here.
	sandbox(t, flags, `curl -sS http://nas.local/`).exits(0).prints("hello from nas.local\n")
	sandbox(t, []string{"--internet-host", "upstream.test", "--upstream", "http://127.0.0.1:" + port}, connectStatus+`status CONNECT other.test:443; status CONNECT upstream.test:22`).
		exits(0).prints("403 host\n403 port\n")
	if got := log.all(); len(got) != len(want) {
		t.Errorf("the upstream was asked for %q", got)
	}
	// [lan] * reaches no name of the internet.
	sandbox(t, []string{"--lan-host", "*", "--upstream", "http://127.0.0.1:" + port}, connectStatus+`status CONNECT upstream.test:443`).exits(0).prints("403 host\n")
	// UP6: stopped, nothing leaves directly.
	l.Close()
	accepted := plain.Accepted() + secure.Accepted()
	internet.DNS.Set("upstream.test", addr)
	sandbox(t, flags, connectStatus+`status CONNECT upstream.test:443; status GET http://upstream.test/; status CONNECT `+addr.String()+`:80`).exits(0).prints("502 upstream\n502 upstream\n502 upstream\n")
	if plain.Accepted()+secure.Accepted() != accepted {
		t.Error("something left directly")
	}
}

// An upstream that says nothing, and an address that doesn't answer: 504, in
// bounded time.
func TestUP_StallsAreBounded(t *testing.T) {
	site(t, "ok.test")
	internet.DNS.Set("stalled.test", deadAddress(t))
	l, port := listenMachine(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
		}
	}()
	var wg sync.WaitGroup
	for target, upstream := range map[string]string{"ok.test": "socks5://127.0.0.1:" + port, "ok.test.": "http://127.0.0.1:" + port, "stalled.test": "direct"} {
		wg.Go(func() {
			r := sandbox(t, []string{"--internet-host", "*", "--upstream", upstream}, connectStatus+"status CONNECT "+target+":80 & status GET http://"+target+"/; wait")
			if r.stdout != "504 upstream\n504 upstream\n" || r.took > 40*time.Second {
				t.Errorf("%s by %s: %q after %v", target, upstream, r.stdout, r.took)
			}
		})
	}
	wg.Wait()
}

// UP6: a SOCKS upstream that is down is never replaced.
func TestUP6_FailsClosed(t *testing.T) {
	plain, _ := site(t, "ok.test")
	l, port := listenMachine(t)
	l.Close()
	for _, upstream := range []string{"socks5://127.0.0.1:" + port, "socks5:///run/no.sock"} {
		sandbox(t, []string{"--internet-host", "*", "--upstream", upstream}, connectStatus+`status CONNECT ok.test:80; status GET http://ok.test/`).exits(0).prints("502 upstream\n502 upstream\n")
	}
	if plain.Accepted() != 0 {
		t.Error("it left directly")
	}
}

// LAN1: the local network from here, whatever the upstream; this machine and
// metadata never.
func TestLAN1_LocalNetwork(t *testing.T) {
	gateway := netip.MustParseAddr("10.77.0.1")
	nas := internet.HTTP(gateway, 5000, nil)
	defer nas.Close()
	internet.DNS.Set("nas.local", gateway)
	internet.DNS.Set("printer.lan", gateway)
	internet.DNS.Set("lan.example.com", gateway)
	internet.DNS.Set("me.lan", netip.MustParseAddr("10.77.0.2"))
	l, port := listenMachine(t)
	l.Close()
	get := func(hosts ...string) string {
		script := connectStatus
		for _, host := range hosts {
			script += "status GET http://" + host + ":5000/\n"
		}
		return script
	}
	for _, upstream := range []string{"direct", "socks5://127.0.0.1:" + port, "http://127.0.0.1:" + port} {
		up := []string{"--upstream", upstream}
		sandbox(t, append(up, "--lan-host", "nas.local"), get("nas.local", "10.77.0.1", "printer.lan")).exits(0).prints("200 \n403 network\n403 host\n")
		sandbox(t, append(up, "--lan-host", "10.77.0.0/24"), get("10.77.0.1", "nas.local", "10.78.0.1", "10.77.0.2")).exits(0).prints("200 \n403 host\n403 network\n403 this-machine\n")
		sandbox(t, append(up, "--lan-host", "*"), get("10.77.0.1", "nas.local", "printer.lan", "me.lan", "lan.example.com", "169.254.169.254")).exits(0).
			prints("200 \n200 \n200 \n403 this-machine\n403 host\n403 metadata\n")
		sandbox(t, append(up, "--lan-host", "lan.example.com"), get("lan.example.com")).exits(0).prints("200 \n")
	}
	// What Go's resolver can't, getent can: here /etc/hosts by another name service.
	sandbox(t, []string{"--lan-host", "*", "--internet-host", "*"}, get("unknown.local")).exits(0).prints("502 unresolved\n")
}

// BLANK4: the proxy alone, in a folder or on a port.
func TestBLANK4_ProxyAlone(t *testing.T) {
	site(t, "ok.test")
	site(t, "no.test")
	l, port := listenMachine(t)
	l.Close()
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "proxy", "--listen", port, "--internet-host", "ok.test"))
	eventually(t, "it listens", func() bool {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	// In this very process.
	if command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", run.cmd.Process.Pid)); !strings.HasPrefix(string(command), "link-sandbox-proxy\x00") {
		t.Errorf("it runs as %q", command)
	}
	finish(t, testnet.Command("/usr/bin/curl", "-sS", "-x", "http://127.0.0.1:"+port, "http://ok.test/", "https://ok.test/")).exits(0).prints("hello from ok.test\nhello from ok.test\n")
	finish(t, testnet.Command("/usr/bin/curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-x", "http://127.0.0.1:"+port, "http://no.test/")).exits(0).prints("403")
	run.signal(syscall.SIGTERM)
	run.wait().exits(0).says("refused no.test:80: add it to [internet] allow")
	for _, args := range [][]string{{"--listen", "0"}, {"--listen", "70000"}, {"--listen", "x"}, {"--listen", port, "--dir", "relative"}, {"--listen", "80"}, {"--listen", port, "--upstream", "x"}, {"--listen", port, "--no-such"}, {"--listen", port, "--control", "relative"}} {
		r := finish(t, testnet.Command(testnet.Lnk, append([]string{"sandbox", "proxy"}, args...)...)).exits(125)
		if strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%q: %q", args, r.stderr)
		}
	}
	r := finish(t, testnet.Command(testnet.Lnk, "sandbox", "proxy", "--help")).exits(0)
	if !strings.Contains(r.stderr, "--upstream") || strings.Contains(r.stderr, "channel") {
		t.Errorf("help: %s", r.stderr)
	}
}
