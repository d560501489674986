package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"link.internal/lnk/integration/testnet"
)

// changed runs a script as the ordinary user, after root has run a
// preparation, in a mount namespace of their own.
func changed(t *testing.T, preparation, script string) result {
	t.Helper()
	cmd := exec.Command("/usr/bin/unshare", "--mount", "/bin/sh", "-ec",
		preparation+fmt.Sprintf("\nexec /usr/bin/setpriv --reuid %[1]d --regid %[1]d --clear-groups /bin/sh -c \"$SCRIPT\"", testnet.UID))
	cmd.Env = append(testnet.Environment(), "SCRIPT="+script)
	cmd.Dir = testnet.Home
	return finish(t, cmd)
}

// standIn begins, and inPlace ends, a preparation that puts a program in
// bubblewrap's place.
const (
	standIn = `mkdir -p /mnt/s; mount -t tmpfs -o mode=755 x /mnt/s; cp /usr/bin/bwrap /mnt/s/real; `
	inPlace = `; chmod 755 /mnt/s/bwrap; mount --bind /mnt/s/bwrap /usr/bin/bwrap`
)

// RUN7: a missing piece is one clear line, exit code 125, and no weaker run;
// lnk doctor says the same.
func TestRUN7_MissingPieces(t *testing.T) {
	for _, test := range []struct {
		name, preparation, script string
		want                      []string
	}{
		{
			"no bubblewrap", `d=$(mktemp -d /mnt/XXXXXX); mkdir $d/up $d/work; mount -t overlay -o lowerdir=/usr/bin,upperdir=$d/up,workdir=$d/work x /usr/bin; chmod 755 /usr/bin; rm /usr/bin/bwrap`, "",
			[]string{"bubblewrap is missing", "apt install bubblewrap"},
		},
		{
			"bubblewrap not executable", `cp /usr/bin/true /mnt/x; chmod 644 /mnt/x; mount --bind /mnt/x /usr/bin/bwrap`, "",
			[]string{"/usr/bin/bwrap", "can't be executed"},
		},
		{
			"no user namespaces", "", `unshare --user --map-root-user sh -c 'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"' sh `,
			[]string{"user namespace", "max_user_namespaces"},
		},
		{
			"inside a sandbox", "", testnet.Lnk + ` sandbox run --read ` + testnet.BinDir + ` -- `,
			[]string{"user namespace", "max_user_namespaces"},
		},
		{
			"bubblewrap too old", standIn + `printf '#!/bin/sh\necho "bwrap: Unknown option --perms" >&2; exit 1\n' >/mnt/s/bwrap` + inPlace, "",
			[]string{"bubblewrap is too old", "0.5 or newer", "--perms"},
		},
		{
			"a container whose seccomp has no clone of namespaces", standIn + `printf '#!/bin/sh\nexec strace -f -qq -o /dev/null -e trace=clone,unshare -e inject=clone,unshare:error=EPERM -a 1 /mnt/s/real "$@"\n' >/mnt/s/bwrap` + inPlace, "",
			[]string{"user namespace", "in a container", "seccomp=unconfined"},
		},
		{
			"a container whose /proc is covered", `mount -t tmpfs x /proc/irq`, "",
			[]string{"/proc", "in a container", "systempaths=unconfined"},
		},
		{
			"no folder for runs", `mount -t tmpfs -o mode=755 x /tmp; mount -t tmpfs -o mode=755 x /run/user`, "",
			[]string{"/tmp"},
		},
		{
			"no relay", `mkdir -p /mnt/lone; cp ` + testnet.Lnk + ` /mnt/lone; mount --bind /mnt/lone ` + testnet.BinDir, "",
			[]string{"lnk-relay", "install lnk whole"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			changed(t, test.preparation, test.script+testnet.Lnk+" sandbox run --internet-host ok.test -- touch /tmp/started").refusedInOneLine(test.want...)
			r := changed(t, test.preparation, test.script+testnet.Lnk+" doctor").exits(1)
			for _, want := range test.want {
				if !strings.Contains(r.stdout, want) || !strings.HasPrefix(r.stdout, "missing: ") {
					t.Errorf("doctor says %q, not %q", r.stdout, want)
				}
			}
		})
	}
	if testnet.Plain() {
		return // TestRUN9_PlainWall has what it says then
	}
	r := lnk(t, "doctor").exits(0)
	if strings.Count(r.stdout, "\n") != 1 || !strings.HasPrefix(r.stdout, "ready: bubblewrap ") {
		t.Errorf("doctor says %q", r.stdout)
	}
	r = lnk(t, "doctor", "--all").exits(0)
	if strings.Count(r.stdout, "\n") != 6 || !strings.HasPrefix(r.stdout, "CHECK ") || strings.Count(r.stdout, " ready ") != 5 {
		t.Errorf("doctor says %q", r.stdout)
	}
	var checks []struct{ Name, State, Found, Gives, Do string }
	r = lnk(t, "doctor", "--json").exits(0)
	if err := json.Unmarshal([]byte(r.stdout), &checks); err != nil || len(checks) != 5 {
		t.Fatalf("%v: %s", err, r.stdout)
	}
	for _, c := range checks {
		if c.State != "ready" || c.Name == "" || c.Found == "" || c.Gives == "" || c.Do != "" {
			t.Errorf("%+v", c)
		}
	}
}

