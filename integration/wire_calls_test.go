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
	"strings"
	"testing"
	"time"

	"link.internal/lnk/integration/testnet"
)

// WIRE5: stop ends requests and upgrades as well as tunnels, and what was
// being dialled reaches nobody.
func TestWIRE5_StopEndsEveryKind(t *testing.T) {
	addr := internet.Host("ok.test")
	hang := make(chan struct{})
	defer close(hang)
	origin := internet.HTTP(addr, 80, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/events":
			w.(http.Flusher).Flush()
			<-hang
		case "/hung":
			<-hang
		default:
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			<-hang
		}
	}))
	defer origin.Close()
	late := internet.Address()
	lateOrigin := internet.HTTP(late, 80, nil)
	defer lateOrigin.Close()
	internet.DNS.SetFunc("late.test", func() []netip.Addr { time.Sleep(1500 * time.Millisecond); return []netip.Addr{late} })
	log := filepath.Join(testnet.Home, "stop.wire")
	defer os.Remove(log)
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "*", "--wire", log, "--", "sh", "-c", python(`
import threading
def one(sent):
    s = open_(); s.settimeout(30); s.sendall(sent); begun = time.time(); data = drain(s); print("over", data.split(b" ")[1:2], flush=True)
threads = [threading.Thread(target=one, args=(x,)) for x in (
    b"GET http://ok.test/events HTTP/1.1\r\nHost: x\r\n\r\n", b"GET http://ok.test/hung HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://ok.test/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET http://late.test/ HTTP/1.1\r\nHost: x\r\n\r\n", b"CONNECT late.test:80 HTTP/1.1\r\nHost: x\r\n\r\n")]
for t in threads: t.start()
time.sleep(0.7); print("up", flush=True)
for t in threads: t.join()
print("all", flush=True)`)))
	run.until("up")
	begun := time.Now()
	lnk(t, "sandbox", "stop").exits(0)
	run.until("all")
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
	r := run.wait().exits(0)
	if strings.Count(r.stdout, "over") != 5 || strings.Count(r.stdout, "503") != 3 {
		t.Errorf("got %s", r.stdout)
	}
	if lateOrigin.Accepted() != 0 {
		t.Error("what was being dialled got through")
	}
	if n := len(wireLog(t, log)); n != 5 {
		t.Errorf("%d records", n)
	}
	if r.took > 6*time.Second {
		t.Errorf("the run took %v", r.took)
	}
}

// WIRE4: a tunnel that was being dialled when the wire was paused doesn't open.
func TestWIRE4_PausedWhileDialled(t *testing.T) {
	late := internet.Address()
	echo := internet.Echo(late, 80)
	defer echo.Close()
	internet.DNS.SetFunc("late.test", func() []netip.Addr { time.Sleep(time.Second); return []netip.Addr{late} })
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "*", "--", "sh", "-c", "echo up;"+connectStatus+"status CONNECT late.test:80; read x; status CONNECT late.test:80"))
	run.until("up")
	time.Sleep(300 * time.Millisecond) // into the look-up
	lnk(t, "sandbox", "pause").exits(0)
	run.until("503 paused")
	lnk(t, "sandbox", "resume").exits(0)
	run.write("\n")
	run.wait().exits(0).prints("up\n503 paused\n200 \n")
}

// HT6: an upgraded connection may be half-closed.
func TestHT6_HalfCloseAfterUpgrade(t *testing.T) {
	addr := internet.Host("ok.test")
	origin := internet.Serve(addr, 80, func(conn net.Conn) {
		defer conn.Close()
		in := bufio.NewReader(conn)
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		n, _ := io.Copy(io.Discard, in)
		conn.Write(make([]byte, 1<<20))
		fmt.Fprintf(conn, "%d", n)
	})
	defer origin.Close()
	sandbox(t, okFlags, python(`
s = open_(); s.sendall(b"GET http://ok.test/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"); head(s)
s.sendall(b"hello"); s.shutdown(socket.SHUT_WR); d = drain(s); print(len(d), d[-1:])
# And a request whose client has ended its direction is answered.
`)).exits(0).prints("1048577 b'5'\n")
}

// NET4: a later request of a connection is named as well as the first.
func TestNET4_LaterRequests(t *testing.T) {
	site(t, "ok.test")
	log := filepath.Join(testnet.Home, "later.wire")
	defer os.Remove(log)
	sandbox(t, []string{"--internet-host", "ok.test", "--wire", log}, python(`
def then(sent):
    s = open_(); f = s.makefile("rb"); s.sendall(b"GET http://ok.test/ HTTP/1.1\r\nHost: x\r\n\r\n")
    while f.readline().strip(): pass
    f.read(len("hello from ok.test\n")); time.sleep(0.1); s.sendall(sent)
    d = f.read(); print(d.split(b" ")[1], b"Link-Refused: name" in d)
then(b"CONNECT ok.test:443#@evil.test:80 HTTP/1.1\r\nHost: x\r\n\r\n"); then(b"GET http://ok.test%00/ HTTP/1.1\r\nHost: x\r\n\r\n")`)).
		exits(0).prints("b'400' True\nb'400' True\n")
	refused := 0
	for _, r := range wireLog(t, log) {
		if r.Reason == "name" {
			refused++
		}
	}
	if refused != 2 {
		t.Errorf("%d records", refused)
	}
}

