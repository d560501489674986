package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"link.internal/lnk/integration/testnet"
)

// site makes a host of the internet with HTTP on 80 and HTTPS on 443.
func site(t *testing.T, name string) (plain, secure *testnet.Origin) {
	t.Helper()
	addr := internet.Host(name)
	plain, secure = internet.HTTP(addr, 80, nil), internet.TLS(addr, 443, nil)
	t.Cleanup(func() { plain.Close(); secure.Close() })
	return plain, secure
}

var okFlags = []string{"--internet-host", "ok.test"}

func TestNET1_ListedAndUnlisted(t *testing.T) {
	site(t, "ok.test")
	plain, secure := site(t, "no.test")
	sandbox(t, okFlags, `curl -sS http://ok.test/ && curl -sS https://ok.test/`).exits(0).
		prints("hello from ok.test\nhello from ok.test\n").leavesNothing()
	r := sandbox(t, okFlags, `curl -sS https://no.test/; curl -s -o /dev/null -w '%{http_code}\n' http://no.test/x?secret=1`)
	r.prints("403\n").says("lnk sandbox: refused no.test:443: add it to [internet] allow (--internet-host no.test)").
		says("lnk sandbox: refused no.test:80: add it to [internet] allow (--internet-host no.test)")
	if strings.Count(r.stderr, "refused no.test:443") != 1 || strings.Contains(r.stderr, "secret") {
		t.Errorf("stderr:\n%s", r.stderr)
	}
	if plain.Accepted()+secure.Accepted() != 0 {
		t.Error("the unlisted origin was connected to")
	}
	// No flag: no network at all.
	sandbox(t, nil, `curl -sS --max-time 5 http://ok.test/; env | grep -ic proxy`).prints("0\n")
}

func TestNET1_AddressByItself(t *testing.T) {
	addr := internet.Host("literal.test")
	origin := internet.HTTP(addr, 80, nil)
	defer origin.Close()
	sandbox(t, []string{"--internet-host", addr.String()}, fmt.Sprintf(`curl -sS http://%s/`, addr)).exits(0).prints(fmt.Sprintf("hello from %s\n", addr))
	addr6 := internet.Address6()
	origin6 := internet.HTTP(addr6, 80, nil)
	defer origin6.Close()
	sandbox(t, []string{"--internet-host", "*"}, fmt.Sprintf(`curl -gsS 'http://[%s]/'`, addr6)).exits(0).prints(fmt.Sprintf("hello from [%s]\n", addr6))
}

// NET1, NET2: 443, 80 and the listed endpoints, nothing else.
func TestNET2_Ports(t *testing.T) {
	addr := internet.Host("ok.test")
	for _, port := range []uint16{22, 80, 443, 8080, 8443} {
		origin := internet.HTTP(addr, port, nil)
		defer origin.Close()
	}
	script := connectStatus + `
for t in ok.test:22 ok.test:80 ok.test:443 ok.test:8443; do status CONNECT $t; done
curl -s -o /dev/null -w '%{http_code}\n' http://ok.test:8080/`
	sandbox(t, okFlags, script).exits(0).prints("403 port\n200 \n200 \n403 port\n403\n")
	sandbox(t, byProxy("--internet-host", "ok.test", "--tcp", "ok.test:22", "--tcp", "ok.test:8080"), script).exits(0).
		prints("200 \n200 \n200 \n403 port\n200\n")
	sandbox(t, byProxy("--internet-host", "*.test", "--tcp", "*.test:8443"), script).exits(0).prints("403 port\n200 \n200 \n200 \n403\n")
}

// connectStatus is a shell function that sends one request line to the proxy
// and prints the status and the Link-Refused of the answer.
const connectStatus = `
status() { python3 - "$@" <<'P'
import socket, sys
method, target = sys.argv[1], sys.argv[2].encode().decode('unicode_escape').encode('latin-1')
s = socket.create_connection(('127.0.0.1', 40781), 5); s.settimeout(45)
s.sendall(method.encode() + b' ' + target + b' HTTP/1.1\r\nHost: x\r\n\r\n')
data = b''
while b'\r\n\r\n' not in data:
    more = s.recv(4096)
    if not more: break
    data += more
head = data.split(b'\r\n\r\n')[0].decode('latin-1').split('\r\n')
code = [l.split(': ')[1] for l in head if l.lower().startswith('link-refused:')]
print(head[0].split(' ')[1] if ' ' in head[0] else 'closed', *(code or ['']))
P
}
`

