// Command client is put into sandboxes by the tests: a program with a
// resolver and an HTTP client of its own, which reads no proxy variable.
//
//	client get URL                            the body, or the error
//	client dns NETWORK SIZE NAME TYPE         the answer's code, flags and records
//	client raw HEX…                           what comes back for datagrams to port 53, in hex
//	client names PATTERN N                    asks for N names over UDP, and counts the codes
//	client flood N                            asks N times for one name, many at once: seconds
//	client dial N HOST:PORT | N HOST:PORT via the median of N connects and first bytes, in µs
package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

const server = "127.0.0.1:53"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch args[0] {
	case "get":
		return get(args[1])
	case "dns":
		return ask(args[1:])
	case "raw":
		return raw(args[1:])
	case "names":
		return askNames(args[1], args[2])
	case "flood":
		return flood(args[1], args[2])
	case "dial":
		return dial(args[1:])
	}
	return fmt.Errorf("no %q", args[0])
}

func get(url string) error {
	client := http.Client{Transport: &http.Transport{Proxy: nil}, Timeout: 10 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}

func ask(args []string) error {
	size, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	m := new(dns.Msg).SetQuestion(args[2], dns.StringToType[args[3]])
	if size > 0 {
		m.SetEdns0(uint16(size), false)
	}
	client := dns.Client{Net: args[0], Timeout: 15 * time.Second, UDPSize: 65535}
	reply, _, err := client.Exchange(m, server)
	if err != nil {
		return err
	}
	fmt.Printf("%s tc=%v edns=%v name=%s", dns.RcodeToString[reply.Rcode], reply.Truncated, reply.IsEdns0() != nil, reply.Question[0].Name)
	var lines []string
	for _, rr := range reply.Answer {
		lines = append(lines, strings.Join(strings.Fields(strings.TrimPrefix(rr.String(), rr.Header().Name)), " "))
		if rr.Header().Name != reply.Question[0].Name {
			lines = append(lines, "owner "+rr.Header().Name)
		}
	}
	sort.Strings(lines)
	fmt.Printf(" records=%d\n", len(lines))
	if len(lines) < 10 {
		for _, line := range lines {
			fmt.Println(line)
		}
	}
	return nil
}

func raw(messages []string) error {
	conn, err := net.Dial("udp", server)
	if err != nil {
		return err
	}
	for _, message := range messages {
		data, err := hex.DecodeString(message)
		if err != nil {
			return err
		}
		if _, err := conn.Write(data); err != nil {
			return err
		}
		answer := make([]byte, 65536)
		conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if n, err := conn.Read(answer); err != nil {
			fmt.Println("nothing")
		} else {
			fmt.Printf("%x\n", answer[:n])
		}
	}
	return nil
}

func askNames(pattern, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	conn, err := dns.Dial("udp", server)
	if err != nil {
		return err
	}
	codes := make(map[string]int)
	for i := range n {
		m := new(dns.Msg).SetQuestion(strings.ReplaceAll(pattern, "#", strconv.Itoa(i)), dns.TypeA)
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		if err := conn.WriteMsg(m); err != nil {
			return err
		}
		reply, err := conn.ReadMsg()
		if err != nil {
			return err
		}
		codes[dns.RcodeToString[reply.Rcode]]++
	}
	fmt.Println(codes)
	return nil
}

// flood asks with as many questions under way as a socket's buffer holds.
func flood(name, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	question, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	if err != nil {
		return err
	}
	conn, err := net.Dial("udp", server)
	if err != nil {
		return err
	}
	const window = 64
	start := time.Now()
	answer := make([]byte, 512)
	sent := 0
	for got := 0; got < n; got++ {
		for sent < n && sent-got < window {
			if _, err := conn.Write(question); err != nil {
				return err
			}
			sent++
		}
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := conn.Read(answer); err != nil {
			return err
		}
	}
	fmt.Printf("%.6f\n", time.Since(start).Seconds())
	return nil
}

func dial(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	to := args[1]
	if len(args) > 2 {
		to = "127.0.0.1:40781"
	} else if host, port, err := net.SplitHostPort(to); err == nil {
		addrs, err := net.LookupHost(host)
		if err != nil {
			return err
		}
		to = net.JoinHostPort(addrs[0], port)
	}
	var times []time.Duration
	for range n {
		start := time.Now()
		conn, err := net.Dial("tcp", to)
		if err != nil {
			return err
		}
		if len(args) > 2 {
			fmt.Fprintf(conn, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", args[1])
			head := make([]byte, 0, 200)
			for !strings.HasSuffix(string(head), "\r\n\r\n") {
				one := make([]byte, 1)
				if _, err := conn.Read(one); err != nil {
					return err
				}
				head = append(head, one[0])
			}
		}
		if _, err := conn.Write([]byte("x")); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			return err
		}
		times = append(times, time.Since(start))
		conn.Close()
	}
	slices.Sort(times)
	fmt.Println(times[n/2].Microseconds())
	return nil
}