// WIRE3: a log that outlives its run is followed to the run's end; two
// proxies don't share one; runs of either place are listed.
func TestWIRE3_LastingLogs(t *testing.T) {
	site(t, "ok.test")
	log := filepath.Join(testnet.Home, "lasting.wire")
	defer os.Remove(log)
	cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--wire", log, "--", "sh", "-c", "echo up; read x; curl -sS http://ok.test/last; echo done; read x")
	cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR=")
	run := start(t, cmd)
	run.until("up")
	if got := theRun(t); got.Log != log {
		t.Errorf("%+v", got)
	}
	lnk(t, "sandbox", "run", "--internet-host", "ok.test", "--wire", log, "--", "true").refusedOnly("another proxy logs there")
	follow := start(t, testnet.Command(testnet.Lnk, "sandbox", "wire", "-f"))
	time.Sleep(200 * time.Millisecond)
	run.write("\n")
	run.until("done")
	follow.until("/last")
	run.write("\n")
	run.wait().exits(0)
	follow.wait().exits(0)
	// A path that is too long for a socket's address is none of the person's worries.
	long := userFolder(t, "/tmp/"+strings.Repeat("long", 30))
	os.Chmod(long, 0o700)
	cmd = testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "curl", "-sS", "http://ok.test/")
	cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR="+long)
	finish(t, cmd).exits(0).prints("hello from ok.test\n")
}

// A sandbox that uses up the proxy's descriptors doesn't take the person's
// commands away for good.
func TestWIRE5_OutOfDescriptors(t *testing.T) {
	addr := internet.Host("ok.test")
	echo := internet.Echo(addr, 80)
	defer echo.Close()
	run := start(t, testnet.Command("/bin/sh", "-c", "ulimit -n 300; exec "+testnet.Lnk+` sandbox run --internet-host ok.test -- sh -c "$1"`, "sh", python(`
held = []
for i in range(80):
    s = open_(); s.settimeout(0.1); held.append(s)
    try: s.sendall(b"CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\n\r\nx"); s.recv(100); s.recv(1)
    except OSError: pass
print("full", flush=True); time.sleep(2)
for s in held: s.close()
print("free", flush=True); time.sleep(6)`)))
	run.until("full")
	lnk(t, "sandbox", "list") // it may fail; it must not do harm
	run.until("free")
	time.Sleep(500 * time.Millisecond)
	lnk(t, "sandbox", "stop").exits(0)
}

// Clients that are gone don't keep others out.
func TestNET5_GoneClients(t *testing.T) {
	site(t, "ok.test")
	addr := internet.Host("hung.test")
	hung := internet.Serve(addr, 80, func(conn net.Conn) { io.Copy(io.Discard, conn); conn.Close() })
	defer hung.Close()
	sandbox(t, []string{"--internet-host", "*"}, python(`
for i in range(1200):
    s = open_(); s.sendall(b"GET http://hung.test/ HTTP/1.1\r\nHost: x\r\n\r\n"); s.close()
time.sleep(0.5)
print(talk(b"GET http://ok.test/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").split(b" ")[1].decode())`)).exits(0).prints("200\n")
}

// WIRE4, WIRE5, DNS5: connections by name are paused and stopped as tunnels are.
func TestWIRE4WIRE5_ConnectionsByName(t *testing.T) {
	needsFull(t)
	addr := internet.Host("ok.test")
	echo := internet.Echo(addr, 80)
	defer echo.Close()
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c", "exec 9<&0; "+py(`
s = socket.create_connection(("ok.test", 80), 10); s.sendall(b"one"); print(s.recv(9), flush=True)
import os; sys.stdin = os.fdopen(9)
input(); s.sendall(b"two"); s.settimeout(0.3)
try: print(s.recv(9))
except TimeoutError: print("still")
talk_to("ok.test", 80); print("asked", flush=True)
input(); s.settimeout(10); print(s.recv(9)); talk_to("ok.test", 80); print("resumed", flush=True)
input(); print(s.recv(9)); talk_to("ok.test", 80); print("end", flush=True)`)))
	run.until("one")
	eventually(t, "the connection is counted", func() bool { return theRun(t).Wire.Reached == 1 })
	lnk(t, "sandbox", "pause").exits(0)
	run.write("\n")
	run.until("asked")
	lnk(t, "sandbox", "resume").exits(0)
	run.write("\n")
	run.until("resumed")
	lnk(t, "sandbox", "stop").exits(0)
	run.write("\n")
	r := run.wait().exits(0)
	r.prints("b'one'\nstill\nConnectionResetError\nasked\nb'two'\nhello\nresumed\nb''\ngaierror\nend\n").says("refused ok.test:80", "paused")
}
