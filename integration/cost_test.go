package integration

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

// What runs cost is counted here, in instructions and system calls, and not
// timed: a machine's speed changes none of it. Each limit is a tenth or so
// above what it was when it was set. One that is passed asks whether what was
// added is worth it; then it is raised, and docs/performance.md says for what.

// instructions counts those of a whole process, by valgrind's cachegrind. One
// processor, and no goroutine interrupted, so that it is the same every time.
func instructions(t *testing.T, program string, args ...string) int {
	t.Helper()
	least := 0
	for range 3 { // an idle thread's spinning adds to some
		cmd := testnet.Command("valgrind", append([]string{"--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", filepath.Join(testnet.BinDir, program)}, args...)...)
		cmd.Env = append(cmd.Env, "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1", "GOGC=off")
		r := finish(t, cmd)
		found := regexp.MustCompile(`I +refs: +([0-9,]+)`).FindStringSubmatch(r.stderr)
		if found == nil {
			t.Fatalf("valgrind counted nothing of %s: %s", program, r.stderr)
		}
		n, _ := strconv.Atoi(strings.ReplaceAll(found[1], ",", ""))
		if least == 0 || n < least {
			least = n
		}
	}
	return least
}

func TestCost_Instructions(t *testing.T) {
	if _, err := exec.LookPath("valgrind"); err != nil {
		t.Skip("valgrind isn't installed")
	}
	needsFull(t) // they are the same for both walls
	spec := filepath.Join(testnet.Home, "one.toml")
	if err := os.WriteFile(spec, []byte("read = [\".\"]\n[internet]\nallow = [\"api.test\"]\n[commands]\nallow = [\"true\"]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, program string
		args          []string
		limit         int
	}{
		{"nothing but beginning and ending", "lnk", []string{"--version"}, 1_600_000},
		{"a spec is read and resolved", "lnk", []string{"sandbox", "spec", "check", spec}, 2_500_000},
		{"the relay begins", "lnk-relay", []string{"--help"}, 470_000},
		{"the proxy begins, and gives up what it has no use for", "link-sandbox-proxy", []string{"--help"}, 1_500_000},
		{"the supervisor begins", "lnk-supervisor", []string{"--help"}, 2_850_000},
	} {
		t.Run(test.program+": "+test.name, func(t *testing.T) {
			if got := instructions(t, test.program, test.args...); got > test.limit {
				t.Errorf("%d instructions; the limit is %d", got, test.limit)
			} else {
				t.Logf("%d instructions of %d", got, test.limit)
			}
		})
	}
}

// scheduling are system calls whose number is the scheduler's: how often a
// thread of the runtime sleeps, wakes another, or looks for work.
var scheduling = map[string]bool{
	"futex": true, "epoll_pwait": true, "nanosleep": true, "sched_yield": true, "tgkill": true, "rt_sigreturn": true, "getpid": true, "madvise": true,
	"restart_syscall": true, "clone": true, "clone3": true, "sigaltstack": true, "gettid": true, "set_robust_list": true, "rseq": true, "mmap": true, "munmap": true, "rt_sigprocmask": true, "prctl": true,
}

// counted reads what strace -c wrote: how often each system call was made.
func counted(t *testing.T, path string) (calls map[string]int, total int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	calls = make(map[string]int)
	for line := range strings.Lines(string(data)) {
		// % time, seconds, µs a call, calls, errors or nothing, name
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[len(fields)-1] == "total" {
			continue
		}
		n, err := strconv.Atoi(fields[3])
		if name := fields[len(fields)-1]; err == nil && !scheduling[name] {
			calls[name] += n
			total += n
		}
	}
	if total == 0 {
		t.Fatalf("strace counted nothing: %s", data)
	}
	return calls, total
}

func TestCost_SystemCallsOfAConnection(t *testing.T) {
	needsFull(t)
	addr := internet.Host("cost.test")
	echo := internet.Echo(addr, 7)
	defer echo.Close()
	web := internet.HTTP(addr, 80, nil)
	defer web.Close()
	for _, test := range []struct {
		name  string
		limit float64
		once  func(t *testing.T, path string)
	}{
		{"a tunnel, with a byte there and back", 39, func(t *testing.T, path string) {
			conn := connect(t, path)
			defer conn.Close()
			fmt.Fprintf(conn, "CONNECT %[1]s:7 HTTP/1.1\r\nHost: %[1]s:7\r\n\r\n", addr)
			buf := make([]byte, 500)
			if n, err := conn.Read(buf); err != nil || !bytes.Contains(buf[:n], []byte(" 200 ")) {
				t.Fatalf("%v: %q", err, buf[:n])
			}
			conn.Write([]byte{1})
			if _, err := io.ReadFull(conn, buf[:1]); err != nil {
				t.Fatal(err)
			}
		}},
		{"a request", 16, func(t *testing.T, path string) {
			conn := connect(t, path)
			defer conn.Close()
			fmt.Fprintf(conn, "GET http://%[1]s/ HTTP/1.1\r\nHost: %[1]s\r\nConnection: close\r\n\r\n", addr)
			if answer, err := io.ReadAll(conn); err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 200")) {
				t.Fatalf("%v: %q", err, answer)
			}
		}},
		{"a refusal", 10, func(t *testing.T, path string) {
			conn := connect(t, path)
			defer conn.Close()
			fmt.Fprintf(conn, "CONNECT 127.0.0.1:7 HTTP/1.1\r\nHost: 127.0.0.1:7\r\n\r\n")
			if answer, err := io.ReadAll(conn); err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 403")) {
				t.Fatalf("%v: %q", err, answer)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir, proxy := aProxy(t, "--internet-host", "*", "--tcp", addr.String()+":7")
			path := filepath.Join(dir, "out.sock")
			test.once(t, path) // what is done once
			list := filepath.Join(t.TempDir(), "calls")
			strace := exec.Command("strace", "-f", "-c", "-o", list, "-p", strconv.Itoa(proxy.cmd.Process.Pid))
			said, err := strace.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := strace.Start(); err != nil {
				t.Skip("strace isn't installed")
			}
			buf := make([]byte, 4096)
			for heard := ""; !strings.Contains(heard, "attached"); {
				n, err := said.Read(buf)
				if err != nil {
					t.Fatalf("strace can't attach: %s", heard)
				}
				heard += string(buf[:n])
			}
			const n = 200
			for range n {
				test.once(t, path)
			}
			time.Sleep(100 * time.Millisecond) // the last ones' ends
			strace.Process.Signal(unix.SIGINT)
			io.Copy(io.Discard, said)
			strace.Wait()
			calls, total := counted(t, list)
			if each := float64(total) / n; each > test.limit {
				t.Errorf("%.1f system calls each, the limit is %.0f: %v", each, test.limit, calls)
			} else {
				t.Logf("%.1f of %.0f: %v", each, test.limit, calls)
			}
		})
	}
}

