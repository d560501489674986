package integration

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

// aBox is a machine with a supervisor on it.
type aBox struct {
	t             *testing.T
	config, state string
	runtime       string
	run           *running
}

// aSlot is what lnk box status --json prints of one.
type aSlot struct {
	Number              int
	State, Why          string
	Agent, Proxy, Group int
	Control, Folder     string
	Wire, Home          string
	Starts              int
	Generation          string
}

const binder = 20400

// obeys is a harness: it runs what comes in on port 3000 by a shell, and sends
// back what that prints.
//
//go:embed testdata/harness.py
var obeys string

// newBox prepares a machine: an /etc that users can be made in, and a configuration.
func newBox(t *testing.T, slots int, more string) *aBox {
	t.Helper()
	if mounts, _ := os.ReadFile("/proc/self/mountinfo"); !strings.Contains(string(mounts), " - cgroup2 ") {
		t.Skip("this machine has no cgroups of version 2")
	}
	etc, state := "/mnt/etc-of-box", "/srv/box"
	for _, cmd := range [][]string{{"cp", "-a", "/etc/.", etc}, {"mount", "--bind", etc, "/etc"}} {
		os.MkdirAll(etc, 0o755)
		if out, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", cmd, err, out)
		}
	}
	if t.Failed() {
		return nil
	}
	b := &aBox{t: t, config: "/srv/box.toml", state: state, runtime: "/run/lnk"}
	t.Cleanup(func() {
		// The supervisor has ended by now: start sees to that.
		if out, err := b.supervisor("purge").CombinedOutput(); err != nil {
			t.Errorf("purge: %v: %s", err, out)
		}
		os.RemoveAll(b.runtime)
		os.RemoveAll(state)
		if err := unix.Unmount("/etc", unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		os.RemoveAll(etc)
	})
	os.WriteFile("/srv/harness.py", []byte(obeys), 0o644)
	b.configure(slots, more)
	return b
}

