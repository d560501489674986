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
	got, base, ratio, err := pairs(7, measured(true, "gets", proxyAddress, "small.test", n), measured(false, "gets", l.Addr().String(), "small.test", n))
	if err != nil {
		return err
	}
	b.rows = append(b.rows, row{"small `http://` GETs on one connection, from inside", fmt.Sprintf("%.0f/s", got), fmt.Sprintf("bare ReverseProxy %.0f/s", base), fmt.Sprintf("%.2f ×", ratio), ""})
	return nil
}

// tunnels measures what idle tunnels hold.
func (b *bench) tunnels() error {
	// As many as the machine lets one process have, 10,000 at most: a tunnel
	// takes 6 descriptors of the proxy.
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	n := min(10000, int(files.Max-500)/6)
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
	before, err := pssOf("link-sandbox-proxy")
	if err != nil {
		return err
	}
	var conns []net.Conn
	defer func() {
		for _, conn := range conns {
			conn.Close()
		}
	}()
	buf := make([]byte, 200)
	for range n {
		conn, err := net.Dial("unix", out)
		if err != nil {
			return err
		}
		conns = append(conns, conn)
		fmt.Fprintf(conn, "CONNECT idle.test:80 HTTP/1.1\r\nHost: idle.test:80\r\n\r\n")
		k, err := conn.Read(buf)
		if err != nil || !strings.Contains(string(buf[:k]), " 200 ") {
			return fmt.Errorf("tunnel %d: %w: %s", len(conns), err, buf[:k])
		}
		// A byte there and back, as a connection that was used has had.
		conn.Write(buf[:1])
		if _, err := conn.Read(buf[:1]); err != nil {
			return err
		}
	}
	time.Sleep(2 * time.Second)
	after, err := pssOf("link-sandbox-proxy")
	if err != nil {
		return err
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid))
	if err != nil {
		return err
	}
	b.rows = append(b.rows, row{
		fmt.Sprintf("%d idle tunnels on one proxy, each (10,000, or what RLIMIT_NOFILE allows)", n),
		fmt.Sprintf("%.1f KiB, %.2f descriptors", (after-before)*1024/float64(n), float64(len(fds))/float64(n)), "", "", "≤ 40 KiB, ≤ 6 descriptors",
	})
	return nil
}
