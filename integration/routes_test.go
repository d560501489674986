package integration

import (
	"encoding/base64"
	"encoding/json"
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

// aRoute is a route's program: it serves HTTP/1.1 on descriptor 3, and tells of
// what it was given on descriptor 4, and of each call.
const aRoute = `#!/usr/bin/python3
import json, os, socket, sys, threading, time
given = os.fdopen(4).read()
born = [os.environ.get(k) for k in ("LISTEN_FDS", "LISTEN_FDNAMES")] + [os.environ.get("LISTEN_PID") == str(os.getpid())]
def chunk(c, data): c.sendall(b"%x\r\n%s\r\n" % (len(data), data))
def serve(c):
    f = c.makefile("rb")
    method, path, _ = f.readline().decode().split(" ")
    headers = {}
    while (line := f.readline().decode().strip()):
        k, v = line.split(": ", 1); headers[k.lower()] = v
    if "/die" in path: os._exit(3)
    if "/slow" in path: time.sleep(0.4)
    if "upgrade" in headers:
        c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
        while (d := f.read1(1000)): c.sendall(b"up:" + d)
        c.close(); return
    if "/stream" in path:
        c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk(c, b"begun ")
        while (n := int(f.readline(), 16)):
            chunk(c, f.read(n).upper()); f.readline()
        chunk(c, b"<ended>"); c.sendall(b"0\r\n\r\n"); c.close(); return
    body = f.read(int(headers.get("content-length", 0))).decode()
    out = json.dumps(dict(pid=os.getpid(), method=method, path=path, headers=headers, body=body, given=given, born=born, argv=sys.argv[1:])).encode()
    c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(out) + out); c.close()
s = socket.socket(fileno=3)
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
`

// told is what aRoute tells of a call.
type told struct {
	PID          int
	Method, Path string
	Headers      map[string]string
	Body, Given  string
	Born         []any
	Argv         []string
}

const (
	routeKey    = "key-8d1f0c"
	routeSecret = "urlsecret-77aa"
	givenSecret = "given-51e3"
)

// bearer is the header of the routes' caller.
const bearer = "Authorization: Bearer " + routeKey + "\r\n"

// routeCall sends a request to a proxy's own path by out.sock.
func routeCall(t *testing.T, dir, method, path, headers, body string) (status int, code, text string) {
	t.Helper()
	conn := connect(t, dir+"/out.sock")
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n%s", method, path, len(body), headers, body)
	data, _ := io.ReadAll(conn)
	head, text, _ := strings.Cut(string(data), "\r\n\r\n")
	fmt.Sscanf(head, "HTTP/1.1 %d", &status)
	for line := range strings.Lines(head) {
		if v, ok := strings.CutPrefix(line, "Link-Refused: "); ok {
			code = strings.TrimSpace(v)
		}
	}
	return status, code, text
}

// routed calls a route and reads what its program tells.
func routed(t *testing.T, dir, path, headers string) (got told) {
	t.Helper()
	status, code, text := routeCall(t, dir, "GET", path, headers, "")
	if status != 200 {
		t.Fatalf("%s: %d %s %s", path, status, code, text)
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%s: %v: %s", path, err, text)
	}
	return got
}

// programFile makes a route's program that its user can execute.
func programFile(t *testing.T) string {
	t.Helper()
	path := userFile(t, fmt.Sprintf("route-%d", time.Now().UnixNano()), aRoute, 0o755)
	t.Cleanup(func() { os.Remove(path) })
	return path
}

// withRoutes binds a blank proxy with some.
func withRoutes(t *testing.T, more string, routes ...string) (dir string, run *running, wire string) {
	t.Helper()
	dir, control, run := blank(t)
	wire = filepath.Join(testnet.Home, filepath.Base(filepath.Dir(dir))+".wire")
	t.Cleanup(func() { os.Remove(wire) })
	line := fmt.Sprintf(`{"routes":[%s],"caller":{"name":"scout","key":%q},"wire":%q%s}`, strings.Join(routes, ","), routeKey, wire, more)
	if got := asked(t, testnet.UID, control, line+"\n"); got[0] != "{}" {
		t.Fatalf("bind: %q", got)
	}
	return dir, run, wire
}

func byProgram(prefix string, program ...string) string {
	data, _ := json.Marshal(program)
	return fmt.Sprintf(`{"prefix":%q,"serve":{"program":%s},"given":{"token":%q,"of":%q}}`, prefix, data, givenSecret, prefix)
}

// ROUTE1: the most specific prefix wins, by whole segments of the path in its normal form.
func TestROUTE1_Table(t *testing.T) {
	program := programFile(t)
	dir, _, _ := withRoutes(t, "", byProgram("/tools", program), byProgram("/tools/search", program), byProgram("/model", program), byProgram("/a%2Fb", program))
	for path, want := range map[string]string{
		"/_link/tools": "/tools /", "/_link/tools/": "/tools /", "/_link/tools/x": "/tools /x", "/_link/tools/search": "/tools/search /", "/_link/tools/search/x/y": "/tools/search /x/y", "/_link/tools/searches": "/tools /searches",
		"/_link/model/v1/x?a=1&b=%2F;c": "/model /v1/x?a=1&b=%2F;c", "/_link/%6Dodel/v1": "/model /v1", "/_link/model/a%2fb": "/model /a%2Fb", "/_link/model/%61%20b": "/model /a%20b", "/_link/tools/../model/x": "/model /x", "/_link/tools/%2e%2e/model/./x": "/model /x",
		"/_link/model/../../_link/model": "/model /", "/_link/a%2Fb/c": "/a%2Fb /c", "/_link/a%2fb/c": "/a%2Fb /c", "/_link/tools//x": "/tools //x", "/%5flink/model": "/model /",
		`/_link/model/..%2f..%2fadmin|`: "/model /..%2F..%2Fadmin%7C", `/_link/model/a%2Fb"`: "/model /a%2Fb%22", "/_link/model/x%2F..%2Fy\xc3\xa9": "/model /x%2F..%2Fy%C3%A9",
	} {
		got := routed(t, dir, path, bearer)
		if have := got.Headers["link-route"] + " " + got.Path; have != want {
			t.Errorf("%s: %q and not %q", path, have, want)
		}
		if !strings.Contains(got.Given, fmt.Sprintf(`"of":%q`, got.Headers["link-route"])) {
			t.Errorf("%s: it was given %s", path, got.Given)
		}
	}
	for path, want := range map[string]int{
		"/_link/other": 404, "/_link/models": 404, "/_link/a/b": 404, "/_link/": 404, "/_link": 404, "/_link//model": 404, "/_linked/model": 404, "/model": 404, "/_link/Model": 404, "/_link/model/../..": 404, "/_link/../_link2/model": 404,
		"/_link%2Fmodel": 404, "/": 404,
	} {
		if status, code, text := routeCall(t, dir, "GET", path, bearer, ""); status != want || code != "route" {
			t.Errorf("%s: %d %s %s", path, status, code, text)
		}
	}
}

// ROUTE2: a call without the caller's key, or the URL secret, is refused before
// anything is dialled or started, and neither is in the log.
func TestROUTE2_Caller(t *testing.T) {
	program := programFile(t)
	base := userFolder(t, "routes")
	defer os.RemoveAll(base)
	l, err := net.Listen("unix", base+"/server.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled := make(chan struct{}, 100)
	go acceptEach(l, func(conn net.Conn) {
		dialled <- struct{}{}
		conn.Close()
	})
	os.Chown(base+"/server.sock", testnet.UID, testnet.UID)
	dir, run, wire := withRoutes(t, fmt.Sprintf(`,"url_secret":%q`, routeSecret), byProgram("/model", program), fmt.Sprintf(`{"prefix":"/unix","serve":{"unix":%q}}`, base+"/server.sock"))
	basic := func(pair string) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(pair)) + "\r\n"
	}
	for _, prefix := range []string{"/model", "/unix", "/none"} {
		right := "/_link/" + routeSecret + prefix + "/x"
		for _, test := range [][2]string{
			{right, ""}, {right, "Authorization: Bearer wrong\r\n"}, {right, "Authorization: Bearer \r\n"}, {right, "Authorization: " + routeKey + "\r\n"}, {right, bearer + bearer}, {right, "Authorization: Bearer " + routeKey + "x\r\n"},
			{right, basic("other:" + routeKey)}, {right, basic(routeKey)}, {right, basic("scout:")}, {right, "X-Api-Key: wrong\r\n"}, {right, "X-Api-Key: \r\n"}, {right, "X-Api-Key: " + routeKey + "\r\nX-Api-Key: x\r\n"}, {right, "Cookie: key=" + routeKey + "\r\n"},
			{"/_link" + prefix, bearer}, {"/_link/wrong" + prefix, bearer}, {"/_link/" + routeSecret + "x" + prefix, bearer}, {"/_link//" + routeSecret + prefix, bearer}, {"/_link" + prefix + "/" + routeSecret, bearer}, {"/_link" + prefix + "?" + routeSecret, bearer}, {right + "?key=" + routeKey, ""},
		} {
			if status, code, text := routeCall(t, dir, "POST", test[0], test[1], "body"); status != 403 || code != "caller" || strings.Contains(text, routeSecret) {
				t.Errorf("%s %q: %d %s %s", test[0], test[1], status, code, text)
			}
		}
	}
	if len(dialled) > 0 {
		t.Error("the socket was dialled")
	}
	if left := processesOf(program); len(left) > 0 {
		t.Errorf("the program was started: %v", left)
	}
	// A web page's request is refused as one, whatever it carries.
	if status, code, _ := routeCall(t, dir, "GET", "/_link/"+routeSecret+"/model", bearer+"Origin: http://evil.test\r\n", ""); status != 403 || code != "browser" {
		t.Errorf("a page's: %d %s", status, code)
	}
	// With both it is served, and the server sees neither.
	for _, key := range []string{bearer, "authorization: bearer " + routeKey + "\r\n", basic("scout:" + routeKey), "X-Api-Key: " + routeKey + "\r\nAuthorization: Bearer its-own\r\n"} {
		got := routed(t, dir, "/_link/"+routeSecret+"/model/v1?q="+givenSecret, key+"Link-Caller: root\r\nLink-Route: /other\r\nX-Mine: 1\r\n")
		if text := fmt.Sprint(got.Headers, got.Path); strings.Contains(text, routeKey) || strings.Contains(text, routeSecret) || got.Headers["link-caller"] != "scout" || got.Headers["link-route"] != "/model" || got.Headers["x-mine"] != "1" {
			t.Errorf("%q: %v", key, got)
		}
		if strings.Contains(key, "its-own") && got.Headers["authorization"] != "Bearer its-own" {
			t.Errorf("another's header is gone: %v", got.Headers)
		}
	}
	// Nor by other ways to write a header.
	got := routed(t, dir, "/_link/"+routeSecret+"/model/v1", bearer+"Link_Caller: root\r\nX-Api-Key: "+routeKey+"\r\nReferer: http://127.0.0.1/_link/"+routeSecret+"/x\r\nX-Other: a "+routeKey+"\r\n")
	for name, value := range got.Headers {
		noSecrets(t, name, value)
		if strings.ReplaceAll(name, "_", "-") == "link-caller" && value != "scout" {
			t.Errorf("%s: %s", name, value)
		}
	}
	// What looks like a bad target is the proxy's own all the same.
	for _, path := range []string{"/_link/" + routeSecret + "/model/fetch?u=http://x/%zz", "/_link/" + routeSecret + "/model/http://x/%zz"} {
		routeCall(t, dir, "GET", path, "", "")
	}
	// Nothing of the bind is in an argument, an environment, a file, or what was said.
	pids := append(processesOf(program), fmt.Sprint(run.cmd.Process.Pid))
	if len(pids) != 2 {
		t.Errorf("the program's processes: %v", pids)
	}
	for _, pid := range pids {
		for _, name := range []string{"cmdline", "environ"} {
			data, err := os.ReadFile("/proc/" + pid + "/" + name)
			if err != nil {
				t.Error(err)
			}
			noSecrets(t, name, string(data))
		}
	}
	for _, folder := range []string{filepath.Dir(dir), os.TempDir()} {
		filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
			if info, _ := os.Lstat(path); err == nil && d.Type().IsRegular() && info != nil && ownerOf(info) == testnet.UID {
				data, _ := os.ReadFile(path)
				noSecrets(t, path, string(data))
			}
			return nil
		})
	}
	log, err := os.ReadFile(wire)
	if err != nil || !strings.Contains(string(log), `"path":"/_link/model/v1"`) {
		t.Errorf("the log: %v %s", err, log)
	}
	noSecrets(t, "the log", string(log))
	noSecrets(t, "standard error", run.stderr.String())
	if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", run.cmd.Process.Pid)); err != nil || !strings.Contains(strings.Join(strings.Fields(string(status)), " "), "Max core file size 0 0") {
		t.Errorf("a core could be left: %v", err)
	}
}

