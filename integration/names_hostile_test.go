package integration

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"link.internal/lnk/integration/testnet"
)

// Malformed questions over UDP and TCP are answered as such or not at all,
// and the next one as if nothing had been.
func TestHostile_MalformedQuestions(t *testing.T) {
	needsFull(t)
	site(t, "ok.test")
	const header = "abcd0100" // an id, and that recursion is desired
	client(t, okFlags, `
client raw 00 `+header+` `+header+`0001000000000000 `+header+`0000000000000000 `+header+`0002000000000000 `+header+`0001000100000000 `+header+`00010000000000ff \
  abcd81000001000000000000 abcd11000001000000000000 `+header+`0001000000000000c00c00010001 `+header+`0001000000000000016101c00c00010001 `+header+`000100000000000003ffffff0000010001 `+
		header+`0001000000000000026f6b047465737400000100fe
python3 - <<'P'
import os, random, socket, struct
random.seed(1)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.connect(("127.0.0.1", 53))
q = b"\x12\x34\x01\0\0\1\0\0\0\0\0\0\2ok\4test\0\0\1\0\1"
for i in range(3000):
    m = bytearray(q + bytes(random.randrange(256) for _ in range(random.randrange(40))))
    for _ in range(random.randrange(1, 6)): m[random.randrange(len(m))] = random.randrange(256)
    try: u.send(m)
    except OSError: pass
u.send(q + bytes(60000)); u.send(bytes(65507)); u.send(b"")
def tcp(data, read=True):
    s = socket.create_connection(("127.0.0.1", 53), 5); s.settimeout(12)
    try:
        s.sendall(data)
        return s.recv(65535) if read else s
    except OSError: return b""
print(tcp(struct.pack("!H", 65535) + q + bytes(65535 - len(q)))[2:6].hex())
print(len(tcp(struct.pack("!H", 65535) + bytes(65535))), len(tcp(b"\0\0")), len(tcp(struct.pack("!H", 5) + b"hello")))
idle = [tcp(b"\0", False) for _ in range(100)]
s = socket.create_connection(("127.0.0.1", 53), 5)
P
client dns udp 0 ok.test. A | head -1`).exits(0).prints("nothing\nnothing\n" + strings.Repeat("abcd81010000000000000000\n", 5) +
		"nothing\nabcd91040000000000000000\nabcd81010000000000000000\nabcd81010000000000000000\nabcd8183000100000000000003ffffff0000010001\nabcd81850001000000000000026f6b047465737400000100fe\n" +
		"12348180\n14 0 0\nNOERROR tc=false edns=false name=ok.test. records=1\n")
}

// A program that asks for 100,000 names costs its proxy a bounded amount of
// memory, and the names of other entries nothing.
func TestHostile_ManyNames(t *testing.T) {
	needsFull(t)
	echo(t, "db.test", 5432)
	site(t, "a.other.test")
	flags := []string{"sandbox", "run", "--internet-host", "*.evil.test", "--internet-host", "*.other.test", "--internet-host", "db.test", "--tcp", "db.test:5432", "--tcp", "*.evil.test:27017", "--internet-host", "*.more.test",
		"--read", theClient, "--", "sh", "-c"}
	long := strings.Repeat(strings.Repeat("x", 49)+".", 3)
	run := start(t, testnet.Command(testnet.Lnk, append(flags, theClient+` names '#.`+long+`more.test.' 100000; echo first; read x; `+theClient+` names '#.evil.test.' 2000; echo second; read x; `+unproxied+`curl -sS http://a.other.test/; `+py(`talk_to("db.test", 5432)`))...))
	run.until("first")
	if kib := proxyMemory(t); kib > 24<<10 {
		t.Errorf("the proxy has %d KiB", kib)
	} else {
		t.Logf("the proxy has %d KiB after 100,000 names", kib)
	}
	run.write("\n")
	run.until("second")
	if kib := proxyMemory(t); kib > 28<<10 {
		t.Errorf("the proxy has %d KiB", kib)
	} else {
		t.Logf("the proxy has %d KiB with 512 endpoints more", kib)
	}
	run.write("\n")
	out := run.wait().exits(0).stdout
	// A third of the table, and all that wildcards have of endpoints.
	if !regexp.MustCompile(`^map\[NOERROR:5461 SERVFAIL:94539\]\nfirst\nmap\[NOERROR:512 SERVFAIL:1488\]\nsecond\nhello from a.other.test\nhello\n$`).MatchString(out) {
		t.Errorf("got %s", out)
	}
}

