package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

// blank starts a blank proxy of the ordinary user's, and returns its socket
// folder and control socket.
func blank(t *testing.T, more ...string) (dir, control string, run *running) {
	t.Helper()
	return blankIn(t, nil, more...)
}

// blankIn starts it with more in its environment.
func blankIn(t *testing.T, environment []string, more ...string) (dir, control string, run *running) {
	t.Helper()
	base, err := os.MkdirTemp("/srv", "blank-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	dir, control = filepath.Join(base, "dir"), filepath.Join(base, "control.sock")
	os.Mkdir(dir, 0o700)
	for _, path := range []string{base, dir} {
		os.Chown(path, testnet.UID, testnet.UID)
	}
	os.Chmod(base, 0o755)
	if len(more) == 0 {
		more = []string{"--hold"}
	}
	cmd := testnet.Command(testnet.Lnk, append([]string{"sandbox", "proxy", "--blank", "--control", control, "--dir", dir}, more...)...)
	cmd.Env = append(cmd.Env, environment...)
	run = start(t, cmd)
	eventually(t, "the control socket is there", func() bool {
		conn, err := net.Dial("unix", control)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return dir, control, run
}

// as runs f on a thread whose effective user is another: that is who a socket's
// other end sees. The thread becomes root again, and is not ended: processes
// that it has started would be (Pdeathsig).
func as(t *testing.T, uid int, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const same = ^uintptr(0)
	set := func(uid, gid uintptr) {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, same, gid, same); errno != 0 {
			t.Fatal(errno)
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uid, same); errno != 0 {
			t.Fatal(errno)
		}
	}
	if uid != 0 {
		set(uintptr(uid), uintptr(uid))
		defer func() {
			unix.RawSyscall(unix.SYS_SETRESUID, same, 0, same)
			set(0, 0)
		}()
	}
	f()
}

// asked sends lines to a control socket as a user, and returns the answers;
// "closed" where there is none.
func asked(t *testing.T, uid int, control string, lines ...string) (answers []string) {
	t.Helper()
	as(t, uid, func() {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: control}); err != nil {
			unix.Close(fd)
			answers = append(answers, err.Error())
			return
		}
		file := os.NewFile(uintptr(fd), control)
		conn, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		in := bufio.NewReader(conn)
		for _, line := range lines {
			io.WriteString(conn, line)
			answer, err := in.ReadString('\n')
			if err != nil && answer == "" {
				answer = "closed"
			}
			answers = append(answers, strings.TrimSpace(answer))
		}
	})
	return answers
}

// throughFolder asks a proxy by its folder's out.sock.
func throughFolder(t *testing.T, dir, url string) string {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(dir, "out.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", url)
	data, _ := io.ReadAll(conn)
	head, body, _ := strings.Cut(string(data), "\r\n\r\n")
	status, _, _ := strings.Cut(head, "\r\n")
	return strings.TrimPrefix(status, "HTTP/1.1 ") + " " + body
}

// BLANK1: a blank proxy refuses every call, and takes nothing that would make it less blank.
func TestBLANK1_Blank(t *testing.T) {
	site(t, "ok.test")
	dir, control, run := blank(t)
	for _, url := range []string{"http://ok.test/", "/_link/model", "http://127.0.0.1/"} {
		if got := throughFolder(t, dir, url); !strings.HasPrefix(got, "503 ") || !strings.Contains(got, "this proxy isn't bound to an agent yet") {
			t.Errorf("%s: %s", url, got)
		}
	}
	run.signal(unix.SIGTERM)
	run.wait().exits(0)
	if _, err := os.Lstat(control); err == nil {
		t.Error("the control socket is left")
	}
	for _, test := range []struct{ args, want []string }{
		{[]string{"--listen", "4000", "--hold"}, []string{"--listen"}}, {[]string{"--dns", "127.0.0.1:5353", "--hold"}, []string{"--dns"}},
		{[]string{"--internet-host", "ok.test", "--hold"}, []string{"rules"}}, {nil, []string{"--hold"}}, {[]string{"--hold", "--", "true"}, []string{"--hold"}},
		{[]string{"--hold", "--binder", "65534"}, []string{"65534"}}, {[]string{"--hold", "--per-minute", "5"}, []string{"rules"}},
	} {
		cmd := testnet.Command(testnet.Lnk, append([]string{"sandbox", "proxy", "--blank", "--control", control, "--dir", dir}, test.args...)...)
		finish(t, cmd).exits(125).says(test.want...)
	}
	finish(t, testnet.Command(testnet.Lnk, "sandbox", "proxy", "--blank", "--hold", "--dir", dir)).exits(125).says("--control")
	finish(t, testnet.Command(testnet.Lnk, "sandbox", "proxy", "--dir", dir, "--hold")).exits(125).says("--blank")
	finish(t, testnet.Command(testnet.Lnk, "sandbox", "proxy", "--blank", "--hold", "--dir", dir, "--control", dir+"/c.sock")).exits(125).says("lies in the socket folder")
	// A socket that is there, live or stale, is nobody's to take.
	os.WriteFile(control, nil, 0o600)
	finish(t, testnet.Command(testnet.Lnk, "sandbox", "proxy", "--blank", "--hold", "--dir", dir, "--control", control)).exits(125).says("is there already")
}

