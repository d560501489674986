package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"link.internal/lnk/integration/testnet"
)

// PR2: killing the runner leaves no process, and no folder but for KILL.
func TestPR2_KilledRunner(t *testing.T) {
	for _, flags := range [][]string{nil, okFlags} {
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGKILL} {
			t.Run(fmt.Sprint(s, flags), func(t *testing.T) {
				args := append(append([]string{"sandbox", "run"}, flags...), "--", "sh", "-c", "setsid sleep 999 & echo up; sleep 999")
				run := start(t, testnet.Command(testnet.Lnk, args...))
				run.until("up")
				run.signal(s)
				want := 128 + int(s)
				if s == syscall.SIGKILL {
					want = -int(s)
				}
				run.wait().exits(want)
				eventually(t, "no process is left", func() bool { return len(processes()) == 0 })
				if s != syscall.SIGKILL && len(runFolders()) > 0 {
					t.Errorf("folders are left: %v", runFolders())
				}
			})
		}
	}
	// The folders of killed runs go at a later start; that of a live one stays.
	live := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c", "echo up; read x; curl -s -o /dev/null -w '%{http_code}' http://no.test/"))
	live.until("up")
	lnk(t, "sandbox", "run", "--internet-host", "ok.test", "--", "true").exits(0)
	if got := runFolders(); len(got) != 1 {
		t.Errorf("folders: %v", got)
	}
	live.write("\n")
	live.wait().exits(0).prints("up\n403").leavesNothing()
}

// A program that won't end when told to is ended.
func TestPR2_ProgramThatIgnoresTERM(t *testing.T) {
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"))
	run.until("up")
	run.signal(syscall.SIGTERM)
	r := run.wait().exits(143)
	if r.took > 10*time.Second {
		t.Errorf("it took %v", r.took)
	}
	r.leavesNothing()
}

// A program may take its time to end, and its own exit code counts.
func TestRUN6_ForwardedSignals(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGQUIT} {
		name := map[syscall.Signal]string{syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP", syscall.SIGINT: "INT", syscall.SIGUSR1: "USR1", syscall.SIGUSR2: "USR2", syscall.SIGQUIT: "QUIT"}[s]
		run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--", "sh", "-c",
			fmt.Sprintf("trap 'sleep 0.3; echo got; exit 42' %s; echo up; while :; do sleep 0.1; done", name)))
		run.until("up")
		run.signal(s)
		run.wait().exits(42).prints("up\ngot\n").leavesNothing()
	}
}

// The runner, the proxy, bwrap and the relay killed at random moments: all go.
func TestRUN6_RandomKills(t *testing.T) {
	for range 40 {
		run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c", "setsid sleep 999 & sleep 999"))
		time.Sleep(time.Duration(rand.IntN(25)) * time.Millisecond)
		run.signal(syscall.SIGKILL)
		run.wait()
		eventually(t, "no process is left", func() bool { return len(processes()) == 0 })
	}
	lnk(t, "sandbox", "run", "--internet-host", "ok.test", "--", "true").exits(0).leavesNothing()
}

// A signal that asks lnk to end, at any moment, leaves neither process nor folder.
func TestRUN6_RandomSignals(t *testing.T) {
	for _, flags := range [][]string{nil, {"--internet-host", "ok.test"}} {
		for i := range 40 {
			run := start(t, testnet.Command(testnet.Lnk, append(append([]string{"sandbox", "run"}, flags...), "--", "sleep", "999")...))
			time.Sleep(time.Duration(rand.IntN(15000)) * time.Microsecond)
			run.signal([]syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}[i%3])
			run.wait()
			eventually(t, "nothing is left", func() bool { return len(processes()) == 0 && len(runFolders()) == 0 })
		}
	}
}

// The program's process is killed while it is made, when nobody can write its
// maps of ids: that is no reason for the plain wall, today or later.
func TestRUN6RUN9_KilledWhileMade(t *testing.T) {
	if testnet.Plain() {
		t.Skip("there are no maps to be written")
	}
	defer forgetPlain()
	hits, before := 0, 0
	for range 60 {
		run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--", "sleep", "0.2"))
		for hit := false; !hit && time.Since(run.begun) < 200*time.Millisecond; {
			for _, pid := range descendants(run.cmd.Process.Pid) {
				status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
				_, numbers, _ := strings.Cut(string(status), "\nNSpid:")
				numbers, _, _ = strings.Cut(numbers, "\n")
				if inside := strings.Fields(numbers); strings.HasPrefix(string(status), "Name:\tlnk-relay\n") && len(inside) > 1 && inside[len(inside)-1] != "1" {
					syscall.Kill(pid, syscall.SIGKILL)
					hit = true
				}
			}
			if hit {
				hits++
			}
		}
		r := run.wait()
		switch r.code {
		case 0, 137:
		case 125:
			before++
			r.says("ended from outside")
		default:
			t.Errorf("exit code %d: %s", r.code, r.stderr)
		}
		if _, err := os.Stat(fmt.Sprintf("/run/user/%d/lnk/plain-wall.json", testnet.UID)); err == nil {
			t.Fatal("it is remembered that this machine has no full wall")
		}
	}
	t.Logf("%d of 60 were killed, %d of them before their maps were written", hits, before)
}

