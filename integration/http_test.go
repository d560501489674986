package integration

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"link.internal/lnk/integration/testnet"
)

// proxyClient is Python for a program that speaks to the proxy by itself:
// talk(bytes) sends them and returns all that comes back.
const proxyClient = `
import os, socket, time
def open_(): s = socket.create_connection(("127.0.0.1", 40781)); s.settimeout(20); return s
def drain(s):
    data = b""
    try:
        while True:
            more = s.recv(65536)
            if not more: return data
            data += more
    except ConnectionError: return data
def talk(sent):
    s = open_(); s.sendall(sent); data = drain(s); s.close(); return data
def head(s):
    data = b""
    while b"\r\n\r\n" not in data:
        more = s.recv(1)
        if not more: break
        data += more
    return data
def tunnel(target):
    s = open_(); s.sendall(b"CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n" % target); h = head(s)
    assert h.startswith(b"HTTP/1.1 200"), h
    return s
`

func python(body string) string { return "python3 - <<'P'\n" + proxyClient + body + "\nP" }

// HT3: a Host header that isn't the target's, and two of them.
func TestHT3_HostHeader(t *testing.T) {
	plain, _ := site(t, "ok.test")
	other, _ := site(t, "no.test")
	sandbox(t, okFlags, python(`
for sent in (b"GET http://no.test/ HTTP/1.1\r\nHost: ok.test\r\nConnection: close\r\n\r\n", b"GET http://ok.test/ HTTP/1.1\r\nHost: no.test\r\nConnection: close\r\n\r\n",
    b"GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nHost: no.test\r\n\r\n", b"GET http://ok.test/ HTTP/1.1\r\n\r\n"):
    print(talk(sent).split(b" ")[1].decode())`)).exits(0).prints("403\n200\n400\n400\n")
	if got := plain.Requests(); !slices.Equal(got, []string{"GET ok.test /"}) || other.Accepted() != 0 {
		t.Errorf("the origins saw %q, and %d connections", got, other.Accepted())
	}
}

// HT4: what could be read as two requests is refused, or read as one.
func TestHT4_Smuggling(t *testing.T) {
	plain, _ := site(t, "ok.test")
	sandbox(t, okFlags, python(`
smuggled = b"GET http://ok.test/smuggled HTTP/1.1\r\nHost: ok.test\r\n\r\n"
for n, headers in enumerate([
    b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: chunked\r\nContent-Length: 5", b"Content-Length: 5\r\nContent-Length: 6",
    b"Transfer-Encoding: xchunked", b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding : chunked", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    b"Content-Length: +5", b"Content-Length: 0x5", b"Content-Length: -1", b"X: y\n Content-Length: 5", b"Transfer-Encoding:\x0bchunked"]):
    data = talk(b"POST http://ok.test/%d HTTP/1.1\r\nHost: ok.test\r\nConnection: close\r\n%s\r\n\r\n0\r\n\r\n" % (n, headers) + smuggled)
    print(n, data.count(b"HTTP/1.1 "))`)).exits(0)
	for _, request := range plain.Requests() {
		if strings.Contains(request, "smuggled") {
			t.Errorf("the origin saw %q", request)
		}
	}
	seen := map[string]int{}
	for _, request := range plain.Requests() {
		seen[request]++
		if seen[request] > 1 {
			t.Errorf("twice: %q", request)
		}
	}
}

