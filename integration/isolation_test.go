package integration

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

// IS1: sockets of the machine are not reached, whatever is read.
func TestIS1_SocketsOfTheMachine(t *testing.T) {
	for _, path := range []string{"/run/x.sock", "/tmp/x.sock"} {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	abstract, err := net.Listen("unix", "@lnk-test")
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	for _, flags := range [][]string{nil, {"--read", "/"}, {"--write", "/"}, {"--internet-host", "*"}} {
		sandbox(t, flags, `python3 - <<'P'
import socket
for a in ("/run/x.sock", "/tmp/x.sock", "/var/run/x.sock", "\0lnk-test"):
    try: socket.socket(socket.AF_UNIX).connect(a); print("LEAK", a)
    except OSError: pass
a, b = socket.socketpair(); a.send(b"fine"); print(b.recv(9).decode())
s = socket.socket(socket.AF_UNIX); s.bind("\0inside"); s.listen()
socket.socket(socket.AF_UNIX).connect("\0inside"); print("own")
P`).exits(0).prints("fine\nown\n")
	}
}

// IS2: a link inside a grant leads nowhere; a working folder that is a link works.
func TestIS2_Links(t *testing.T) {
	userFile(t, ".ssh/id", "key", 0o600)
	dir := userFolder(t, "linked")
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(testnet.Home, ".ssh"), link); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(link)
	cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--write", ".", "--", "sh", "-c", `cat link/id; echo x >link/id; echo x >link/new; ls link/; echo own >file; cat file`)
	cmd.Dir = dir
	finish(t, cmd).exits(0).prints("own\n")
	if text, _ := os.ReadFile(filepath.Join(testnet.Home, ".ssh/id")); string(text) != "key" {
		t.Errorf("written through a link: %q", text)
	}
	alias := filepath.Join(testnet.Home, "alias")
	if err := os.Symlink(dir, alias); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(alias)
	cmd = testnet.Command(testnet.Lnk, "sandbox", "run", "--write", ".", "--", "sh", "-c", "pwd; pwd -P; cat file; echo x >file2")
	cmd.Dir = alias
	cmd.Env = append(cmd.Env, "PWD="+alias)
	finish(t, cmd).exits(0).prints(alias + "\n" + dir + "\nown\n")
	// A link that a person names is followed, once, outside.
	lnk(t, "sandbox", "run", "--read", "alias", "--", "cat", alias+"/file", dir+"/file").exits(0).prints("own\nown\n")
}

// IS3: what is in /proc, and what can't be done to it and to process 1.
func TestIS3_Proc(t *testing.T) {
	sandbox(t, okFlags, `python3 - <<'P'
import os, ctypes, errno, signal
libc = ctypes.CDLL(None, use_errno=True)
def fails(what, f):
    try: r = f()
    except OSError: return
    if r is None or r == 0: print("LEAK", what)
pids = sorted(int(p) for p in os.listdir("/proc") if p.isdigit())
print(len(pids) <= 4 and pids[0] == 1)
for f in ("mem", "environ", "maps", "fd", "root", "cwd", "exe", "auxv", "stack", "syscall"):
    def read(f=f):
        p = "/proc/1/" + f
        if f == "fd": return os.readlink(p + "/0") and None
        if f in ("root", "cwd"): return os.listdir(p) and None
        if f == "exe": os.readlink(p); return None
        open(p, "rb").read(1); return None
    fails("/proc/1/" + f, read)
fails("ptrace", lambda: libc.ptrace(16, 1, 0, 0))
fails("seize", lambda: libc.ptrace(0x4206, 1, 0, 0))
fails("mount", lambda: libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None))
fails("bind", lambda: libc.mount(b"/tmp", b"/usr", None, 4096, None))
fails("umount", lambda: libc.umount2(b"/proc", 2))
fails("chroot", lambda: libc.chroot(b"/tmp"))
for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x80):
    fails("unshare %x" % flag, lambda: libc.unshare(flag))
    if flag != 0x80: fails("clone %x" % flag, lambda: 1 if libc.syscall(56, flag | 17, 0, 0, 0, 0) < 0 else 0)
fails("setns", lambda: libc.setns(os.open("/proc/self/ns/net", 0), 0))
fails("sethostname", lambda: libc.sethostname(b"x", 1))
fails("sysctl", lambda: open("/proc/sys/user/max_user_namespaces", "w").write("9") and None)
fails("sysrq", lambda: open("/proc/sysrq-trigger", "w").write("h") and None)
fails("kcore", lambda: open("/proc/kcore", "rb").read(1) and None)
for s in (signal.SIGTERM, signal.SIGQUIT, signal.SIGABRT, signal.SIGSEGV, signal.SIGSTOP, signal.SIGKILL, signal.SIGHUP, 33, 34, 64, signal.SIGCHLD, signal.SIGURG, signal.SIGPROF):
    try: os.kill(1, s)
    except OSError: pass
# Where Landlock scopes signals (ABI 6), process 1 is out of reach.
if libc.syscall(444, 0, 0, 1) >= 6:
    try: os.kill(1, signal.SIGTERM); print("LEAK signal")
    except PermissionError: pass
print("alive")
P`).exits(0).prints("True\nalive\n")
}

