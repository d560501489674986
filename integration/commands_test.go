package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"link.internal/lnk/integration/testnet"
)

// only makes flags of a list of programs.
func only(programs ...string) []string {
	var flags []string
	for _, p := range programs {
		flags = append(flags, "--command", p)
	}
	return flags
}

// CMD1: with a list, nothing else runs, and the given program must be on it.
func TestCMD1_List(t *testing.T) {
	sandbox(t, only("sh", "ls"), "ls -d /usr; id; /usr/bin/env true").exits(126).prints("/usr\n").
		says("lnk sandbox: refused /usr/bin/id: add it to [commands] allow").says("lnk sandbox: refused /usr/bin/env: add it to [commands] allow")
	lnk(t, "sandbox", "run", "--command", "ls", "--", "sh", "-c", "touch /tmp/started").refusedInOneLine("isn't on the list", "--command /usr/bin/")
	sandbox(t, only("*"), "id -u").exits(0).prints(fmt.Sprintf("%d\n", testnet.UID))
	sandbox(t, nil, "id -u").exits(0)
	// With a spec, there must be one.
	empty := userFile(t, "empty.toml", "read = []\n", 0o644)
	lnk(t, "sandbox", "run", "--spec", empty, "--", "true").refusedInOneLine("[commands] allow", "learn --spec")
	lnk(t, "sandbox", "run", "--spec", empty, "--command", "true", "--", "true").exits(0)
	listing := userFile(t, "listing.toml", "[commands]\nallow = [\"true\", \"/usr/bin/false\"]\n", 0o644)
	lnk(t, "sandbox", "run", "--spec", listing, "--", "false").exits(1)
	lnk(t, "sandbox", "run", "--spec", listing, "--", "id").refusedInOneLine("/usr/bin/id isn't on the list")
}

// CMD2, EX1: entries by name, path, link and folder, called by any spelling.
func TestCMD2EX1_Spellings(t *testing.T) {
	for _, entry := range []string{"sh", "/bin/sh", "/usr/bin/sh", "dash"} {
		for _, called := range []string{"sh", "/bin/sh", "/usr/bin/sh", "/usr/bin/dash"} {
			if _, err := os.Stat("/usr/bin/dash"); err != nil && strings.Contains(entry+called, "dash") {
				continue
			}
			lnk(t, "sandbox", "run", "--command", entry, "--", called, "-c", "echo runs").exits(0).prints("runs\n")
		}
	}
	sandbox(t, only("sh", "python3"), `python3 -c 'print(1)'; /usr/bin/python3 -c 'print(2)'; "$(readlink -f /usr/bin/python3 2>/dev/null || echo /usr/bin/python3)" -c 'print(3)'`).exits(0).prints("1\n2\n3\n")
	sandbox(t, only("/usr/bin/"), "id -u; ls -d /usr").exits(0).prints(fmt.Sprintf("%d\n/usr\n", testnet.UID))
	// Its refusal, pasted, makes it run.
	r := sandbox(t, only("sh"), "python3 -c 'print(1)'").exits(126)
	_, line, _ := strings.Cut(r.stderr, "refused ")
	path, _, _ := strings.Cut(line, ":")
	sandbox(t, only("sh", path), "python3 -c 'print(1)'").exits(0).prints("1\n")
	// What can't be listed.
	work := userFolder(t, "listwork")
	own := userFile(t, "listwork/bin/tool", "#!/bin/sh\n", 0o755)
	os.Symlink("loop", filepath.Join(work, "loop"))
	for _, test := range []struct{ flags, want []string }{
		{[]string{"--write", work, "--command", own}, []string{"may write " + work}},
		{[]string{"--write", work, "--command", work + "/bin/"}, []string{"may write " + work}},
		{[]string{"--write", work + "/bin", "--read", work, "--command", work + "/"}, []string{"may write " + work}},
		{[]string{"--command", own}, []string{"doesn't see", "--read"}},
		{[]string{"--command", "/tmp/"}, []string{"/tmp"}},
		{[]string{"--command", "no-such-program"}, []string{"PATH"}},
		{[]string{"--command", "/no/such"}, []string{"no such file"}},
		{[]string{"--command", work + "/loop"}, []string{"circle"}},
		{[]string{"--command", "/usr/bin"}, []string{"a folder", "end it in /"}},
		{[]string{"--command", "/usr/bin/sh/"}, []string{"no folder"}},
		{[]string{"--command", "/dev/null"}, []string{"no program"}},
		{[]string{"--command", "/etc/hostname/x"}, []string{"/etc/hostname/x"}},
		{[]string{"--command", ""}, []string{"empty"}},
		{[]string{"--command", "py*"}, []string{"wildcard"}},
	} {
		lnk(t, append(append([]string{"sandbox", "run"}, test.flags...), "--", "true")...).refusedInOneLine(append(test.want, "[commands] allow")...)
	}
}

