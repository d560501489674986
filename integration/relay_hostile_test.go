package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

// wanted is a listener that a proxy asks for.
type wanted struct {
	ID               int
	Network, Address string
}

// all reads everything that the proxy asks for in one message.
func (r *relay) all() []wanted {
	r.t.Helper()
	buf := make([]byte, 16<<10)
	n, err := r.conn.Read(buf)
	if err != nil {
		r.t.Fatal(err)
	}
	var message struct{ Listen []wanted }
	if err := json.Unmarshal(buf[:n], &message); err != nil {
		r.t.Fatal(err)
	}
	return message.Listen
}

// inNamespace makes sockets in a network namespace of their own, and a client
// beside each, which are closed by the caller.
func inNamespace(t *testing.T, list []wanted) (servers, clients map[int]int) {
	t.Helper()
	servers, clients = make(map[int]int), make(map[int]int)
	failed := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		failed <- func() error {
			// The thread comes back: were it ended, so would be what it has started.
			own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(own)
			defer unix.Setns(own, unix.CLONE_NEWNET)
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			control, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(control)
			lo, err := unix.NewIfreq("lo")
			if err != nil {
				return err
			}
			lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
			if err := unix.IoctlIfreq(control, unix.SIOCSIFFLAGS, lo); err != nil {
				return err
			}
			for _, l := range list {
				kind, protocol := unix.SOCK_STREAM, unix.IPPROTO_TCP
				if l.Network == "udp" {
					kind, protocol = unix.SOCK_DGRAM, unix.IPPROTO_UDP
				}
				host, port, _ := net.SplitHostPort(l.Address)
				n, _ := strconv.Atoi(port)
				at := &unix.SockaddrInet4{Port: n}
				copy(at.Addr[:], net.ParseIP(host).To4())
				if servers[l.ID], err = unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, protocol); err != nil {
					return err
				}
				if err := unix.Bind(servers[l.ID], at); err != nil {
					return err
				}
				if l.Network == "tcp" {
					if err := unix.Listen(servers[l.ID], 8); err != nil {
						return err
					}
				}
				if clients[l.ID], err = unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, protocol); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	return servers, clients
}

// usage is a process's threads and its processor time in ticks of 10 ms.
func usage(pid int) (threads, ticks int) {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+2:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	threads, _ = strconv.Atoi(fields[17])
	return threads, user + system
}

// A relay that was taken over shuts the socket down that it handed over: the
// proxy doesn't spin on it.
func TestHandoff_ShutDownSocket(t *testing.T) {
	dir, run := aProxy(t, "--internet-host", "ok.test")
	r := newRelay(t, dir)
	list := r.all()
	servers, clients := inNamespace(t, list)
	for _, l := range list {
		r.send(fmt.Sprintf(`{"listening":%d}`, l.ID), servers[l.ID])
		if l.Network == "udp" {
			time.Sleep(100 * time.Millisecond) // for the proxy to read from it
			unix.SetNonblock(servers[l.ID], false)
			unix.Connect(servers[l.ID], &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}})
			unix.Shutdown(servers[l.ID], unix.SHUT_RD)
		}
	}
	_, before := usage(run.cmd.Process.Pid)
	time.Sleep(time.Second)
	if _, after := usage(run.cmd.Process.Pid); after-before > 20 {
		t.Errorf("it took %d ms of a second", 10*(after-before))
	}
	for _, l := range list {
		unix.Close(servers[l.ID])
		unix.Close(clients[l.ID])
	}
	run.signal(unix.SIGTERM)
	run.wait().exits(0)
}

// Relays that make the sockets blocking which they handed over, and go, leave
// no thread and no descriptor behind.
func TestHandoff_BlockingSockets(t *testing.T) {
	dir, run := aProxy(t, "--internet-host", "ok.test")
	pid := run.cmd.Process.Pid
	round := func() {
		r := newRelay(t, dir)
		list := r.all()
		servers, clients := inNamespace(t, list)
		for _, l := range list {
			r.send(fmt.Sprintf(`{"listening":%d}`, l.ID), servers[l.ID])
		}
		time.Sleep(20 * time.Millisecond)
		for _, l := range list {
			unix.SetNonblock(servers[l.ID], false)
			// Woken by it, the proxy accepts again, and waits in the system call.
			_, port, _ := net.SplitHostPort(l.Address)
			n, _ := strconv.Atoi(port)
			unix.Connect(clients[l.ID], &unix.SockaddrInet4{Port: n, Addr: [4]byte{127, 0, 0, 1}})
			if l.Network == "udp" {
				unix.Write(clients[l.ID], []byte("x"))
			}
		}
		time.Sleep(20 * time.Millisecond)
		r.conn.Close()
		for _, l := range list {
			unix.Close(servers[l.ID])
			unix.Close(clients[l.ID])
		}
	}
	fds := func() int {
		open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		return len(open)
	}
	for range 3 {
		round()
	}
	time.Sleep(100 * time.Millisecond)
	threads, _ := usage(pid)
	before := fds()
	for range 25 {
		round()
	}
	eventually(t, "threads and descriptors are free again", func() bool {
		now, _ := usage(pid)
		return now <= threads+6 && fds() <= before+6
	})
	run.signal(unix.SIGTERM)
	run.wait().exits(0)
}

// A program that fills up what its user may have of descriptors on their way
// between processes takes nothing from another sandbox.
func TestAttack_DescriptorsOnTheirWay(t *testing.T) {
	echo(t, "ok.test", 80)
	flags := []string{"sandbox", "run", "--internet-host", "ok.test", "--internet-host", "*.wild.test"}
	if !testnet.Plain() {
		flags = append(flags, "--tcp", "*.wild.test:7000")
		echo(t, "a.wild.test", 7000)
	}
	victim := start(t, testnet.Command(testnet.Lnk, append(flags, "--", "sh", "-c", "echo up; exec 9<&0; read x; "+connectStatus+py(map[bool]string{false: `talk_to("a.wild.test", 7000)`}[testnet.Plain()])+"\nstatus CONNECT ok.test:80")...))
	victim.until("up")
	attacker := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--", "sh", "-c", "exec 9<&0; "+py(`
import array, os, resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
fds = array.array("i", [os.open("/dev/null", 0)] * 253)
pairs, err = [], None
while err is None and len(pairs) < 3000:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM); a.setblocking(False); pairs.append((a, b))
    for i in range(8):
        try: a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        except BlockingIOError: break
        except OSError as e: err = e; break
print("full", err.errno if err else None, flush=True)
os.read(9, 1)`)))
	attacker.until("full")
	victim.write("\n")
	want := "up\nhello\n200 \n"
	if testnet.Plain() {
		want = "up\n200 \n"
	}
	victim.wait().exits(0).prints(want)
	sandbox(t, okFlags, connectStatus+"status CONNECT ok.test:80").exits(0).prints("200 \n")
	attacker.write("\n")
	attacker.wait().exits(0).prints("full 109\n") // ETOOMANYREFS
}

// RUN1: the program's limits on descriptors are its caller's, but for some of
// the hard one.
func TestRUN1_Limits(t *testing.T) {
	finish(t, testnet.Command("/bin/sh", "-c", "ulimit -Sn 300; ulimit -Hn 4000; exec "+testnet.Lnk+" sandbox run -- sh -c 'ulimit -Sn; ulimit -Hn'")).exits(0).prints("300\n3500\n")
}