// NET3: by address, or to a name that isn't listed, nothing is reached, and
// it fails at once.
func TestNET3_NoOtherWay(t *testing.T) {
	plain, _ := site(t, "direct.test")
	for _, flags := range [][]string{nil, okFlags, {"--internet-host", "*", "--names=false"}} {
		r := sandbox(t, flags, fmt.Sprintf(`
			for v in HTTP_PROXY http_proxy HTTPS_PROXY https_proxy ALL_PROXY all_proxy; do unset $v; done
			curl -sS --max-time 5 http://%[1]s/ && echo LEAK
			python3 - <<'P'
import socket, errno
def fails(f):
    try: f(); print("LEAK")
    except OSError as e: pass
def tcp(a): socket.create_connection((a, 80), 5)
fails(lambda: tcp("%[1]s")); fails(lambda: tcp("10.77.0.1")); fails(lambda: tcp("10.77.0.2"))
fails(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("%[1]s", 53)))
fails(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b"x", ("2a0a:77::1", 53)))
fails(lambda: socket.getaddrinfo("unlisted.test", 80)); fails(lambda: socket.getaddrinfo("direct.test", 80))
fails(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
fails(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
P
			true`, plain.Addr)).exits(0).prints("")
		if r.took > 5*time.Second {
			t.Errorf("it took %v", r.took)
		}
	}
	if plain.Accepted() != 0 {
		t.Error("it was reached")
	}
}

// NET4: the target decides, never the Host header.
func TestNET4_TargetDecides(t *testing.T) {
	plain, _ := site(t, "ok.test")
	other, _ := site(t, "no.test")
	ask := func(line, host string) string {
		return fmt.Sprintf(`printf '%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' | python3 -c "
import socket,sys
s=socket.create_connection(('127.0.0.1',40781)); s.sendall(sys.stdin.buffer.read())
d=b''
while True:
    m=s.recv(4096)
    if not m: break
    d+=m
print(d.split(b'\r\n')[0].split(b' ')[1].decode())"
`, line, host)
	}
	sandbox(t, okFlags, ask("GET http://no.test/", "ok.test")).exits(0).prints("403\n")
	sandbox(t, okFlags, ask("GET http://ok.test/", "no.test")).exits(0).prints("200\n")
	sandbox(t, okFlags, ask("GET http://ok.test/", `ok.test\r\nHost: ok.test`)).exits(0).prints("400\n")
	if got := plain.Requests(); !slices.Equal(got, []string{"GET ok.test /"}) {
		t.Errorf("the origin saw %q", got)
	}
	if other.Accepted() != 0 {
		t.Error("the unlisted origin was reached")
	}
}

func TestCL1_ClientsByVariables(t *testing.T) {
	site(t, "ok.test")
	sandbox(t, okFlags, `
		curl -sS http://ok.test/a; curl -sS https://ok.test/b
		wget -qO- http://ok.test/c; wget -qO- https://ok.test/d
		python3 -c 'import urllib.request as u; print(u.urlopen("http://ok.test/").read().decode(), end=""); print(u.urlopen("https://ok.test/").read().decode(), end="")'`).
		exits(0).prints(strings.Repeat("hello from ok.test\n", 6))
}

