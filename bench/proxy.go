package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

// gets measures small requests on one connection, beside a bare
// httputil.ReverseProxy on the machine.
func (b *bench) gets() error {
	addr := b.internet.Host("small.test")
	origin := b.internet.HTTP(addr, 80, nil)
	defer origin.Close()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	bare := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		p.Out.URL.Scheme, p.Out.URL.Host = "http", addr.String()
	}, ErrorLog: log.New(io.Discard, "", 0)}
	go http.Serve(l, bare)
	const n = "15000"
	return b.paired("small `http://` GETs on one connection, from inside", "/s", "", 7,
		measured(true, "gets", proxyAddress, "small.test", n), []contender{{"bare ReverseProxy, no sandbox", measured(false, "gets", l.Addr().String(), "small.test", n)}})
}

// manyTunnels is 10,000, or as many as this machine lets one process have: a
// tunnel takes 6 descriptors of the proxy. Raising the limit takes
// CAP_SYS_RESOURCE.
func manyTunnels() (int, error) {
	const all, of, others = 10000, 6, 500
	enough := unix.Rlimit{Cur: all*of + others, Max: all*of + others}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &enough) == nil {
		return all, nil
	}
	var files unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files)
	return min(all, int(files.Max-others)/of), err
}

// tunnels measures what idle tunnels hold.
func (b *bench) tunnels() error {
	most, err := manyTunnels()
	if err != nil {
		return err
	}
	addr := b.internet.Host("idle.test")
	echo := b.internet.Echo(addr, 80)
	defer echo.Close()
	dir := filepath.Join(testnet.Home, "sockets")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := os.Chown(dir, testnet.UID, testnet.UID); err != nil {
		return err
	}
	cmd := testnet.Command(testnet.Lnk, "sandbox", "proxy", "--dir", dir, "--internet-host", "idle.test")
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		cmd.Process.Signal(unix.SIGTERM)
		cmd.Wait()
	}()
	out := filepath.Join(dir, "out.sock")
	for range 200 {
		if _, err := os.Stat(out); err == nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	holds := func() (memory float64, descriptors int, err error) {
		time.Sleep(2 * time.Second) // idle, as it would be
		if memory, err = pssOf("link-sandbox-proxy"); err != nil {
			return 0, 0, err
		}
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid))
		return memory, len(files), err
	}
	before, files, err := holds()
	if err != nil {
		return err
	}
	g := growth{
		What: "Idle tunnels on one proxy", Of: "tunnels", Columns: []string{"the proxy (PSS), MiB", "of each tunnel, KiB", "descriptors of each", "opening one, µs"},
		Grows: "Two sockets and a pipe for each direction, and two goroutines with their stacks; no buffer is held while nothing comes.",
	}
	var conns []net.Conn
	defer func() {
		for _, conn := range conns {
			conn.Close()
		}
	}()
	for _, n := range []int{1, 10, 100, 1000, most} {
		begun, had := time.Now(), len(conns)
		for len(conns) < n {
			conn, err := idleTunnel(out)
			if err != nil {
				return fmt.Errorf("tunnel %d: %w", len(conns), err)
			}
			conns = append(conns, conn)
		}
		opening := float64(time.Since(begun).Microseconds()) / float64(n-had)
		memory, descriptors, err := holds()
		if err != nil {
			return err
		}
		each, descriptorsEach := (memory-before)*1024/float64(n), float64(descriptors-files)/float64(n)
		g.Points = append(g.Points, point{n, []float64{memory, each, descriptorsEach, opening}})
		if n == most {
			b.add(thousands(n)+" idle tunnels on one proxy, each (10,000, or what RLIMIT_NOFILE allows)", text("%.1f KiB, %.2f descriptors", each, descriptorsEach), "≤ 40 KiB, ≤ 6 descriptors")
		}
	}
	b.grows(g)
	return nil
}

// idleTunnel opens a tunnel by a proxy's socket, and uses it once.
func idleTunnel(out string) (net.Conn, error) {
	conn, err := net.Dial("unix", out)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(conn, "CONNECT idle.test:80 HTTP/1.1\r\nHost: idle.test:80\r\n\r\n")
	buf := make([]byte, 200)
	k, err := conn.Read(buf)
	if err != nil || !strings.Contains(string(buf[:k]), " 200 ") {
		return nil, fmt.Errorf("%w: %s", err, buf[:k])
	}
	// A byte there and back, as a connection that was used has had.
	conn.Write(buf[:1])
	_, err = conn.Read(buf[:1])
	return conn, err
}