// RUN7: machines that are odd, and on which a sandbox is as on any other.
func TestRUN7_OddMachines(t *testing.T) {
	site(t, "ok.test")
	const noLandlock = `strace -f -qq -o /dev/null -e trace=landlock_create_ruleset -e inject=landlock_create_ruleset:error=%s `
	long := "/mnt/" + strings.Repeat("a-long-name/", 10)
	for _, test := range []struct{ name, preparation, before, says string }{
		{"noexec /tmp, and no runtime folder", "mount -t tmpfs -o mode=1777,noexec x /tmp", "unset XDG_RUNTIME_DIR; ", ""},
		{"a read-only home", "mount --bind /home/tester /home/tester; mount -o remount,bind,ro /home/tester", "", ""},
		{"a runtime folder that isn't there", "", "XDG_RUNTIME_DIR=/nowhere; export XDG_RUNTIME_DIR; ", ""},
		{"a runtime folder that is another's", "mkdir -p /mnt/other; chmod 777 /mnt/other", "XDG_RUNTIME_DIR=/mnt/other; export XDG_RUNTIME_DIR; ", ""},
		{"paths of more than 107 bytes", fmt.Sprintf("mkdir -p %[1]s; chown -R %[2]d:%[2]d /mnt/a-long-name", long, testnet.UID), "XDG_RUNTIME_DIR=" + long + "; export XDG_RUNTIME_DIR; cd " + long + "; ", ""},
		{"no Landlock in the kernel", "", fmt.Sprintf(noLandlock, "ENOSYS"), ""},
		{"Landlock not enabled", "", fmt.Sprintf(noLandlock, "EOPNOTSUPP"), ""},
		{"from cron: no terminal, an empty environment", "", "exec </dev/null; exec setsid -w env -i PATH=/usr/bin:/bin ", ""},
		{"nohup", "", "nohup ", ""},
		{"no proc of a machine's other users", "mount -t proc -o hidepid=2 proc /proc", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := changed(t, test.preparation, test.before+testnet.Lnk+" sandbox run --internet-host ok.test -- curl -sS http://ok.test/").exits(0)
			if r.prints("hello from ok.test\n"); r.stderr != test.says && !strings.Contains(r.stderr, "nohup: ") {
				t.Errorf("stderr: %s", r.stderr)
			}
		})
	}
	t.Run("doctor without Landlock", func(t *testing.T) {
		if r := changed(t, "", fmt.Sprintf(noLandlock, "ENOSYS")+testnet.Lnk+" doctor").exits(0); !strings.Contains(r.stdout, "no Landlock") {
			t.Errorf("doctor says %q", r.stdout)
		}
	})
}

