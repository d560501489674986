package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

// blankProxy is one that was started, and isn't bound yet.
type blankProxy struct {
	cmd          *exec.Cmd
	dir, control string
}

// startBlank starts one in a folder of its own.
func startBlank(name string) (*blankProxy, error) {
	base := filepath.Join(testnet.Home, name)
	p := &blankProxy{dir: base + "/net", control: base + "/control.sock"}
	for _, path := range []string{base, p.dir} {
		if err := os.Mkdir(path, 0o700); err != nil {
			return nil, err
		}
		if err := os.Chown(path, testnet.UID, testnet.UID); err != nil {
			return nil, err
		}
	}
	// The program beside it is started once it serves, and says so.
	p.cmd = testnet.Command(testnet.BinDir+"/link-sandbox-proxy", "--blank", "--control", p.control, "--dir", p.dir, "--", "/bin/sh", "-c", "echo up; exec sleep 600")
	return p, startUp(p.cmd)
}

func (p *blankProxy) end() {
	p.cmd.Process.Signal(unix.SIGTERM)
	p.cmd.Wait()
	os.RemoveAll(filepath.Dir(p.dir))
}

// bind sends a line as the proxy's own user, and returns how long the answer
// took, without and with connecting, in milliseconds.
func (p *blankProxy) bind(line string) (sent, whole float64, err error) {
	begun := time.Now()
	conn, err := net.Dial("unix", p.control)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	at := time.Now()
	if _, err := io.WriteString(conn, line+"\n"); err != nil {
		return 0, 0, err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || answer != "{}\n" {
		return 0, 0, fmt.Errorf("bind: %q, %w", answer, err)
	}
	end := time.Now()
	return end.Sub(at).Seconds() * 1000, end.Sub(begun).Seconds() * 1000, nil
}

// aBind is a line as an agent's would be.
const aBind = `{"internet_host":["api.test","*.git.test","idle.test"],"tcp":["api.test:5432"],"per_minute":600,"pause_after":100,"agent":"scout","wire":%q,` +
	`"routes":[{"prefix":"/model","serve":{"program":["/usr/bin/true"]},"given":{"key":"0123456789abcdef"}},{"prefix":"/tools","serve":{"unix":"/run/tools.sock"}}],"caller":{"name":"scout","key":"0123456789abcdef"},"url_secret":"0123456789abcdef"}`

// binds measures the binding of 1,000 fresh proxies, what an idle blank one
// weighs, and how soon after the answer a program gets its first byte.
func (b *bench) binds() error {
	idle, err := startBlank("idle")
	if err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // idle, as it would be
	pss, err := pssOf("link-sandbox-proxy")
	idle.end()
	if err != nil {
		return err
	}
	b.add("an idle blank proxy (PSS, one alone)", one(pss, "MiB"), "≤ 8 MiB")

	const rounds, of = 20, 50
	var sent, whole, bare []float64
	for range rounds {
		pool, err := b.pool(of)
		if err != nil {
			return err
		}
		err = asBinder(func() error {
			for _, p := range pool {
				s, w, err := p.bind(fmt.Sprintf(aBind, filepath.Dir(p.dir)+"/wire"))
				if err != nil {
					return err
				}
				sent, whole = append(sent, s), append(whole, w)
			}
			return nil
		})
		for _, p := range pool {
			p.end()
		}
		if err != nil {
			return err
		}
	}
	if err := asBinder(func() error { bare, err = bareAnswers(of); return err }); err != nil {
		return err
	}
	for _, values := range [][]float64{sent, whole, bare} {
		slices.Sort(values)
	}
	const n = rounds * of
	b.add("bind, line sent → answer, 1,000 fresh proxies that were idle, as a box's are (two routes, a log)",
		text("p50 %.2f ms, p99 %.2f ms; with connecting %.2f, %.2f ms; a bare Go program that was idle answers a line after %.2f ms", sent[n/2], sent[n*99/100], whole[n/2], whole[n*99/100], bare[of/2]),
		"p50 ≤ 1 ms, p99 ≤ 5 ms")
	return b.firstAllowedByte()
}

// pool starts blank proxies, and waits until they are idle.
func (b *bench) pool(n int) (pool []*blankProxy, err error) {
	for i := range n {
		p, err := startBlank(fmt.Sprintf("blank-%d", i))
		if err != nil {
			return nil, err
		}
		pool = append(pool, p)
	}
	time.Sleep(idleLong)
	return pool, nil
}

// idleLong is as long as a proxy takes to do what it does when nothing is asked of it.
const idleLong = 1500 * time.Millisecond

// asBinder does something as the user whom the control sockets take.
func asBinder(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Setresuid(-1, testnet.UID, -1); err != nil {
		return err
	}
	err := f()
	return errors.Join(err, unix.Setresuid(-1, 0, -1))
}

// bareAnswers measures what no bind can be faster than: programs that read a
// line and answer it, and were idle before.
func bareAnswers(n int) (took []float64, err error) {
	for range n {
		near, far, err := socketPair()
		if err != nil {
			return nil, err
		}
		cmd := exec.Command(testnet.BinDir+"/bench", "answer")
		cmd.ExtraFiles = []*os.File{far}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		far.Close()
		in := bufio.NewReader(near)
		if _, err := in.ReadString('\n'); err != nil { // it is up
			return nil, err
		}
		time.Sleep(idleLong / 10)
		begun := time.Now()
		io.WriteString(near, "{}\n")
		if _, err := in.ReadString('\n'); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begun).Seconds()*1000)
		near.Close()
		cmd.Wait()
	}
	return took, nil
}