// BLANK1: a program after -- runs beside it, unsandboxed, once it serves; its end is the proxy's.
func TestBLANK1_ProgramBeside(t *testing.T) {
	dir, _, run := blank(t, "--", "sh", "-c", `ls `+testnet.Home+` >/dev/null && grep NoNewPrivs /proc/self/status | cut -f2; read x; exit 7`)
	run.until("0\n")
	run.write("\n")
	run.wait().exits(7)
	if _, err := os.Lstat(filepath.Join(dir, "out.sock")); err == nil {
		t.Error("out.sock is left")
	}
	_, _, run = blank(t, "--", "sleep", "600")
	run.signal(unix.SIGTERM)
	run.wait().exits(143)
	base := userFolder(t, "nowhere-blank")
	defer os.RemoveAll(base)
	finish(t, testnet.Command(testnet.Lnk, "sandbox", "proxy", "--blank", "--control", base+"/c", "--dir", base+"/none", "--", "touch", base+"/ran")).exits(125)
	if _, err := os.Stat(base + "/ran"); err == nil {
		t.Error("the program ran though the proxy never served")
	}
}

// BLANK2, KU1: the control socket is its user's, and the binder's, from its first moment.
// Where no socket can be made for a route's program, only a bind with one is
// refused, and what was asked before a bind is in nobody's log.
func TestBLANK3_NowhereForSockets(t *testing.T) {
	dir, control, _ := blankIn(t, []string{"TMPDIR=/proc"})
	log := filepath.Join(filepath.Dir(dir), "wire")
	const program = `{"routes":[{"prefix":"/a","serve":{"program":["/usr/bin/true"]}}],"caller":{"name":"a","key":"k"}}` + "\n"
	answers := asked(t, testnet.UID, control, program, fmt.Sprintf(`{"wire":%q}`+"\n", log), `{"do":"status"}`+"\n")
	if len(answers) != 3 || !strings.Contains(answers[0], "making its socket") || answers[1] != "{}" || !strings.Contains(answers[2], `"running"`) {
		t.Fatalf("%q", answers)
	}
	time.Sleep(1200 * time.Millisecond) // by then it has done what it does when idle
	if data, err := os.ReadFile(log); err != nil || len(data) > 0 {
		t.Errorf("the log: %q, %v", data, err)
	}
	_, control, _ = blank(t)
	time.Sleep(1200 * time.Millisecond)
	if answers := asked(t, testnet.UID, control, "{}\n"); answers[0] != "{}" {
		t.Errorf("bound after it was idle: %q", answers)
	}
}

