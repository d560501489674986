// Command client is put into sandboxes by the tests: a program with a
// resolver and an HTTP client of its own, which reads no proxy variable.
//
//	client get URL                            the body, or the error
//	client dns NETWORK SIZE NAME TYPE         the answer's code, flags and records
//	client raw HEX…                           what comes back for datagrams to port 53, in hex
//	client names PATTERN N                    asks for N names over UDP, and counts the codes
package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
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
