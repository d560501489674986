package integration

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

// packed is an agent whose proxy is another user's: the two share the socket
// folder alone, by a group only they are in.
type packed struct {
	agent, proxy, group int
	base                string
	dir, home, control  string // the socket folder, the agent's home, the control socket
	wire                string
	proxyRun            *running
}

// pack makes the folders of an agent. n tells agents apart.
func pack(t *testing.T, n int) *packed {
	t.Helper()
	base, err := os.MkdirTemp("/srv", "packed-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	os.Chmod(base, 0o755)
	p := &packed{agent: 20100 + n, proxy: 20200 + n, group: 20300 + n, base: base, dir: base + "/net", home: base + "/home", control: base + "/control/control.sock", wire: base + "/wire/log"}
	for path, of := range map[string]struct {
		uid, gid int
		mode     uint32
	}{
		p.dir: {p.agent, p.group, 0o2770}, p.home: {p.agent, p.agent, 0o700},
		base + "/control": {p.proxy, p.proxy, 0o711}, base + "/wire": {p.proxy, p.proxy, 0o700},
	} {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		os.Chown(path, of.uid, of.gid)
		if err := unix.Chmod(path, of.mode); err != nil {
			t.Fatal(err)
		}
	}
	os.WriteFile(p.home+"/diary", []byte("the diary\n"), 0o600)
	os.Chown(p.home+"/diary", p.agent, p.agent)
	return p
}

// by makes a command of one of its users, who is in the group.
func (p *packed) by(uid int, umask string, args ...string) *exec.Cmd {
	cmd := testnet.Command("/bin/sh", append([]string{"-c", "umask " + umask + `; exec "$@"`, "sh"}, args...)...)
	cmd.Dir = "/"
	cmd.SysProcAttr.Credential.Uid, cmd.SysProcAttr.Credential.Gid = uint32(uid), uint32(uid)
	cmd.SysProcAttr.Credential.Groups = []uint32{uint32(p.group)}
	cmd.Env = []string{"HOME=/nonexistent", "LANG=C.UTF-8", "PATH=" + testnet.BinDir + ":/usr/bin:/bin"}
	return cmd
}

// startProxy starts its proxy, and waits until it serves.
func (p *packed) startProxy(t *testing.T, umask string, more ...string) *running {
	t.Helper()
	args := append([]string{testnet.Lnk, "sandbox", "proxy", "--dir", p.dir, "--agent-user", fmt.Sprint(p.agent), "--group", fmt.Sprint(p.group)}, more...)
	p.proxyRun = start(t, p.by(p.proxy, umask, args...))
	eventually(t, "local.sock is made", func() bool {
		_, err := os.Stat(p.dir + "/local.sock")
		return err == nil
	})
	return p.proxyRun
}

// wrap runs a program in the agent's sandbox.
func (p *packed) wrap(umask string, flags []string, program ...string) *exec.Cmd {
	args := append([]string{testnet.Lnk, "sandbox", "wrap", "--reach", p.dir}, flags...)
	return p.by(p.agent, umask, append(append(args, "--"), program...)...)
}

// rightsOf shows a file's owner, group and mode.
func rightsOf(path string) string {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d:%d %04o", st.Uid, st.Gid, st.Mode&0o7777)
}

// USER1, KU3: the three sockets are 0660 of the folder's group, whatever the umask.
func TestUSER1KU3_Sockets(t *testing.T) {
	site(t, "ok.test")
	for n, umask := range []string{"077", "022", "000"} {
		p := pack(t, n)
		// Nobody may ever see one of them open to others.
		stop, wide := watchSockets(p.dir, 0o660)
		p.startProxy(t, umask, "--internet-host", "ok.test")
		run := start(t, p.wrap(umask, nil, "sh", "-c", "curl -sS http://ok.test/; umask; id -u; grep CapEff /proc/self/status; echo up; read x"))
		run.until("up")
		stop()
		if out := run.out.String(); !strings.HasPrefix(out, "hello from ok.test\n0"+umask+"\n"+fmt.Sprint(p.agent)+"\nCapEff:\t0000000000000000\n") {
			t.Errorf("umask %s: %q", umask, out)
		}
		for name, uid := range map[string]int{"out.sock": p.proxy, "local.sock": p.proxy, "in.sock": p.agent} {
			if got, want := rightsOf(p.dir+"/"+name), fmt.Sprintf("%d:%d 0660", uid, p.group); got != want {
				t.Errorf("umask %s: %s is %s and not %s", umask, name, got, want)
			}
		}
		if got, want := rightsOf(p.dir), fmt.Sprintf("%d:%d 2770", p.agent, p.group); got != want {
			t.Errorf("the folder is %s", got)
		}
		if len(*wide) > 0 {
			t.Errorf("umask %s: for a moment: %v", umask, *wide)
		}
		run.write("\n")
		run.wait().exits(0)
		p.proxyRun.signal(unix.SIGTERM)
		p.proxyRun.wait().exits(0)
		if left, _ := os.ReadDir(p.dir); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
	// In a private folder they are its user's alone.
	dir, _ := aProxy(t)
	run := start(t, testnet.Command("/bin/sh", "-c", "umask 000; exec "+testnet.Lnk+" sandbox wrap --reach "+dir+" -- sh -c 'echo up; read x'"))
	run.until("up")
	for _, name := range []string{"out.sock", "local.sock", "in.sock"} {
		if got, want := rightsOf(dir+"/"+name), fmt.Sprintf("%d:%d 0600", testnet.UID, testnet.UID); got != want {
			t.Errorf("%s is %s", name, got)
		}
	}
}

// watchSockets looks at a folder's sockets all the time, and keeps those that
// have more rights than allowed.
func watchSockets(dir string, allowed os.FileMode) (stop func(), wide *[]string) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	wide = new([]string)
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				if info, err := os.Lstat(dir + "/" + e.Name()); err == nil && info.Mode().Perm()&^allowed != 0 {
					*wide = append(*wide, fmt.Sprint(e.Name(), " ", info.Mode()))
				}
			}
		}
	}()
	return func() { cancel(); <-done }, wide
}