// noSecrets fails when a text has a key, the URL secret or what a program was given.
func noSecrets(t *testing.T, where, text string) {
	t.Helper()
	for _, secret := range []string{routeKey, routeSecret, givenSecret} {
		if strings.Contains(text, secret) {
			t.Errorf("%s has %s: %.300q", where, secret, text)
		}
	}
}

// processesOf are the ids of the processes that have path among their arguments.
func processesOf(path string) (pids []string) {
	for _, p := range processesAll() {
		if data, err := os.ReadFile("/proc/" + p + "/cmdline"); err == nil && strings.Contains(string(data), path) && !strings.Contains(string(data), "sandbox") {
			pids = append(pids, p)
		}
	}
	return pids
}

func processesAll() (pids []string) {
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range entries {
		pids = append(pids, filepath.Base(dir))
	}
	return pids
}

// ROUTE3: a socket's server is reached as an upstream's is: as itself, the user's or root's.
func TestROUTE3_Socket(t *testing.T) {
	base, err := os.MkdirTemp("/srv", "routes-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	os.Chmod(base, 0o755)
	path := base + "/server.sock"
	dir, _, _ := withRoutes(t, "", fmt.Sprintf(`{"prefix":"/unix","serve":{"unix":%q}}`, path))
	call := func() (int, string) {
		status, code, _ := routeCall(t, dir, "GET", "/_link/unix/x", bearer, "")
		return status, code
	}
	if status, code := call(); status != 502 || code != "upstream" {
		t.Errorf("nothing there: %d %s", status, code)
	}
	server := fmt.Sprintf(`import http.server, socket, sys
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self): self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"ok")
    def address_string(self): return ""
class S(http.server.HTTPServer):
    address_family = socket.AF_UNIX
    def server_bind(self): self.socket.bind(self.server_address)
    def get_request(self): return self.socket.accept()[0], ("", 0)
print("up", flush=True) if (s := S(%q, H)) else None
s.serve_forever()`, path)
	serve := func(uid int) *running {
		os.Remove(path)
		os.Chmod(base, 0o777)
		cmd := testnet.Command("/usr/bin/python3", "-c", server)
		cmd.Dir = "/"
		cmd.SysProcAttr.Credential.Uid, cmd.SysProcAttr.Credential.Gid = uint32(uid), uint32(uid)
		run := start(t, cmd)
		run.until("up")
		os.Chmod(path, 0o777)
		return run
	}
	for uid, want := range map[int]int{testnet.UID: 200, 0: 200, testnet.Stranger: 502} {
		run := serve(uid)
		if status, code := call(); status != want {
			t.Errorf("uid %d's: %d %s", uid, status, code)
		}
		if want != 200 {
			os.Chown(path, testnet.UID, testnet.UID)
			if status, _ := call(); status != 502 {
				t.Errorf("a stranger's, of the user's name: %d", status)
			}
		}
		run.signal(unix.SIGTERM)
		run.wait()
	}
	serve(testnet.UID)
	os.Rename(path, base+"/real.sock")
	os.Symlink(base+"/real.sock", path)
	if status, _ := call(); status != 502 {
		t.Errorf("by a link: %d", status)
	}
}

// ROUTE3: a program is started by the first call, given its line on a descriptor,
// started again when it dies, never twice at once, and ends with the proxy.
func TestROUTE3_Program(t *testing.T) {
	program := programFile(t)
	dir, run, _ := withRoutes(t, "", byProgram("/model", program, "one", "two words"))
	if left := processesOf(program); len(left) > 0 {
		t.Errorf("it is started before it is called: %v", left)
	}
	// The first calls come at once.
	pids := make(chan int, 20)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { pids <- routed(t, dir, "/_link/model/slow", bearer).PID })
	}
	wg.Wait()
	close(pids)
	first := <-pids
	for pid := range pids {
		if pid != first {
			t.Errorf("two at once: %d and %d", first, pid)
		}
	}
	got := routed(t, dir, "/_link/model", bearer)
	if got.Given != fmt.Sprintf(`{"token":%q,"of":"/model"}`+"\n", givenSecret) || fmt.Sprint(got.Born) != "[2 http:given true]" || fmt.Sprint(got.Argv) != "[one two words]" {
		t.Errorf("%+v", got)
	}
	// It is confined as the proxy is: none of the user's files, no new privileges.
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", first))
	if err != nil || !strings.Contains(string(status), "NoNewPrivs:\t1") || !strings.Contains(string(status), "Seccomp:\t2") {
		t.Errorf("%v %s", err, status)
	}
	// However it dies, the next call is served, by one.
	for _, die := range []func(pid int){
		func(pid int) { unix.Kill(pid, unix.SIGKILL) }, func(pid int) { unix.Kill(pid, unix.SIGTERM) },
		func(int) {
			if status, code, _ := routeCall(t, dir, "POST", "/_link/model/die", bearer, "x"); status != 502 || code != "upstream" {
				t.Errorf("the call that it died of: %d %s", status, code)
			}
		},
	} {
		before := routed(t, dir, "/_link/model", bearer).PID
		die(before)
		after := routed(t, dir, "/_link/model", bearer)
		if after.PID == before || after.Given != got.Given {
			t.Errorf("after its end: %+v", after)
		}
		if all := processesOf(program); len(all) != 1 {
			t.Errorf("%v are there", all)
		}
	}
	last := routed(t, dir, "/_link/model", bearer).PID
	run.signal(unix.SIGKILL)
	run.wait()
	eventually(t, "the program ends with the proxy", func() bool { return unix.Kill(last, 0) == unix.ESRCH || strings.Contains(stat(last), ") Z ") })
	// Also when the proxy ends in order, and is not waited for by it for ever.
	dir, run, _ = withRoutes(t, "", byProgram("/model", program))
	last = routed(t, dir, "/_link/model", bearer).PID
	run.signal(unix.SIGTERM)
	run.wait().exits(0)
	if unix.Kill(last, 0) == nil {
		t.Error("the program outlives the proxy")
	}
}