// foreignArchitecture calls getpid as i386 does, by int 0x80, in a process of
// its own, and prints how that ended.
const foreignArchitecture = `import mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes([0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3]))
f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
if os.fork() == 0:
    f(); os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]))
`

// The whole list of refused system calls, by trying.
func TestRUN2_SystemCalls(t *testing.T) {
	// A kernel that has no i386 ends the process by itself, outside as well.
	want := -int(unix.SIGSYS)
	if outside := finish(t, testnet.Command("/usr/bin/python3", "-c", "import ctypes, os\n"+foreignArchitecture)).exits(0).stdout; outside != "0\n" {
		want = -int(unix.SIGSEGV)
	}
	sandbox(t, okFlags, `python3 - <<'P'
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(nr, *args):
    ctypes.set_errno(0)
    r = libc.syscall(ctypes.c_long(nr), *[ctypes.c_long(a) for a in args])
    return errno.errorcode.get(ctypes.get_errno(), "0") if r == -1 else "ok"
bad = []
def want(name, got, expected):
    if got != expected: bad.append((name, got, expected))
# Families. 1 unix, 2 inet, 10 inet6, 16 netlink.
for family in range(0, 46):
    got = call(41, family, 2 if family != 16 else 3, 0)
    want("socket %d" % family, got, "ok" if family in (1, 2, 10, 16) else "EAFNOSUPPORT")
for proto in range(1, 22): want("netlink %d" % proto, call(41, 16, 3, proto), "EAFNOSUPPORT")
want("vsock with high bits", call(41, 40 | 1 << 32, 1, 0), "EAFNOSUPPORT")
pair = (ctypes.c_int * 2)()
want("socketpair tipc", call(53, 30, 1, 0, ctypes.addressof(pair)), "EAFNOSUPPORT")
want("socketpair unix", call(53, 1, 1, 0, ctypes.addressof(pair)), "ok")
for name, nr, expected in [("clone3", 435, "ENOSYS"), ("setns", 308, "EPERM"), ("io_uring_setup", 425, "ENOSYS"), ("io_uring_enter", 426, "ENOSYS"), ("io_uring_register", 427, "ENOSYS"),
    ("add_key", 248, "EPERM"), ("request_key", 249, "EPERM"), ("keyctl", 250, "EPERM"), ("bpf", 321, "EPERM"), ("perf_event_open", 298, "EPERM"), ("userfaultfd", 323, "EPERM"),
    ("mount", 165, "EPERM"), ("umount2", 166, "EPERM"), ("pivot_root", 155, "EPERM"), ("chroot", 161, "EPERM"), ("open_tree", 428, "EPERM"), ("move_mount", 429, "EPERM"),
    ("fsopen", 430, "EPERM"), ("fsconfig", 431, "EPERM"), ("fsmount", 432, "EPERM"), ("fspick", 433, "EPERM"), ("mount_setattr", 442, "EPERM"), ("open_tree_attr", 467, "EPERM"),
    ("open_by_handle_at", 304, "EPERM"), ("quotactl", 179, "EPERM"), ("quotactl_fd", 443, "EPERM"), ("swapon", 167, "EPERM"), ("swapoff", 168, "EPERM"),
    ("init_module", 175, "EPERM"), ("delete_module", 176, "EPERM"), ("finit_module", 313, "EPERM"), ("kexec_load", 246, "EPERM"), ("kexec_file_load", 320, "EPERM"),
    ("reboot", 169, "EPERM"), ("syslog", 103, "EPERM"), ("acct", 163, "EPERM"), ("settimeofday", 164, "EPERM"), ("clock_settime", 227, "EPERM"), ("iopl", 172, "EPERM"), ("ioperm", 173, "EPERM"),
    ("fanotify_init", 300, "EPERM"), ("move_pages", 279, "EPERM")]:
    want(name, call(nr, 0, 0, 0, 0, 0), expected)
for p, expected in ((0, "ok"), (8, "ok"), (0x40000, "ok"), (0xffffffff, "ok"), (0x0400000, "EPERM"), (0x8000000, "EPERM"), (1, "EPERM")):
    got = call(135, p); call(135, 0)
    want("personality %x" % p, got, expected)
want("x32 getpid", call(0x40000000 | 39), "ENOSYS")
# Left, since runtimes need them.
want("memfd_create", call(319, ctypes.cast(ctypes.c_char_p(b"x"), ctypes.c_void_p).value, 0), "ok")
want("landlock version", call(444, 0, 0, 1), "ok")
print(bad or "all")
`+foreignArchitecture+`P`).exits(0).prints(fmt.Sprintf("all\n%d\n", want))
}