// HT5: Expect: 100-continue, to origins that say so, that answer at once, and
// that say nothing.
func TestHT5_Expect(t *testing.T) {
	addr := internet.Host("ok.test")
	var got atomic.Int64
	origin := internet.Serve(addr, 80, func(conn net.Conn) {
		defer conn.Close()
		in := bufio.NewReader(conn)
		request, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		switch request.URL.Path {
		case "/continue":
			io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n")
		case "/refuse":
			io.WriteString(conn, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			return
		}
		n, _ := io.Copy(io.Discard, request.Body)
		got.Store(n)
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	})
	defer origin.Close()
	const size = 5 << 20
	for _, test := range []struct {
		path, want string
		received   int64
	}{{"continue", "200", size}, {"refuse", "401", 0}, {"silent", "200", size}} {
		got.Store(0)
		r := sandbox(t, okFlags, fmt.Sprintf(`head -c %d /dev/zero >/tmp/big; curl -sS -o /dev/null -w '%%{http_code}' -H 'Expect: 100-continue' -T /tmp/big http://ok.test/%s`, size, test.path)).exits(0).prints(test.want)
		if got.Load() != test.received || r.took > 10*time.Second {
			t.Errorf("%s: the origin got %d bytes; it took %v", test.path, got.Load(), r.took)
		}
	}
}

// HT6: half-closes, both ways, by CONNECT.
func TestHT6_HalfClose(t *testing.T) {
	addr := internet.Host("ok.test")
	// It sends 1 MB when the client has ended, or first ends and then counts.
	after := internet.Serve(addr, 80, func(conn net.Conn) {
		defer conn.Close()
		io.Copy(io.Discard, conn)
		conn.Write(make([]byte, 1<<20))
	})
	defer after.Close()
	counted := make(chan int64, 700)
	before := internet.Serve(addr, 443, func(conn net.Conn) {
		defer conn.Close()
		conn.(*net.TCPConn).CloseWrite()
		n, _ := io.Copy(io.Discard, conn)
		counted <- n
	})
	defer before.Close()
	dir, run := aProxy(t, "--internet-host", "ok.test", "--tcp", "ok.test:443")
	fds := func() int {
		entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", run.cmd.Process.Pid))
		return len(entries)
	}
	dial := func(target string) *net.UnixConn {
		conn := connect(t, filepath.Join(dir, "out.sock")).(*net.UnixConn)
		fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n", target)
		one, head := make([]byte, 1), ""
		for !strings.HasSuffix(head, "\r\n\r\n") {
			if _, err := conn.Read(one); err != nil {
				t.Fatal(err)
			}
			head += string(one)
		}
		return conn
	}
	start := fds()
	for i := range 300 {
		conn := dial("ok.test:80")
		conn.Write([]byte("request"))
		conn.CloseWrite()
		if n, err := io.Copy(io.Discard, conn); n != 1<<20 || err != nil {
			t.Fatalf("round %d: %d bytes, %v", i, n, err)
		}
		conn.Close()
		conn = dial("ok.test:443")
		if n, err := io.Copy(io.Discard, conn); n != 0 || err != nil {
			t.Fatalf("round %d: %d bytes, %v", i, n, err)
		}
		conn.Write(make([]byte, 100000))
		conn.CloseWrite()
		if n := <-counted; n != 100000 {
			t.Fatalf("round %d: the origin got %d bytes", i, n)
		}
		conn.Close()
	}
	defer func() {
		if t.Failed() {
			out, _ := exec.Command("ls", "-l", fmt.Sprintf("/proc/%d/fd", run.cmd.Process.Pid)).CombinedOutput()
			t.Logf("%d at the start; now\n%s", start, out)
		}
	}()
	// A few pipes stay, which Go keeps for the next splice.
	eventually(t, "descriptors are flat", func() bool { return fds() <= start+10 })
}

// HT7: the ports are shown by TestNET2_Ports; a --tcp for an unlisted host is
// refused at start.
func TestHT7_UnlistedEndpoint(t *testing.T) {
	lnk(t, "sandbox", "run", "--internet-host", "ok.test", "--tcp", "no.test:22", "--", "true").refusedInOneLine("--tcp no.test:22", "--internet-host no.test")
	lnk(t, "sandbox", "run", "--internet-host", "*.ok.test", "--tcp", "ok.test:22", "--", "true").refusedInOneLine("--tcp ok.test:22")
	sandbox(t, byProxy("--lan-host", "nas.local", "--tcp", "nas.local:22"), "true").exits(0)
}

// HT8: events arrive as they are sent; WebSockets by Upgrade and by CONNECT.
func TestHT8_Streams(t *testing.T) {
	addr := internet.Host("ok.test")
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events" {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 4 {
				fmt.Fprintf(w, "data: %d %d\n\n", i, time.Now().UnixMilli())
				w.(http.Flusher).Flush()
				time.Sleep(400 * time.Millisecond)
			}
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		io.Copy(conn, buffered)
	})
	plain := internet.HTTP(addr, 80, handler)
	defer plain.Close()
	sandbox(t, okFlags, python(`
s = open_(); s.sendall(b"GET http://ok.test/events HTTP/1.1\r\nHost: ok.test\r\nConnection: close\r\n\r\n")
late, count, data = 0, 0, b""
while True:
    more = s.recv(65536)
    if not more: break
    data += more
    for line in more.split(b"\n"):
        if line.startswith(b"data: "):
            count += 1
            if time.time() * 1000 - int(line.split(b" ")[2]) > 200: late += 1
print(count, late)
s = open_(); s.sendall(b"GET http://ok.test/ws HTTP/1.1\r\nHost: ok.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
h = head(s); print(h.split(b"\r\n")[0].decode())
for i in range(50):
    m = os.urandom(1000); s.sendall(m); got = b""
    while len(got) < 1000: got += s.recv(65536)
    assert got == m
s = tunnel(b"ok.test:80"); s.sendall(b"GET /ws HTTP/1.1\r\nHost: ok.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
print(head(s).split(b"\r\n")[0].decode()); s.sendall(b"ping"); print(s.recv(10).decode())
# Not to another HTTP, whose requests nobody would decide.
print(b"101" in talk(b"GET http://ok.test/events HTTP/1.1\r\nHost: ok.test\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n").split(b"\r\n")[0])`)).
		exits(0).prints("4 0\nHTTP/1.1 101 Switching Protocols\nHTTP/1.1 101 Switching Protocols\nping\nFalse\n")
}