// USER1, KU3: a folder of another mode, group or owner is refused, and so are half of the flags.
func TestUSER1KU3_Refused(t *testing.T) {
	p := pack(t, 0)
	proxy := func(want string, args ...string) {
		t.Helper()
		cmd := p.by(p.proxy, "022", append([]string{testnet.Lnk, "sandbox", "proxy", "--dir", p.dir}, args...)...)
		finish(t, cmd).exits(125).says(want)
		if left, _ := os.ReadDir(p.dir); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
	both := []string{"--agent-user", fmt.Sprint(p.agent), "--group", fmt.Sprint(p.group)}
	for _, mode := range []uint32{0o700, 0o770, 0o2700, 0o2750, 0o2775, 0o2777, 0o3770, 0o6770} {
		unix.Chmod(p.dir, mode)
		proxy(fmt.Sprintf("with mode %04o: it must be of group %d with mode 2770", mode, p.group), both...)
	}
	unix.Chmod(p.dir, 0o2770)
	proxy("it must be of group 20399", "--agent-user", fmt.Sprint(p.agent), "--group", "20399")
	proxy("it must be the agent user's", "--agent-user", fmt.Sprint(p.agent+50), "--group", fmt.Sprint(p.group))
	proxy("go together", both[:2]...)
	proxy("go together", both[2:]...)
	proxy("nobody", "--agent-user", "65534", "--group", fmt.Sprint(p.group))
	proxy("this proxy's own user", "--agent-user", fmt.Sprint(p.proxy), "--group", fmt.Sprint(p.group))
	proxy("--agent-user", "--agent-user", "-5", "--group", fmt.Sprint(p.group))
	proxy("with mode 2770: it must be uid") // and none of them: a private folder is asked for
	os.Symlink(p.dir, p.base+"/link")
	finish(t, p.by(p.proxy, "022", append([]string{testnet.Lnk, "sandbox", "proxy", "--dir", p.base + "/link"}, both...)...)).exits(125).says("link")
	// A stale socket, and a live one, are nobody's to take.
	p.startProxy(t, "022")
	finish(t, p.by(p.proxy, "022", append([]string{testnet.Lnk, "sandbox", "proxy", "--dir", p.dir}, both...)...)).exits(125).says("out.sock is there already")
}

// USER2: the proxy goes in by its agent's in.sock alone.
func TestUSER2_WayIn(t *testing.T) {
	p := pack(t, 0)
	p.startProxy(t, "022", "--port", "18085:3000")
	run := start(t, p.wrap("022", nil, "/usr/bin/python3", "-c", echoInside))
	run.until("listening")
	if got := talk(t, dialPort(t, 18085), []byte("x")); got != "hello\nxbye" {
		t.Errorf("%q", got)
	}
	// A bridge of the proxy's user's, who is in the group, finds it too.
	cmd := p.by(p.proxy, "022", testnet.Lnk, "sandbox", "bridge", "unix:"+p.dir+"/in.sock:3000", "--stdio")
	cmd.Stdin = strings.NewReader("y")
	finish(t, cmd).exits(0).prints("hello\nybye")
	run.signal(unix.SIGTERM)
	run.wait()
	in := p.dir + "/in.sock"
	for name, put := range map[string]func() func(){
		"a socket of the proxy's own user":               func() func() { return p.serve(t, p.proxy, p.proxy, in) },
		"the proxy's user's socket, of the agent's name": func() func() { return p.serve(t, p.proxy, p.agent, in) },
		"the agent's socket, of another's name":          func() func() { return p.serve(t, p.agent, p.proxy, in) },
		"a stranger's":                                   func() func() { return p.serve(t, testnet.Stranger, testnet.Stranger, in) },
		"root's":                                         func() func() { return p.serve(t, 0, 0, in) },
		"nobody's":                                       func() func() { return p.serve(t, 65534, 65534, in) },
		"a link to the agent's own socket": func() func() {
			stop := p.serve(t, p.agent, p.agent, p.base+"/elsewhere.sock")
			os.Symlink(p.base+"/elsewhere.sock", in)
			return stop
		},
	} {
		stop := put()
		if got := talk(t, dialPort(t, 18085), []byte("secret")); got != "" {
			t.Errorf("%s: %q came back", name, got)
		}
		time.Sleep(30 * time.Millisecond)
		stop()
		os.Remove(in)
		os.Remove(p.base + "/elsewhere.sock")
	}
}

// serve serves a socket as a user, whose file is another's, and fails the test
// if it is sent anything.
func (p *packed) serve(t *testing.T, uid, owner int, path string) (stop func()) {
	t.Helper()
	unix.Chmod(p.base, 0o777)
	unix.Chmod(p.dir, 0o2777)
	defer unix.Chmod(p.base, 0o755)
	defer unix.Chmod(p.dir, 0o2770)
	stop = serveAs(t, uid, path)
	unix.Chmod(filepath.Dir(path), 0o2777)
	if err := os.Chown(path, owner, p.group); err != nil {
		t.Fatal(err)
	}
	os.Chmod(path, 0o777)
	return stop
}

// USER3: wrap keeps a shared folder, makes any other its user's alone, and
// refuses folders that aren't shared alike, before it changes anything.
func TestUSER3_Reached(t *testing.T) {
	folder := func(uid, gid int, mode uint32) string {
		dir, err := os.MkdirTemp("/srv", "reached-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		os.Chown(dir, uid, gid)
		unix.Chmod(dir, mode)
		return dir
	}
	user, group := testnet.UID, 20399
	wrap := func(dirs ...string) result {
		args := []string{"sandbox", "wrap"}
		for _, dir := range dirs {
			args = append(args, "--reach", dir)
		}
		return finish(t, testnet.Command(testnet.Lnk, append(args, "--", "touch", "/tmp/ran")...))
	}
	for mode, want := range map[uint32]uint32{0o2770: 0o2770, 0o700: 0o700, 0o755: 0o700, 0o777: 0o700, 0o770: 0o700, 0o2775: 0o700, 0o3770: 0o700, 0o500: 0o700} {
		dir := folder(user, user, mode)
		wrap(dir).exits(125).says("no proxy serves this sandbox in") // there is none
		if got, want := rightsOf(dir), fmt.Sprintf("%d:%d %04o", user, user, want); got != want {
			t.Errorf("%04o: it is %s and not %s", mode, got, want)
		}
	}
	for _, test := range []struct {
		dirs []string
		want string
	}{
		{[]string{folder(user, group, 0o2770), folder(user, user, 0o755)}, "shared alike"},
		{[]string{folder(user, user, 0o755), folder(user, group, 0o2770)}, "shared alike"},
		{[]string{folder(user, group, 0o2770), folder(user, group+1, 0o2770)}, "shared alike"},
		{[]string{folder(testnet.Stranger, user, 0o2770)}, fmt.Sprintf("uid %d's", testnet.Stranger)},
		{[]string{folder(user, user, 0o755), folder(0, user, 0o755)}, "uid 0's"},
		{[]string{"/nowhere"}, "no such file"}, {nil, "--reach"},
	} {
		var before, after []string
		for _, dir := range test.dirs {
			before = append(before, rightsOf(dir))
		}
		wrap(test.dirs...).exits(125).says(test.want).leavesNothing()
		for _, dir := range test.dirs {
			after = append(after, rightsOf(dir))
		}
		if strings.Join(before, " ") != strings.Join(after, " ") {
			t.Errorf("%v was changed to %v", before, after)
		}
	}
	// What is no socket folder is left as it is.
	other := folder(user, user, 0o755)
	os.WriteFile(other+"/letter", nil, 0o644)
	for path, want := range map[string]string{other: "letter", folder(user, user, 0o1777): "everybody"} {
		before := rightsOf(path)
		wrap(path).exits(125).says("no socket folder", want)
		if after := rightsOf(path); after != before {
			t.Errorf("%s was changed to %s", before, after)
		}
	}
	dir := folder(user, user, 0o700)
	wrap(dir, dir).exits(125).says("twice")
	os.Symlink(dir, dir+"-link")
	defer os.Remove(dir + "-link")
	wrap(dir + "-link").exits(125).says("not a directory")
}

// USER4: two agents packed, each with a proxy of another user: each way out
// works, and nobody reaches anything of the other's.
func TestUSER4_Packed(t *testing.T) {
	site(t, "one.test")
	site(t, "two.test")
	agents := []*packed{pack(t, 1), pack(t, 2)}
	hosts := []string{"one.test", "two.test"}
	const binder = 20400
	var sandboxes []*running
	for i, p := range agents {
		p.startProxy(t, "022", "--blank", "--hold", "--control", p.control, "--binder", fmt.Sprint(binder))
		s := start(t, p.wrap("022", []string{"--home", p.home}, "sh"))
		sandboxes = append(sandboxes, s)
		s.write("echo up\n")
		s.until("up")
		if got := asked(t, binder, p.control, fmt.Sprintf(`{"internet_host":[%q],"wire":%q,"agent":"agent-%d"}`+"\n", hosts[i], p.wire, i)); got[0] != "{}" {
			t.Fatalf("bind: %q", got)
		}
	}
	// Each way out is its own.
	for i, s := range sandboxes {
		for j, host := range hosts {
			s.write(fmt.Sprintf("curl -s -o /dev/null -w '%s %%{http_code}\\n' http://%s/\n", host, host))
			want := map[bool]string{true: "200", false: "403"}[i == j]
			s.until(host + " " + want + "\n")
		}
		if record := wireLog(t, agents[i].wire)[0]; record.Agent != fmt.Sprintf("agent-%d", i) {
			t.Errorf("%+v", record)
		}
		// Its own files, and nothing of what is beside them.
		s.write("cat ~/diary; ls -A /srv " + agents[1-i].base + " " + agents[i].dir + "; echo done\n")
		s.until("done")
		if out := s.out.String(); !strings.Contains(out, "the diary") || strings.Contains(out, "sock") {
			t.Errorf("%s", out)
		}
	}
	// By mode and by owner, each file is one user's, or the folder's.
	for _, p := range agents {
		for path, want := range map[string]string{
			p.home: fmt.Sprintf("%d:%d 0700", p.agent, p.agent), p.wire: fmt.Sprintf("%d:%d 0600", p.proxy, p.proxy), p.dir: fmt.Sprintf("%d:%d 2770", p.agent, p.group),
		} {
			if got := rightsOf(path); got != want {
				t.Errorf("%s is %s and not %s", path, got, want)
			}
		}
		if got := rightsOf(p.control); !strings.HasPrefix(got, fmt.Sprintf("%d:%d ", p.proxy, p.proxy)) {
			t.Errorf("the control socket is %s", got)
		}
	}
	// Everybody tries everything, with whatever group is theirs.
	type person struct {
		name       string
		uid, group int
	}
	var people []person
	for i, p := range agents {
		people = append(people, person{fmt.Sprint("agent ", i), p.agent, p.group}, person{fmt.Sprint("proxy ", i), p.proxy, p.group})
	}
	people = append(people, person{"stranger", testnet.Stranger, testnet.Stranger}, person{"binder", binder, binder})
	for i, p := range agents {
		own := func(who string) map[string]bool {
			may := map[string]bool{}
			switch who {
			case fmt.Sprint("agent ", i):
				may = map[string]bool{"home": true, "out.sock": true, "local.sock": true, "in.sock": true, "folder": true, "put": true}
			case fmt.Sprint("proxy ", i):
				may = map[string]bool{"out.sock": true, "local.sock": true, "in.sock": true, "folder": true, "put": true, "control": true, "wire": true}
			case "binder":
				may = map[string]bool{"control": true}
			}
			return may
		}
		for _, who := range people {
			script := fmt.Sprintf(`import socket, os
def attempt(name, f):
    try: f(); print(name, "yes")
    except OSError as e: print(name, "no")
def to(path, kind=socket.SOCK_STREAM):
    s = socket.socket(socket.AF_UNIX, kind); s.settimeout(5); s.connect(path)
    return s
def ask(path):
    s = to(path); s.sendall(b'{"do":"status"}\n')
    if not s.recv(100): raise OSError("closed")
d = %q
attempt("home", lambda: open(%q).read()); attempt("folder", lambda: os.listdir(d)); attempt("wire", lambda: open(%q).read())
attempt("out.sock", lambda: to(d + "/out.sock")); attempt("local.sock", lambda: to(d + "/local.sock", socket.SOCK_SEQPACKET)); attempt("in.sock", lambda: to(d + "/in.sock"))
attempt("control", lambda: ask(%q)); attempt("put", lambda: (open(d + "/mine", "w"), os.unlink(d + "/mine")))`, p.dir, p.home+"/diary", p.wire, p.control)
			cmd := (&packed{group: who.group}).by(who.uid, "022", "/usr/bin/python3", "-c", script)
			out := finish(t, cmd).exits(0).stdout
			for line := range strings.Lines(out) {
				what, got, _ := strings.Cut(strings.TrimSpace(line), " ")
				if (got == "yes") != own(who.name)[what] {
					t.Errorf("%s, of agent %d's %s: %s", who.name, i, what, got)
				}
			}
		}
		// Root isn't named, so the control socket isn't root's.
		if got := asked(t, 0, p.control, `{"do":"status"}`+"\n"); got[0] != "closed" {
			t.Errorf("root: %q", got)
		}
	}
	// A proxy that ends takes its agent's way out along, and no other gets it.
	agents[0].proxyRun.signal(unix.SIGKILL)
	agents[0].proxyRun.wait()
	sandboxes[0].write("curl -s -o /dev/null -w 'gone %{http_code} %{exitcode}\\n' http://one.test/\n")
	sandboxes[0].until("gone 000 7\n")
	sandboxes[1].write("curl -s -o /dev/null -w 'still %{http_code}\\n' http://two.test/\n")
	sandboxes[1].until("still 200\n")
	for _, s := range sandboxes {
		s.write("exit 0\n")
		s.wait().exits(0)
	}
	if conn, err := net.Dial("unix", agents[1].dir+"/in.sock"); err == nil {
		conn.Close()
		t.Error("in.sock is left")
	}
}