func TestBLANK2KU1_ControlSocket(t *testing.T) {
	const other = 20077
	for _, binder := range []int{-1, testnet.Stranger, 0} {
		more := []string{"--hold"}
		if binder >= 0 {
			more = append(more, "--binder", fmt.Sprint(binder))
		}
		_, control, run := blank(t, more...)
		acl, err := exec.Command("getfacl", "-cEn", control).Output()
		if err != nil {
			t.Fatal(err)
		}
		want := "user::rw-\ngroup::---\nother::---\n\n"
		if binder >= 0 {
			want = fmt.Sprintf("user::rw-\nuser:%d:rw-\ngroup::---\nmask::rw-\nother::---\n\n", binder)
		}
		if string(acl) != want {
			t.Errorf("binder %d: the ACL is %q", binder, acl)
		}
		for _, uid := range []int{testnet.UID, testnet.Stranger, other, 0} {
			served := uid == testnet.UID || uid == binder
			got := asked(t, uid, control, "{}x\n")
			if strings.Contains(got[0], `{"error":`) != served {
				t.Errorf("binder %d, uid %d: %q", binder, uid, got)
			}
		}
		run.signal(unix.SIGTERM)
		run.wait().exits(0)
	}
	// Its rights are never wider, not for a moment: whoever watches the folder sees.
	base := userFolder(t, "watched")
	defer os.RemoveAll(base)
	os.Mkdir(base+"/dir", 0o700)
	os.Chown(base+"/dir", testnet.UID, testnet.UID)
	os.Chmod(base, 0o755)
	stop := make(chan struct{})
	var wide []string
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			entries, _ := os.ReadDir(base)
			for _, e := range entries {
				if info, err := os.Lstat(base + "/" + e.Name()); err == nil && info.Mode()&os.ModeSocket != 0 && info.Mode().Perm()&0o077 != 0 {
					wide = append(wide, fmt.Sprint(e.Name(), info.Mode()))
				}
			}
		}
	})
	for range 5 {
		cmd := testnet.Command("/bin/sh", "-c", "umask 0; exec "+testnet.Lnk+" sandbox proxy --blank --control "+base+"/c.sock --dir "+base+"/dir -- true")
		finish(t, cmd).exits(0)
	}
	close(stop)
	wg.Wait()
	if len(wide) > 0 {
		t.Errorf("it was open to others: %v", wide[:min(3, len(wide))])
	}
}