// EX4, CMD2: a program of many names: one is listed, and the person is told of the others.
func TestEX4_MultiCall(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("busybox is missing")
	}
	dir := userFolder(t, "bb")
	defer os.RemoveAll(dir)
	for _, name := range []string{"ls", "wget"} {
		os.Symlink(busybox, filepath.Join(dir, name))
	}
	lnk(t, "sandbox", "run", "--read", dir, "--command", dir+"/ls", "--", dir+"/ls", "-d", "/usr").exits(0).prints("/usr\n").says("the entry", "opens all of", "busybox")
}

// CMD3, EX2: a script needs itself and what its first line starts.
func TestCMD3EX2_Scripts(t *testing.T) {
	script := userFile(t, "scripts/hello", "#!/usr/bin/env python3\nprint('hello')\n", 0o755)
	split := userFile(t, "scripts/split", "#!/usr/bin/env -S python3 -B\nprint('split')\n", 0o755)
	direct := userFile(t, "scripts/direct", "#!/usr/bin/python3\nprint('direct')\n", 0o755)
	read := []string{"--read", filepath.Dir(script)}
	run := func(entries []string, args ...string) result {
		return lnk(t, append(append(append([]string{"sandbox", "run"}, read...), only(entries...)...), append([]string{"--"}, args...)...)...)
	}
	run([]string{script, "env"}, script).exits(126).says("refused /usr/bin/python3", "add it to [commands] allow")
	run([]string{script, "env", "python3"}, script).exits(0).prints("hello\n")
	run([]string{split, "env", "python3"}, split).exits(0).prints("split\n")
	run([]string{script}, script).refusedInOneLine("/usr/bin/env", "which "+script+" starts")
	run([]string{"env", "python3"}, script).refusedInOneLine(script + " isn't on the list")
	// One that is started inside names what its first line lacks.
	run([]string{"sh", direct}, "sh", "-c", direct).exits(126).says("refused /usr/bin/python3")
	run([]string{"sh", direct, "python3"}, "sh", "-c", direct).exits(0).prints("direct\n")
}

// CMD4: what is refused says "Permission denied" inside, and its path outside.
func TestCMD4_Refused(t *testing.T) {
	r := sandbox(t, only("sh"), "/usr/bin/id; cd /usr/bin && ./id; for i in 1 2 3; do /usr/bin/env; done").exits(126)
	if strings.Count(r.stderr, "Permission denied") != 5 || strings.Count(r.stderr, "lnk sandbox: refused /usr/bin/id: add it to [commands] allow\n") != 1 || strings.Count(r.stderr, "refused /usr/bin/env") != 1 {
		t.Errorf("stderr: %s", r.stderr)
	}
	// git's helpers are programs of their own.
	helpers, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Skip("git is missing")
	}
	sandbox(t, only("sh", "git", strings.TrimSpace(string(helpers))+"/git"), "git ls-remote https://x.test/y").exits(128).says("git-remote-http", "add it to [commands] allow")
}