// ROUTE3: whatever a program starts ends with it, and with the proxy, however that ends.
func TestROUTE3_ProgramThatForks(t *testing.T) {
	server := programFile(t)
	forks := userFile(t, "forks", "#!/usr/bin/python3\nimport os, sys, time\nif os.fork() == 0:\n    try: os.setsid()\n    except OSError: pass\n    os.execv("+fmt.Sprintf("%q, [%q]", server, server)+")\ntime.sleep(1.2)\n", 0o755)
	wraps := userFile(t, "wraps", "#!/bin/sh\ntrap '' TERM\n"+server+"\n", 0o755)
	defer os.Remove(forks)
	defer os.Remove(wraps)
	dir, run, _ := withRoutes(t, "", byProgram("/forks", forks, server), byProgram("/wraps", wraps, server))
	for range 4 {
		routed(t, dir, "/_link/forks", bearer)
		routed(t, dir, "/_link/wraps", bearer)
		if all := processesOf("/usr/bin/python3\x00" + server); len(all) > 2 {
			t.Errorf("%v serve at once", all)
		}
		time.Sleep(700 * time.Millisecond)
	}
	run.signal(unix.SIGKILL)
	run.wait()
	eventually(t, "all of them end with the proxy", func() bool { return len(processesOf(server)) == 0 })
	// A run ends when its program does, whatever its routes' programs do.
	routes := userFile(t, "routes.json", "["+byProgram("/a", wraps, server)+","+byProgram("/b", wraps, server)+","+byProgram("/c", forks, server)+"]", 0o600)
	key := userFile(t, "caller.key", routeKey, 0o600)
	defer os.Remove(routes)
	defer os.Remove(key)
	began := time.Now()
	sandbox(t, []string{"--routes", routes, "--caller-key-file", key, "--env", "KEY=" + routeKey}, `for r in a b c; do curl -s -o /dev/null -w '%{http_code} ' -H "X-Api-Key: $KEY" http://127.0.0.1:40781/_link/$r; done`).exits(0).prints("200 200 200 ").leavesNothing()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

func stat(pid int) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return string(data)
}