// CL4: a server inside is reached directly; one of the machine's never.
func TestCL4_Loopback(t *testing.T) {
	machine, err := net.Listen("tcp", "127.0.0.1:8001")
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	var accepted atomic.Int32
	go func() {
		for {
			conn, err := machine.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			conn.Close()
		}
	}()
	if !testnet.Plain() { // which has one address alone
		sandbox(t, []string{"--internet-host", "*"}, `python3 -c 'import socket; socket.getaddrinfo("localhost", 80, socket.AF_INET, 0, 0, socket.AI_ADDRCONFIG)'`).exits(0)
	}
	sandbox(t, []string{"--internet-host", "*"}, `
		cd /tmp && echo inside >index.html
		python3 -c 'import http.server as h, socket
class S(h.ThreadingHTTPServer): address_family = socket.AF_INET6
s = S(("::", 8000), h.SimpleHTTPRequestHandler); print("up", flush=True); s.serve_forever()' >up 2>log &
		while ! grep -q up up; do sleep 0.05; done
		for h in localhost 127.0.0.1 '[::1]'; do curl -gsS http://$h:8000/; wget -qO- "http://$h:8000/"; done
		for h in localhost 127.0.0.1 '[::1]' 10.77.0.2 '[fd77::2]'; do curl -fgsS --max-time 5 http://$h:8001/ 2>/dev/null && echo LEAK; done
		for h in localhost 127.0.0.1 '[::1]' 127.1 0x7f000001 '[::ffff:127.0.0.1]' 10.77.0.2 '[fd77::2]' 0.0.0.0; do
			curl -fgsS --noproxy '' --max-time 5 -p -x http://127.0.0.1:40781 http://$h:8001/ 2>/dev/null && echo LEAK; done; true`).
		exits(0).prints(strings.Repeat("inside\n", 6))
	if accepted.Load() != 0 {
		t.Error("a server of the machine's was reached")
	}
}

// HT1: a refused CONNECT gets its status at once.
func TestHT1_RefusedAtOnce(t *testing.T) {
	_, secure := site(t, "no.test")
	r := sandbox(t, okFlags, `curl -sv --max-time 10 https://no.test/ 2>&1 | grep -iE '^< (HTTP|Link-Refused)'`).exits(0)
	if !strings.HasPrefix(r.stdout, "< HTTP/1.1 403 Forbidden") || !strings.Contains(r.stdout, "< Link-Refused: host") {
		t.Errorf("got %q", r.stdout)
	}
	if r.took > 3*time.Second || secure.Accepted() != 0 {
		t.Errorf("it took %v; the origin saw %d connections", r.took, secure.Accepted())
	}
}

// HT2: bytes sent along with CONNECT, and right after its answer, arrive.
func TestHT2_BytesWithConnect(t *testing.T) {
	addr := internet.Host("ok.test")
	echo := internet.Echo(addr, 80)
	defer echo.Close()
	sandbox(t, okFlags, `python3 - <<'P'
import os, socket, time
for round in range(500):
    first, second = os.urandom(65536), os.urandom(1000)
    s = socket.create_connection(("127.0.0.1", 40781)); s.settimeout(20)
    s.sendall(b"CONNECT ok.test:80 HTTP/1.1\r\nHost: ok.test:80\r\n\r\n" + first)
    data = b""
    while b"\r\n\r\n" not in data: data += s.recv(65536)
    head, data = data.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 "), head
    time.sleep(0.001)
    s.sendall(second); s.shutdown(socket.SHUT_WR)
    while True:
        more = s.recv(65536)
        if not more: break
        data += more
    assert data == first + second, (round, len(data))
    s.close()
print("exact")
P`).exits(0).prints("exact\n")
}

// FI1: wildcards, in every spelling of a name.
func TestFI1_Wildcards(t *testing.T) {
	addr := internet.Host("a.ok.test")
	for _, name := range []string{"ok.test", "notok.test", "a.ok.test.evil.test"} {
		internet.DNS.Set(name, addr)
	}
	origin := internet.HTTP(addr, 80, nil)
	defer origin.Close()
	log := filepath.Join(testnet.Home, "fi1.wire")
	defer os.Remove(log)
	sandbox(t, []string{"--internet-host", "*.ok.test", "--wire", log}, connectStatus+`
for t in a.ok.test A.OK.test a.ok.test. ok.test notok.test a.ok.test.evil.test; do status CONNECT $t:80; done
for t in a.ok.test A.OK.test a.ok.test. ok.test; do status GET http://$t/; done`).
		exits(0).prints("200 \n200 \n200 \n403 host\n403 host\n403 host\n200 \n200 \n200 \n403 host\n")
	for _, record := range wireLog(t, log) {
		if (record.Verdict == "open" || record.Verdict == "allowed") && record.Host != "a.ok.test" {
			t.Errorf("logged as %q", record.Host)
		}
	}
	for _, request := range origin.Requests() {
		if request != "GET a.ok.test /" {
			t.Errorf("the origin saw %q", request)
		}
	}
}