// CMD5, EX3: every way around the list.
func TestCMD5EX3_WaysAround(t *testing.T) {
	loaders, _ := filepath.Glob("/lib64/ld-*.so*")
	if len(loaders) == 0 {
		loaders, _ = filepath.Glob("/lib/ld-*.so*")
	}
	work := userFolder(t, "around")
	defer os.RemoveAll(work)
	flags := append(only("sh", "python3", "cp", "ln", "chmod", "mv"), "--write", work, "--env", "LOADER="+loaders[0], "--env", "WORK="+work)
	sandbox(t, flags, `cd $WORK
$LOADER /usr/bin/id; python3 -c 'import os,sys; os.execv(os.environ["LOADER"], ["ld", "/usr/bin/id"])'
cp /usr/bin/id copy; chmod +x copy; ./copy; ln -s /usr/bin/id link; ./link; mv copy moved; ./moved; cp $LOADER ld; chmod +x ld; ./ld /usr/bin/id
/usr/bin/../bin/id; /proc/self/root/usr/bin/id; PATH=$WORK link
/usr/bin/python3 - <<'P'
import ctypes, os, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def tried(what, f):
    pid = os.fork()
    if pid == 0:
        try: f()
        except OSError as e: os._exit(e.errno)
        os._exit(99)
    status = os.waitpid(pid, 0)[1]
    print(what, "signal" if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
data = open("/usr/bin/id", "rb").read()
def memfd(flags):
    fd = libc.memfd_create(b"x", flags)
    if fd < 0: raise OSError(ctypes.get_errno(), "")
    os.write(fd, data)
    return fd
tried("memfd", lambda: os.execve(memfd(0), ["id"], {}))
tried("memfd by its path", lambda: os.execv("/proc/self/fd/%d" % memfd(0), ["id"]))
tried("memfd made executable", lambda: (os.fchmod(fd := memfd(0), 0o755), os.execve(fd, ["id"], {})))
tried("memfd that asks to be", lambda: os.execve(memfd(0x10), ["id"], {}))
tried("fexecve", lambda: os.execve(os.open("/usr/bin/id", os.O_RDONLY), ["id"], {}))
tried("fexecve of a path only", lambda: os.execve(os.open("/usr/bin/id", os.O_PATH), ["id"], {}))
def execveat():
    d = os.open("/usr/bin", os.O_RDONLY)
    argv = (ctypes.c_char_p * 2)(b"id", None)
    libc.syscall(322 if os.uname().machine == "x86_64" else 281, d, b"id", argv, argv, 0)
    raise OSError(ctypes.get_errno(), "")
tried("execveat", execveat)
tried("a listed one", lambda: os.execv("/bin/sh", ["sh", "-c", "exit 7"]))
# What memfds are for still works: mapping, sealing, and a map that is executed.
import fcntl, mmap
fd = os.memfd_create("x", os.MFD_ALLOW_SEALING); os.ftruncate(fd, 4096); mmap.mmap(fd, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
fcntl.fcntl(fd, 1033, 2); print("sealed", fcntl.fcntl(fd, 1034) & 2, fcntl.fcntl(os.memfd_create("y"), 1034) & 1)
P`).exits(0).prints("memfd 13\nmemfd by its path 13\nmemfd made executable 1\nmemfd that asks to be 13\nfexecve 13\nfexecve of a path only 13\nexecveat 13\na listed one 7\nsealed 2 1\n").
		says("refused /usr/bin/id").says("refused "+work+"/moved").says("ld-", "starts any program")
}

// CMD5: an execve whose path is changed under the look: raced 2,000 times, none is won.
func TestCMD5_Raced(t *testing.T) {
	work := userFolder(t, "raced")
	defer os.RemoveAll(work)
	loaders, _ := filepath.Glob("/lib64/ld-*.so*")
	if len(loaders) == 0 {
		loaders, _ = filepath.Glob("/lib/ld-*.so*")
	}
	program := "/srv/racer"
	gcc := exec.Command("gcc", "-O2", "-o", program, "testdata/racer.c")
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Skipf("gcc: %v: %s", err, out)
	}
	os.Chmod(program, 0o755)
	lnk(t, "sandbox", "run", "--read", program, "--write", work, "--command", program, "--command", "true", "--", program, work, "/usr/bin/true", "/usr/bin/id", loaders[0], "2000").exits(0).prints("0 wins\n")
}

// CMD6: learn runs it once, and prints what to add.
func TestCMD6_Learn(t *testing.T) {
	script := userFile(t, "learned/hello", "#!/usr/bin/env python3\nprint('hello')\n", 0o755)
	spec := userFile(t, "learned/app.toml", "read = [\".\"]\n[commands]\nallow = [\"sh\"]\n", 0o644)
	before, _ := os.ReadFile(spec)
	r := lnk(t, "sandbox", "learn", "--spec", spec, "--", "sh", "-c", script+"; exit 3").exits(3)
	if !strings.HasPrefix(r.stdout, "hello\n[commands]\nallow = [\n") || !strings.HasSuffix(r.stdout, "]\n") || strings.Contains(r.stdout, "dash") || strings.Contains(r.stdout, "ld-") {
		t.Errorf("got %s", r.stdout)
	}
	if after, _ := os.ReadFile(spec); string(after) != string(before) {
		t.Error("the spec was written")
	}
	// Pasted, it runs.
	learned := userFile(t, "learned/all.toml", strings.Replace(strings.TrimPrefix(r.stdout, "hello\n"), "[\n", "[\n\"sh\",\n", 1), 0o644)
	lnk(t, "sandbox", "run", "--spec", learned, "--read", filepath.Dir(script), "--", "sh", "-c", script).exits(0).prints("hello\n")
	lnk(t, "sandbox", "learn", "--spec", learned, "--read", filepath.Dir(script), "--", "sh", "-c", script).exits(0).prints("hello\n# the list has every program that was started\n")
}