// descendants are the processes below one.
func descendants(pid int) (all []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range tasks {
		data, _ := os.ReadFile(file)
		for _, field := range strings.Fields(string(data)) {
			child, _ := strconv.Atoi(field)
			all = append(append(all, child), descendants(child)...)
		}
	}
	return all
}

// When bwrap or the relay is killed, lnk says so and leaves nothing.
func TestRUN6_KilledParts(t *testing.T) {
	for _, part := range []string{"lnk-relay", "/usr/bin/bwrap"} {
		run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c", "echo up; sleep 999"))
		run.until("up")
		for _, p := range processes() {
			pid, command, _ := strings.Cut(p, " ")
			if strings.HasPrefix(command, part) || part == "lnk-relay" && strings.HasPrefix(command, "/run/lnk/lnk-relay") {
				var n int
				fmt.Sscan(pid, &n)
				syscall.Kill(n, syscall.SIGKILL)
			}
		}
		run.wait().exits(125).says("lnk sandbox:", "ended unexpectedly")
		// Killed from outside, the last process may take a moment to go.
		eventually(t, "nothing is left", func() bool { return len(processes()) == 0 && len(runFolders()) == 0 })
	}
}

// PR4: background children end with the program.
func TestPR4_BackgroundChildren(t *testing.T) {
	cmd := testnet.Command("/bin/sh", "-c", testnet.Lnk+` sandbox run -- sh -c 'sleep 300 & echo hi' | cat`)
	r := finish(t, cmd).exits(0).prints("hi\n")
	if r.took > 5*time.Second {
		t.Errorf("it took %v", r.took)
	}
	r.leavesNothing()
}

// PR5: orphans are reaped.
func TestPR5_Zombies(t *testing.T) {
	sandbox(t, nil, `for i in $(seq 200); do (sh -c 'true &' &); done; sleep 0.5
		grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l`).exits(0).prints("0\n")
}

// RUN6: what nohup ignores stays ignored.
func TestRUN6_Nohup(t *testing.T) {
	run := start(t, testnet.Command("/usr/bin/nohup", testnet.Lnk, "sandbox", "run", "--", "sh", "-c", "echo up; read x; echo still"))
	run.until("up")
	run.signal(syscall.SIGHUP)
	run.write("\n")
	run.wait().exits(0).prints("up\nstill\n")
}

// The run's folder: this user's alone, where nobody else can make it first.
func TestRUN6_Folder(t *testing.T) {
	for _, base := range []string{fmt.Sprintf("/run/user/%d/lnk", testnet.UID), "/tmp"} {
		cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c", "echo up; read x")
		if base == "/tmp" {
			cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR=")
		}
		run := start(t, cmd)
		run.until("up")
		found, _ := filepath.Glob(base + "/lnk-run-*")
		if len(found) != 1 {
			t.Fatalf("folders in %s: %v", base, found)
		}
		info, err := os.Stat(found[0])
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o700 || info.Sys().(*syscall.Stat_t).Uid != testnet.UID {
			t.Errorf("%v", info.Mode())
		}
		var got []string
		filepath.WalkDir(found[0], func(path string, entry os.DirEntry, err error) error {
			if info, err := entry.Info(); err == nil {
				got = append(got, fmt.Sprintf("%s %v", strings.TrimPrefix(path, found[0]), info.Mode()))
			}
			return nil
		})
		want := []string{" drwx------", "/control.sock Srw-------", "/net drwx------", "/net/in.sock Srw-------", "/net/local.sock Srw-------", "/net/out.sock Srw-------", "/run.json -rw-------", "/wire -rw-------"}
		if !slices.Equal(got, want) {
			t.Errorf("the folder has %q", got)
		}
		run.write("\n")
		run.wait().exits(0).leavesNothing()
	}
	// Somebody else's folder of such a name is left alone; so is a file.
	foreign := "/tmp/lnk-run-FOREIGN"
	if err := os.Mkdir(foreign, 0o777); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(foreign)
	cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "true")
	cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR=")
	finish(t, cmd).exits(0)
	if _, err := os.Stat(foreign); err != nil {
		t.Error(err)
	}
}

// PR3: what a program types into its terminal stays undone.
func TestPR3_NoTypingIntoTheTerminal(t *testing.T) {
	script := `import fcntl, termios, os
for request in (0x5412, 0x5412 | 1 << 40, 0x100005412 , 0x541C, 0x5423):
    try:
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        r = libc.ioctl(0, ctypes.c_ulong(request), ctypes.c_char_p(b"X"))
        print("LEAK" if r == 0 else "no" if ctypes.get_errno() == 1 else "other", flush=True)
    except OSError: print("other")
print("done")`
	run := terminal(t, testnet.Command("/bin/sh", "-c", testnet.Lnk+` sandbox run -- python3 -c '`+script+`'; read line; echo "read <$line>"`))
	run.until("done")
	run.write("typed\n")
	run.until("read <typed>")
	run.wait().exits(0)
	if strings.Contains(run.out.String(), "LEAK") || strings.Count(run.out.String(), "no\r\n") != 5 {
		t.Errorf("output: %q", run.out)
	}
}