// proxyMemory is the resident memory of the one proxy that runs, in KiB.
func proxyMemory(t *testing.T) int {
	t.Helper()
	for _, process := range processes() {
		pid, command, _ := strings.Cut(process, " ")
		if !strings.Contains(command, "link-sandbox-proxy") {
			continue
		}
		status, err := os.ReadFile("/proc/" + pid + "/status")
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`RssAnon:\s+(\d+) kB`).FindSubmatch(status)
		kib, err := strconv.Atoi(string(found[1]))
		if err != nil {
			t.Fatal(err)
		}
		return kib
	}
	t.Fatal("no proxy runs")
	return 0
}

// Resolvers that answer slowly, falsely, with far too much, or not at all:
// none leads to a wrong host, and other names are answered meanwhile.
func TestHostile_Resolvers(t *testing.T) {
	needsFull(t)
	site(t, "ok.test")
	answer := func(name string, f func(request, reply *dns.Msg)) {
		internet.DNS.Handle(name, dns.TypeTXT, func(w dns.ResponseWriter, request *dns.Msg) {
			reply := new(dns.Msg).SetReply(request)
			f(request, reply)
			if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
				reply.Truncate(1232)
			}
			w.WriteMsg(reply)
		})
	}
	record := func(line string) dns.RR {
		rr, err := dns.NewRR(line)
		if err != nil {
			t.Fatal(err)
		}
		return rr
	}
	answer("id.bad.test", func(_, reply *dns.Msg) { reply.Id++ })
	answer("question.bad.test", func(_, reply *dns.Msg) {
		reply.Question[0].Name = "ok.test."
		reply.Answer = []dns.RR{record(`ok.test. 1 IN TXT "false"`)}
	})
	answer("type.bad.test", func(_, reply *dns.Msg) {
		reply.Answer = []dns.RR{record("type.bad.test. 1 IN A 10.0.0.1"), record("type.bad.test. 1 IN SRV 0 0 1 evil.test.")}
	})
	answer("loop.bad.test", func(_, reply *dns.Msg) {
		reply.Answer = []dns.RR{record("loop.bad.test. 1 IN CNAME loop2.bad.test."), record("loop2.bad.test. 1 IN CNAME loop.bad.test.")}
	})
	answer("thousand.bad.test", func(_, reply *dns.Msg) {
		for i := range 1000 {
			reply.Answer = append(reply.Answer, record(fmt.Sprintf(`thousand.bad.test. 1 IN TXT "%d"`, i)))
		}
		reply.Compress = true
	})
	answer("fail.bad.test", func(_, reply *dns.Msg) { reply.Rcode = dns.RcodeServerFailure })
	internet.DNS.Handle("slow.bad.test", dns.TypeTXT, func(w dns.ResponseWriter, request *dns.Msg) {})
	internet.DNS.Handle("junk.bad.test", dns.TypeTXT, func(w dns.ResponseWriter, request *dns.Msg) {
		w.Write([]byte{byte(request.Id >> 8), byte(request.Id), 0x81})
	})
	start := time.Now()
	client(t, append(okFlags, "--internet-host", "*.bad.test"), `
for n in id question slow junk fail; do client dns udp 0 $n.bad.test. TXT >$n.log 2>&1 & done
for i in $(seq 40); do client dns udp 0 slow.bad.test. TXT >/dev/null 2>&1 & done
for i in $(seq 20); do client dns udp 0 ok.test. A | head -1; done | sort | uniq -c | tr -s ' '
wait; cat id.log question.log slow.log junk.log fail.log
for n in type loop; do client dns udp 0 $n.bad.test. TXT; done; client dns udp 1232 thousand.bad.test. TXT | head -1; client dns tcp 0 thousand.bad.test. TXT | head -1`+"\n").exits(0).prints(
		" 20 NOERROR tc=false edns=false name=ok.test. records=1\n" + refusedRecords("id") + refusedRecords("question") + refusedRecords("slow") + refusedRecords("junk") + refusedRecords("fail") +
			"NOERROR tc=false edns=false name=type.bad.test. records=0\nNOERROR tc=false edns=false name=loop.bad.test. records=0\nNOERROR tc=true edns=true name=thousand.bad.test. records=79\nNOERROR tc=false edns=false name=thousand.bad.test. records=1000\n")
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	// Of an address, only the dialling asks, and judges what it is told.
	internet.DNS.Set("private.bad.test", netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("169.254.169.254"))
	sandbox(t, []string{"--internet-host", "*.bad.test"}, unproxied+"curl -sS --max-time 5 http://private.bad.test/ || echo failed").exits(0).prints("failed\n").says("refused private.bad.test:80")
}