// CMD7: without Landlock, or where nobody can read what is executed, a list is refused.
func TestCMD7_NoLandlock(t *testing.T) {
	const noLandlock = `strace -f -qq -o /dev/null -e trace=landlock_create_ruleset -e inject=landlock_create_ruleset:error=ENOSYS `
	changed(t, "", noLandlock+testnet.Lnk+" sandbox run --command true -- true").refusedInOneLine("Landlock", "lsm=landlock")
}

// CMD: what real programs do under a list.
func TestCMD_RealPrograms(t *testing.T) {
	work := userFolder(t, "listed")
	defer os.RemoveAll(work)
	t.Run("renames across folders", func(t *testing.T) {
		sandbox(t, append(only("sh", "mkdir", "mv", "ln", "cat"), "--write", work), `cd ~/listed && mkdir -p a b && echo x >a/f && mv a/f b/g && ln b/g a/h && cat a/h`).exits(0).prints("x\n")
	})
	t.Run("git", func(t *testing.T) {
		server := internet.TLS(internet.Host("git.test"), 443, gitBackend(gitRepository(t)))
		defer server.Close()
		helpers, _ := exec.Command("git", "--exec-path").Output()
		sandbox(t, append(only("sh", "git", strings.TrimSpace(string(helpers))+"/", "cat"), "--internet-host", "git.test", "--write", work),
			`cd ~/listed && git clone -q https://git.test/repo.git && cat repo/file`).exits(0).prints("content\n")
	})
	t.Run("python -m venv", func(t *testing.T) {
		if err := exec.Command("/usr/bin/python3", "-c", "import venv, ensurepip").Run(); err != nil {
			t.Skip("python3-venv is missing")
		}
		sandbox(t, append(only("sh", "python3"), "--write", work), "cd ~/listed && python3 -m venv --without-pip v && python3 -c 'import os; print(os.path.exists(\"v/pyvenv.cfg\"))'").exits(0).prints("True\n")
	})
	t.Run("make with a compiler", func(t *testing.T) {
		if _, err := exec.LookPath("make"); err != nil {
			t.Skip("make is missing")
		}
		userFile(t, "listed/m/Makefile", "x: x.c\n\tgcc -o x x.c\n", 0o644)
		userFile(t, "listed/m/x.c", "int main(void) { return 0; }\n", 0o644)
		os.Chmod(filepath.Join(work, "m"), 0o777)
		r := lnk(t, "sandbox", "learn", "--write", work, "--", "make", "-s", "-C", work+"/m").exits(0)
		spec := userFile(t, "make.toml", r.stdout, 0o644)
		os.Remove(work + "/m/x")
		lnk(t, "sandbox", "run", "--spec", spec, "--write", work, "--", "make", "-s", "-C", work+"/m").exits(0)
		if _, err := os.Stat(work + "/m/x"); err != nil {
			t.Error("nothing was built")
		}
		// What was built isn't on the list.
		lnk(t, "sandbox", "run", "--spec", spec, "--write", work, "--", work+"/m/x").refusedInOneLine("isn't on the list")
	})
	t.Run("python's processes", func(t *testing.T) {
		sandbox(t, only("sh", "python3"), `python3 -c '
import multiprocessing as m, threading
if __name__ == "__main__":
    with m.Pool(3) as p: print(sum(p.map(abs, range(10))))
    t = [threading.Thread(target=lambda: None) for _ in range(50)]; [x.start() for x in t]; [x.join() for x in t]; print("threads")'`).exits(0).prints("45\nthreads\n")
	})
	t.Run("node", func(t *testing.T) {
		node, err := exec.LookPath("node")
		if err != nil {
			t.Skip("node is missing")
		}
		sandbox(t, only("sh", "node"), node+` -e 'const c = require("child_process"); console.log(String(c.execSync("echo hi")).trim()); try { c.execFileSync("/usr/bin/id", {stdio: "ignore"}) } catch (e) { console.log(e.code) }'`).exits(0).prints("hi\nEACCES\n")
	})
	t.Run("npm test of a package with a native addon", func(t *testing.T) {
		const headers = ".node/node_modules/node-api-headers/include" // from this folder, whatever its path is here
		npm, npmErr := exec.LookPath("npm")
		if _, err := os.Stat(headers); err != nil || npmErr != nil {
			t.Skip("npm, or its node-api-headers, is missing: integration/install.sh")
		}
		if real, _ := filepath.EvalSymlinks(npm); !strings.HasPrefix(real, "/usr/") {
			t.Skip("npm is no system program here")
		}
		if out, err := exec.Command("cp", "-r", headers, userFolder(t, "listed/addon")+"/include").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		userFile(t, "listed/addon/addon.c", `#include <node_api.h>
static napi_value answer(napi_env env, napi_callback_info info) { napi_value v; napi_create_int32(env, 42, &v); return v; }
static napi_value init(napi_env env, napi_value exports) { napi_value f; napi_create_function(env, 0, 0, answer, 0, &f); return f; }
NAPI_MODULE(addon, init)
`, 0o644)
		userFile(t, "listed/addon/package.json", `{"name": "addon", "version": "1.0.0", "scripts": {"test": "gcc -shared -fPIC -Iinclude -o addon.node addon.c && node test.js"}}`+"\n", 0o644)
		userFile(t, "listed/addon/test.js", "console.log('answer', require('./addon.node')())\n", 0o644)
		os.Chmod(work+"/addon", 0o777)
		in := []string{"--write", work + "/addon", "--"}
		learned := lnk(t, append(append([]string{"sandbox", "learn"}, in...), "sh", "-c", "cd "+work+"/addon && npm test --silent")...).exits(0)
		text, _ := strings.CutPrefix(learned.stdout, "answer 42\n")
		spec := userFile(t, "addon.toml", text, 0o644)
		os.Remove(work + "/addon/addon.node")
		lnk(t, append(append([]string{"sandbox", "run", "--spec", spec}, in...), "sh", "-c", "cd "+work+"/addon && npm test --silent && id")...).exits(126).prints("answer 42\n").says("refused /usr/bin/id")
	})
	t.Run("busybox shell", func(t *testing.T) {
		if _, err := exec.LookPath("busybox"); err != nil {
			t.Skip("busybox is missing")
		}
		lnk(t, append(append([]string{"sandbox", "run"}, only("busybox")...), "--", "busybox", "sh", "-c", "echo $((1+1)); id -u; /usr/bin/id")...).exits(126).says("refused /usr/bin/id")
	})
}