// NET5: one connection, thousands of requests, each decided by itself.
func TestNET5_ADecisionARequest(t *testing.T) {
	plain, _ := site(t, "ok.test")
	other, _ := site(t, "no.test")
	sandbox(t, okFlags, python(`
s = open_(); f = s.makefile("rb"); seen = {}
for i in range(3000):
    host = b"ok.test" if i % 3 else b"ok.test"
    s.sendall(b"GET http://%s/%d HTTP/1.1\r\nHost: x\r\n\r\n" % (host, i))
    status = f.readline().split(b" ")[1]; length = 0
    while True:
        line = f.readline().strip()
        if not line: break
        if line.lower().startswith(b"content-length:"): length = int(line.split(b":")[1])
    f.read(length); seen[status] = seen.get(status, 0) + 1
print(seen)
s.sendall(b"GET http://no.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\nGET http://ok.test/after HTTP/1.1\r\nHost: ok.test\r\n\r\n")
print(drain(s).count(b"HTTP/1.1 403"))`)).exits(0).prints("{b'200': 3000}\n1\n")
	if len(plain.Requests()) != 3000 || other.Accepted() != 0 {
		t.Errorf("%d requests, %d connections to the other", len(plain.Requests()), other.Accepted())
	}
}

// NET5: trailers, hop-by-hop headers, bodies of every framing, compression untouched.
func TestNET5_Messages(t *testing.T) {
	addr := internet.Host("ok.test")
	origin := internet.HTTP(addr, 80, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-Sum")
		w.Header().Set("Keep-Alive", "timeout=5")
		w.Header().Set("X-Hop", "hop")
		w.Header().Set("Connection", "X-Hop")
		fmt.Fprintf(w, "%d %v %q %q %q %q %q", len(body), r.TransferEncoding, r.Trailer.Get("X-End"), r.Header.Get("Proxy-Authorization"), r.Header.Get("X-Gone"), r.Header.Get("Accept-Encoding"), r.Header.Get("X-Forwarded-For"))
		w.(http.Flusher).Flush()
		w.Header().Set("X-Sum", "7")
	}))
	defer origin.Close()
	sandbox(t, okFlags, python(`
data = talk(b"POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nConnection: close, X-Gone\r\nX-Gone: 1\r\nProxy-Authorization: secret\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n5\r\nhello\r\n0\r\nX-End: end\r\n\r\n")
h, body = data.split(b"\r\n\r\n", 1)
print(b"X-Hop" in h, b"Keep-Alive" in h, b"X-Sum: 7" in body, b'5 [chunked] "end" "" "" "" ""' in body)
print(talk(b"GET http://ok.test/ HTTP/1.0\r\nHost: ok.test\r\n\r\n").split(b"\r\n")[0].decode())`)).
		exits(0).prints("False False True True\nHTTP/1.0 200 OK\n")
}

