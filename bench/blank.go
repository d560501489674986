package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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
	b.rows = append(b.rows, row{"an idle blank proxy (PSS, one alone)", fmt.Sprintf("%.1f MiB", pss), "", "", "≤ 8 MiB"})

	// The control socket takes its user alone.
	if err := unix.Setresuid(-1, testnet.UID, -1); err != nil {
		return err
	}
	const n = 1000
	var sent, whole []float64
	for i := range n {
		if err := asRoot(func() error {
			p, err := startBlank(fmt.Sprintf("blank-%d", i))
			idle = p
			return err
		}); err != nil {
			return err
		}
		s, w, err := idle.bind(fmt.Sprintf(aBind, filepath.Dir(idle.dir)+"/wire"))
		if err != nil {
			return err
		}
		sent, whole = append(sent, s), append(whole, w)
		asRoot(func() error { idle.end(); return nil })
	}
	slices.Sort(sent)
	slices.Sort(whole)
	b.rows = append(b.rows, row{
		"bind, line sent → answer, 1,000 fresh proxies (two routes, a log)", fmt.Sprintf("p50 %.2f ms, p99 %.2f ms", sent[n/2], sent[n*99/100]),
		fmt.Sprintf("with connecting: %.2f, %.2f ms", whole[n/2], whole[n*99/100]), "", "p50 ≤ 1 ms, p99 ≤ 5 ms",
	})
	if err := unix.Setresuid(-1, 0, -1); err != nil {
		return err
	}
	return b.firstAllowedByte()
}

// asRoot does what needs it; all else here is done as the ordinary user.
func asRoot(f func() error) error {
	if err := unix.Setresuid(-1, 0, -1); err != nil {
		return err
	}
	err := f()
	if back := unix.Setresuid(-1, testnet.UID, -1); err == nil {
		err = back
	}
	return err
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
		if err := unix.Setresuid(-1, testnet.UID, -1); err != nil {
			return err
		}
		_, _, err = p.bind(fmt.Sprintf(aBind, filepath.Dir(p.dir)+"/wire"))
		begun := time.Now()
		if back := unix.Setresuid(-1, 0, -1); back != nil || err != nil {
			return fmt.Errorf("%w %w", err, back)
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
	b.rows = append(b.rows, row{"from a bind's answer to the program's first allowed byte", fmt.Sprintf("p50 %.2f ms, p99 %.2f ms", took[len(took)/2], took[len(took)*99/100]), "", "", "≤ 10 ms"})
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
