package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"link.internal/lnk/integration/testnet"
)

// measured runs this program as the client, beside a sandbox or inside one.
func measured(inside bool, args ...string) func() (float64, error) {
	if inside {
		return measuredWith([]string{"--internet-host", "*"}, args...)
	}
	return printed(append([]string{testnet.BinDir + "/bench"}, args...))
}

// measuredWith runs this program as the client in a sandbox with these flags.
func measuredWith(flags []string, args ...string) func() (float64, error) {
	cmd := append([]string{testnet.Lnk, "sandbox", "run", "--read", testnet.BinDir}, flags...)
	return printed(append(append(cmd, "--", testnet.BinDir+"/bench"), args...))
}

// printed runs a command, with more in its environment, and returns the number
// that it prints.
func printed(command []string, env ...string) func() (float64, error) {
	return func() (float64, error) {
		cmd := testnet.Command(command[0], command[1:]...)
		cmd.Env = append(cmd.Env, env...)
		var errors bytes.Buffer
		cmd.Stderr = &errors
		out, err := cmd.Output()
		if err != nil {
			return 0, fmt.Errorf("%v: %w: %s", command, err, errors.String())
		}
		return strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	}
}

// bigOrigin sends as many bytes as it is asked for, behind what TLS begins with.
func (b *bench) bigOrigin(addr netip.Addr) *testnet.Origin {
	chunk := make([]byte, 1<<20)
	return b.internet.Serve(addr, 443, func(conn net.Conn) {
		defer conn.Close()
		in := bufio.NewReader(conn)
		head := make([]byte, 5) // the record of a ClientHello
		if _, err := io.ReadFull(in, head); err != nil {
			return
		}
		in.Discard(int(head[3])<<8 | int(head[4]))
		line, _ := in.ReadString('\n')
		bytes, _ := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		for ; bytes > 0; bytes -= int64(len(chunk)) {
			if _, err := conn.Write(chunk[:min(bytes, int64(len(chunk)))]); err != nil {
				return
			}
		}
	})
}

func (b *bench) download() error {
	addr := b.internet.Host("big.test")
	chunk := make([]byte, 1<<20)
	raw := b.bigOrigin(addr)
	defer raw.Close()
	web := b.internet.HTTP(addr, 80, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bytes, _ := strconv.ParseInt(strings.TrimPrefix(r.URL.Path, "/"), 10, 64)
		w.Header().Set("Content-Length", strconv.FormatInt(bytes, 10))
		for ; bytes > 0; bytes -= int64(len(chunk)) {
			if _, err := w.Write(chunk[:min(bytes, int64(len(chunk)))]); err != nil {
				return
			}
		}
	}))
	defer web.Close()
	size := strconv.Itoa(amount)
	for _, test := range []struct{ what, how, target, reach string }{
		{"one download through CONNECT, from inside, its server name checked", "connect", "big.test:443", "≥ 50 % of direct, ahead of every proxy without a sandbox"},
		{"the same by `http://`", "http", "big.test:80", "≥ smokescreen"},
	} {
		peers, end, err := b.contenders(test.how == "http", "big.test", "download", test.how, test.target, size)
		if err != nil {
			return err
		}
		direct := []contender{{"direct", measured(false, "download", "direct", addr.String()+":443", size)}}
		err = b.paired(test.what, "GB/s", test.reach, 9, measured(true, "download", test.how, test.target, size), direct, peers...)
		end()
		if err != nil {
			return err
		}
	}
	return nil
}

// amount is how much one download moves.
const amount = 3 << 29

func (b *bench) connections() error {
	// Each run has an address of its own: as many connections to one leave no
	// port free for the next minute, and few make finding one slow.
	const n = "1000"
	fresh := func(run func(target string) func() (float64, error)) func() (float64, error) {
		return func() (float64, error) {
			addr := b.internet.Address()
			echo := b.internet.Echo(addr, 80)
			defer echo.Close()
			return run(addr.String() + ":80")()
		}
	}
	own := b.internet.Host("echo.test")
	echo := b.internet.Echo(own, 80)
	defer echo.Close()
	peers, end, err := b.contenders(false, "echo.test", "connections", "connect", "echo.test:80", n)
	if err != nil {
		return err
	}
	defer end()
	direct := []contender{{"direct", fresh(func(target string) func() (float64, error) {
		return measured(false, "connections", "direct", target, n)
	})}}
	ours := fresh(func(target string) func() (float64, error) {
		return measured(true, "connections", "connect", target, n)
	})
	return b.paired("a new connection: connect, CONNECT, a byte there and back, close", "µs", "≤ 2.5 × direct", 9,
		ours, direct, peers...)
}
