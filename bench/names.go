package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"github.com/miekg/dns"

	"link.internal/lnk/integration/testnet"
)

const nameserver = "127.0.0.1:53"

// answers asks n times for one name, with as many questions under way as a
// resolver of many threads has, and returns how many were answered a second.
func answers(name string, n int) (float64, error) {
	question, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	if err != nil {
		return 0, err
	}
	conn, err := net.Dial("udp", nameserver)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	const window = 64
	answer := make([]byte, 512)
	start, sent := time.Now(), 0
	for got := range n {
		for ; sent < n && sent-got < window; sent++ {
			if _, err := conn.Write(question); err != nil {
				return 0, err
			}
		}
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := conn.Read(answer); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(start).Seconds(), nil
}

// manyNames asks for n names that are made up, prints that it is done, and
// stays.
func manyNames(pattern string, n int) (float64, error) {
	conn, err := dns.Dial("udp", nameserver)
	if err != nil {
		return 0, err
	}
	for i := range n {
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		if err := conn.WriteMsg(new(dns.Msg).SetQuestion(fmt.Sprintf(pattern, i), dns.TypeA)); err != nil {
			return 0, err
		}
		if _, err := conn.ReadMsg(); err != nil {
			return 0, err
		}
	}
	fmt.Println("up")
	time.Sleep(time.Minute)
	return 0, nil
}

// firstByte connects n times, by CONNECT or to the name's own address, and
// returns the median time to a byte there and back, in µs.
func firstByte(how, target string, n int) (float64, error) {
	if how == "direct" {
		host, port, _ := net.SplitHostPort(target)
		addrs, err := net.LookupHost(host)
		if err != nil {
			return 0, err
		}
		target = net.JoinHostPort(addrs[0], port)
	}
	var times []float64
	for range n {
		start := time.Now()
		conn, err := opened(how, target)
		if err != nil {
			return 0, err
		}
		times = append(times, float64(time.Since(start).Nanoseconds())/1000)
		conn.Close()
	}
	slices.Sort(times)
	return times[n/2], nil
}

// names measures the sandbox's DNS, and what leads by it.
func (b *bench) names() error {
	addr := b.internet.Host("db.test")
	echo := b.internet.Echo(addr, 5432)
	defer echo.Close()
	endpoint := []string{"--internet-host", "db.test", "--tcp", "db.test:5432"}
	rate, err := repeated(5, measuredWith(endpoint, "answers", "db.test.", "100000"))
	if err != nil {
		return err
	}
	b.add("DNS answers from the table, one socket asking, from inside", figure{Sample: rate, Unit: "/s"}, "≥ 30,000/s")
	if err := b.paired("an endpoint by its name: connect, a byte there and back (p50)", "µs", "≤ 1.3 × CONNECT", 9,
		measuredWith(endpoint, "firstbyte", "direct", "db.test:5432", "1000"), []contender{{"by CONNECT", measuredWith(endpoint, "firstbyte", "connect", "db.test:5432", "1000")}}); err != nil {
		return err
	}
	g := growth{
		What: "Names asked for under one `*`", Of: "names", Columns: []string{"the proxy (PSS), MiB", "of each name, KiB"},
		Grows: "The table of names, which keeps the last 16,384: behind that it is flat.",
	}
	for _, n := range []int{1, 10, 100, 1000, 10000, 100000} {
		size, err := memoryAfterNames(strconv.Itoa(n))
		if err != nil {
			return err
		}
		first := size
		if len(g.Points) > 0 {
			first = g.Points[0].Values[0]
		}
		g.Points = append(g.Points, point{n, []float64{size, max(0, size-first) * 1024 / float64(n)}})
	}
	b.grows(g)
	return nil
}

func memoryAfterNames(n string) (float64, error) {
	cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "*", "--read", testnet.BinDir, "--", testnet.BinDir+"/bench", "names", "%d.a-name-as-long-as-they-are.test.", n)
	if err := startUp(cmd); err != nil {
		return 0, err
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	return pssOf("link-sandbox-proxy")
}

// startUp starts a command and waits until it says that it is up.
func startUp(cmd *exec.Cmd) error {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return err
	}
	return nil
}
