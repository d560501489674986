package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const connectUsage = `usage: lnk-relay connect HOST:PORT
       lnk-relay connect HOST PORT

Leads standard input and output to a host through the sandbox's proxy, for
programs that use none themselves but take a command: ssh has it preset as
its ProxyCommand.`

// proxyPort is where the proxy is, on 127.0.0.1.
const proxyPort = 40781

// maxHead bounds the head of the proxy's answer.
const maxHead = 16 << 10

// connect asks the proxy for a tunnel (RFC 9110, section 9.3.6) and copies
// both ways until the far end is done. It returns the exit code.
func connect(args []string) int {
	target, ok := connectTarget(args)
	if !ok {
		fmt.Fprintln(os.Stderr, connectUsage)
		return exitRefused
	}
	if err := connectTo(target); err != nil {
		fmt.Fprintf(os.Stderr, "lnk-relay: %v\n", err)
		return 1
	}
	return 0
}

func connectTarget(args []string) (string, bool) {
	switch {
	case len(args) == 1 && strings.Contains(args[0], ":"):
		return args[0], !strings.ContainsAny(args[0], " \r\n")
	case len(args) == 2:
		host := args[0]
		if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
			host = "[" + host + "]"
		}
		target := host + ":" + args[1]
		return target, !strings.ContainsAny(target, " \r\n")
	}
	return "", false
}

func connectTo(target string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("connecting to %q: %w", target, err)
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: proxyPort, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return fmt.Errorf("connecting to %q: the sandbox has no proxy: %w", target, err)
	}
	proxy := os.NewFile(uintptr(fd), "proxy")
	if _, err := fmt.Fprintf(proxy, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", target); err != nil {
		return fmt.Errorf("connecting to %q: %w", target, err)
	}
	early, err := readAnswer(proxy)
	if err != nil {
		return err
	}
	go func() {
		io.Copy(proxy, os.Stdin)
		unix.Shutdown(fd, unix.SHUT_WR)
	}()
	if _, err := os.Stdout.Write(early); err != nil {
		return err
	}
	if _, err := io.Copy(os.Stdout, proxy); err != nil {
		return fmt.Errorf("%q: %w", target, err)
	}
	return nil
}

// readAnswer reads the head of the proxy's answer, and returns what came
// behind it. A refusal is an error with the proxy's own words.
func readAnswer(proxy io.Reader) (early []byte, err error) {
	var answer []byte
	buf := make([]byte, 4096)
	for {
		n, err := proxy.Read(buf)
		answer = append(answer, buf[:n]...)
		head, rest, whole := bytes.Cut(answer, []byte("\r\n\r\n"))
		if whole {
			status, _, _ := bytes.Cut(head, []byte("\r\n"))
			if bytes.HasPrefix(status, []byte("HTTP/1.1 200 ")) {
				return rest, nil
			}
			why, _ := io.ReadAll(io.LimitReader(proxy, maxHead))
			why = append(rest, why...)
			if line, _, _ := bytes.Cut(why, []byte("\n")); len(line) > 0 {
				return nil, fmt.Errorf("%s", line)
			}
			return nil, fmt.Errorf("the proxy answered %q", status)
		}
		if err != nil {
			return nil, fmt.Errorf("the proxy closed the connection: %w", err)
		}
		if len(answer) > maxHead {
			return nil, errors.New("the proxy's answer has no end")
		}
	}
}