// RUN9: where what bwrap starts has no capability, the wall is the plain one:
// the rest of these tests show what it holds, when they are run with
// LNK_WALL=plain. What it can't have is refused, and doctor says what to do.
func TestRUN9_PlainWall(t *testing.T) {
	site(t, "ok.test")
	echo(t, "db.test", 5432, 22)
	powerless := standIn + "cat >/mnt/s/bwrap <<'B'\n" + strings.ReplaceAll(testnet.PowerlessBwrap, testnet.BinDir+"/bwrap", "/mnt/s/real") + "B\n" + strings.TrimPrefix(inPlace, ";")
	setuid := standIn + "cp /mnt/s/real /mnt/s/bwrap" + inPlace + "; chmod 4755 /mnt/s/bwrap"
	for name, preparation := range map[string]string{"no capabilities": powerless, "setuid bubblewrap": setuid} {
		t.Run(name, func(t *testing.T) {
			defer os.Remove(fmt.Sprintf("/run/user/%d/lnk/plain-wall.json", testnet.UID))
			run := func(flags, script string) result {
				return changed(t, preparation, testnet.Lnk+" sandbox run "+flags+" -- sh -c '"+script+"'")
			}
			for range 2 { // found out, and remembered
				run("--internet-host ok.test", `curl -sS http://ok.test/; curl -sS https://ok.test/; id -u; grep CapEff /proc/self/status | cut -f2; cat /proc/1/environ 2>/dev/null || echo closed; unshare -U true 2>/dev/null || echo none; (`+unproxied+`curl -sS --max-time 5 http://ok.test/ 2>/dev/null || echo no names)`).
					exits(0).prints(fmt.Sprintf("hello from ok.test\nhello from ok.test\n%d\n0000000000000000\nclosed\nnone\nno names\n", testnet.UID))
				run("", "echo alone").exits(0).prints("alone\n")
			}
			const by = `python3 -c "import socket; s = socket.create_connection((\"db.test\", 5432)); s.sendall(b\"hi\"); print(s.recv(2).decode())"`
			run("--internet-host db.test --tcp db.test:5432", by).exits(0).prints("hi\n")
			for _, flags := range []string{"--tcp db.test:22", "--tcp db.test:22 --tcp db.test:5432", "--internet-host \"*.wild.test\" --tcp \"*.wild.test:5432\"", "--names=true"} {
				run("--internet-host db.test "+flags, "touch /tmp/started").refusedInOneLine("plain wall", "lnk doctor")
			}
			run("--internet-host db.test --tcp db.test:22 --names=false", "echo hi | /run/lnk/lnk-relay connect db.test:22").exits(0).prints("hi\n")
			r := changed(t, preparation, testnet.Lnk+" doctor").exits(0)
			if !strings.Contains(r.stdout, "wall             reduced   user namespaces, the plain wall") || !strings.Contains(r.stdout, "\nwall: ") {
				t.Errorf("doctor says %s", r.stdout)
			}
			// With it mended, the full wall is tried again.
			os.Remove(fmt.Sprintf("/run/user/%d/lnk/plain-wall.json", testnet.UID))
		})
	}
}

// powerlessBwrap is a preparation after which what bwrap starts has no
// capability. before is what the stand-in does first.
func powerlessBwrap(before string) string {
	script := strings.ReplaceAll(testnet.PowerlessBwrap, testnet.BinDir+"/bwrap", "/mnt/s/real")
	return standIn + "cat >/mnt/s/bwrap <<'B'\n" + strings.Replace(script, "\n", "\n"+before+"\n", 1) + "B\n" + strings.TrimPrefix(inPlace, ";")
}

func forgetPlain() { os.Remove(fmt.Sprintf("/run/user/%d/lnk/plain-wall.json", testnet.UID)) }

