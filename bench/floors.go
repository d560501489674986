package main

import (
	"fmt"
	"io"
	"net"
	"net/http"

	"link.internal/lnk/integration/testnet"
)

// floors measures what nothing of lnk's kind can be below: programs that do
// no more than such a one must.
func (b *bench) floors() error {
	self := testnet.BinDir + "/bench"
	for _, f := range []struct {
		what    string
		command []string
	}{
		{"floor: `true`, from start to end", []string{"/usr/bin/true"}},
		{"floor: a Go program that does nothing", []string{testnet.BinDir + "/lnk-relay", "nothing"}},
		{"floor: bwrap with one mount and all its namespaces, and true in it", []string{bwrapPath, "--unshare-all", "--ro-bind", "/", "/", "/usr/bin/true"}},
	} {
		s, err := repeated(60, timed(f.command[0], f.command[1:]...))
		if err != nil {
			return err
		}
		b.add(f.what, figure{Sample: s, Unit: "ms"}, "")
	}
	web := func() (pss float64, err error) {
		err = idle([]string{self, "web"}, func(pid int) error {
			pss, err = pssOfPID(pid)
			return err
		})
		return pss, err
	}
	pss, err := repeated(3, web)
	if err != nil {
		return err
	}
	b.add("floor: a Go program that serves HTTP and does nothing else (PSS)", figure{Sample: pss, Unit: "MiB"}, "")

	addr := b.internet.Host("floor.test")
	echo := b.internet.Echo(addr, 80)
	defer echo.Close()
	big := b.bigOrigin(addr)
	defer big.Close()
	const near, nearBig, nearTold = "127.0.0.1:8120", "127.0.0.1:8121", "127.0.0.1:8122"
	return idle([]string{self, "forward", near, addr.String() + ":80"}, func(int) error {
		if err := b.paired("floor: a new connection through a Go program that accepts, connects and copies, no sandbox", "µs", "", 9,
			measured(false, "connections", "direct", near, "1000"), []contender{{"direct", measured(false, "connections", "direct", addr.String()+":80", "1000")}}); err != nil {
			return err
		}
		err := idle([]string{self, "forward", nearTold, "CONNECT"}, func(int) error {
			told := printed([]string{self, "connections", "connect", addr.String() + ":80", "1000"}, "HTTPS_PROXY=http://"+nearTold)
			return b.paired("floor: the same where CONNECT says to where", "µs", "", 9, told, []contender{{"direct", measured(false, "connections", "direct", addr.String()+":80", "1000")}})
		})
		if err != nil {
			return err
		}
		return idle([]string{self, "forward", nearBig, addr.String() + ":443"}, func(int) error {
			size := fmt.Sprint(amount)
			return b.paired("floor: one download through the same", "GB/s", "", 5,
				measured(false, "download", "direct", nearBig, size), []contender{{"direct", measured(false, "download", "direct", addr.String()+":443", size)}})
		})
	})
}

// web is what a bare Go proxy has at least.
func web() error {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("up")
	return http.Serve(l, nil)
}

// forward copies both ways, which Go does by splice(2). For the target CONNECT
// it goes where each client says.
func forward(address, to string) error {
	l, err := net.Listen("tcp4", address)
	if err != nil {
		return err
	}
	fmt.Println("up")
	for {
		near, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer near.Close()
			target := to
			if target == http.MethodConnect {
				head := make([]byte, 4096)
				n, _ := near.Read(head)
				fmt.Sscanf(string(head[:n]), "CONNECT %s ", &target)
			}
			far, err := net.Dial("tcp", target)
			if err != nil {
				return
			}
			defer far.Close()
			if target != to {
				io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n")
			}
			go func() {
				io.Copy(far, near)
				far.(*net.TCPConn).CloseWrite()
			}()
			io.Copy(near, far)
		}()
	}
}