func (b *aBox) configure(slots int, more string) {
	text := fmt.Sprintf("slots = %d\nuids = \"71000-79999\"\nbinder = %q\n%s\n[blank]\nharness = [\"/usr/bin/python3\", \"-c\", %q]\n", slots, fmt.Sprint(binder), more, obeys)
	if err := os.WriteFile(b.config, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *aBox) supervisor(command string) *exec.Cmd {
	cmd := exec.Command(testnet.BinDir+"/lnk-supervisor", command, "--config", b.config, "--runtime", b.runtime, "--state", b.state, "--lnk", testnet.Lnk, "--proxy", testnet.BinDir+"/link-sandbox-proxy")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// serve starts the supervisor, and waits until every slot is started.
func (b *aBox) serve() {
	b.t.Helper()
	b.run = start(b.t, b.supervisor("serve"))
	eventually(b.t, "the supervisor answers", func() bool {
		select {
		case err := <-b.run.done:
			b.run.done <- err
			b.t.Fatalf("the supervisor ended: %v %s", err, b.run.stderr)
		default:
		}
		return b.box("status").code == 0
	})
	b.settled()
}

// kill ends the supervisor without a word.
func (b *aBox) kill(signal syscall.Signal) {
	b.run.signal(signal)
	b.run.wait()
	b.run = nil
}

// box runs lnk box as root.
func (b *aBox) box(args ...string) result {
	b.t.Helper()
	return b.boxAs(0, nil, "", args...)
}

func (b *aBox) boxAs(uid int, groups []uint32, stdin string, args ...string) result {
	b.t.Helper()
	cmd := exec.Command(testnet.Lnk, append([]string{"box"}, args...)...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent"}
	cmd.Stdin = strings.NewReader(stdin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), Groups: groups}}
	return finish(b.t, cmd)
}

func (b *aBox) slots() (slots []aSlot) {
	b.t.Helper()
	r := b.box("status", "--json").exits(0)
	if err := json.Unmarshal([]byte(r.stdout), &slots); err != nil {
		b.t.Fatalf("%v: %s", err, r.stdout)
	}
	return slots
}

// settled waits until every slot is blank or bound, and returns them.
func (b *aBox) settled() (slots []aSlot) {
	b.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		slots = b.slots()
		if !slices.ContainsFunc(slots, func(s aSlot) bool { return s.State != "blank" && s.State != "bound" }) {
			return slots
		}
		if time.Now().After(deadline) {
			logs := ""
			for _, s := range slots {
				if s.State == "waiting" {
					logs = b.box("logs", fmt.Sprint(s.Number)).stdout
				}
			}
			b.t.Fatalf("they don't settle: %+v %s", slots, logs)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// bind binds a blank slot as the binder, and returns it.
func (b *aBox) bind(line string, args ...string) (bound aSlot) {
	b.t.Helper()
	r := b.boxAs(binder, nil, line, append([]string{"bind", "--json"}, args...)...).exits(0)
	if err := json.Unmarshal([]byte(r.stdout), &bound); err != nil {
		b.t.Fatal(err)
	}
	return bound
}

// obey has the harness of a slot run a script, as its agent's user would reach it.
func (b *aBox) obey(s aSlot, script string) string {
	b.t.Helper()
	cmd := exec.Command(testnet.Lnk, "sandbox", "bridge", "unix:"+s.Folder+"/in.sock:3000", "--stdio")
	cmd.Stdin = strings.NewReader(script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(s.Agent), Gid: uint32(s.Agent)}}
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	deadline := time.Now().Add(8 * time.Second)
	for {
		err := cmd.Run()
		// The harness takes a moment until it listens.
		if err == nil || !strings.Contains(stderr.String(), "nothing listens") || time.Now().After(deadline) {
			return out.String() + stderr.String()
		}
		time.Sleep(20 * time.Millisecond)
		again := exec.Command(cmd.Path, cmd.Args[1:]...)
		again.Stdin, again.SysProcAttr = strings.NewReader(script), cmd.SysProcAttr
		out.Reset()
		stderr.Reset()
		again.Stdout, again.Stderr = &out, &stderr
		cmd = again
	}
}

// users are all processes of a slot's users, as "uid pid".
func (s aSlot) processes() (pids []int) {
	for _, p := range processesAll() {
		var st unix.Stat_t
		if unix.Stat("/proc/"+p, &st) == nil && (int(st.Uid) == s.Agent || int(st.Uid) == s.Proxy) {
			pid, _ := strconv.Atoi(p)
			if !strings.Contains(stat(pid), ") Z ") {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// proxyOf is the process of a slot's proxy.
func (s aSlot) pidOf(uid int, name string) int {
	for _, pid := range s.processes() {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t", uid)) && strings.Contains(string(command), name) {
			return pid
		}
	}
	return 0
}

// BOX1: slots have ids of the range that nobody else has, stay the same, and go
// without leftovers.
func TestBOX1_Slots(t *testing.T) {
	b := newBox(t, 3, "")
	// Taken: a user, a group, and subordinate ids.
	for path, line := range map[string]string{"/etc/passwd": "taken:x:71001:71001::/:/bin/false\n", "/etc/group": "takentoo:x:71004:\n", "/etc/subuid": "tester:71006:10\n"} {
		file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		file.WriteString(line)
		file.Close()
	}
	b.serve()
	slots := b.slots()
	if len(slots) != 3 {
		t.Fatalf("%+v", slots)
	}
	seen := map[int]bool{71001: true, 71004: true}
	for _, s := range slots {
		for _, id := range []int{s.Agent, s.Proxy, s.Group} {
			if seen[id] || id < 71000 || id > 79999 || id >= 71006 && id < 71016 {
				t.Errorf("slot %d has the id %d", s.Number, id)
			}
			seen[id] = true
		}
		for path, want := range map[string]string{
			s.Folder: fmt.Sprintf("%d:%d 2770", s.Agent, s.Group), s.Home: fmt.Sprintf("%d:%d 0700", s.Agent, s.Agent), s.Wire: fmt.Sprintf("%d:%d 0700", s.Proxy, s.Proxy),
			filepath.Dir(s.Control): fmt.Sprintf("%d:%d 0710", s.Proxy, s.Proxy), s.Folder + "/in.sock": fmt.Sprintf("%d:%d 0660", s.Agent, s.Group),
		} {
			if got := rightsOf(path); got != want {
				t.Errorf("%s is %s and not %s", path, got, want)
			}
		}
		out, err := exec.Command("getent", "group", fmt.Sprintf("lnk-slot-%d", s.Number)).Output()
		if want := fmt.Sprintf("lnk-slot-%d:x:%d:lnk-agent-%d,lnk-proxy-%d\n", s.Number, s.Group, s.Number, s.Number); err != nil || string(out) != want {
			t.Errorf("%q, %v", out, err)
		}
	}
	// Again, and after more were added, the same ones have the same ids.
	b.box("add", "2").exits(0)
	b.kill(unix.SIGTERM)
	b.serve()
	after := b.slots()
	if len(after) != 5 {
		t.Errorf("%d slots", len(after))
	}
	for i, s := range slots {
		if after[i].Agent != s.Agent || after[i].Proxy != s.Proxy || after[i].Group != s.Group {
			t.Errorf("%+v was %+v", after[i], s)
		}
	}
	// Removed, nothing of them is left.
	gone := after[1]
	b.box("remove", fmt.Sprint(gone.Number)).exits(0)
	if left := gone.processes(); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	for _, path := range []string{filepath.Dir(gone.Folder), filepath.Dir(gone.Home), fmt.Sprintf("/sys/fs/cgroup/unified/lnk.slice/slot-%d", gone.Number), fmt.Sprintf("/sys/fs/cgroup/lnk.slice/slot-%d", gone.Number)} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
	if out, err := exec.Command("getent", "passwd", fmt.Sprint(gone.Agent), fmt.Sprint(gone.Proxy)).Output(); err == nil || len(out) > 0 {
		t.Errorf("users are left: %s", out)
	}
	if out, err := exec.Command("getent", "group", fmt.Sprint(gone.Agent), fmt.Sprint(gone.Proxy), fmt.Sprint(gone.Group)).Output(); err == nil || len(out) > 0 {
		t.Errorf("groups are left: %s", out)
	}
	b.box("remove", fmt.Sprint(gone.Number)).exits(125).says("no such slot")
	// A user that is another's, of a slot's name, is nobody's to remove.
	exec.Command("useradd", "-u", "65001", "-M", "lnk-agent-6").Run()
	b.box("add", "1").exits(0) // number 2 is free
	b.box("add", "1").exits(125).says("lnk-agent-6")
	if out, _ := exec.Command("id", "-u", "lnk-agent-6").Output(); string(out) != "65001\n" {
		t.Errorf("the other's user: %q", out)
	}
	if n := len(b.slots()); n != 5 {
		t.Errorf("%d slots", n)
	}
	exec.Command("userdel", "lnk-agent-6").Run()
	b.box("remove", fmt.Sprint(gone.Number)).exits(0)
	// Its number and ids are free again.
	b.box("add", "1").exits(0)
	if again := b.slots()[1]; again.Number != gone.Number || again.Agent != gone.Agent {
		t.Errorf("%+v", again)
	}
}

// BOX2: a slot ends as a whole, and the next tenant finds nothing of the last.
func TestBOX2_Recycled(t *testing.T) {
	site(t, "ok.test")
	b := newBox(t, 2, "[limits]\nhome = \"16M\"\n")
	b.serve()
	bound := b.bind(`{"internet_host":["ok.test"],"wire":"/srv/box/slots/1/wire/log","agent":"scout"}`, "--slot", "1")
	if bound.Number != 1 {
		t.Errorf("%+v", bound)
	}
	get := "curl -s -o /dev/null -w '%{http_code}' http://ok.test/"
	if got := b.obey(bound, get+"; echo mine > ~/secret; echo mine > /tmp/secret; echo mine > /dev/shm/secret; cat ~/secret"); got != "200mine\n" {
		t.Errorf("%q", got)
	}
	if got := b.obey(b.slots()[1], get); got != "503" {
		t.Errorf("the blank one: %q", got)
	}
	eventually(t, "it is known to be bound", func() bool { return b.slots()[0].State == "bound" })
	b.boxAs(binder, nil, "{}", "bind", "--slot", "1").exits(125).says("slot 1 is bound")
	for what, end := range map[string]func(s aSlot) int{
		"the proxy":   func(s aSlot) int { return s.pidOf(s.Proxy, "link-sandbox-proxy") },
		"the sandbox": func(s aSlot) int { return s.pidOf(s.Agent, "lnk") },
		"the harness": func(s aSlot) int { return s.pidOf(s.Agent, "python3") },
	} {
		s := b.slots()[0]
		if s.State == "blank" {
			b.bind(`{"internet_host":["ok.test"]}`, "--slot", "1")
		}
		for _, folder := range []string{"/tmp", "/dev/shm", "/var/tmp"} {
			os.WriteFile(folder+"/left-behind", []byte("mine"), 0o600)
			os.Chown(folder+"/left-behind", s.Agent, s.Agent)
		}
		os.WriteFile(s.Home+"/secret", []byte("mine"), 0o600)
		generation := s.Generation
		os.WriteFile(s.Wire+"/log2", []byte("mine"), 0o600)
		os.Symlink("/etc", s.Folder+"/etc")
		before := s.processes()
		pid := end(s)
		if pid == 0 {
			t.Fatalf("%s isn't there", what)
		}
		unix.Kill(pid, unix.SIGKILL)
		eventually(t, what+" ended, and the slot is blank again", func() bool {
			now := b.slots()[0]
			return now.State == "blank" && now.Starts > s.Starts
		})
		after := b.slots()[0]
		if after.Generation == generation || generation == "" {
			t.Errorf("%s: the generation is %q", what, after.Generation)
		}
		for _, pid := range after.processes() {
			if slices.Contains(before, pid) {
				t.Errorf("%s: process %d is left", what, pid)
			}
		}
		for _, path := range []string{"/tmp/left-behind", "/dev/shm/left-behind", "/var/tmp/left-behind", s.Home + "/secret", s.Wire + "/log", s.Wire + "/log2", s.Folder + "/etc"} {
			if _, err := os.Lstat(path); err == nil {
				t.Errorf("%s: %s is left", what, path)
			}
		}
		if got := b.obey(after, get+"; ls -A ~ /tmp /dev/shm"); !strings.HasPrefix(got, "503") || strings.Contains(got, "secret") {
			t.Errorf("%s: the next tenant finds %q", what, got)
		}
	}
	if _, err := os.Stat("/etc/passwd"); err != nil {
		t.Error("wiping followed a link")
	}
	// The other one was left alone.
	if s := b.slots()[1]; s.Starts != 1 {
		t.Errorf("%+v", s)
	}
	starts := b.slots()[0].Starts
	b.box("recycle", "1").exits(0)
	if s := b.slots()[0]; s.State != "blank" || s.Starts != starts+1 {
		t.Errorf("recycled: %+v", s)
	}
}

// BOX2: slots outlive the supervisor, stopped or killed, and are found again.
func TestBOX2_FoundAgain(t *testing.T) {
	site(t, "ok.test")
	b := newBox(t, 3, "")
	b.serve()
	bound := b.bind(`{"internet_host":["ok.test"]}`, "--slot", "2")
	processes := map[int][]int{}
	for _, s := range b.settled() {
		processes[s.Number] = s.processes()
	}
	for _, signal := range []syscall.Signal{unix.SIGTERM, unix.SIGKILL} {
		b.kill(signal)
		if got := b.obey(bound, "curl -s -o /dev/null -w '%{http_code}' http://ok.test/"); got != "200" {
			t.Errorf("without a supervisor: %q", got)
		}
		b.serve()
		for _, s := range b.slots() {
			// Nobody saw what was done to a blank one meanwhile: it is made anew.
			if now := s.processes(); slices.Equal(now, processes[s.Number]) != (s.Number == 2) {
				t.Errorf("slot %d had %v and has %v", s.Number, processes[s.Number], now)
			}
			processes[s.Number] = s.processes()
			if want := map[bool]string{true: "bound", false: "blank"}[s.Number == 2]; s.State != want {
				t.Errorf("%+v", s)
			}
		}
	}
	// What changed while there was none is seen: an end, a bind, and another configuration.
	// A proxy that was taken over can take its mark away, and isn't taken for a blank one.
	os.Remove(bound.Control + ".bound")
	os.WriteFile(bound.Folder+"/x", nil, 0o600)
	time.Sleep(100 * time.Millisecond)
	if s := b.slots()[1]; s.State != "bound" {
		t.Errorf("without its mark: %+v", s)
	}
	b.kill(unix.SIGKILL)
	b.serve()
	if s := b.slots()[1]; s.State != "bound" || !slices.Equal(s.processes(), processes[2]) {
		t.Errorf("without its mark, found again: %+v", s)
	}
	processes[3] = b.slots()[2].processes()
	b.kill(unix.SIGKILL)
	unix.Kill(b.pidOf(bound), unix.SIGKILL)
	if got := asked(t, binder, bound2(bound.Control, 3), `{"internet_host":["ok.test"]}`+"\n"); got[0] != "{}" {
		t.Errorf("bind: %q", got)
	}
	b.configure(3, "[limits]\nmemory = \"256M\"\n")
	b.serve()
	for _, s := range b.slots() {
		switch s.Number {
		case 3:
			if s.State != "bound" || !slices.Equal(s.processes(), processes[3]) {
				t.Errorf("bound meanwhile: %+v", s)
			}
		default:
			if s.State != "blank" || slices.Equal(s.processes(), processes[s.Number]) {
				t.Errorf("%+v has %v", s, s.processes())
			}
		}
	}
	// There is one supervisor.
	finish(t, b.supervisor("serve")).exits(1).says("another lnk-supervisor")
	elsewhere := *b
	elsewhere.state, elsewhere.runtime = "/srv/elsewhere", "/run/elsewhere"
	defer os.RemoveAll(elsewhere.state)
	defer os.RemoveAll(elsewhere.runtime)
	os.Mkdir(elsewhere.state, 0o755)
	for _, command := range []string{"serve", "end", "purge"} {
		finish(t, elsewhere.supervisor(command)).exits(1).says("another lnk-supervisor")
	}
	if s := b.slots(); len(s) != 3 || s[2].State != "bound" {
		t.Errorf("%+v", s)
	}
}

func (b *aBox) pidOf(s aSlot) int { return s.pidOf(s.Proxy, "link-sandbox-proxy") }

// bound2 is the control socket of another slot.
func bound2(control string, number int) string {
	return filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(control))), fmt.Sprint(number), "control", "control.sock")
}

// BOX3: a slot that runs over its limits hurts no other.
func TestBOX3_Limits(t *testing.T) {
	site(t, "ok.test")
	b := newBox(t, 2, "[limits]\nmemory = \"128M\"\nprocesses = 64\ncpus = 0.5\nhome = \"8M\"\n")
	b.serve()
	one, two := b.bind(`{"internet_host":["ok.test"]}`, "--slot", "1"), b.bind(`{"internet_host":["ok.test"]}`, "--slot", "2")
	fine := func(what string) {
		t.Helper()
		if got := b.obey(two, "curl -s -o /dev/null -w '%{http_code}' http://ok.test/"); got != "200" {
			t.Errorf("%s: the other's request: %q", what, got)
		}
	}
	if got := b.obey(one, "head -c 20M /dev/zero 2>&1 > ~/big; stat -c %s ~/big; rm ~/big"); !strings.Contains(got, "No space left") || !strings.Contains(got, "8388608") {
		t.Errorf("the home's size: %q", got)
	}
	fine("a full home")
	if got := b.obey(one, `python3 -c '
import os, time
n = 0
try:
    for i in range(500):
        if os.fork() == 0: time.sleep(5); os._exit(0)
        n += 1
except OSError as e: print(e.strerror)
print(n < 64)'`); got != "Resource temporarily unavailable\nTrue\n" {
		t.Errorf("the number of processes: %q", got)
	}
	fine("too many processes")
	b.obey(one, "python3 -c 'x = [bytearray(1 << 20) for _ in range(1000)]'; echo done")
	fine("too much memory")
	if got := b.obey(one, "timeout 2 sh -c 'while :; do :; done' & timeout 2 sh -c 'while :; do :; done'; wait; cat /proc/self/stat | wc -l"); !strings.HasPrefix(got, "1") {
		t.Errorf("%q", got)
	}
	fine("two busy loops")
	for _, s := range b.slots() {
		if s.Number == 2 && (s.State != "bound" || s.Starts != 1) {
			t.Errorf("%+v", s)
		}
	}
}

// BOX3 on a machine that lacks a controller: a limit that needs it is refused
// before anything is started, and without limits a box is as it is.
func TestBOX3_NoController(t *testing.T) {
	if _, err := os.Stat("/sys/fs/cgroup/memory/tasks"); err != nil {
		t.Skip("this machine's controllers are those of version 2, which a test can't take away")
	}
	b := newBox(t, 1, "[limits]\nmemory = \"128M\"\n")
	without := func(controllers string) *exec.Cmd {
		cmd := b.supervisor("serve")
		script := "for c in " + controllers + "; do umount /sys/fs/cgroup/$c || exit 99; done; exec \"$@\""
		cmd.Path, cmd.Args = "/usr/bin/unshare", append([]string{"unshare", "-m", "sh", "-c", script, "sh", cmd.Path}, cmd.Args[1:]...)
		return cmd
	}
	finish(t, without("memory")).exits(1).says("no cgroup controller memory", `memory = ""`)
	if out, _ := exec.Command("getent", "passwd", "lnk-agent-1").Output(); len(out) > 0 {
		t.Error("a user was made")
	}
	b.configure(1, "[limits]\nmemory = \"\"\nprocesses = 0\ncpus = 0\n")
	b.run = start(t, without("memory pids cpu"))
	eventually(t, "the supervisor answers", func() bool { return b.box("status").code == 0 })
	one := b.settled()[0]
	b.bind(`{}`)
	if got := b.obey(one, "echo here"); got != "here\n" {
		t.Errorf("%q", got)
	}
}

// BOX4: peers are judged by who they are, and bad requests lose nothing.
func TestBOX4_Interface(t *testing.T) {
	b := newBox(t, 1, "")
	file, _ := os.OpenFile("/etc/group", os.O_APPEND|os.O_WRONLY, 0)
	file.WriteString("lnk:x:20900:\n")
	file.Close()
	b.serve()
	for _, who := range []struct {
		name                  string
		uid                   int
		groups                []uint32
		reads, manages, binds bool
	}{
		{"root", 0, nil, true, true, false}, {"one of the group", testnet.UID, []uint32{20900}, true, true, false}, {"the binder", binder, nil, true, false, true},
		{"a stranger", testnet.Stranger, []uint32{20901}, false, false, false}, {"the agent", b.slots()[0].Agent, nil, false, false, false}, {"nobody", 65534, nil, false, false, false},
	} {
		for _, test := range []struct {
			args []string
			may  bool
		}{
			{[]string{"status"}, who.reads}, {[]string{"recycle", "1"}, who.manages}, {[]string{"logs", "1"}, who.manages}, {[]string{"remove", "99"}, false}, {[]string{"bind"}, who.binds},
		} {
			r := b.boxAs(who.uid, who.groups, "{}", test.args...)
			if (r.code == 0) != test.may {
				t.Errorf("%s: %v: exit code %d, %s", who.name, test.args, r.code, r.stderr)
			}
			if !who.reads && !strings.Contains(r.stderr, "only root") {
				t.Errorf("%s: %v: %s", who.name, test.args, r.stderr)
			}
		}
		b.settled()
	}
	// Strangers who hold connections keep nobody out.
	as(t, testnet.Stranger, func() {
		for range 200 {
			if conn, err := net.Dial("unix", b.runtime+"/supervisor.sock"); err == nil {
				t.Cleanup(func() { conn.Close() })
			}
		}
	})
	b.box("status").exits(0)
	raw := func(request string) string {
		conn := connect(t, b.runtime+"/supervisor.sock")
		io.WriteString(conn, request)
		data, _ := io.ReadAll(conn)
		return string(data)
	}
	for request, want := range map[string]string{
		"POST /v1/slots HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 11\r\n\r\n{\"addd\": 1}":     "unknown field",
		"POST /v1/slots HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 11\r\n\r\n{\"add\": -1}":     "400",
		"POST /v1/slots HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 15\r\n\r\n{\"add\": 999999}": "at most",
		"DELETE /v1/slots/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":                                    "no slot's number",
		"GET /v2/slots HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":                                         "404",
		"nonsense\r\n\r\n": "400",
	} {
		if got := raw(request); !strings.Contains(got, want) {
			t.Errorf("%q: %q", request, got)
		}
	}
	if s := b.slots(); len(s) != 1 {
		t.Errorf("%+v", s)
	}
	b.box("recycle", "1").exits(0)
	// BOX6: metrics, and a table that a person can read.
	if got := raw("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); !strings.Contains(got, `lnk_slots{state="blank"} 1`) || !strings.Contains(got, `lnk_slot_starts_total{slot="1"}`) {
		t.Errorf("%s", got)
	}
	if got := b.box("status").stdout; !strings.HasPrefix(got, "SLOT  STATE") || !strings.Contains(got, "blank") {
		t.Errorf("%s", got)
	}
	if got := b.run.stderr.String(); !strings.Contains(got, "level=INFO msg=slot number=1 state=blank") {
		t.Errorf("the log: %s", got)
	}
}

// BOX: a configuration that can't be is refused before anything is made.
func TestBOX_BadConfigurations(t *testing.T) {
	b := newBox(t, 1, "")
	spec := func(text string) string {
		path := filepath.Join("/srv", fmt.Sprintf("spec-%d.toml", rand.IntN(1e9)))
		os.WriteFile(path, []byte(text), 0o644)
		t.Cleanup(func() { os.Remove(path) })
		return fmt.Sprintf("slots = 1\n[blank]\nspec = %q\nharness = [\"x\"]\n", path)
	}
	harness := "\n[blank]\nharness = [\"x\"]\n"
	for text, want := range map[string]string{
		"slotz = 3" + harness: "slotz", "Slots = 3" + harness: "Slots", "slots = -1" + harness: "slots", "slots = \"x\"" + harness: "line 1", "slots = 3": "harness", "uids = \"5-10\"" + harness: "uids", "uids = \"70000\"" + harness: "uids",
		"uids = \"60000-70000\"" + harness: "65534", "binder = \"no-such-user\"" + harness: "no-such-user", "binder = \"65534\"" + harness: "binder", "binder = \"70005\"" + harness: "in uids", "[limits]\nmemory = \"lots\"" + harness: "lots",
		"[limits]\nprocesses = 3" + harness: "processes", "[limits]\ncpus = -1.0" + harness: "cpus", "[limits]\nhome = \"x\"" + harness: "home", "slots = [": "line 1", "[blank]\nharness = [\"x\"]\nspec = \"relative\"\n": "absolute",
		spec("[network]\nmode = \"host\"\n[commands]\nallow = [\"*\"]\n"): "always behind its proxy", spec("[internet]\nallow = [\"a.test\"]\n[commands]\nallow = [\"*\"]\n"): "rules of its own", spec("nonsense = 1\n"): "nonsense",
		spec("home = \"/srv/x\"\n[commands]\nallow = [\"*\"]\n"): "home", spec("reached = [\"/x\"]\n"): "reached",
	} {
		os.WriteFile(b.config, []byte(text), 0o644)
		for _, command := range []string{"serve", "check"} {
			finish(t, b.supervisor(command)).exits(1).says(want)
		}
	}
	if out, _ := exec.Command("getent", "passwd", "lnk-agent-1").Output(); len(out) > 0 {
		t.Error("a user was made")
	}
	// What is there and isn't a slot's stays, and the slot says so.
	b.configure(2, "")
	os.MkdirAll(b.state+"/slots/1", 0o755)
	os.WriteFile(b.state+"/slots/1/letter", []byte("dear"), 0o644)
	b.run = start(t, b.supervisor("serve"))
	eventually(t, "the slot says why it waits", func() bool {
		r := b.box("status")
		return strings.Contains(r.stdout, "letter") && strings.Contains(r.stdout, "waiting") && strings.Contains(r.stdout, "blank")
	})
	if data, _ := os.ReadFile(b.state + "/slots/1/letter"); string(data) != "dear" {
		t.Error("the letter is gone")
	}
	os.Remove(b.state + "/slots/1/letter")
	b.settled()
	// A state that is damaged isn't an empty one.
	b.kill(unix.SIGTERM)
	state, _ := os.ReadFile(b.state + "/slots.json")
	os.WriteFile(b.state+"/slots.json", state[:len(state)/2], 0o600)
	finish(t, b.supervisor("serve")).exits(1).says("is damaged")
	os.WriteFile(b.state+"/slots.json", state, 0o600)
	// A name that is another's.
	b.serve()
}

// BOX2: whatever is killed at whatever moment, every slot comes to be blank, or bound and whole.
func TestBOX2_KilledAtRandom(t *testing.T) {
	site(t, "ok.test")
	b := newBox(t, 4, "")
	b.serve()
	rounds := 40
	if n, err := strconv.Atoi(os.Getenv("LNK_KILLS")); err == nil {
		rounds = n
	}
	for range rounds {
		slots := b.slots()
		if s := slots[rand.IntN(len(slots))]; s.State == "blank" && rand.IntN(2) == 0 {
			// It may be killed under the bind.
			b.boxAs(binder, nil, `{"internet_host":["ok.test"]}`, "bind")
		}
		victims := []int{}
		for _, s := range slots {
			victims = append(victims, s.processes()...)
		}
		if len(victims) == 0 || rand.IntN(4) == 0 {
			b.kill(unix.SIGKILL)
			if len(victims) > 0 && rand.IntN(2) == 0 {
				unix.Kill(victims[rand.IntN(len(victims))], unix.SIGKILL)
			}
			b.run = start(t, b.supervisor("serve"))
			eventually(t, "the supervisor answers", func() bool { return b.box("status").code == 0 })
		} else {
			unix.Kill(victims[rand.IntN(len(victims))], unix.SIGKILL)
		}
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
	}
	for _, s := range b.settled() {
		want := map[string]string{"blank": "503", "bound": "200"}[s.State]
		if got := b.obey(s, "curl -s -o /dev/null -w '%{http_code}' http://ok.test/"); got != want {
			t.Errorf("%+v: %q", s, got)
		}
		// Whole, and not more than that: one proxy, and one sandbox.
		proxies, agents := 0, 0
		for _, pid := range s.processes() {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if strings.Contains(string(command), "--blank") {
				proxies++
			}
			if strings.Contains(string(command), "sandbox\x00wrap") {
				agents++
			}
		}
		if proxies != 1 || agents != 1 {
			t.Errorf("slot %d has %d proxies and %d sandboxes", s.Number, proxies, agents)
		}
	}
}

// USER4 on a box: of two bound slots each way out works, and no user of one
// reaches anything of the other's.
func TestUSER4_Box(t *testing.T) {
	site(t, "one.test")
	site(t, "two.test")
	b := newBox(t, 2, "")
	b.serve()
	hosts := []string{"one.test", "two.test"}
	var slots []aSlot
	for i, host := range hosts {
		slots = append(slots, b.bind(fmt.Sprintf(`{"internet_host":[%q],"wire":"/srv/box/slots/%d/wire/log"}`, host, i+1), "--slot", fmt.Sprint(i+1)))
	}
	for i, s := range slots {
		for j, host := range hosts {
			want := map[bool]string{true: "200", false: "403"}[i == j]
			if got := b.obey(s, "curl -s -o /dev/null -w '%{http_code}' http://"+host+"/"); got != want {
				t.Errorf("slot %d to %s: %q", s.Number, host, got)
			}
		}
		other := slots[1-i]
		if got := b.obey(s, fmt.Sprintf("ls %s %s %s /run/lnk/slots /sys/fs/cgroup 2>&1 | grep -vc 'No such file'; cat /proc/%d/environ 2>&1; kill -0 %d 2>&1", other.Home, other.Folder, filepath.Dir(other.Control), b.pidOf(other), b.pidOf(other))); strings.Contains(got, "PATH=") || !strings.HasPrefix(got, "0\n") {
			t.Errorf("inside slot %d: %q", s.Number, got)
		}
		for _, uid := range []int{s.Agent, s.Proxy} {
			as(t, uid, func() {
				for _, path := range []string{other.Folder + "/out.sock", other.Folder + "/in.sock", other.Control} {
					if conn, err := net.Dial("unix", path); err == nil {
						conn.Close()
						t.Errorf("uid %d of slot %d connects to %s", uid, s.Number, path)
					}
				}
				for _, path := range []string{other.Home, other.Folder, other.Wire, filepath.Dir(other.Control)} {
					if _, err := os.ReadDir(path); err == nil {
						t.Errorf("uid %d of slot %d reads %s", uid, s.Number, path)
					}
				}
				for _, pid := range other.processes() {
					if err := unix.Kill(pid, 0); err != unix.EPERM {
						t.Errorf("uid %d of slot %d may signal %d: %v", uid, s.Number, pid, err)
					}
				}
			})
		}
		as(t, s.Proxy, func() {
			if _, err := os.ReadDir(s.Home); err == nil {
				t.Error("a proxy's user reads its agent's home")
			}
		})
	}
}

// BOX5: verify proves by trying, and can fail.
func TestBOX5_Verify(t *testing.T) {
	b := newBox(t, 2, "")
	b.serve()
	b.bind("{}", "--slot", "2")
	r := b.box("verify").exits(0)
	if !strings.HasPrefix(r.stdout, "WHO") || !strings.Contains(r.stdout, "inside slot 1") || !strings.HasSuffix(r.stdout, " 0 surprises\n") {
		t.Errorf("%s", r.stdout)
	}
	if all := b.box("verify", "--all").exits(0).stdout; strings.Count(all, "\n") < 200 || !strings.Contains(all, "its memory") {
		t.Errorf("%d lines", strings.Count(all, "\n"))
	}
	// Each kind of hole is found, by those who could use it.
	slots := b.slots()
	for what, hole := range map[string]func() (close func()){
		"slot 1's home": func() func() {
			os.Chmod(slots[0].Home, 0o755)
			return func() { os.Chmod(slots[0].Home, 0o700) }
		},
		"slot 2's way in": func() func() {
			unix.Chmod(slots[1].Folder, 0o2777)
			os.Chmod(slots[1].Folder+"/in.sock", 0o666)
			return func() { unix.Chmod(slots[1].Folder, 0o2770); os.Chmod(slots[1].Folder+"/in.sock", 0o660) }
		},
		"its own": func() func() { // what must be open isn't
			unix.Chmod(slots[0].Folder, 0)
			return func() { unix.Chmod(slots[0].Folder, 0o2770) }
		},
	} {
		closeIt := hole()
		r := b.box("verify").exits(1)
		if !strings.Contains(r.stdout, "SURPRISE") || !strings.Contains(r.stdout, what) {
			t.Errorf("%s: %s", what, r.stdout)
		}
		closeIt()
	}
	b.box("verify", "--json").exits(0)
	b.boxAs(testnet.UID, nil, "", "verify").exits(125).says("sudo")
	if left, _ := filepath.Glob("/run/lnk-verify-*"); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	b.box("remove", "1").exits(0)
	b.box("verify").exits(125).says("two slots")
}

// BOX3: of a hundred slots ten are hostile, and the other ninety lose no request.
func TestBOX3_HostileNeighbours(t *testing.T) {
	needsFull(t) // nothing of it is the wall's
	site(t, "ok.test")
	const all, hostile = 100, 10
	b := newBox(t, all, "[limits]\nmemory = \"96M\"\nprocesses = 64\ncpus = 0.2\nhome = \"8M\"\n")
	b.run = start(t, b.supervisor("serve"))
	deadline := time.Now().Add(2 * time.Minute)
	for {
		if r := b.box("status", "--json"); r.code == 0 && strings.Count(r.stdout, `"state": "blank"`) == all {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("they aren't all blank: %s", b.box("status").stdout)
		}
		time.Sleep(200 * time.Millisecond)
	}
	slots := b.slots()
	for _, s := range slots {
		if got := asked(t, binder, s.Control, `{"internet_host":["ok.test"]}`+"\n"); got[0] != "{}" {
			t.Fatalf("slot %d: %q", s.Number, got)
		}
	}
	attacks := []string{
		`python3 -c '
import os
while True:
    try: os.fork()
    except OSError: pass'`,
		`python3 -c '
import socket, time
held = []
while True:
    try: held.append(socket.create_connection(("127.0.0.1", 40781)))
    except OSError: time.sleep(0.01)'`,
		`python3 -c '
held = []
while True: held.append(bytearray(1 << 20))'`,
		`python3 -c '
import socket, random
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    try: s.sendto(b"\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + b"\x08" + ("%08x" % random.getrandbits(32)).encode() + b"\x02ok\x04test\x00\x00\x01\x00\x01", ("127.0.0.1", 53))
    except OSError: pass'`,
		`while :; do head -c 8M /dev/zero > ~/x; head -c 8M /dev/zero > /tmp/x; rm ~/x /tmp/x; done`,
	}
	for i, s := range slots[:hostile] {
		cmd := exec.Command(testnet.Lnk, "sandbox", "bridge", "unix:"+s.Folder+"/in.sock:3000", "--stdio")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(s.Agent), Gid: uint32(s.Agent)}}
		attack := start(t, cmd)
		attack.write(attacks[i%len(attacks)])
		attack.in.Close()
	}
	time.Sleep(time.Second)
	lost := make(chan string, all)
	var wg sync.WaitGroup
	at := make(chan struct{}, 6)
	for _, s := range slots[hostile:] {
		wg.Go(func() {
			at <- struct{}{}
			defer func() { <-at }()
			if got := b.obey(s, "for i in 1 2 3; do curl -s -m 30 -o /dev/null -w '%{http_code} ' http://ok.test/; done"); got != "200 200 200 " {
				lost <- fmt.Sprintf("slot %d: %q", s.Number, got)
			}
		})
	}
	wg.Wait()
	close(lost)
	for got := range lost {
		t.Error(got)
	}
	for _, s := range b.slots()[hostile:] {
		if s.State != "bound" || s.Starts != 1 {
			t.Errorf("%+v", s)
		}
	}
}