func refusedRecords(name string) string {
	return "SERVFAIL tc=false edns=false name=" + name + ".bad.test. records=0\n"
}

// A connection by name that its program leaves, or that goes wrong on the
// way, leaves nothing in the proxy.
func TestHostile_ConnectionsByName(t *testing.T) {
	needsFull(t)
	addr := internet.Host("ok.test")
	origin := internet.Serve(addr, 80, func(conn net.Conn) { conn.Close() })
	defer origin.Close()
	silent := internet.Serve(addr, 443, func(conn net.Conn) { time.Sleep(time.Second); conn.Close() })
	defer silent.Close()
	before := 0
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c", py(`
import struct
def some(n):
    for i in range(n):
        s = socket.create_connection(("ok.test", 443 if i % 2 else 80), 5)
        if i % 3 == 0: s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if i % 5 == 0: s.sendall(b"x")
        s.close()
some(50); print("warm", flush=True); sys.stdin`)+`
read x; python3 -c '
import socket
for i in range(1000): socket.create_connection(("ok.test", 80), 5).close()'; echo done; read x`))
	// Pipes are kept a while, for the next splices.
	sockets := func() (n int) {
		for _, process := range processes() {
			if pid, command, _ := strings.Cut(process, " "); strings.Contains(command, "link-sandbox-proxy") {
				open, _ := filepath.Glob("/proc/" + pid + "/fd/*")
				for _, fd := range open {
					if to, _ := os.Readlink(fd); strings.HasPrefix(to, "socket:") {
						n++
					}
				}
			}
		}
		return n
	}
	run.until("warm")
	eventually(t, "all are closed", func() bool {
		n := sockets()
		same := n == before
		before = n
		time.Sleep(50 * time.Millisecond)
		return same && n > 0
	})
	run.write("\n")
	run.until("done")
	eventually(t, "all are closed again", func() bool { return sockets() <= before })
	run.write("\n")
	run.wait().exits(0)
}

// A proxy that has no descriptor free for an endpoint's listener says so, and
// goes on.
func TestHostile_NoDescriptorFree(t *testing.T) {
	needsFull(t)
	echo(t, "ok.test", 80)
	echo(t, "b.wild.test", 7000)
	run := testnet.Lnk + " sandbox run --internet-host ok.test --internet-host '*.wild.test' --tcp '*.wild.test:7000' -- sh -c \"$SCRIPT\""
	cmd := testnet.Command("/bin/sh", "-c", "ulimit -n 256; exec "+run)
	cmd.Env = append(cmd.Env, "SCRIPT="+py(`
import time
held = []
for i in range(210):
    s = socket.socket(); s.settimeout(3)
    try: s.connect(("127.0.0.1", 40781)); held.append(s)
    except OSError: break
time.sleep(0.5)
try: print(socket.gethostbyname("a.wild.test"))
except OSError as e: print(type(e).__name__)
for s in held: s.close()
time.sleep(0.5)
talk_to("b.wild.test", 7000); talk_to("ok.test", 80)`))
	r := finish(t, cmd).exits(0)
	if !strings.HasSuffix(r.stdout, "\nhello\nhello\n") {
		t.Errorf("got %q", r.stdout)
	}
}