// NET6: so many calls a minute.
func TestNET6_PerMinute(t *testing.T) {
	site(t, "ok.test")
	sandbox(t, []string{"--internet-host", "ok.test", "--per-minute", "5"}, python(`
codes = [talk(b"GET http://ok.test/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") for _ in range(6)]
print([c.split(b" ")[1].decode() for c in codes], b"Retry-After: 12\r\n" in codes[5], b"Link-Refused: rate\r\n" in codes[5])
print(talk(b"CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\n\r\n").split(b" ")[1].decode())`)).
		exits(0).prints("['200', '200', '200', '200', '200', '429'] True True\n429\n").says("--per-minute")
	lnk(t, "sandbox", "run", "--internet-host", "ok.test", "--per-minute", "-1", "--", "true").refusedInOneLine("--per-minute")
	lnk(t, "sandbox", "run", "--internet-host", "ok.test", "--pause-after", "x", "--", "true").refusedInOneLine("pause-after")
}

// NET6: so many refusals pause the wire, and resume lets it go on.
func TestNET6_PauseAfter(t *testing.T) {
	site(t, "ok.test")
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--pause-after", "3", "--", "sh", "-c", connectStatus+`
for i in 1 2 3; do status CONNECT no.test:443; done; status GET http://ok.test/; echo paused-now; read x; status GET http://ok.test/; status CONNECT no.test:443; status GET http://ok.test/`))
	run.until("paused-now")
	lnk(t, "sandbox", "list").exits(0)
	lnk(t, "sandbox", "resume").exits(0)
	run.write("\n")
	run.wait().exits(0).prints("403 host\n403 host\n403 host\n503 paused\npaused-now\n200 \n403 host\n200 \n").says("3 refusals in a minute paused it")
}

// WE1, NET7: a web page's request is refused on every path, for nothing, and
// logged once a minute at most.
func TestNET7WE1_WebPages(t *testing.T) {
	log := filepath.Join(testnet.Home, "we1.wire")
	defer os.Remove(log)
	sandbox(t, []string{"--internet-host", "ok.test", "--per-minute", "3", "--pause-after", "2", "--wire", log}, python(`
def ask(path, headers, version=b"1.1"):
    data = talk(b"GET %s HTTP/%s\r\n%s\r\n" % (path, version, headers))
    code = [l for l in data.split(b"\r\n") if l.startswith(b"Link-Refused")]
    return data.split(b" ")[1].decode() + " " + (code[0].split(b" ")[1].decode() if code else "")
host = b"Host: 127.0.0.1:40781\r\n"
got = set()
for path in (b"/", b"/_link/model", b"/favicon.ico", b"/_link/../x"):
    for headers in (b"Host: localhost.evil.test\r\n", b"Host: 127.evil.test\r\n", b"Host: 127.0.0.1.evil.test:40781\r\n", b"Host: [::ffff:127.0.0.1]\r\n", b"Host: \r\n",
        host + b"Origin: http://evil.test\r\n", host + b"Origin: null\r\n", host + b"Origin: https://127.0.0.1:40781\r\n", host + b"Sec-Fetch-Site: cross-site\r\n", host + b"Sec-Fetch-Site: same-site\r\n",
        host + b"Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site\r\n"):
        got.add(ask(path, headers))
got.add(ask(b"/", b"", b"1.0"))
print(got)
# The proxy's own page, and no browser's: not refused as a page. Nothing above has counted.
print(ask(b"/", host), ask(b"/", host + b"Origin: http://127.0.0.1:40781\r\nSec-Fetch-Site: same-origin\r\n"))`)).
		exits(0).prints("{'403 browser'}\n404 route 404 route\n")
	browser := 0
	for _, record := range wireLog(t, log) {
		if record.Reason == "browser" {
			browser++
		}
	}
	if browser != 1 {
		t.Errorf("%d records of web pages", browser)
	}
}