// BOX: a full disk loses nothing: what can't be kept isn't made, and what is there goes on.
func TestBOX_FullDisk(t *testing.T) {
	site(t, "ok.test")
	b := newBox(t, 2, "")
	os.MkdirAll(b.state, 0o755)
	if err := unix.Mount("tmpfs", b.state, "tmpfs", 0, "mode=755,size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(b.state, unix.MNT_DETACH) })
	b.serve()
	bound := b.bind(`{"internet_host":["ok.test"]}`, "--slot", "1")
	before := b.slots()
	exec.Command("sh", "-c", "head -c 1M /dev/zero > "+b.state+"/full").Run()
	b.box("add", "1").exits(125).says("no space left")
	if out, _ := exec.Command("getent", "passwd", "lnk-agent-3").Output(); len(out) > 0 {
		t.Error("a user was made whose slot isn't kept")
	}
	if after := b.slots(); len(after) != len(before) {
		t.Errorf("%+v", after)
	}
	if got := b.obey(bound, "curl -s -o /dev/null -w '%{http_code}' http://ok.test/"); got != "200" {
		t.Errorf("%q: %s%s", got, b.box("status").stdout, b.run.stderr)
	}
	b.kill(unix.SIGKILL)
	b.serve()
	if after := b.slots(); len(after) != len(before) || after[0].Agent != before[0].Agent {
		t.Errorf("%+v", after)
	}
	os.Remove(b.state + "/full")
	b.box("add", "1").exits(0)
}
