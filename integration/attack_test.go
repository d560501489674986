package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"link.internal/lnk/integration/testnet"
)

// Ways out that were found by attacking, each of which worked once.

// The machine's settings ask for uid 0, not for a capability.
func TestAttack_RootsSysctls(t *testing.T) {
	cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--", "python3", "-c", `
import os
for p in ("kernel/core_pattern", "kernel/hostname", "vm/swappiness", "vm/drop_caches", "kernel/panic", "fs/suid_dumpable", "kernel/modprobe", "user/max_user_namespaces", "net/ipv4/ip_forward"):
    try: os.close(os.open("/proc/sys/" + p, os.O_WRONLY)); print("LEAK", p)
    except OSError: pass
for p in ("/proc/sysrq-trigger", "/proc/kcore", "/proc/kmsg"):
    try: os.close(os.open(p, os.O_RDWR)); print("LEAK", p)
    except OSError: pass
print("tried")`)
	cmd.SysProcAttr.Credential = nil
	cmd.Dir = "/"
	cmd.Env = []string{"HOME=/root", "PATH=/usr/bin:/bin"}
	finish(t, cmd).exits(0).prints("tried\n")
}

// From a folder's descriptor, .. leads out of every sandbox.
func TestAttack_FolderAsStream(t *testing.T) {
	userFile(t, "streams/secret", "secret", 0o600)
	userFolder(t, "streams/sub")
	for _, redirect := range []string{"<", "3<"} {
		r := finish(t, testnet.Command("/bin/sh", "-c", testnet.Lnk+` sandbox run -- sh -c 'cat /proc/self/fd/*/../secret 2>/dev/null; true' `+redirect+` ~/streams/sub`))
		if strings.Contains(r.stdout, "secret") {
			t.Errorf("%s: %s", redirect, r.stdout)
		}
		if redirect == "<" {
			r.refusedInOneLine("descriptor 0 is a folder")
		}
	}
}

// What is protected is so by whatever name.
func TestAttack_ProtectedBehindLinks(t *testing.T) {
	home := testnet.Home
	for _, name := range []string{".lnk", "Link"} {
		os.RemoveAll(filepath.Join(home, name))
	}
	userFile(t, "drop/dotlnk/key", "key", 0o600)
	userFile(t, "drop/Link/Agents/scout/token", "token", 0o600)
	for link, target := range map[string]string{".lnk": "drop/dotlnk", "Link": "drop/Link"} {
		if err := os.Symlink(filepath.Join(home, target), filepath.Join(home, link)); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(filepath.Join(home, link))
	}
	script := `cat ~/.lnk/key ~/drop/dotlnk/key ~/Link/Agents/scout/token ~/drop/Link/Agents/scout/token 2>/dev/null; true`
	for _, flags := range [][]string{{"--read", "drop"}, {"--read", home}, {"--read", "Link"}, {"--write", "drop"}} {
		sandbox(t, flags, script).exits(0).prints("")
	}
	lnk(t, "sandbox", "run", "--read", "drop/dotlnk", "--", "true").refusedInOneLine("drop/dotlnk")
	lnk(t, "sandbox", "run", "--write", home, "--", "true").refusedInOneLine(".lnk")
	cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--", "sh", "-c", script)
	cmd.Dir = filepath.Join(home, "drop")
	finish(t, cmd).exits(0).prints("")
	sandbox(t, []string{"--read", "Link/Agents/scout"}, `cat ~/Link/Agents/scout/token`).exits(0).prints("token")
}

// The sockets of other runs, and the machine's, come along with no grant.
func TestAttack_OtherRuns(t *testing.T) {
	site(t, "ok.test")
	other := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "*", "--", "sh", "-c", "echo up; read x"))
	other.until("up")
	script := `find / -xdev -name 'out.sock' -o -name control.sock 2>/dev/null; ls /run/user/*/lnk/ 2>/dev/null; true`
	run := fmt.Sprintf("/run/user/%d", testnet.UID)
	for _, flags := range [][]string{nil, {"--read", run}, {"--write", run}, {"--read", "/"}} {
		sandbox(t, flags, script).exits(0).prints("")
	}
	lnk(t, "sandbox", "run", "--read", run+"/lnk", "--", "true").refusedOnly("no sandbox sees")
	lnk(t, "sandbox", "run", "--read", "/run", "--", "true").refusedOnly("name what you need in it")
	lnk(t, "sandbox", "run", "--read", "/var/run", "--", "true").refusedOnly("name what you need in it")
	lnk(t, "sandbox", "run", "--write", "/tmp", "--", "true").refusedOnly("name a folder in it")
	link := filepath.Join(testnet.Home, "devlink")
	os.Symlink("/dev/shm", link)
	defer os.Remove(link)
	lnk(t, "sandbox", "run", "--write", "devlink", "--", "true").refusedOnly("of its own")
	other.write("\n")
	other.wait().exits(0)
}

// Another sandbox that swaps a granted folder for a link gains nothing: what
// bwrap mounted is compared with what was granted.
func TestAttack_SwappedGrants(t *testing.T) {
	userFile(t, ".ssh/id", "private", 0o600)
	userFile(t, "swapped/data/id", "public", 0o644)
	if err := os.Symlink(filepath.Join(testnet.Home, ".ssh"), filepath.Join(testnet.Home, "swapped/evil")); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(filepath.Join(testnet.Home, "swapped"))
	attacker := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--write", "swapped", "--", "python3", "-c", `
import ctypes, time
libc = ctypes.CDLL(None); end = time.time() + 30; print("up", flush=True)
while time.time() < end: libc.renameat2(-100, b"swapped/data", -100, b"swapped/evil", 2)`))
	attacker.until("up")
	won, seen := 0, map[int]int{}
	for range 80 {
		r := lnk(t, "sandbox", "run", "--read", "swapped/data", "--", "sh", "-c", "test -L swapped/data || cat swapped/data/id")
		// A link that is followed honestly leads to .ssh by its own path too.
		if strings.Contains(r.stdout, "private") {
			won++
		}
		seen[r.code]++
	}
	if won > 0 {
		t.Errorf("%d of 80 runs saw what was not granted", won)
	}
	t.Logf("exit codes: %v", seen)
}

// A program in the background that ignores SIGTTOU can't take the terminal.
func TestAttack_TakingTheTerminal(t *testing.T) {
	userFile(t, "steal.py", `
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
t = os.open("/dev/tty", os.O_RDWR)
try: os.tcsetpgrp(t, os.getpgrp()); print("TAKEN", flush=True)
except OSError as e: print("refused", e.errno, flush=True)
`, 0o644)
	cmd := testnet.Command("/bin/bash", "--norc", "-i")
	cmd.Env = append(cmd.Env, "PS1=out> ", "TERM=dumb", "HISTFILE=")
	run := terminal(t, cmd)
	run.until("out> ")
	run.write("lnk sandbox run --read steal.py -- python3 steal.py &\n")
	run.until("refused 1")
	run.write("echo mi''ne\n")
	run.until("\nmine")
	run.write("echo x | lnk sandbox run --read steal.py -- python3 steal.py | cat\n")
	eventually(t, "the second is refused", func() bool { return strings.Count(run.out.String(), "refused 1") == 2 })
	run.write("exit 0\n")
	run.wait().exits(0)
	if strings.Contains(run.out.String(), "TAKEN") {
		t.Error("the terminal was taken")
	}
}

// A program that stops itself stops nothing outside.
func TestAttack_StoppingOthers(t *testing.T) {
	cmd := testnet.Command("/bin/sh", "-c", `(for i in 1 2 3 4 5 6 7 8; do sleep 0.1; echo tick; done) & `+testnet.Lnk+` sandbox run -- sh -c '(sleep 0.5; kill -CONT $$) & kill -STOP $$; wait' & wait; echo all-ended`)
	run := terminal(t, cmd)
	run.until("all-ended")
	run.wait().exits(0)
}

// Nothing that a program or a file says steers the terminal.
func TestAttack_EscapeSequences(t *testing.T) {
	userFile(t, "esc/script", "#!/home/tester/hidden/\x1b]0;title\a\x1b[2J\n", 0o755)
	userFile(t, "hidden/\x1b]0;title\a\x1b[2J", "#!/bin/sh\n", 0o755)
	for _, args := range [][]string{
		{"--read", "esc", "--", "esc/script"}, {"--", "no\x1b[2Jsuch"}, {"--read", "zz\x1b[2J\nline", "--", "true"}, {"--internet-host", "a\x1b[2J.test", "--", "true"}, {"--env", "A\x1b[2J", "--", "true"},
	} {
		r := lnk(t, append([]string{"sandbox", "run"}, args...)...)
		if strings.ContainsAny(r.stderr, "\x1b\a") || strings.Count(r.stderr, "\n") > 2 {
			t.Errorf("%q: %q", args, r.stderr)
		}
	}
	r := sandbox(t, okFlags, connectStatus+`status CONNECT 'x\x1b[2J\x07.test:443'; status GET 'http://x\x1b[2J/'`)
	if strings.ContainsAny(r.stderr, "\x1b\a") {
		t.Errorf("%q", r.stderr)
	}
}

// A standard error that nobody reads, or that is gone, stops neither the run
// nor its end.
func TestAttack_UnreadStandardError(t *testing.T) {
	cmd := testnet.Command("/bin/sh", "-c", testnet.Lnk+` sandbox run --internet-host ok.test -- sh -c 'head -c 65536 /dev/zero >&2; curl -s http://a.test/ >/dev/null; echo refused; exec sleep 60' 2>&3 | cat`)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	cmd.ExtraFiles = []*os.File{writer}
	run := start(t, cmd)
	writer.Close()
	run.until("refused")
	begun := time.Now()
	for _, p := range processes() {
		if pid, command, _ := strings.Cut(p, " "); strings.HasPrefix(command, testnet.Lnk) {
			var n int
			fmt.Sscan(pid, &n)
			syscall.Kill(n, syscall.SIGTERM)
		}
	}
	run.wait()
	if took := time.Since(begun); took > 6*time.Second {
		t.Errorf("it took %v to end", took)
	}
	gone := testnet.Command("/bin/sh", "-c", `(`+testnet.Lnk+` sandbox run --internet-host ok.test -- sh -c 'sleep 0.2; curl -s http://a.test/ >/dev/null; echo went-on >&3' 2>&1 >/dev/null 3>&3 | true) 3>&1`)
	finish(t, gone)
	r := finish(t, testnet.Command("/bin/bash", "-c", `exec 4>&1; `+testnet.Lnk+` sandbox run --internet-host ok.test -- sh -c 'sleep 0.2; curl -s http://a.test/ >/dev/null; sleep 0.2; echo went-on' 2> >(exec 2>/dev/null; true); echo code $?`))
	if r.stdout != "went-on\ncode 0\n" {
		t.Errorf("got %q", r.stdout)
	}
}

// A request with a huge target is one short refusal, and the next is told too.
func TestAttack_HugeTargets(t *testing.T) {
	site(t, "ok.test")
	r := sandbox(t, okFlags, python(`
for i in range(400): talk(b"CONNECT " + b"<" * 7000 + b"%d:443 HTTP/1.1\r\nHost: x\r\n\r\n" % i)
print(talk(b"GET http://ok.test/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").split(b" ")[1].decode())`)).exits(0).prints("200\n")
	if strings.Contains(r.stderr, "ended") || len(r.stderr) > 200000 {
		t.Errorf("%d bytes of stderr: %.300s", len(r.stderr), r.stderr)
	}
}

// A call that breaks off is logged all the same, and so is what an upgrade moves.
func TestAttack_UnloggedCalls(t *testing.T) {
	addr := internet.Host("ok.test")
	origin := internet.HTTP(addr, 80, upgradeOrStream())
	defer origin.Close()
	log := filepath.Join(testnet.Home, "broken.wire")
	defer os.Remove(log)
	sandbox(t, []string{"--internet-host", "ok.test", "--wire", log}, python(`
s = open_(); s.sendall(b"POST http://ok.test/stream?x=%zz;y=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nsecret"); s.recv(1000); s.close()
s = open_(); s.sendall(b"GET http://ok.test/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"); head(s); s.sendall(b"x" * 1000)
n = 0
while n < 1000: n += len(s.recv(1000))
s.close(); time.sleep(0.3)`)).exits(0)
	var got []string
	for _, r := range wireLog(t, log) {
		got = append(got, fmt.Sprintf("%s %s %d up %d %v", r.Path, r.Verdict, r.Status, r.Up, r.Address == addr.String()+":80"))
	}
	slices.Sort(got)
	if len(got) != 2 || got[0] != "/stream allowed 200 up 6 true" || got[1] != "/ws allowed 101 up 1000 true" {
		t.Errorf("the log has %q", got)
	}
	if requests := origin.Requests(); requests[0] != "POST ok.test /stream?x=%zz;y=1" {
		t.Errorf("the origin saw %q", requests)
	}
}