// BLANK3: one line binds it, once; what doesn't hold binds nothing.
func TestBLANK3KU5_Bind(t *testing.T) {
	site(t, "ok.test")
	dir, control, run := blank(t, "--hold", "--binder", fmt.Sprint(testnet.Stranger))
	log := filepath.Join(testnet.Home, "bound.wire")
	defer os.Remove(log)
	bad := map[string]string{
		"\n": "no JSON", "{\n": "no JSON", "[]\n": "no JSON object", "{} {}\n": "no JSON", `{"internet_hosts":["a.test"]}` + "\n": "internet_hosts", `{"tcp":["a.test:1"],"tcp":[]}` + "\n": "twice",
		`{"Tcp":[]}` + "\n": "Tcp", `{"per_minute":-1}` + "\n": "negative", `{"per_minute":1e99}` + "\n": "per_minute", `{"internet_host":["a b"]}` + "\n": "a b", `{"tcp":["no.test:22"]}` + "\n": "no.test",
		`{"upstream":"ftp://x"}` + "\n": "upstream", `{"wire":"relative"}` + "\n": "wire", `{"wire":"/nowhere/x"}` + "\n": "nowhere", `{"model":[1]}` + "\n": "isn't served yet",
		strings.Repeat(`{"a":`, 10000) + "\n": "", "{\"agent\":\"\xff\"}\n": "no JSON", `{"do":"status"}` + "\n": "do",
	}
	for line, want := range bad {
		got := asked(t, testnet.UID, control, line)
		var answer map[string]string
		if json.Unmarshal([]byte(got[0]), &answer); len(answer) != 1 || answer["error"] == "" || !strings.Contains(answer["error"], want) {
			t.Errorf("%.60q: %q", line, got)
		}
	}
	if got := asked(t, testnet.UID, control, strings.Repeat("x", 1<<20+2)+"\n"); !strings.Contains(got[0], "more than 1048576 bytes") {
		t.Errorf("%q", got)
	}
	// A line that never ends binds nothing: whoever sent it may have gone midway.
	as(t, testnet.UID, func() {
		conn, err := net.Dial("unix", control)
		if err != nil {
			t.Error(err)
			return
		}
		io.WriteString(conn, `{"internet_host":["ok.test"]}`)
		conn.Close()
	})
	time.Sleep(50 * time.Millisecond)
	if got := throughFolder(t, dir, "http://ok.test/"); !strings.HasPrefix(got, "503 ") {
		t.Errorf("it isn't blank any more: %s", got)
	}
	// A good line, in pieces, after a bad one on the same connection.
	padded := `{"internet_host":["ok.test"],"wire":"` + log + `"` + strings.Repeat(" ", 1<<20-200) + "}\n"
	if got := asked(t, testnet.Stranger, control, "nonsense\n", padded[:300000]+padded[300000:], `{"do":"status"}`+"\n", "{}\n"); !strings.Contains(got[0], "error") || got[1] != "{}" || !strings.Contains(got[2], `"state":"running"`) || !strings.Contains(got[3], "error") {
		t.Errorf("got %.300q", got)
	}
	if got := throughFolder(t, dir, "http://ok.test/"); got != "200 OK hello from ok.test\n" {
		t.Errorf("bound: %s", got)
	}
	if got := throughFolder(t, dir, "http://no.test/"); !strings.HasPrefix(got, "403 ") {
		t.Errorf("bound: %s", got)
	}
	if records := wireLog(t, log); len(records) != 2 {
		t.Errorf("the log has %d records", len(records))
	}
	// Nothing of it is in an argument, the environment, or a file.
	for _, name := range []string{"cmdline", "environ"} {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", run.cmd.Process.Pid, name))
		if bytes.Contains(data, []byte("ok.test")) {
			t.Errorf("%s has the bind", name)
		}
	}
	run.signal(unix.SIGTERM)
	run.wait().exits(0)
	// The command for scripts.
	_, control, run = blank(t)
	bind := func(line string) result {
		cmd := testnet.Command(testnet.Lnk, "sandbox", "bind", "--control", control)
		cmd.Stdin = strings.NewReader(line)
		return finish(t, cmd)
	}
	bind("{\n \"internet_hosts\": []\n}\n").exits(125).says("internet_hosts")
	bind("{\n \"internet_host\": [\"ok.test\"]\n}\n").exits(0)
	bind("{}").exits(125).says("binding by", "bound already")
	run.signal(unix.SIGTERM)
	run.wait().exits(0)
	finish(t, testnet.Command(testnet.Lnk, "sandbox", "bind", "--control", control)).exits(125).says("no such file")
	finish(t, testnet.Command(testnet.Lnk, "sandbox", "bind")).exits(125).says("--control")
}

// BLANK3: of binds that race, one wins.
func TestBLANK3_Raced(t *testing.T) {
	for range 10 {
		_, control, run := blank(t)
		results := make(chan string, 8)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				results <- asked(t, testnet.UID, control, fmt.Sprintf(`{"internet_host":["%d.test"]}`+"\n", i))[0]
			})
		}
		wg.Wait()
		close(results)
		won := 0
		for got := range results {
			if got == "{}" {
				won++
			} else if !strings.Contains(got, "error") {
				t.Errorf("got %q", got)
			}
		}
		if won != 1 {
			t.Errorf("%d binds won", won)
		}
		run.signal(unix.SIGTERM)
		run.wait().exits(0)
	}
}

// BLANK3: a relay that was there before the bind is asked for the rest then.
func TestBLANK3_RelayBeforeBind(t *testing.T) {
	dir, control, run := blank(t)
	r := newRelay(t, dir)
	if list := r.all(); len(list) != 1 || list[0].Address != "127.0.0.1:40781" {
		t.Errorf("a blank proxy asks for %+v", list)
	}
	if got := asked(t, testnet.UID, control, `{"internet_host":["db.test"],"tcp":["db.test:5432"]}`+"\n"); got[0] != "{}" {
		t.Fatalf("got %q", got)
	}
	addresses := map[string]bool{}
	for _, l := range r.all() {
		addresses[l.Network+" "+l.Address] = true
	}
	for _, want := range []string{"udp 127.0.0.1:53", "tcp 127.0.0.1:53", "tcp 0.0.0.0:443", "tcp 0.0.0.0:80", "tcp 127.64.0.1:5432"} {
		if !addresses[want] {
			t.Errorf("%s isn't asked for: %v", want, addresses)
		}
	}
	run.signal(unix.SIGTERM)
	run.wait().exits(0)
}
