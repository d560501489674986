package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"link.internal/lnk/integration/testnet"
)

// amount is how much one download moves.
const amount = 6 << 30

// client is this program inside a sandbox or beside one:
//
//	download direct|connect|http HOST:PORT BYTES   prints GB/s
//	gets PROXY HOST N                              prints requests a second
//	connections direct|connect HOST:PORT N         prints µs each
//	firstbyte direct|connect HOST:PORT N           prints the median in µs
//	await HOST                                     waits for a byte, and gets a page
//	executions N                                   prints µs each
//	answers NAME N                                 prints DNS answers a second
//	names PATTERN N                                asks for so many, and stays
func client(args []string) {
	var result float64
	var err error
	switch args[0] {
	case "download":
		bytes, _ := strconv.ParseInt(args[3], 10, 64)
		result, err = download(args[1], args[2], bytes)
	case "gets":
		n, _ := strconv.Atoi(args[3])
		result, err = gets(args[1], args[2], n)
	case "connections":
		n, _ := strconv.Atoi(args[3])
		result, err = connections(args[1], args[2], n)
	case "firstbyte":
		n, _ := strconv.Atoi(args[3])
		result, err = firstByte(args[1], args[2], n)
	case "await":
		if err = await(args[1]); err == io.EOF {
			return
		}
	case "executions":
		n, _ := strconv.Atoi(args[1])
		result, err = executions(n)
	case "answers":
		n, _ := strconv.Atoi(args[2])
		result, err = answers(args[1], n)
	case "names":
		n, _ := strconv.Atoi(args[2])
		result, err = manyNames(args[1], n)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	fmt.Println(result)
}

const proxyAddress = "127.0.0.1:40781"

// open connects directly, or through the proxy by CONNECT.
func open(how, target string) (net.Conn, error) {
	if how == "direct" {
		return net.Dial("tcp", target)
	}
	conn, err := net.Dial("tcp", proxyAddress)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	// The far end says nothing before it is spoken to, so all that comes is
	// the answer's head.
	var head []byte
	buf := make([]byte, 4096)
	for !strings.HasSuffix(string(head), "\r\n\r\n") {
		n, err := conn.Read(buf)
		if err != nil {
			return nil, err
		}
		head = append(head, buf[:n]...)
	}
	if !strings.Contains(string(head), " 200 ") {
		return nil, fmt.Errorf("%s", head)
	}
	return conn, nil
}

func download(how, target string, bytes int64) (float64, error) {
	var body io.Reader
	if how == "http" {
		conn, err := net.Dial("tcp", proxyAddress)
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET http://%s/%d HTTP/1.1\r\nHost: %s\r\n\r\n", target, bytes, target)
		response, err := http.ReadResponse(bufio.NewReaderSize(conn, 256<<10), nil)
		if err != nil {
			return 0, err
		}
		body = response.Body
	} else {
		conn, err := open(how, target)
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		// As TLS begins, so that the server's name is checked.
		name, _, _ := strings.Cut(target, ":")
		if _, err := conn.Write(clientHello(name)); err != nil {
			return 0, err
		}
		fmt.Fprintf(conn, "%d\n", bytes)
		body = conn
	}
	start := time.Now()
	buf := make([]byte, 256<<10)
	var got int64
	for got < bytes {
		n, err := body.Read(buf)
		got += int64(n)
		if err != nil && got < bytes {
			return 0, fmt.Errorf("after %d bytes: %w", got, err)
		}
	}
	return float64(got) / 1e9 / time.Since(start).Seconds(), nil
}

// connections connects, sends a byte, gets it back and closes, n times.
func connections(how, target string, n int) (float64, error) {
	start := time.Now()
	one := []byte{1}
	for range n {
		conn, err := open(how, target)
		if err != nil {
			return 0, err
		}
		if _, err := conn.Write(one); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(conn, one); err != nil {
			return 0, err
		}
		conn.Close()
	}
	return float64(time.Since(start).Microseconds()) / float64(n), nil
}

// clientHello is what a TLS client sends first.
func clientHello(name string) []byte {
	near, far := net.Pipe()
	go func() {
		config := &tls.Config{ServerName: name, InsecureSkipVerify: true}
		tls.Client(near, config).Handshake()
	}()
	head := make([]byte, 5)
	io.ReadFull(far, head)
	body := make([]byte, int(head[3])<<8|int(head[4]))
	io.ReadFull(far, body)
	far.Close()
	return append(head, body...)
}

// gets makes n small requests over one kept connection, and returns how many
// a second.
func gets(proxy, target string, n int) (float64, error) {
	conn, err := net.Dial("tcp", proxy)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	request := fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	start := time.Now()
	for range n {
		if _, err := io.WriteString(conn, request); err != nil {
			return 0, err
		}
		response, err := http.ReadResponse(in, nil)
		if err != nil {
			return 0, err
		}
		if response.StatusCode != 200 {
			return 0, fmt.Errorf("status %d", response.StatusCode)
		}
		io.Copy(io.Discard, response.Body)
	}
	return float64(n) / time.Since(start).Seconds(), nil
}

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

// printed runs a command and returns the number that it prints.
func printed(cmd []string) func() (float64, error) {
	return func() (float64, error) {
		out, err := testnet.Command(cmd[0], cmd[1:]...).Output()
		if err != nil {
			return 0, fmt.Errorf("%v: %w", cmd, err)
		}
		return strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	}
}

func (b *bench) download() error {
	addr := b.internet.Host("big.test")
	chunk := make([]byte, 1<<20)
	raw := b.internet.Serve(addr, 443, func(conn net.Conn) {
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
	direct := measured(false, "download", "direct", addr.String()+":443", size)
	for _, test := range []struct{ what, how, target, reach string }{
		{"one download through CONNECT, from inside, its server name checked", "connect", "big.test:443", "≥ 50 % of direct"},
		{"the same by `http://`", "http", "big.test:80", "≥ smokescreen: 1.0 of 3.2 GB/s, 31 %"},
	} {
		got, base, ratio, err := pairs(7, measured(true, "download", test.how, test.target, size), direct)
		if err != nil {
			return err
		}
		b.rows = append(b.rows, row{test.what, fmt.Sprintf("%.2f GB/s", got), fmt.Sprintf("direct %.2f GB/s", base), fmt.Sprintf("%.0f %%", 100*ratio), test.reach})
	}
	return nil
}

func (b *bench) connections() error {
	addr := b.internet.Host("echo.test")
	echo := b.internet.Echo(addr, 80)
	defer echo.Close()
	got, base, ratio, err := pairs(9, measured(true, "connections", "connect", addr.String()+":80", "1000"), measured(false, "connections", "direct", addr.String()+":80", "1000"))
	if err != nil {
		return err
	}
	b.rows = append(b.rows, row{"a new connection: connect, CONNECT, a byte there and back, close", fmt.Sprintf("%.0f µs", got), fmt.Sprintf("direct %.0f µs", base), fmt.Sprintf("%.2f ×", ratio), "≤ 2.5 × direct"})
	return nil
}