// FI2: what is no target is refused as such, and nothing is looked up.
func TestFI2_MalformedTargets(t *testing.T) {
	site(t, "ok.test")
	internet.DNS.Set("evil.test", internet.Address())
	before := len(internet.DNS.Asked())
	targets := []string{
		`ok.test\x00.evil.test:443`, `ok.test%00.evil.test:443`, `ok.test%23.evil.test:443`, `evil.test#ok.test:443`, `evil.test?ok.test:443`,
		`ok.test@evil.test:443`, `evil.test\\ok.test:443`, `evil.test ok.test:443`, `[ok.test]:443`, `[[::1]]:443`, `ok.test:0`, `ok.test:65536`,
		`ok.test:-1`, `ok.test:https`, `ok.test`, `ok.test:`, `:443`, `ok.test:443:443`, `ok..test:443`, `.ok.test:443`, `ok.test..:443`, `*.ok.test:443`,
		`::1:443`, `[::1]`, `[fe80::1%25eth0]:443`, `1.2.3.4.5:443`, `256.1.1.1:443`, `ok.test:+443`, `ok.test:0443`, `\xff.test:443`, `-ok.test:443`,
	}
	var script, want strings.Builder
	script.WriteString(connectStatus + "\n")
	for _, target := range targets {
		fmt.Fprintf(&script, "status CONNECT '%s'\n", target)
		want.WriteString("400 name\n")
	}
	sandbox(t, []string{"--internet-host", "*"}, script.String()).exits(0).prints(want.String())
	for _, name := range internet.DNS.Asked()[before:] {
		if strings.Contains(name, "evil") {
			t.Errorf("%q was looked up", name)
		}
	}
}

// FI3: with every host listed, addresses that are not the internet's are refused.
func TestFI3_SpecialAddresses(t *testing.T) {
	special := []struct{ target, code string }{
		{"[::ffff:127.0.0.1]", "this-machine"}, {"[::127.0.0.1]", "this-machine"}, {"[64:ff9b::7f00:1]", "this-machine"},
		{"[2002:7f00:1::]", "this-machine"}, {"0.0.0.0", "this-machine"}, {"[::]", "this-machine"}, {"100.64.0.1", "network"}, {"[fc00::1]", "network"},
		{"127.0.0.1", "this-machine"}, {"127.1", "this-machine"}, {"2130706433", "this-machine"}, {"0x7f.1", "this-machine"}, {"017700000001", "this-machine"},
		{"10.77.0.2", "this-machine"}, {"10.77.0.1", "network"}, {"[fd77::1]", "network"}, {"192.168.1.1", "network"}, {"172.16.0.1", "network"},
		{"169.254.169.254", "metadata"}, {"[::ffff:169.254.169.254]", "metadata"}, {"[64:ff9b::a9fe:a9fe]", "metadata"}, {"100.100.100.200", "metadata"},
		{"168.63.129.16", "metadata"}, {"[fd00:ec2::254]", "metadata"}, {"metadata.google.internal", "metadata"}, {"localhost", "this-machine"}, {"a.localhost", "this-machine"},
		{"169.254.1.1", "reserved"}, {"224.0.0.1", "reserved"}, {"255.255.255.255", "reserved"}, {"192.0.2.1", "reserved"}, {"[fe80::1]", "reserved"}, {"[2001:db8::1]", "reserved"},
		{"198.18.0.1", "reserved"}, {"240.0.0.1", "reserved"}, {"[2001::1]", "reserved"}, {"[ff02::1]", "reserved"},
	}
	var script, want strings.Builder
	script.WriteString(connectStatus + "\n")
	for _, s := range special {
		fmt.Fprintf(&script, "status CONNECT '%s:443'; status GET 'http://%s/'\n", s.target, s.target)
		fmt.Fprintf(&want, "403 %s\n403 %s\n", s.code, s.code)
	}
	sandbox(t, []string{"--internet-host", "*"}, script.String()).exits(0).prints(want.String())
}

