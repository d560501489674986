package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"link.internal/lnk/integration/testnet"
)

// theRun waits for one run, and returns what list --json says of it.
func theRun(t *testing.T) (run struct {
	Run     string
	PID     int
	Program []string
	Log     string
	Wire    *struct {
		State, Why             string
		Reached, Refused, Open int
		Up, Down               int64
	}
}) {
	t.Helper()
	var runs []json.RawMessage
	if err := json.Unmarshal([]byte(lnk(t, "sandbox", "list", "--json").exits(0).stdout), &runs); err != nil || len(runs) != 1 {
		t.Fatalf("%d runs, %v", len(runs), err)
	}
	if err := json.Unmarshal(runs[0], &run); err != nil {
		t.Fatal(err)
	}
	return run
}

// WIRE2: this user's runs, and nobody else's; those of killed runners are gone.
func TestWIRE2_List(t *testing.T) {
	site(t, "ok.test")
	lnk(t, "sandbox", "list").exits(0).prints("nothing runs\n")
	lnk(t, "sandbox", "list", "--json").exits(0).prints("[]\n")
	one := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c", "curl -sS http://ok.test/; curl -s http://no.test/ >/dev/null; echo up; read x"))
	one.until("up")
	got := theRun(t)
	if got.PID != one.cmd.Process.Pid && got.PID == 0 || got.Program[0] != "sh" || got.Wire == nil || got.Wire.State != "running" || got.Wire.Reached != 1 || got.Wire.Refused != 1 || got.Wire.Down != 19 {
		t.Errorf("%+v %+v", got, got.Wire)
	}
	two := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--", "sh", "-c", "echo up; read x"))
	two.until("up")
	r := lnk(t, "sandbox", "list").exits(0)
	if lines := strings.Count(r.stdout, "\n"); lines != 3 || !strings.Contains(r.stdout, "running") || !strings.Contains(r.stdout, "none") {
		t.Errorf("list:\n%s", r.stdout)
	}
	stranger := testnet.Command(testnet.Lnk, "sandbox", "list")
	stranger.SysProcAttr.Credential.Uid, stranger.SysProcAttr.Credential.Gid = testnet.Stranger, testnet.Stranger
	stranger.Dir = "/"
	finish(t, stranger).exits(0).prints("nothing runs\n")
	two.write("\n")
	two.wait().exits(0)
	one.signal(syscall.SIGKILL)
	one.wait()
	lnk(t, "sandbox", "list").exits(0).prints("nothing runs\n")
	lnk(t, "sandbox", "run", "--", "true").exits(0).leavesNothing()
}

// WIRE3: the log as a table that grows, and as JSON; followed over a rotation.
func TestWIRE3_Wire(t *testing.T) {
	site(t, "ok.test")
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c",
		"curl -sS http://ok.test/first; echo up; read x; curl -s http://no.test/second >/dev/null; echo again; read x"))
	run.until("up")
	r := lnk(t, "sandbox", "wire").exits(0)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "TIME") || !strings.Contains(lines[1], "ok.test:80/first") {
		t.Errorf("wire:\n%s", r.stdout)
	}
	follow := start(t, testnet.Command(testnet.Lnk, "sandbox", "wire", "-f", "--json", theRun(t).Run[:6]))
	follow.until("/first")
	run.write("\n")
	run.until("again")
	follow.until("/second")
	run.write("\n")
	run.wait().exits(0)
	follow.wait().exits(0) // it ends with the run
	for line := range strings.Lines(follow.out.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %s", line)
		}
	}
	lnk(t, "sandbox", "wire").refusedInOneLine("nothing runs")
	lnk(t, "sandbox", "wire", "nosuch").refusedInOneLine("nosuch")
	lnk(t, "sandbox", "wire", "./nosuch").refusedInOneLine("nosuch")
	lnk(t, "sandbox", "wire", "-f", "./nosuch").refusedInOneLine("nosuch")
	// A log that the sandbox could erase is refused.
	userFolder(t, "erasable")
	lnk(t, "sandbox", "run", "--internet-host", "ok.test", "--write", "erasable", "--wire", "erasable/log", "--", "true").refusedInOneLine("--wire", "may write")
	lnk(t, "sandbox", "wire", "a", "b").refusedInOneLine("b")
}