// FI6, NET9: on 443 the TLS server name is the host that was asked for.
func TestNET9FI6_ServerNames(t *testing.T) {
	addr := internet.Host("ok.test")
	internet.DNS.Set("evil.test", addr)
	secure := internet.TLS(addr, 443, nil)
	defer secure.Close()
	log := filepath.Join(testnet.Home, "fi6.wire")
	defer os.Remove(log)
	flags := []string{"--internet-host", "ok.test", "--wire", log}
	tlsClient := `
import ssl
def hello(target, name):
    s = tunnel(target); c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
    try:
        t = c.wrap_socket(s, server_hostname=name); t.sendall(b"GET / HTTP/1.0\r\n\r\n"); return drain(t).split(b" ")[1].decode()
    except (OSError, IndexError) as e: return "closed"
def raw(target, sent):
    s = tunnel(target); s.sendall(sent); return drain(s) or "closed"
`
	r := sandbox(t, flags, python(tlsClient+`
print(hello(b"ok.test:443", "ok.test"), hello(b"ok.test:443", "OK.test"), hello(b"ok.test:443", "evil.test"), hello(b"ok.test:443", None))
print(raw(b"ok.test:443", b"GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n"), raw(b"ok.test:443", b"SSH-2.0-x\r\n"), raw(b"ok.test:443", b"\x16\x03\x01\x40\x01" + b"x" * 100))`)).
		exits(0)
	r.prints("200 200 closed closed\nclosed closed closed\n").says("refused ok.test:443", "names another server, evil.test", "--tcp ok.test:443")
	reasons := map[string]int{}
	for _, record := range wireLog(t, log) {
		reasons[record.Verdict+" "+record.Reason]++
	}
	if reasons["refused sni"] != 5 || reasons["open "] != 2 || reasons["end "] != 2 {
		t.Errorf("the log has %v", reasons)
	}
	// The origin saw nothing of what was refused: two requests, each a TLS one.
	if got := len(secure.Requests()); got != 2 {
		t.Errorf("%d requests", got)
	}
	// --tcp lifts it; a literal address needs no name.
	sandbox(t, byProxy("--internet-host", "ok.test", "--tcp", "ok.test:443"), python(tlsClient+`print(hello(b"ok.test:443", "evil.test"))`)).exits(0).prints("200\n")
	sandbox(t, []string{"--internet-host", addr.String()}, python(tlsClient+fmt.Sprintf(`print(hello(b"%[1]s:443", None), hello(b"%[1]s:443", "evil.test"))`, addr))).exits(0).prints("200 closed\n")
	// A client that goes away before it has said anything is no refusal.
	gone := sandbox(t, []string{"--internet-host", "ok.test"}, python(`
s = tunnel(b"ok.test:443"); s.close(); s = tunnel(b"ok.test:443"); s.sendall(b"\x16\x03\x01\x01"); s.close(); time.sleep(0.2)`)).exits(0)
	if gone.stderr != "" {
		t.Errorf("stderr: %s", gone.stderr)
	}
	// The bytes go on untouched, whatever pieces they come in.
	echoed := internet.Address()
	internet.DNS.Set("echo.test", echoed)
	echo := internet.Echo(echoed, 443)
	defer echo.Close()
	sandbox(t, []string{"--internet-host", "echo.test"}, python(`
import ssl
i, o = ssl.MemoryBIO(), ssl.MemoryBIO()
try: ssl.create_default_context().wrap_bio(i, o, server_hostname="echo.test").do_handshake()
except ssl.SSLWantReadError: pass
first = o.read() + os.urandom(200000)
s = tunnel(b"echo.test:443")
import threading
def send():
    for k in range(0, 700, 3): s.sendall(first[k:k+3])
    s.sendall(first[702:]); s.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
print(drain(s) == first)`)).exits(0).prints("True\n")
}

