package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

// BLANK6, RUN2: a blank sandbox's spec names no owner's path; it reads nothing
// of the folder beside its own, and its only way out is its proxy.
func TestBLANK6_BlankSandbox(t *testing.T) {
	site(t, "ok.test")
	dir, control, _ := blank(t)
	base := filepath.Dir(dir)
	beside := filepath.Join(base, "beside")
	os.Mkdir(beside, 0o755)
	os.WriteFile(beside+"/secret", []byte("a secret\n"), 0o644)
	harness := filepath.Join(base, "harness")
	os.Mkdir(harness, 0o755)
	os.WriteFile(harness+"/bot", []byte("#!/bin/sh\nexec sh\n"), 0o755)
	spec := userFile(t, "blank.toml", fmt.Sprintf("read = [%q]\nreached = [%q]\n[commands]\nallow = [\"*\"]\n", harness, dir), 0o644)
	defer os.Remove(spec)
	cmd := testnet.Command(testnet.Lnk, "sandbox", "wrap", "--spec", spec, "--", harness+"/bot")
	cmd.Dir = "/"
	run := start(t, cmd)
	say := func(script, want string) {
		t.Helper()
		run.write(script + "; echo '<end>'\n")
		run.until("<end>")
		got := strings.TrimSuffix(run.out.String(), "<end>\n")
		run.out.mu.Lock()
		run.out.text.Reset()
		run.out.mu.Unlock()
		if got != want {
			t.Errorf("%s: %q and not %q", script, got, want)
		}
	}
	say("ls -A ~ | wc -l", "0\n")
	say("cat "+beside+"/secret 2>&1 | grep -o 'No such file'", "No such file\n")
	say("ls -A "+base, "harness\n")
	say("touch "+harness+"/x 2>&1 | grep -o 'Read-only'", "Read-only\n")
	say("find / -xdev -name '*.sock' 2>/dev/null; ls /run", "lnk\n")
	say("cat /proc/1/environ 2>&1 | grep -o 'Permission denied'", "Permission denied\n")
	get := "curl -s -o /dev/null -w '%{http_code}\\n' http://ok.test/"
	say(get, "503\n")
	say("curl -s --noproxy '*' -m 3 -o /dev/null -w '%{http_code}\\n' http://"+addresses("ok.test")[0].String()+"/", "000\n")
	if got := asked(t, testnet.UID, control, `{"internet_host":["ok.test"]}`+"\n"); got[0] != "{}" {
		t.Fatalf("bind: %q", got)
	}
	say(get, "200\n")
	say("curl -s -o /dev/null -w '%{http_code}\\n' http://no.test/", "403\n")
	if !testnet.Plain() {
		// By name, without a proxy, as by any sandbox's.
		say("curl -s --noproxy '*' --retry 5 --retry-connrefused -o /dev/null -w '%{http_code}\\n' http://ok.test/", "200\n")
	}
	run.write("exit 0\n")
	run.wait().exits(0)
}

// RUN2: the reached folder isn't seen inside, whatever is granted.
func TestRUN2_ReachedFolderHidden(t *testing.T) {
	dir, _ := aProxy(t)
	for _, flags := range [][]string{{"--read", dir}, {"--write", dir}, {"--read", testnet.Home}, {"--write", testnet.Home}, {"--read", "/"}, nil} {
		args := append([]string{"sandbox", "wrap", "--reach", dir}, flags...)
		cmd := testnet.Command(testnet.Lnk, append(args, "--", "sh", "-c", "ls -A "+dir+" 2>/dev/null; ls -l /proc/self/fd | grep -c "+filepath.Base(dir))...)
		cmd.Dir = "/"
		r := finish(t, cmd)
		if strings.Contains(r.stdout, "sock") || r.code != 125 && r.stdout != "0\n" {
			t.Errorf("%v: exit code %d, %q %q", flags, r.code, r.stdout, r.stderr)
		}
	}
	cmd := testnet.Command(testnet.Lnk, "sandbox", "wrap", "--reach", dir, "--", "pwd")
	cmd.Dir = dir
	finish(t, cmd).exits(125)
}

// Wrap: the wall is run's, with lists, limits and codes; its network is the proxy's to tell of.
func TestRUN_Wrap(t *testing.T) {
	site(t, "ok.test")
	dir, _ := aProxy(t, "--internet-host", "ok.test")
	wrap := func(args ...string) result {
		return finish(t, testnet.Command(testnet.Lnk, append([]string{"sandbox", "wrap", "--reach", dir}, args...)...))
	}
	wrap("--", "sh", "-c", "curl -sS http://ok.test/; exit 7").exits(7).prints("hello from ok.test\n")
	wrap("--command", "sh", "--", "sh", "-c", "/usr/bin/id; echo $?").exits(0).says("/usr/bin/id")
	wrap("--", "/nowhere").exits(127)
	wrap("--internet-host", "x.test", "--", "true").exits(125).says("internet-host")
	spec := userFile(t, "wrapped.toml", "[internet]\nallow = [\"ok.test\"]\n[commands]\nallow = [\"*\"]\n", 0o644)
	defer os.Remove(spec)
	wrap("--spec", spec, "--", "true").exits(125).says("rules of its own")
	reached := userFile(t, "reached.toml", "reached = [\"sockets\"]\n[commands]\nallow = [\"*\"]\n", 0o644)
	defer os.Remove(reached)
	lnk(t, "sandbox", "run", "--spec", reached, "--", "true").exits(125).says("lnk sandbox wrap")
	lnk(t, "sandbox", "spec", "check", reached).exits(0)
	// One sandbox a folder.
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "wrap", "--reach", dir, "--", "sh", "-c", "echo up; read x"))
	run.until("up")
	wrap("--", "true").exits(125).says("another sandbox serves it")
	lnk(t, "sandbox", "list").exits(0)
	lnk(t, "sandbox", "pause").exits(125).says("no proxy of its own", dir)
	// One that was killed leaves an in.sock, which the next takes away.
	run.signal(unix.SIGKILL)
	run.wait()
	eventually(t, "the sandbox has ended", func() bool { return len(processes()) <= 1 })
	if _, err := os.Lstat(dir + "/in.sock"); err != nil {
		t.Error("nothing is left to take away")
	}
	wrap("--", "true").exits(0)
	if _, err := os.Lstat(dir + "/in.sock"); err == nil {
		t.Error("in.sock is left")
	}
}

// Wrap: of several folders the first is the way out, and a clashing listener of a second is refused.
func TestUSER3_SeveralFolders(t *testing.T) {
	site(t, "one.test")
	site(t, "two.test")
	one, _ := aProxy(t, "--internet-host", "one.test")
	two, second := aProxy(t, "--internet-host", "two.test")
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "wrap", "--reach", one, "--reach", two, "--", "sh", "-c", "for h in one two; do curl -s -o /dev/null -w '%{http_code}\n' http://$h.test/; done; echo up; read x"))
	run.until("up")
	if out := run.out.String(); out != "200\n403\nup\n" {
		t.Errorf("%q", out)
	}
	for _, dir := range []string{one, two} {
		if _, err := os.Lstat(dir + "/in.sock"); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "the second says what it was refused", func() bool { return strings.Contains(second.stderr.String(), "40781: address already in use") })
	run.write("\n")
	run.wait().exits(0)
}