// FI4: a name that answers now with a public address and now with loopback.
func TestFI4_Rebinding(t *testing.T) {
	machine, err := net.Listen("tcp", "127.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	var reached atomic.Int32
	go func() {
		for {
			conn, err := machine.Accept()
			if err != nil {
				return
			}
			reached.Add(1)
			conn.Close()
		}
	}()
	public := internet.Address()
	origin := internet.HTTP(public, 80, nil)
	defer origin.Close()
	var asked atomic.Int32
	internet.DNS.SetFunc("rebind.test", func() []netip.Addr {
		if asked.Add(1)/2%2 == 0 { // A and AAAA are asked each time
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}
		}
		return []netip.Addr{public}
	})
	r := sandbox(t, []string{"--internet-host", "rebind.test"}, `python3 - <<'P'
import collections, socket
seen = collections.Counter()
for i in range(1000):
    s = socket.create_connection(("127.0.0.1", 40781)); s.settimeout(20)
    if i % 2: s.sendall(b"GET http://rebind.test/ HTTP/1.1\r\nHost: rebind.test\r\nConnection: close\r\n\r\n")
    else: s.sendall(b"CONNECT rebind.test:80 HTTP/1.1\r\nHost: rebind.test\r\n\r\n")
    seen[s.recv(4096).split(b" ")[1].decode()] += 1
    s.close()
print(sorted(seen))
P`).exits(0)
	if r.stdout != "['200', '403']\n" {
		t.Errorf("statuses: %s", r.stdout)
	}
	if reached.Load() != 0 {
		t.Errorf("the loopback listener was reached %d times", reached.Load())
	}
}

// FI5: of a public and a private address, the private one is never dialled.
func TestFI5_MixedAddresses(t *testing.T) {
	private := netip.MustParseAddr("10.77.0.1")
	trap := internet.HTTP(private, 80, nil)
	defer trap.Close()
	public := internet.Address()
	for _, order := range [][]netip.Addr{{private, public}, {public, private}} {
		internet.DNS.Set("mixed.test", order...)
		// Nothing listens on the public one, so that a second try is due.
		sandbox(t, []string{"--internet-host", "mixed.test"}, `curl -s -o /dev/null -w '%{http_code}\n' http://mixed.test/`).exits(0).prints("502\n")
	}
	origin := internet.HTTP(public, 80, nil)
	defer origin.Close()
	sandbox(t, []string{"--internet-host", "mixed.test"}, `curl -sS http://mixed.test/`).exits(0).prints("hello from mixed.test\n")
	internet.DNS.Set("private.test", private)
	sandbox(t, []string{"--internet-host", "private.test"}, connectStatus+"\nstatus CONNECT private.test:80").exits(0).prints("403 network\n").
		says("refused private.test:80", "--lan-host private.test")
	if trap.Accepted() != 0 {
		t.Error("the private address was dialled")
	}
}

func TestNET_AnswersOfTheTable(t *testing.T) {
	internet.Host("refusing.test")
	sandbox(t, []string{"--internet-host", "*"}, connectStatus+`
status CONNECT nowhere.test:443; status CONNECT refusing.test:443; status GET http://nowhere.test/; status GET http://refusing.test/
status GET /; status GET /_link/model; status GET https://ok.test/; status GET ftp://ok.test/; status GET http://u:p@ok.test/`).exits(0).
		prints("502 unresolved\n502 upstream\n502 unresolved\n502 upstream\n403 browser\n403 browser\n400 name\n400 name\n400 name\n").
		says("refused nowhere.test:443", "no address").says("refused refusing.test:443", "can't be reached: connection refused")
}

// A proxy that dies leaves the program with nothing, and the run goes on.
func TestNET_DeadProxy(t *testing.T) {
	site(t, "ok.test")
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c",
		`curl -sS http://ok.test/; echo ready; read line
		curl -sS --max-time 5 http://ok.test/; echo $?; curl -sS --max-time 5 --noproxy '*' http://ok.test/ ; echo $?`))
	run.until("ready")
	killProxy(t)
	run.write("\n")
	run.wait().exits(0).prints("hello from ok.test\nready\n7\n6\n").says("its proxy has ended").leavesNothing()
}