// An encrypted ClientHello could name any site of a shared address.
func TestNET9FI6_EncryptedClientHello(t *testing.T) {
	addr := internet.Host("ok.test")
	secure := internet.TLS(addr, 443, nil)
	defer secure.Close()
	dir, _ := aProxy(t, "--internet-host", "ok.test")
	any, _ := aProxy(t, "--internet-host", "*")
	hello := func(dir string) string {
		conn := connect(t, filepath.Join(dir, "out.sock"))
		fmt.Fprintf(conn, "CONNECT ok.test:443 HTTP/1.1\r\nHost: x\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, int64(len("HTTP/1.1 200 Connection established\r\n\r\n")))), &http.Request{Method: "CONNECT"})
		if err != nil || response.StatusCode != 200 {
			t.Fatal(response, err)
		}
		client := tls.Client(conn, &tls.Config{ServerName: "evil.test", InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, EncryptedClientHelloConfigList: echConfig})
		// A server without the key answers to the outer name.
		if err = client.Handshake(); errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return "closed"
		}
		return "answered"
	}
	if got := hello(dir); got != "closed" {
		t.Errorf("with one host listed: %s", got)
	}
	if got := hello(any); got != "answered" {
		t.Errorf("with any host listed: %s", got)
	}
}

// CL2, CL3 and the rest: real clients, with the environment as it is.
func TestCL_RealClients(t *testing.T) {
	addr := internet.Host("ok.test")
	origin := http.Handler(nil)
	plain, secure := internet.HTTP(addr, 80, origin), internet.TLS(addr, 443, origin)
	defer plain.Close()
	defer secure.Close()
	site(t, "no.test")
	t.Run("CL3 node fetch", func(t *testing.T) {
		node, err := exec.LookPath("node")
		if err != nil {
			t.Skip("node is missing")
		}
		log := filepath.Join(testnet.Home, "node.wire")
		defer os.Remove(log)
		flags := []string{"sandbox", "run", "--internet-host", "ok.test", "--wire", log, "--env", "NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt", "--", node, "-e"}
		// Node's fetch reads the proxy's variables from version 22.21 on, and
		// 24; an older one is given what they say by its own agent.
		old := lnk(t, "sandbox", "run", "--", node, "-e", "const [a,b]=process.versions.node.split('.').map(Number); process.exit(a>=24||a==22&&b>=21?0:9)").code == 9
		if old {
			r := lnk(t, append(flags, `
const http = require('http');
function get(u) { return new Promise((ok) => { const p = new URL(process.env.HTTP_PROXY); http.get({host: p.hostname, port: p.port, path: u, headers: {host: new URL(u).host}}, (r) => { r.resume(); ok(r.statusCode); }); }); }
(async () => console.log(await get('http://ok.test/'), await get('http://no.test/')))()`)...).exits(0)
			r.prints("200 403\n")
			return
		}
		lnk(t, append(flags, `(async () => { console.log((await fetch('http://ok.test/')).status, (await fetch('https://ok.test/')).status);
try { const r = await fetch('http://no.test/'); console.log('status', r.status) } catch (e) { console.log('error') } })()`)...).exits(0).says("refused no.test:80")
		refused := 0
		for _, record := range wireLog(t, log) {
			if record.Host == "no.test" {
				refused++
			}
		}
		if refused != 1 {
			t.Errorf("%d calls for one refusal", refused)
		}
	})
	t.Run("CL2 python's clients", func(t *testing.T) {
		sandbox(t, append(okFlags, "--env", "REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt", "--env", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"), `
			cd /tmp && echo inside >index.html; python3 -m http.server 8000 >log 2>&1 &
			while ! curl -s http://localhost:8000/ >/dev/null; do sleep 0.05; done
			/usr/bin/python3 - <<'P'
import asyncio, requests, httpx, aiohttp
print(requests.get("http://ok.test/").text, requests.get("https://ok.test/").text, requests.get("http://localhost:8000/").text, end="")
print(httpx.get("http://ok.test/").text, httpx.get("https://ok.test/").text, httpx.get("http://127.0.0.1:8000/").text, end="")
async def main():
    async with aiohttp.ClientSession(trust_env=True) as s:
        for u in ("http://ok.test/", "https://ok.test/", "http://localhost:8000/"):
            async with s.get(u) as r: print(await r.text(), end="")
asyncio.run(main())
P`).exits(0).prints("hello from ok.test\n hello from ok.test\n inside\nhello from ok.test\n hello from ok.test\n inside\nhello from ok.test\nhello from ok.test\ninside\n")
	})
	t.Run("openssl s_client", func(t *testing.T) {
		sandbox(t, okFlags, `printf 'GET / HTTP/1.0\r\n\r\n' | openssl s_client -quiet -proxy 127.0.0.1:40781 -connect ok.test:443 -servername ok.test -ign_eof 2>/dev/null | tail -1`).exits(0).prints("hello from \n")
	})
	t.Run("git over https", func(t *testing.T) {
		repository := gitRepository(t)
		server := internet.TLS(internet.Host("git.test"), 443, gitBackend(repository))
		defer server.Close()
		sandbox(t, []string{"--internet-host", "git.test", "--write", userFolder(t, "gitwork")}, `cd ~/gitwork && rm -rf repo && git clone -q https://git.test/repo.git && cd repo && git fetch -q &&
			echo more >more && git add more && git -c user.name=t -c user.email=t@ok.test commit -qm two && git push -q origin HEAD:new && cat file`).exits(0).prints("content\n")
		if out, err := exec.Command("git", "-C", repository+"/repo.git", "-c", "safe.directory=*", "rev-parse", "new").CombinedOutput(); err != nil {
			t.Errorf("the push didn't arrive: %s", out)
		}
	})
	t.Run("npm against a registry", func(t *testing.T) {
		if _, err := exec.LookPath("npm"); err != nil {
			t.Skip("npm is missing")
		}
		npm, err := filepath.EvalSymlinks(must(exec.LookPath("npm")))
		if err != nil || !strings.HasPrefix(npm, "/usr/") {
			t.Skip("npm is no system program here")
		}
		registry := internet.HTTP(internet.Host("registry.test"), 80, npmRegistry(t))
		defer registry.Close()
		sandbox(t, []string{"--internet-host", "registry.test", "--write", userFolder(t, "npmwork")}, `cd ~/npmwork && npm init -y >/dev/null 2>&1 && npm install --registry http://registry.test/ tiny >/dev/null && node -e 'console.log(require("tiny"))'`).
			exits(0).prints("works\n")
	})
}

func must(path string, err error) string {
	if err != nil {
		return ""
	}
	return path
}

// gitBackend is git's own HTTP server.
func gitBackend(dir string) http.Handler {
	return &gitServer{dir}
}

type gitServer struct{ dir string }

func (g *gitServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	cmd := exec.Command("git", "http-backend")
	cmd.Dir = g.dir
	cmd.Env = append(os.Environ(), "GIT_PROJECT_ROOT="+g.dir, "GIT_HTTP_EXPORT_ALL=1", "REQUEST_METHOD="+r.Method, "PATH_INFO="+r.URL.Path, "QUERY_STRING="+r.URL.RawQuery,
		"CONTENT_TYPE="+r.Header.Get("Content-Type"), "HTTP_CONTENT_ENCODING="+r.Header.Get("Content-Encoding"), "REMOTE_USER=tester", "GIT_PROTOCOL="+r.Header.Get("Git-Protocol"),
		"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=http.receivepack", "GIT_CONFIG_VALUE_0=true", "GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*")
	cmd.Stdin = r.Body
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		errors.As(err, &exit)
		http.Error(w, fmt.Sprintf("%v: %s", err, exit.Stderr), 500)
		return
	}
	response, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader("HTTP/1.0 200 OK\r\n"), strings.NewReader(string(out)))), r)
	if err != nil {
		http.Error(w, err.Error(), 500)
		return
	}
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	io.Copy(w, response.Body)
}

// upgradeOrStream streams without end, or echoes after an upgrade.
func upgradeOrStream() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			io.Copy(io.Discard, r.Body)
			for range 200 {
				if _, err := w.Write(make([]byte, 10000)); err != nil {
					return
				}
				w.(http.Flusher).Flush()
				time.Sleep(5 * time.Millisecond)
			}
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		io.Copy(conn, buffered)
	})
}