func TestCost_SystemCallsOfAStart(t *testing.T) {
	needsFull(t)
	for _, test := range []struct {
		name  string
		flags []string
		limit int
	}{
		{"no network", nil, 1900},
		{"one host", []string{"--internet-host", "a.test"}, 2600},
	} {
		t.Run(test.name, func(t *testing.T) {
			list := filepath.Join(testnet.Home, "start-calls")
			args := append([]string{"-f", "-c", "-o", list, testnet.Lnk, "sandbox", "run"}, test.flags...)
			finish(t, testnet.Command("strace", append(args, "--", "true")...)).exits(0)
			calls, total := counted(t, list)
			if total > test.limit {
				t.Errorf("%d system calls, the limit is %d: %v", total, test.limit, calls)
			} else {
				t.Logf("%d of %d: %v", total, test.limit, calls)
			}
		})
	}
}

// What a burst of tunnels left behind is given back once it is quiet.
func TestCost_MemoryAfterABurst(t *testing.T) {
	needsFull(t)
	addr := internet.Host("burst.test")
	echo := internet.Echo(addr, 80)
	defer echo.Close()
	dir, proxy := aProxy(t, "--internet-host", "burst.test")
	anonymous := func() (kib int) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", proxy.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if n, _ := fmt.Sscanf(line, "Anonymous: %d kB", &kib); n == 1 {
				return kib
			}
		}
		t.Fatalf("%s", data)
		return 0
	}
	before := anonymous()
	var conns []net.Conn
	buf := make([]byte, 200)
	for range 1500 {
		conn := connect(t, filepath.Join(dir, "out.sock"))
		conns = append(conns, conn)
		fmt.Fprintf(conn, "CONNECT burst.test:80 HTTP/1.1\r\nHost: burst.test:80\r\n\r\n")
		if n, err := conn.Read(buf); err != nil || !bytes.Contains(buf[:n], []byte(" 200 ")) {
			t.Fatalf("%v: %q", err, buf[:n])
		}
		conn.Write(buf[:1])
		if _, err := conn.Read(buf[:1]); err != nil {
			t.Fatal(err)
		}
	}
	most := anonymous()
	if most < before+8<<10 {
		t.Errorf("%d tunnels took %d KiB: the test shows nothing", len(conns), most-before)
	}
	for _, conn := range conns {
		conn.Close()
	}
	least := most
	eventually(t, "memory is given back", func() bool {
		least = min(least, anonymous())
		return least < before+(most-before)/4
	})
	t.Logf("%d KiB before, %d with them, %d after", before, most, least)
}

// What a sandbox weighs, it weighs for as long as it is there: its idle
// processes have given back the code of their start.
func TestCost_IdleMemory(t *testing.T) {
	start(t, testnet.Command(testnet.Lnk, byProxy("sandbox", "run", "--internet-host", "a.test", "--", "sh", "-c", "echo up; exec sleep 60")...)).until("up")
	for name, limit := range map[string]int{"sandbox run": 5 << 10, "link-sandbox-proxy": 5 << 10, "/run/lnk/lnk-relay": 3 << 10} {
		kib := 0
		eventually(t, fmt.Sprintf("%s weighs no more than %d KiB", name, limit), func() bool {
			for _, process := range processes() {
				pid, command, _ := strings.Cut(process, " ")
				if !strings.Contains(command, name) {
					continue
				}
				data, _ := os.ReadFile("/proc/" + pid + "/smaps_rollup")
				for line := range strings.Lines(string(data)) {
					fmt.Sscanf(line, "Pss: %d kB", &kib)
				}
			}
			return kib > 0 && kib <= limit
		})
		t.Logf("%s: %d KiB of %d", name, kib, limit)
	}
}