// WIRE4, WIRE5: what is being looked up when the wire is paused or stopped is
// neither asked on nor answered.
func TestWIRE4WIRE5_LookUps(t *testing.T) {
	needsFull(t)
	for _, name := range []string{"slow.ok.test", "cut.ok.test"} {
		internet.DNS.Handle(name, dns.TypeTXT, func(w dns.ResponseWriter, request *dns.Msg) {
			time.Sleep(1200 * time.Millisecond)
			reply := new(dns.Msg).SetReply(request)
			rr, _ := dns.NewRR(name + `. 60 IN TXT "from outside"`)
			reply.Answer = []dns.RR{rr}
			reply.Truncated = name == "cut.ok.test" // to be asked again by TCP
			w.WriteMsg(reply)
		})
	}
	for how, code := range map[string]string{"stop": "REFUSED", "pause": "SERVFAIL"} {
		run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "*.ok.test", "--read", theClient, "--", "sh", "-c",
			theClient+" dns udp 0 slow.ok.test. TXT & "+theClient+" dns udp 0 cut.ok.test. TXT & echo asked; wait; echo end; read x"))
		run.until("asked")
		time.Sleep(400 * time.Millisecond)
		before := len(internet.DNS.Asked())
		lnk(t, "sandbox", how).exits(0)
		run.until("end")
		run.write("\n")
		r := run.wait().exits(0)
		if strings.Count(r.stdout, code) != 2 || strings.Contains(r.stdout, "outside") {
			t.Errorf("%s: %s", how, r.stdout)
		}
		if asked := internet.DNS.Asked()[before:]; len(asked) > 0 {
			t.Errorf("asked after %s: %q", how, asked)
		}
	}
}

// WIRE1: the log has the names that were refused, and the records that were
// looked up; neither counts as a call.
func TestWIRE1_Names(t *testing.T) {
	needsFull(t)
	echo(t, "ok.test", 80)
	log := filepath.Join(testnet.Home, "dns.wire")
	defer os.Remove(log)
	r := client(t, append(okFlags, "--wire", log, "--per-minute", "1", "--pause-after", "2"), `for i in 1 2 3 4 5; do getent hosts no$i.test; done
client dns udp 0 ok.test. MX >/dev/null; client dns udp 0 ok.test. TXT >/dev/null; client names '#.flood.test.' 3000 >/dev/null
`+py(`talk_to("ok.test", 80)`)).exits(0).prints("hello\n").says("refused no5.test: add it").says("refused more names")
	if n := strings.Count(r.stderr, "refused "); n != 64 {
		t.Errorf("%d lines", n)
	}
	counts := map[string]int{}
	for _, record := range wireLog(t, log) {
		if record.Method == "DNS" {
			counts[string(record.Verdict)+" "+record.Path]++
		}
	}
	if counts["allowed MX"] != 1 || counts["allowed TXT"] != 1 || counts["refused "] < 100 || counts["refused "] > 1000 {
		t.Errorf("the log has %v", counts)
	}
}

// Names that are odd but listed: an underscore in front, and shares of
// wildcards that have many ports.
func TestDNS5_OddNames(t *testing.T) {
	needsFull(t)
	for _, name := range []string{"_own.test", "_x.wild.test"} {
		addr := internet.Host(name)
		plain := internet.HTTP(addr, 80, nil)
		defer plain.Close()
	}
	sandbox(t, []string{"--internet-host", "_own.test", "--internet-host", "*.wild.test"}, unproxied+"curl -sS http://_own.test/; curl -sS http://_x.wild.test/; getent hosts _y.no.test").exits(2).
		prints("hello from _own.test\nhello from _x.wild.test\n").says("refused _y.no.test: add it")
	flags := []string{"--internet-host", "*"}
	for port := 7000; port < 7003; port++ {
		flags = append(flags, "--tcp", fmt.Sprintf("*:%d", port), "--tcp", fmt.Sprintf("*:%d", port))
	}
	// 1024 listeners, of three a name.
	client(t, flags, "client names '#.test.' 400").exits(0).prints("map[NOERROR:341 SERVFAIL:59]\n").says("341.test", "can't be reached by its name inside")
}