func killProxy(t *testing.T) {
	t.Helper()
	for _, p := range processes() {
		if pid, command, _ := strings.Cut(p, " "); strings.Contains(command, "link-sandbox-proxy") {
			var n int
			fmt.Sscan(pid, &n)
			process, err := os.FindProcess(n)
			if err != nil {
				t.Fatal(err)
			}
			process.Kill()
			eventually(t, "the proxy is dead", func() bool {
				return !slices.ContainsFunc(processes(), func(p string) bool { return strings.Contains(p, "link-sandbox-proxy") })
			})
			return
		}
	}
	t.Fatal("no proxy")
}

// record is a line of the wire log, read strictly as docs/wire.md has it.
type record struct {
	Seq     uint64
	Time    time.Time
	Agent   string
	From    string
	Method  string
	Host    string
	Port    int
	Path    string
	Verdict string
	Reason  string
	Address string
	Status  int
	Up      int64
	Down    int64
	MS      int64
}

func wireLog(t *testing.T, path string) []record {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var records []record
	for line := range strings.Lines(string(data)) {
		var r record
		decoder := json.NewDecoder(strings.NewReader(line))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		records = append(records, r)
	}
	return records
}

func TestWIRE1_Log(t *testing.T) {
	plain, _ := site(t, "ok.test")
	log := filepath.Join(testnet.Home, "wire1")
	defer os.Remove(log)
	sandbox(t, []string{"--internet-host", "ok.test", "--wire", "wire1", "--agent", "scout"}, `
		curl -sS 'http://ok.test/path?token=SECRET'; curl -sS -d 12345 http://ok.test/post; curl -sS https://ok.test/
		curl -s 'http://no.test/x?token=SECRET' >/dev/null; curl -s https://no.test/; true`).exits(0)
	info, err := os.Stat(log)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	text, _ := os.ReadFile(log)
	if strings.Contains(string(text), "SECRET") {
		t.Error("a query string was logged")
	}
	records := wireLog(t, log)
	var got []string
	for i, r := range records {
		if r.Seq != uint64(i+1) || r.Agent != "scout" || r.From != "sandbox" || r.Time.IsZero() {
			t.Errorf("record %d: %+v", i, r)
		}
		got = append(got, fmt.Sprintf("%s %s:%d%s %s %s %d", r.Method, r.Host, r.Port, r.Path, r.Verdict, r.Reason, r.Status))
	}
	want := []string{
		"GET ok.test:80/path allowed  200", "POST ok.test:80/post allowed  200",
		"CONNECT ok.test:443 open  200", "CONNECT ok.test:443 end  200",
		"GET no.test:80/x refused host 403", "CONNECT no.test:443 refused host 403",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if r := records[1]; r.Up != 5 || r.Down != int64(len("hello from ok.test\n")) {
		t.Errorf("up %d, down %d", r.Up, r.Down)
	}
	if r := records[3]; r.Up < 200 || r.Down < 500 || r.Address != plain.Addr.String()+":443" {
		t.Errorf("the tunnel: %+v", r)
	}
	// A log that others could read, or a link, is refused.
	userFile(t, "open.wire", "", 0o644)
	lnk(t, "sandbox", "run", "--internet-host", "ok.test", "--wire", "open.wire", "--", "true").refusedInOneLine("0644")
	if err := os.Symlink(log, filepath.Join(testnet.Home, "link.wire")); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(filepath.Join(testnet.Home, "link.wire"))
	lnk(t, "sandbox", "run", "--internet-host", "ok.test", "--wire", "link.wire", "--", "true").refusedInOneLine("wire")
}

// A full disk stops no traffic, and the gap shows.
func TestWIRE1_FullDisk(t *testing.T) {
	site(t, "ok.test")
	dir := userFolder(t, "small")
	mountSmall(t, dir)
	log, filler := filepath.Join(dir, "wire"), filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 20<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--wire", log, "--", "sh", "-c", `
		long=$(head -c 900 /dev/zero | tr '\0' x)
		for i in $(seq 20); do curl -sSf http://ok.test/$long >/dev/null || echo failed; done
		echo full; read line
		curl -sSf http://ok.test/last >/dev/null && echo fine`))
	run.until("full")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	run.write("\n")
	run.until("fine")
	run.wait().exits(0)
	records := wireLog(t, log)
	last := records[len(records)-1]
	if last.Path != "/last" || last.Seq != 21 || len(records) >= 21 || len(records) < 3 {
		t.Errorf("%d records, the last %+v", len(records), last)
	}
}
