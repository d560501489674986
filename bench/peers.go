package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

// peers are what a user might have instead of lnk, of those that are on PATH.
type peers struct {
	proxies   []peerProxy   // with no sandbox around who uses them
	sandboxes []peerSandbox // which run one command
}

// peerProxy is a proxy that anybody on the machine may use.
type peerProxy struct {
	name string
	env  []string // how a client finds it
	http bool     // it takes http:// requests as well
	cmd  func() *exec.Cmd
	port int
}

// peerSandbox runs a program with no network, or so that it reaches one host.
type peerSandbox struct {
	name string
	// proxied is that one host can be named, and is reached by a proxy of its own.
	proxied bool
	// args are the command line, of a program that may reach host ("": none).
	args func(host string, program ...string) []string
}

const peersFolder = "/srv/peers"

// peersClient is this program in the user's home: not every peer lets what is
// in another folder be executed.
const peersClient = testnet.Home + "/bench"

// findPeers looks for each, and notes which are missing.
func findPeers(r *report) (p peers, err error) {
	if err := os.MkdirAll(peersFolder, 0o755); err != nil {
		return p, err
	}
	if err := os.Chown(peersFolder, testnet.UID, testnet.UID); err != nil {
		return p, err
	}
	self, err := os.ReadFile(testnet.BinDir + "/bench")
	if err == nil {
		err = os.WriteFile(peersClient, self, 0o755)
	}
	if err != nil {
		return p, err
	}
	file := func(name, content string) string {
		path := filepath.Join(peersFolder, name)
		if writeErr := os.WriteFile(path, []byte(content), 0o644); writeErr != nil {
			err = writeErr
		}
		return path
	}
	have := func(name, program string, version ...string) (string, bool) {
		path, lookErr := exec.LookPath(program)
		if lookErr != nil {
			r.Missing = append(r.Missing, missing{Name: name})
			return "", false
		}
		cmd := asUser(path, version...)
		out, _ := cmd.CombinedOutput()
		line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		r.Versions[name] = versionIn(line)
		return path, true
	}
	httpEnv := func(port int) []string {
		return []string{fmt.Sprintf("HTTPS_PROXY=http://127.0.0.1:%d", port)}
	}
	r.Versions["bubblewrap"] = versionIn(firstLine(bwrapPath, "--version"))
	if path, ok := have("tinyproxy", "tinyproxy", "-v"); ok {
		conf := file("tinyproxy.conf", "Port 8101\nListen 127.0.0.1\nMaxClients 1000\nTimeout 600\nLogLevel Critical\n")
		p.proxies = append(p.proxies, peerProxy{"tinyproxy", httpEnv(8101), true, func() *exec.Cmd { return asUser(path, "-d", "-c", conf) }, 8101})
	}
	if path, ok := have("squid", "squid", "-v"); ok {
		conf := file("squid.conf", "http_port 127.0.0.1:8102\nhttp_access allow all\ncache deny all\naccess_log none\ncache_log /dev/null\npid_filename none\nshutdown_lifetime 0 seconds\ncoredump_dir "+peersFolder+"\n")
		p.proxies = append(p.proxies, peerProxy{"squid", httpEnv(8102), true, func() *exec.Cmd { return asUser(path, "-N", "-f", conf) }, 8102})
	}
	if path, ok := have("smokescreen", "smokescreen", "--version"); ok {
		p.proxies = append(p.proxies, peerProxy{"smokescreen", httpEnv(4750), true, func() *exec.Cmd { return asUser(path, "--listen-ip", "127.0.0.1", "--listen-port", "4750") }, 4750})
	}
	if path, ok := have("microsocks", "microsocks", "-h"); ok {
		r.Versions["microsocks"] = packageVersion("microsocks")
		p.proxies = append(p.proxies, peerProxy{"microsocks", []string{"ALL_PROXY=socks5h://127.0.0.1:8103"}, false, func() *exec.Cmd { return asUser(path, "-i", "127.0.0.1", "-p", "8103") }, 8103})
	}
	settings := func(name, host string) string {
		hosts := []string{}
		if host != "" {
			hosts = append(hosts, host)
		}
		data, _ := json.Marshal(map[string]any{
			"network":    map[string]any{"allowedDomains": hosts, "deniedDomains": []string{}},
			"filesystem": map[string]any{"denyRead": []string{}, "allowWrite": []string{"."}, "denyWrite": []string{}},
		})
		return file(name+"-"+host+".json", string(data))
	}
	if path, ok := have("srt", "srt", "--version"); ok {
		p.sandboxes = append(p.sandboxes, peerSandbox{name: "srt", proxied: true, args: func(host string, program ...string) []string {
			return append([]string{path, "--settings", settings("srt", host)}, program...)
		}})
	}
	if path, ok := have("fence", "fence", "--version"); ok {
		p.sandboxes = append(p.sandboxes, peerSandbox{name: "fence", proxied: true, args: func(host string, program ...string) []string {
			return append([]string{path, "--settings", settings("fence", host), "--"}, program...)
		}})
	}
	if path, ok := have("codex", "codex", "--version"); ok {
		p.sandboxes = append(p.sandboxes, peerSandbox{name: "codex", args: func(_ string, program ...string) []string {
			return append([]string{path, "sandbox", "--"}, program...)
		}})
	}
	return p, err
}

// asUser is a command of the ordinary user, who also finds what root has on PATH.
func asUser(name string, args ...string) *exec.Cmd {
	cmd := testnet.Command(name, args...)
	cmd.Env = append(cmd.Env, "PATH="+testnet.BinDir+":"+os.Getenv("PATH"))
	return cmd
}

// versionIn is the word of a line that looks like a version.
func versionIn(line string) string {
	for _, word := range strings.Fields(line) {
		word = strings.TrimPrefix(strings.Trim(word, ",()"), "v")
		if word != "" && word[0] >= '0' && word[0] <= '9' {
			return word
		}
	}
	return "of unknown version"
}

func packageVersion(name string) string {
	out, _ := exec.Command("dpkg-query", "-W", "-f", "${Version}", name).Output()
	return string(out)
}

// await waits until it serves. Nothing but trying tells of somebody else's.
func (p peerProxy) await() error {
	for range 200 {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.port))
		if err == nil {
			return conn.Close()
		}
		time.Sleep(25 * time.Millisecond)
	}
	return fmt.Errorf("%s isn't up", p.name)
}

// contenders starts every proxy that takes what is asked, and returns what their
// clients take part with.
func (b *bench) contenders(http bool, inside string, args ...string) (list []contender, end func(), err error) {
	var running []*exec.Cmd
	end = func() {
		for _, cmd := range running {
			cmd.Process.Signal(unix.SIGTERM)
			cmd.Wait()
		}
	}
	client := append([]string{peersClient}, args...)
	for _, p := range b.peers.proxies {
		if http && !p.http {
			continue
		}
		cmd := p.cmd()
		if err := cmd.Start(); err != nil {
			end()
			return nil, nil, err
		}
		running = append(running, cmd)
		if err := p.await(); err != nil {
			end()
			return nil, nil, err
		}
		list = append(list, contender{p.name + ", no sandbox", printed(client, p.env...)})
	}
	for _, s := range b.peers.sandboxes {
		if s.proxied {
			list = append(list, contender{s.name, printed(s.args(inside, client...), "PATH="+os.Getenv("PATH"))})
		}
	}
	return list, end, nil
}