func socketPair() (near net.Conn, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	file := os.NewFile(uintptr(fds[0]), "near")
	defer file.Close()
	near, err = net.FileConn(file)
	return near, os.NewFile(uintptr(fds[1]), "far"), err
}

// answer answers each line of descriptor 3, and says one before.
func answer() error {
	conn, err := net.FileConn(os.NewFile(3, "far"))
	if err != nil {
		return err
	}
	in := bufio.NewReader(conn)
	for {
		if _, err := io.WriteString(conn, "{}\n"); err != nil {
			return err
		}
		if _, err := in.ReadString('\n'); err != nil {
			return nil
		}
	}
}

// firstAllowedByte measures from a bind's answer to the first byte that a
// program in a blank sandbox gets of a host that it may now reach.
func (b *bench) firstAllowedByte() error {
	addr := b.internet.Host("idle.test")
	origin := b.internet.HTTP(addr, 80, nil)
	defer origin.Close()
	var took []float64
	for i := range 101 {
		p, err := startBlank(fmt.Sprintf("first-%d", i))
		if err != nil {
			return err
		}
		cmd := testnet.Command(testnet.Lnk, "sandbox", "wrap", "--reach", p.dir, "--read", testnet.BinDir, "--", testnet.BinDir+"/bench", "await", "idle.test")
		in, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		one := make([]byte, 1)
		if _, err := io.ReadFull(out, one); err != nil {
			return fmt.Errorf("the sandbox isn't up: %w", err)
		}
		var begun time.Time
		if err := asBinder(func() error {
			_, _, err := p.bind(fmt.Sprintf(aBind, filepath.Dir(p.dir)+"/wire"))
			begun = time.Now()
			return err
		}); err != nil {
			return err
		}
		in.Write(one)
		if _, err := io.ReadFull(out, one); err != nil {
			return fmt.Errorf("no first byte: %w", err)
		}
		if i > 0 { // the first warms up
			took = append(took, time.Since(begun).Seconds()*1000)
		}
		in.Close()
		cmd.Wait()
		p.end()
	}
	slices.Sort(took)
	b.add("from a bind's answer to the program's first allowed byte", text("p50 %.2f ms, p99 %.2f ms", took[len(took)/2], took[len(took)*99/100]), "≤ 10 ms")
	return nil
}

// await waits for a byte, gets a page through the proxy, and says so at its
// first byte.
func await(host string) error {
	one := []byte{'u'}
	if _, err := os.Stdout.Write(one); err != nil {
		return err
	}
	if _, err := io.ReadFull(os.Stdin, one); err != nil {
		return err
	}
	conn, err := net.Dial("tcp", proxyAddress)
	if err != nil {
		return err
	}
	fmt.Fprintf(conn, "GET http://%[1]s/ HTTP/1.1\r\nHost: %[1]s\r\n\r\n", host)
	head := make([]byte, 12)
	if _, err := io.ReadFull(conn, head); err != nil || string(head) != "HTTP/1.1 200" {
		return fmt.Errorf("%q, %w", head, err)
	}
	os.Stdout.Write(one)
	_, err = io.ReadFull(os.Stdin, one)
	return err
}