// CMD2: a program whose loader lies in a store of its own, as Nix has it, under a learned list.
func TestCMD2_StorePath(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is missing")
	}
	loaders, _ := filepath.Glob("/lib64/ld-linux*.so.*")
	if len(loaders) == 0 {
		loaders, _ = filepath.Glob("/lib/ld-linux*.so.*")
	}
	const store = "/srv/store/0hash-hello"
	userFolder(t, store+"/bin")
	defer os.RemoveAll("/srv/store")
	loader, err := os.ReadFile(loaders[0])
	if err != nil {
		t.Fatal(err)
	}
	os.WriteFile(store+"/ld.so", loader, 0o755)
	source := userFile(t, "hello.c", "#include <stdio.h>\nint main(void) { puts(\"stored\"); return 0; }\n", 0o644)
	if out, err := exec.Command(gcc, "-o", store+"/bin/hello", "-Wl,--dynamic-linker="+store+"/ld.so", source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	learned := lnk(t, "sandbox", "learn", "--read", "/srv/store", "--", "sh", "-c", store+"/bin/hello").exits(0)
	if !strings.Contains(learned.stdout, store+"/bin/hello") || strings.Contains(learned.stdout, "ld.so") {
		t.Errorf("learnt %s", learned.stdout)
	}
	spec := userFile(t, "store.toml", strings.TrimPrefix(learned.stdout, "stored\n"), 0o644)
	lnk(t, "sandbox", "run", "--spec", spec, "--read", "/srv/store", "--", "sh", "-c", store+"/bin/hello; "+store+"/ld.so /usr/bin/id").exits(126).prints("stored\n").says("ld.so", "starts any program")
	lnk(t, "sandbox", "run", "--read", "/srv/store", "--command", store+"/bin/", "--command", "sh", "--", "sh", "-c", store+"/bin/hello").exits(0).prints("stored\n")
}