// ROUTE3: a program that can't run is an answer, and not a stall; the others go on.
func TestROUTE3_ProgramThatFails(t *testing.T) {
	program := programFile(t)
	dir, _, _ := withRoutes(t, "", byProgram("/false", "false"), byProgram("/model", program))
	begun := time.Now()
	for range 3 {
		if status, code, text := routeCall(t, dir, "GET", "/_link/false", bearer, ""); status != 502 || code != "upstream" {
			t.Errorf("%d %s %s", status, code, text)
		}
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if status, _, text := routeCall(t, dir, "GET", "/_link/false", bearer, ""); status != 502 || !strings.Contains(text, "its program ended at its start (exit status 1)") {
		t.Errorf("%d %s", status, text)
	}
	routed(t, dir, "/_link/model", bearer)
	// What can't be started at all is known at the bind.
	_, control, _ := blank(t)
	for line, want := range map[string]string{
		byProgram("/a", "/nowhere/program"): "/nowhere/program", byProgram("/a", "no-such-program"): "no-such-program", byProgram("a", "true"): "begins with /", byProgram("/a/", "true"): "normal form", byProgram("/a", "true") + "," + byProgram("/a", "true"): "there twice",
		`{"prefix":"/a","serve":{"unix":"relative"}}`: "no absolute path", `{"prefix":"/a","serve":{"unix":"/x","program":["true"]}}`: "either unix or program", `{"prefix":"/a","serve":{"unix":"/x"},"given":{}}`: "given is for a program",
	} {
		got := asked(t, testnet.UID, control, `{"routes":[`+line+`],"caller":{"name":"scout","key":"k"}}`+"\n")
		if !strings.Contains(got[0], `{"error":`) || !strings.Contains(got[0], want) {
			t.Errorf("%s: %q", line, got)
		}
	}
	if got := asked(t, testnet.UID, control, `{"routes":[`+byProgram("/a", "true")+`]}`+"\n", "{}\n"); !strings.Contains(got[0], "without a caller") || got[1] != "{}" {
		t.Errorf("%q", got)
	}
}

// ROUTE1: a route streams both ways at once, and upgrades.
func TestROUTE_Streams(t *testing.T) {
	program := programFile(t)
	dir, _, wire := withRoutes(t, "", byProgram("/model", program))
	conn := connect(t, dir+"/out.sock")
	say := func(text, want string) {
		t.Helper()
		io.WriteString(conn, text)
		got := ""
		buf := make([]byte, 4096)
		for !strings.Contains(got, want) {
			n, err := conn.Read(buf)
			got += string(buf[:n])
			if err != nil {
				t.Fatalf("%q: %q, %v", text, got, err)
			}
		}
	}
	say("POST /_link/model/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"+bearer+"\r\n", "begun ")
	for _, word := range []string{"one", "two", "three"} {
		say(fmt.Sprintf("%x\r\n%s\r\n", len(word), word), strings.ToUpper(word))
	}
	say("0\r\n\r\n", "<ended>")
	conn = connect(t, dir+"/out.sock")
	say("GET /_link/model/up HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: echo\r\n"+bearer+"\r\n", "101 Switching")
	say("abc", "up:abc")
	say("def", "up:def")
	conn.Close()
	eventually(t, "both are logged", func() bool { return len(wireLog(t, wire)) == 2 })
	for _, r := range wireLog(t, wire) {
		if r.Verdict != "allowed" || r.Host != "" || r.Up == 0 || r.Down == 0 {
			t.Errorf("%+v", r)
		}
	}
}

// ROUTE2: routes and keys of the command line are in files, which others may not open.
func TestROUTE_Files(t *testing.T) {
	program := programFile(t)
	routes := userFile(t, "routes.json", "["+byProgram("/model", program)+"]", 0o600)
	key, secret := userFile(t, "caller.key", routeKey+"\n", 0o600), userFile(t, "url.secret", routeSecret, 0o640)
	for _, path := range []string{routes, key, secret} {
		defer os.Remove(path)
	}
	dir, _ := aProxy(t, "--routes", routes, "--caller-key-file", key, "--url-secret-file", secret, "--agent", "scout")
	if got := routed(t, dir, "/_link/"+routeSecret+"/model", bearer); got.Headers["link-caller"] != "scout" {
		t.Errorf("%+v", got)
	}
	flags := []string{"--routes", routes, "--caller-key-file", key}
	sandbox(t, append(flags, "--env", "KEY="+routeKey), `curl -s -H "X-Api-Key: $KEY" http://127.0.0.1:40781/_link/model/v1 | grep -o '"path": "/v1"'; curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:40781/_link/model; curl -s -o /dev/null -w '%{http_code}\n' http://no.test/`).
		exits(0).prints("\"path\": \"/v1\"\n403\n403\n").says("a route")
	for want, flags := range map[string][]string{
		"--caller-key-file": {"--routes", routes}, "--routes": {"--caller-key-file", key}, "no such file": {"--routes", "/nowhere", "--caller-key-file", key}, "no list of routes": {"--routes", key, "--caller-key-file", key},
		"--network none": {"--routes", routes, "--caller-key-file", key, "--network", "none"}, "it is no file": {"--routes", "/usr", "--caller-key-file", key},
	} {
		sandbox(t, flags, "echo ran").exits(125).says(want).prints("")
	}
	os.Chmod(key, 0o644)
	sandbox(t, flags, "echo ran").exits(125).says("chmod 600").prints("")
}
