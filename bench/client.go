package main

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/proxy"
)

// client is this program inside a sandbox or beside one:
//
//	download direct|connect|http HOST:PORT BYTES   prints GB/s; the proxy is HTTPS_PROXY's, or ALL_PROXY's
//	gets PROXY HOST N                              prints requests a second
//	connections direct|connect HOST:PORT N         prints µs each
//	firstbyte direct|connect HOST:PORT N           prints the median in µs
//	await HOST                                     waits for a byte, and gets a page
//	executions N                                   prints µs each
//	answers NAME N                                 prints DNS answers a second
//	nothing                                        ends
//	idle                                           says that it is up, and does nothing
//	web                                            the same, and serves HTTP
//	forward ADDRESS TARGET|CONNECT                 the same, and forwards connections
//	answer                                         answers each line of descriptor 3
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
	case "nothing":
		return
	case "idle":
		fmt.Println("up")
		time.Sleep(time.Minute)
	case "web":
		err = web()
	case "forward":
		err = forward(args[1], args[2])
	case "answer":
		if err = answer(); err == nil {
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

// toProxy connects to the proxy that the environment names, and returns what a
// request to it carries of a user and password.
func toProxy() (conn net.Conn, credentials string, err error) {
	at, err := url.Parse(os.Getenv("HTTPS_PROXY"))
	if err != nil {
		return nil, "", err
	}
	if at.User != nil {
		credentials = "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(at.User.String())) + "\r\n"
	}
	conn, err = net.Dial("tcp", at.Host)
	return conn, credentials, err
}

// open connects directly, or through a proxy: by CONNECT, or by SOCKS.
func open(how, target string) (net.Conn, error) {
	if how == "direct" {
		return net.Dial("tcp", target)
	}
	if at, ok := strings.CutPrefix(os.Getenv("ALL_PROXY"), "socks5h://"); ok && os.Getenv("HTTPS_PROXY") == "" {
		dialer, err := proxy.SOCKS5("tcp", at, nil, nil)
		if err != nil {
			return nil, err
		}
		return dialer.Dial("tcp", target)
	}
	conn, credentials, err := toProxy()
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", target, target, credentials)
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
		conn, credentials, err := toProxy()
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET http://%s/%d HTTP/1.1\r\nHost: %s\r\n%s\r\n", target, bytes, target, credentials)
		response, err := http.ReadResponse(bufio.NewReaderSize(conn, 256<<10), nil)
		if err != nil {
			return 0, err
		}
		if response.StatusCode != http.StatusOK {
			return 0, errors.New(response.Status)
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
	for range n {
		conn, err := opened(how, target)
		if err != nil {
			return 0, err
		}
		conn.Close()
	}
	return float64(time.Since(start).Microseconds()) / float64(n), nil
}

// opened connects, and sends a byte there and back.
func opened(how, target string) (net.Conn, error) {
	conn, err := open(how, target)
	if err != nil {
		return nil, err
	}
	one := []byte{1}
	if _, err = conn.Write(one); err == nil {
		_, err = io.ReadFull(conn, one)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
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