// RUN9: the program, of the relay's own uid, changes nothing of the relay.
func TestRUN9_TheRelayIsLeftAlone(t *testing.T) {
	defer forgetPlain()
	changed(t, powerlessBwrap(""), testnet.Lnk+` sandbox run -- python3 -c '
import os, resource
def tried(what, f):
    try: f(); print(what, "done")
    except OSError as e: print(what, e.errno)
others = [int(p) for p in os.listdir("/proc/1/task")]
for pid in others[:2]:
    tried("affinity", lambda: os.sched_setaffinity(pid, {0}))
    tried("policy", lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)))
    tried("priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
tried("all of the user", lambda: os.setpriority(os.PRIO_USER, 0, 19))
tried("limits", lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (10, 10)))
tried("own affinity", lambda: os.sched_setaffinity(os.getpid(), {0}))
tried("own priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, 5))
'`).exits(0).prints(strings.Repeat("affinity 1\npolicy 1\npriority 1\n", 2) + "all of the user 1\nlimits 1\nown affinity done\nown priority done\n")
}

// RUN9: a signal while the wall is being found out is for the run.
func TestRUN9_SignalBetweenTheStarts(t *testing.T) {
	defer forgetPlain()
	for _, after := range []string{"0.1", "0.3", "0.6"} {
		forgetPlain()
		changed(t, powerlessBwrap("sleep 0.4"), "timeout --preserve-status -s TERM "+after+" "+testnet.Lnk+" sandbox run -- sh -c 'sleep 5; echo lost'").exits(143).prints("").leavesNothing()
	}
}

// RUN9: what was found is this user's to keep, and doesn't outlive its cause
// where it matters.
func TestRUN9_Remembered(t *testing.T) {
	defer forgetPlain()
	if testnet.Plain() {
		return
	}
	file := fmt.Sprintf("/run/user/%d/lnk/plain-wall.json", testnet.UID)
	changed(t, powerlessBwrap(""), testnet.Lnk+" sandbox run -- true").exits(0)
	found, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// As if bwrap had been mended in its place: what would be refused is tried anew.
	lnk(t, "sandbox", "run", "--", "true").exits(0)
	mended := strings.Replace(string(found), `"for":"`, `"for":"x`, 1)
	os.WriteFile(file, []byte(mended), 0o600)
	sandbox(t, []string{"--internet-host", "db.test", "--tcp", "db.test:22"}, "true").exits(0)
	// In a folder where others write, another user's, or too large: it doesn't count.
	for _, preparation := range []string{
		"mkdir -m 777 /tmp/lnk && cp " + file + " /tmp/lnk/ && chmod 644 /tmp/lnk/plain-wall.json",
		"mkdir -m 755 /tmp/lnk && cp " + file + " /tmp/lnk/ && chmod 644 /tmp/lnk/plain-wall.json",
	} {
		r := changed(t, "mount -t tmpfs -o mode=1777 x /tmp; "+preparation, "XDG_RUNTIME_DIR=/tmp "+testnet.Lnk+" sandbox run --internet-host db.test -- getent ahostsv4 db.test").exits(0)
		if !strings.HasPrefix(r.stdout, "127.64.") {
			t.Errorf("got %s", r.stdout)
		}
	}
	// doctor, which finds the full wall, forgets the plain one.
	os.WriteFile(file, found, 0o600)
	lnk(t, "doctor").exits(0)
	if _, err := os.Stat(file); err == nil {
		t.Error("doctor found the full wall, and the plain one is remembered")
	}
}

// RUN7: doctor doesn't take the terminal in a pipeline, looks for nothing in
// PATH, and says when nobody reads it.
func TestRUN7_DoctorAnywhere(t *testing.T) {
	finish(t, testnet.Command("/bin/sh", "-c", "PATH=/nowhere "+testnet.Lnk+" doctor >/tmp/doctor.txt; echo $?")).prints("0\n")
	finish(t, testnet.Command("/bin/sh", "-c", "mkdir /tmp/gone && cd /tmp/gone && rmdir /tmp/gone && "+testnet.Lnk+" doctor >/dev/null; echo $?")).prints("0\n")
	finish(t, testnet.Command("/bin/sh", "-c", testnet.Lnk+" doctor >/dev/full; echo $?")).prints("125\n")
}