// RUN2: runtimes, compilers and debuggers under the list of system calls, and
// under a list of programs.
func TestRUN2_Runtimes(t *testing.T) {
	work := userFolder(t, "runtimes")
	defer os.RemoveAll(work)
	userFile(t, "runtimes/Hello.java", "public class Hello { public static void main(String[] a) throws Exception { Thread t = new Thread(() -> System.out.println(\"java\")); t.start(); t.join(); } }\n", 0o644)
	userFile(t, "runtimes/hello.rs", "fn main() { std::thread::spawn(|| println!(\"rust\")).join().unwrap(); }\n", 0o644)
	userFile(t, "runtimes/hello.go", "package main\nfunc main() { c := make(chan bool); go func() { println(\"go\"); c <- true }(); <-c }\n", 0o644)
	userFile(t, "runtimes/page.html", "<title>x</title><p id=p></p><script>document.getElementById('p').textContent = 6 * 7</script>\n", 0o644)
	for _, test := range []struct {
		name, needs, script, want string
		flags                     []string
	}{
		{"node", "node", `node -e 'const {Worker} = require("worker_threads"); new Worker("console.log(\"node\")", {eval: true})'`, "node\n", nil},
		{"java", "javac", "javac -d /tmp Hello.java && java -cp /tmp Hello", "java\n", nil},
		{"rust", "rustc", "rustc -o /tmp/hello hello.rs && /tmp/hello", "rust\n", nil},
		{"go", "/usr/local/go/bin/go", "GOCACHE=/tmp/c GOFLAGS=-mod=mod GO111MODULE=off /usr/local/go/bin/go run hello.go 2>&1", "go\n", nil},
		{"gdb", "gdb", "gdb -q -batch -ex run -ex 'info inferiors' /usr/bin/true 2>/dev/null | grep -c 'exited normally'", "1\n", nil},
		{"strace", "strace", "strace -f -e trace=none sh -c 'true; true' 2>&1 | grep -c 'exited with 0'", "1\n", nil},
		{"chromium, with its own sandbox", "chromium", "chromium --headless --disable-gpu --user-data-dir=/tmp/c --dump-dom file://$PWD/page.html 2>/dev/null | grep -c '>42<'", "1\n", []string{"--userns"}},
		{"chromium, without", "chromium", "chromium --headless --no-sandbox --disable-gpu --user-data-dir=/tmp/c --dump-dom file://$PWD/page.html 2>/dev/null | grep -c '>42<'", "1\n", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			// In the ordinary user's PATH: root may have one that is root's alone.
			if err := testnet.Command("/bin/sh", "-c", "command -v "+test.needs).Run(); err != nil {
				t.Skipf("%s is missing", test.needs)
			}
			if len(test.flags) > 0 {
				needsFull(t)
			}
			flags := append([]string{"--write", work}, test.flags...)
			if _, err := os.Stat("/etc/chromium.d"); err == nil && test.needs == "chromium" {
				flags = append(flags, "--read", "/etc/chromium.d")
			}
			sandbox(t, flags, "cd ~/runtimes && "+test.script).exits(0).prints(test.want)
			if strings.HasPrefix(test.name, "chromium") || test.name == "go" {
				return // their helpers are many; go run executes what it has built
			}
			sandbox(t, append(flags, only("/usr/")...), "cd ~/runtimes && "+strings.ReplaceAll(test.script, "&& /tmp/hello", "&& echo rust")).prints(test.want)
		})
	}
}