// Descriptors that lnk inherits reach neither the program nor the processes between.
func TestRUN2_Descriptors(t *testing.T) {
	secret := userFile(t, "fd-secret", "secret", 0o600)
	script := fmt.Sprintf(`exec 10<%[1]s 250<%[1]s 9>/dev/null; exec %[2]s sandbox run --internet-host ok.test -- bash -c 'ls /proc/self/fd | wc -l; read x; cat <&10 2>/dev/null; cat <&250 2>/dev/null; true'`, secret, testnet.Lnk)
	run := start(t, testnet.Command("/bin/bash", "-c", script))
	run.until("4\n") // 0, 1, 2 and the one that ls opens
	for _, p := range processes() {
		pid, command, _ := strings.Cut(p, " ")
		if strings.Contains(command, "lnk sandbox run") {
			continue // the runner itself may keep them
		}
		fds, _ := os.ReadDir("/proc/" + pid + "/fd")
		for _, fd := range fds {
			if target, _ := os.Readlink("/proc/" + pid + "/fd/" + fd.Name()); target == secret {
				t.Errorf("%s has the secret as descriptor %s", p, fd.Name())
			}
		}
	}
	run.write("\n")
	run.wait().exits(0).prints("4\n")
	// Closed standard streams are no way to others' descriptors.
	r := finish(t, testnet.Command("/bin/bash", "-c", testnet.Lnk+` sandbox run -- sh -c 'ls -l /proc/self/fd' <&- | grep -c /dev/null`)).exits(0)
	if r.stdout != "1\n" && r.stdout != "2\n" {
		t.Errorf("got %q", r.stdout)
	}
}

// Two sandboxes see nothing of each other.
func TestRUN2_TwoSandboxes(t *testing.T) {
	one := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--", "sh", "-c",
		`echo mine >/tmp/shared; echo mine >/dev/shm/shared; python3 -c '
import socket, time
s = socket.socket(socket.AF_UNIX); s.bind("\0shared"); s.listen()
t = socket.create_server(("127.0.0.1", 7777))
print("up", flush=True); input()'`))
	one.until("up")
	sandbox(t, nil, `cat /tmp/shared /dev/shm/shared 2>/dev/null; [ $(ls -d /proc/[0-9]* | wc -l) -le 5 ] && echo few; python3 -c '
import socket
for f in (lambda: socket.socket(socket.AF_UNIX).connect("\0shared"), lambda: socket.create_connection(("127.0.0.1", 7777), 2)):
    try: f(); print("LEAK")
    except OSError: pass'; ipcs -m | grep -c 0x; true`).exits(0).prints("few\n0\n")
	one.write("\n")
	one.wait().exits(0)
}

// Run by root it works too: uid 0 inside, and no power.
func TestRUN7_Root(t *testing.T) {
	site(t, "ok.test")
	cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c",
		`id -u; grep -E 'Cap(Eff|Prm|Bnd|Amb)' /proc/self/status | cut -f2 | sort -u; cat /etc/shadow 2>/dev/null; mount -t tmpfs x /tmp 2>/dev/null && echo LEAK
		touch /usr/x /etc/x 2>/dev/null && echo LEAK; cat /proc/1/environ 2>/dev/null && echo LEAK; curl -sS http://ok.test/`)
	cmd.SysProcAttr.Credential = nil
	cmd.Dir = "/root"
	cmd.Env = []string{"HOME=/root", "PATH=/usr/bin:/bin"}
	finish(t, cmd).exits(0).prints("0\n0000000000000000\nhello from ok.test\n")
}