// PR3: an interactive shell inside keeps Ctrl-C, Ctrl-Z, fg and the window's size.
func TestPR3_InteractiveShellInside(t *testing.T) {
	cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--", "bash", "--norc", "-i")
	cmd.Env = append(cmd.Env, "PS1=outer> ", "TERM=dumb")
	run := terminal(t, cmd)
	run.write("PS1='in> '\n")
	run.until("in> ")
	run.write("echo jobs: $- | tr -d a-ln-z\n")
	run.until("m")
	run.write("sleep 500\n")
	run.until("sleep 500\r\n")
	settle()
	run.write("\x03")
	run.write("echo after-int $?\n")
	run.until("after-int 130")
	run.write("sleep 501\n")
	run.until("sleep 501\r\n")
	settle()
	run.write("\x1a")
	run.until("Stopped")
	run.write("jobs | wc -l; fg\n")
	run.until("fg\r\n1\r\nsleep 501")
	settle()
	run.write("\x03")
	run.write("echo after-fg $?\n")
	run.until("after-fg 130")
	resize(t, run.in.(*os.File), 40, 123)
	run.write("stty size\n")
	run.until("40 123")
	run.write("trap 'echo winch' WINCH\n")
	settle()
	resize(t, run.in.(*os.File), 41, 99)
	run.until("winch")
	run.write("exit 5\n")
	run.wait().exits(5)
}

// settle gives a shell the time to start what it was told to. Nothing that a
// test can read says that a program sleeps in the foreground.
func settle() { time.Sleep(300 * time.Millisecond) }

// RUN6: lnk is a job of the shell outside like any other.
func TestRUN6_JobOfTheShellOutside(t *testing.T) {
	cmd := testnet.Command("/bin/bash", "--norc", "-i")
	cmd.Env = append(cmd.Env, "PS1=out> ", "TERM=dumb", "HISTFILE=")
	run := terminal(t, cmd)
	run.until("out> ")
	// Ctrl-Z and fg.
	run.write("lnk sandbox run -- sh -c 'echo be''gun; sleep 600; echo slept $?'\n")
	run.until("begun")
	settle()
	run.write("\x1a")
	run.until("Stopped")
	run.write("jobs | wc -l; fg\n")
	run.until("fg\r\n1\r\n")
	settle()
	run.write("\x03")
	run.write("echo code $?\n")
	run.until("code 130")
	// bg, and a program that reads the terminal stops in the background.
	run.write("lnk sandbox run -- sh -c 'read x; echo got-$x' &\n")
	settle()
	run.write("\n")
	run.until("Stopped")
	run.write("fg\n")
	settle()
	run.write("word\n")
	run.until("got-word")
	// In a pipeline the terminal is the others' until the program wants it.
	run.write("lnk sandbox run -- sh -c 'echo one; exec sleep 0.5' | sh -c 'read a </dev/tty; cat; echo tty-$a'\n")
	settle()
	run.write("mine\n")
	run.until("tty-mine")
	run.write("echo x | lnk sandbox run -- sh -c 'read a </dev/tty; echo from-tty-$a'\n")
	settle()
	run.write("typed\n")
	run.until("from-tty-typed")
	// A signal to the program's group doesn't reach the pipeline's others.
	run.write("lnk sandbox run -- sh -c 'kill -KILL 0' | (cat; echo cat-lives)\n")
	run.until("\ncat-lives")
	// After a program that took the terminal, the next in a script has it.
	run.write("sh -c 'lnk sandbox run -- sh -c \"read a; echo A\\$a\"; read b; echo B$b'\n")
	settle()
	run.write("1\n")
	run.until("A1")
	run.write("2\n")
	run.until("B2")
	run.write("exit 0\n")
	run.wait().exits(0).leavesNothing()
}

// While the program has the terminal in raw mode, refusals wait for its end.
func TestRUN6_RefusalsWaitForRawMode(t *testing.T) {
	run := terminal(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c",
		`stty raw -echo; curl -s http://no.test/ >/dev/null; sleep 0.3; printf 'screen'; stty -raw echo`))
	run.until("refused no.test:80")
	run.wait().exits(0)
	if text := run.out.String(); strings.Index(text, "screen") > strings.Index(text, "refused") {
		t.Errorf("in the middle of the screen: %q", text)
	}
}

// Without a terminal, as from cron.
func TestRUN6_NoTerminal(t *testing.T) {
	cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--", "sh", "-c", "(sleep 0.1; kill -STOP $$; sleep 0.2; kill -CONT $$) & wait; echo fine")
	cmd.SysProcAttr.Setsid = true
	finish(t, cmd).exits(0).prints("fine\n")
}