func TestWIRE3_Rotation(t *testing.T) {
	site(t, "ok.test")
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c", "echo up; read x;\n"+python(`
s = open_(); f = s.makefile("rb"); long = b"x" * 1000
for i in range(2500):
    s.sendall(b"GET http://ok.test/%d-%s HTTP/1.1\r\nHost: x\r\n\r\n" % (i, long))
    length = 0
    while True:
        line = f.readline().strip()
        if not line: break
        if line.lower().startswith(b"content-length:"): length = int(line.split(b":")[1])
    f.read(length)
print("done")`)+"\nread x"))
	run.until("up")
	found := theRun(t)
	follow := start(t, testnet.Command(testnet.Lnk, "sandbox", "wire", "-f", "--json"))
	time.Sleep(100 * time.Millisecond) // for it to begin
	run.write("\n")
	run.until("done")
	eventually(t, "all are followed", func() bool { return strings.Count(follow.out.String(), "\n") >= 2500 })
	run.write("\n")
	run.wait().exits(0)
	follow.wait().exits(0)
	seen := map[uint64]bool{}
	for line := range strings.Lines(follow.out.String()) {
		var r record
		if json.Unmarshal([]byte(line), &r) == nil {
			seen[r.Seq] = true
		}
	}
	if len(seen) != 2500 {
		t.Errorf("%d records were followed", len(seen))
	}
	if _, err := os.Stat(found.Log); err == nil {
		t.Error("the run's log outlives it")
	}
}

// WIRE4: pause refuses new calls and lets open tunnels stand still; nothing is lost.
func TestWIRE4_PauseAndResume(t *testing.T) {
	addr := internet.Host("ok.test")
	echo := internet.Echo(addr, 80)
	defer echo.Close()
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c", connectStatus+"cat >/tmp/client.py <<'Q'\n"+proxyClient+`
import threading
s = tunnel(b"ok.test:80"); s.settimeout(60)
total, sent = 0, 0
def send():
    global sent
    block = bytes(range(256)) * 256
    for i in range(1500): s.sendall(block); sent += len(block)
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
exact = True
while True:
    more = s.recv(65536)
    if not more: break
    for k in (0, len(more) - 1): exact = exact and more[k] == (total + k) % 256
    total += len(more)
    open("/tmp/count", "w").write(str(total))
print("total", total == 1500 * 65536, exact, flush=True)
Q
python3 /tmp/client.py & echo up
read x; a=$(cat /tmp/count); sleep 0.5; b=$(cat /tmp/count); [ "$a" = "$b" ] && echo still; status CONNECT ok.test:80
echo asked; read x; wait; status CONNECT ok.test:80`))
	run.until("up")
	eventually(t, "the tunnel is open", func() bool { return theRun(t).Wire.Reached == 1 })
	lnk(t, "sandbox", "pause").exits(0)
	time.Sleep(300 * time.Millisecond) // for what is on its way to arrive
	lnk(t, "sandbox", "pause").refusedOnly("paused already")
	if got := theRun(t).Wire; got.State != "paused" || got.Why == "" {
		t.Errorf("%+v", got)
	}
	run.write("\n")
	run.until("asked")
	if !strings.Contains(run.out.String(), "still\n503 paused\n") && !strings.Contains(run.out.String(), "total True") {
		t.Errorf("paused: %q", run.out)
	}
	lnk(t, "sandbox", "resume").exits(0)
	lnk(t, "sandbox", "resume").refusedOnly("running already")
	run.write("\n")
	run.until("total")
	r := run.wait().exits(0)
	if !strings.Contains(r.stdout, "total True True\n") || !strings.HasSuffix(r.stdout, "200 \n") {
		t.Errorf("got %q", r.stdout)
	}
}

// WIRE5: stop ends everything, for good; the program goes on.
func TestWIRE5_Stop(t *testing.T) {
	addr := internet.Host("ok.test")
	echo := internet.Echo(addr, 80)
	defer echo.Close()
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c", connectStatus+"cat >/tmp/client.py <<'Q'\n"+proxyClient+`
s = tunnel(b"ok.test:80"); s.sendall(b"hello"); print(s.recv(9), flush=True)
print("ended", drain(s), flush=True)
Q
python3 /tmp/client.py & read x; wait; status CONNECT ok.test:80; read x; status GET http://ok.test/`))
	run.until("hello")
	lnk(t, "sandbox", "stop").exits(0)
	run.until("ended b''")
	run.write("\n")
	run.until("503 stopped")
	lnk(t, "sandbox", "resume").refusedOnly("stopped already")
	if got := theRun(t).Wire; got.State != "stopped" {
		t.Errorf("%+v", got)
	}
	run.write("\n")
	run.wait().exits(0).prints("b'hello'\nended b''\n503 stopped\n503 stopped\n")
	none := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--", "sh", "-c", "echo up; read x"))
	none.until("up")
	for _, verb := range []string{"pause", "resume", "stop", "wire"} {
		lnk(t, "sandbox", verb).refusedOnly("no network")
	}
	none.write("\n")
	none.wait().exits(0)
}

// The control socket is its own user's, and takes no nonsense.
func TestWIRE_ControlSocket(t *testing.T) {
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c", "ls /run /run/user 2>/dev/null; echo up; read x"))
	run.until("up")
	found, _ := filepath.Glob(fmt.Sprintf("/run/user/%d/lnk/lnk-run-*/control.sock", testnet.UID))
	if len(found) != 1 {
		t.Fatalf("%q", found)
	}
	ask := func(line string) string {
		cmd := testnet.Command("/usr/bin/python3", "-c", `import socket,sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.settimeout(5); s.sendall(sys.argv[2].encode("latin-1")); s.shutdown(socket.SHUT_WR)
d = b""
try:
    while True:
        m = s.recv(4096)
        if not m: break
        d += m
except ConnectionError: pass
print(d.decode())`, found[0], line)
		return finish(t, cmd).exits(0).stdout
	}
	for _, line := range []string{"nonsense\n", `{"do":"bind"}` + "\n", "{}\n", "[]\n", "\"\n"} {
		if got := ask(line); !strings.Contains(got, `"error":"`) {
			t.Errorf("%q: %q", line, got)
		}
	}
	if got := ask(strings.Repeat("x", 100000)); got != "\n" {
		t.Errorf("an endless line: %q", got)
	}
	if got := ask(`{"do":"status"}` + "\n" + `{"do":"pause"}` + "\n"); strings.Count(got, `"state"`) != 2 {
		t.Errorf("two requests: %q", got)
	}
	run.write("\n")
	run.wait().exits(0)
}

// refusedOnly wants lnk's refusal, whatever else runs.
func (r result) refusedOnly(part string) {
	r.t.Helper()
	r.exits(125).prints("").says("lnk sandbox: ", part)
}