// CMD5: a program that keeps the kernel from asking about a call, by a filter
// of its own or by tracing, runs nothing by the loader all the same.
func TestCMD5_UnaskedCalls(t *testing.T) {
	loaders, _ := filepath.Glob("/lib64/ld-linux*.so.*")
	if len(loaders) == 0 {
		loaders, _ = filepath.Glob("/lib/ld-linux*.so.*")
	}
	const program = "/srv/bypass"
	if out, err := exec.Command("gcc", "-O2", "-o", program, "testdata/bypass.c").CombinedOutput(); err != nil {
		t.Skipf("gcc: %v: %s", err, out)
	}
	work := userFolder(t, "unasked")
	defer os.RemoveAll(work)
	data, _ := os.ReadFile("/usr/bin/id")
	userFile(t, "unasked/evil", string(data), 0o755)
	for _, how := range []string{"filter", "ptrace"} {
		for _, call := range []string{"tid", "mmap"} {
			for _, target := range []string{"/usr/bin/id", work + "/evil"} {
				for _, listed := range [][]string{only(program), only("/usr/", program)} {
					r := lnk(t, append(append([]string{"sandbox", "run", "--read", program, "--write", work}, listed...), "--", program, how, call, filepath.Dir(loaders[0]), filepath.Base(loaders[0]), target)...)
					if strings.Contains(r.stdout, "uid=") {
						t.Errorf("%s %s %v: %s was run", how, call, listed, target)
					}
				}
			}
		}
	}
}

// CMD2, CMD5: a loader is never listed, by itself or by its folder; a file that
// the sandbox could change by another of its names isn't either.
func TestCMD2_LoadersAndLinks(t *testing.T) {
	loaders, _ := filepath.Glob("/lib64/ld-linux*.so.*")
	if len(loaders) == 0 {
		loaders, _ = filepath.Glob("/lib/ld-linux*.so.*")
	}
	work := userFolder(t, "linkwork")
	defer os.RemoveAll(work)
	data, _ := os.ReadFile("/usr/bin/id")
	userFile(t, "linkwork/evil", string(data), 0o755)
	r := sandbox(t, append(only("/usr/"), "--write", work), loaders[0]+" ~/linkwork/evil; "+loaders[0]+" /usr/bin/id; id -u")
	if strings.Contains(r.stdout, "uid=") || !strings.HasSuffix(r.stdout, fmt.Sprintf("%d\n", testnet.UID)) {
		t.Errorf("got %s", r.stdout)
	}
	r.says("starts any program")
	lnk(t, "sandbox", "run", "--command", loaders[0], "--", "true").refusedInOneLine("starts any program")
	learned := lnk(t, "sandbox", "learn", "--", "sh", "-c", "ldd /usr/bin/id >/dev/null").exits(0)
	if strings.Contains(learned.stdout, "ld-linux") {
		t.Errorf("learnt %s", learned.stdout)
	}
	tools := userFolder(t, "linktools")
	defer os.RemoveAll(tools)
	tool := userFile(t, "linktools/tool", "#!/bin/sh\necho tool\n", 0o755)
	if err := os.Link(tool, work+"/copy"); err != nil {
		t.Fatal(err)
	}
	for _, entry := range []string{tool, tools + "/"} {
		lnk(t, "sandbox", "run", "--read", tools, "--write", work, "--command", "sh", "--command", entry, "--", "sh", "-c", "true").refusedInOneLine("hard links")
	}
	lnk(t, "sandbox", "run", "--read", tools, "--command", "sh", "--command", tool, "--", "sh", "-c", tool).exits(0).prints("tool\n")
}

// CMD4: what a program names by its own /proc is that, and not the relay's.
func TestCMD4_OwnProc(t *testing.T) {
	r := sandbox(t, only("sh", "python3"), `python3 -c 'import os; os.execv("/proc/self/exe", ["python3", "-c", "print(1)"])'; cd /usr/bin; python3 -c 'import os; os.execv("/proc/self/cwd/id", ["id"])'; exec 7</usr/bin/env; python3 -c 'import os
try: os.execv("/dev/fd/7", ["env"])
except OSError as e: print(e.errno)' 7</usr/bin/env`)
	r.exits(0).prints("1\n13\n").says("refused /usr/bin/id").says("refused /usr/bin/env")
}

// RUN1: the standard streams can be opened anew, by the names that programs use.
func TestRUN1_StreamsByName(t *testing.T) {
	out := userFile(t, "stream.txt", "", 0o644)
	finish(t, testnet.Command("/bin/sh", "-c", testnet.Lnk+" sandbox run -- sh -c 'echo one >>/dev/stdout; echo two | tee -a /dev/stderr >/dev/null' >>"+out+" 2>>"+out)).exits(0)
	if data, _ := os.ReadFile(out); string(data) != "one\ntwo\n" {
		t.Errorf("got %q", data)
	}
	run := terminal(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--", "sh", "-c", "echo on-tty >/dev/stdout; echo on-too >/dev/tty"))
	run.until("on-tty")
	run.until("on-too")
	run.wait().exits(0)
}
