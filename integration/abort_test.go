package integration

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// NET5: after a thousand rounds of every kind of abort, the proxy has the
// descriptors and goroutines that it began with.
func TestNET5_AbortsLeaveNothing(t *testing.T) {
	addr := internet.Host("ok.test")
	origin := internet.Serve(addr, 80, func(conn net.Conn) {
		defer conn.Close()
		buf := make([]byte, 4096)
		n, _ := conn.Read(buf)
		switch {
		case strings.Contains(string(buf[:n]), "reset"):
			conn.(*net.TCPConn).SetLinger(0)
		case strings.Contains(string(buf[:n]), "short"):
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort")
		case strings.Contains(string(buf[:n]), "garbage"):
			io.WriteString(conn, "garbage\r\n\r\n")
		case strings.Contains(string(buf[:n]), "stream"):
			io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
			for {
				if _, err := conn.Write(buf); err != nil {
					return
				}
			}
		default:
			io.Copy(conn, conn)
		}
	})
	defer origin.Close()
	secure := internet.TLS(addr, 443, nil)
	defer secure.Close()
	dir, run := aProxy(t, "--internet-host", "ok.test")
	out := filepath.Join(dir, "out.sock")
	fds := func() int {
		entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", run.cmd.Process.Pid))
		return len(entries)
	}
	kinds := []func(conn *net.UnixConn){
		func(conn *net.UnixConn) {},
		func(conn *net.UnixConn) { io.WriteString(conn, "CONN") },
		func(conn *net.UnixConn) { io.WriteString(conn, "GET http://ok.test/ HTTP/1.1\r\nHost: x\r\n") },
		func(conn *net.UnixConn) {
			io.WriteString(conn, "POST http://ok.test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf")
		},
		func(conn *net.UnixConn) {
			io.WriteString(conn, "POST http://ok.test/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhalf")
		},
		func(conn *net.UnixConn) { io.WriteString(conn, "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\n\r\n") },
		func(conn *net.UnixConn) {
			io.WriteString(conn, "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\n\r\nreset")
			conn.Read(make([]byte, 100))
		},
		func(conn *net.UnixConn) {
			io.WriteString(conn, "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\n\r\nstream")
			conn.Read(make([]byte, 100))
		},
		func(conn *net.UnixConn) {
			io.WriteString(conn, "CONNECT ok.test:443 HTTP/1.1\r\nHost: x\r\n\r\n\x16\x03\x01\x00\xff\x01")
			conn.Read(make([]byte, 100))
		},
		func(conn *net.UnixConn) {
			io.WriteString(conn, "CONNECT ok.test:443 HTTP/1.1\r\nHost: x\r\n\r\n")
			conn.Read(make([]byte, 100))
			client := tls.Client(conn, &tls.Config{ServerName: "evil.test"})
			client.Handshake()
		},
		func(conn *net.UnixConn) {
			for _, path := range []string{"reset", "short", "garbage", "stream"} {
				io.WriteString(conn, "GET http://ok.test/"+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
				conn.Read(make([]byte, 10))
			}
		},
		func(conn *net.UnixConn) {
			io.WriteString(conn, "CONNECT no.test:443 HTTP/1.1\r\nHost: x\r\n\r\n")
			conn.Read(make([]byte, 10))
		},
		func(conn *net.UnixConn) { io.WriteString(conn, "\x00\x01\x02") },
	}
	round := func(n int) {
		for i := range n {
			conn := connect(t, out).(*net.UnixConn)
			kinds[i%len(kinds)](conn)
			conn.Close()
		}
	}
	round(2 * len(kinds))
	start := fds()
	round(1000)
	eventually(t, "descriptors are flat", func() bool { return fds() <= start+12 })
	// The runtime tells of every goroutine when it is asked to quit.
	http.DefaultClient.CloseIdleConnections()
	time.Sleep(200 * time.Millisecond)
	run.signal(unix.SIGQUIT)
	run.wait()
	if n := strings.Count(run.stderr.String(), "\ngoroutine "); n == 0 || n > 40 {
		t.Errorf("%d goroutines", n)
	}
}
