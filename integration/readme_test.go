package integration

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"link.internal/lnk/integration/testnet"
)

// Every example of the README works as it is written, in a folder that has
// the files it names, against sites of those names.
func TestREADME_Examples(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "## Ten examples")
	_, block, _ := strings.Cut(section, "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	var examples []string
	for line := range strings.Lines(block) {
		if strings.HasPrefix(line, "lnk ") {
			examples = append(examples, strings.TrimSpace(line))
		}
	}
	want := map[string]string{ // by a part of the example, a part of what it prints
		"untrusted.py":      "no network\n",
		"curl -sI":          "HTTP/1.1 200",
		"fetch.py":          "hello from example.com\n",
		"./bot":             "hello from api.anthropic.com\n",
		"git clone":         "",
		"wc -l":             "3 " + testnet.Home + "/data/a.csv\n",
		"--env API_KEY":     "1\n",
		"www.example.org":   "hello from www.example.org\n",
		"example.com:8443/": "hello from example.com:8443\n",
		"nas.local":         "hello from nas.local:5000\n",
	}
	if len(examples) != 10 || len(want) != 10 {
		t.Fatalf("%d examples", len(examples))
	}
	site(t, "example.com")
	site(t, "api.anthropic.com")
	site(t, "www.example.org")
	tls := internet.TLS(internet.Host("alt.test"), 8443, nil)
	defer tls.Close()
	internet.DNS.Set("example.com", append(addresses("example.com"), tls.Addr)...)
	nas := netip.MustParseAddr("10.77.0.1")
	internet.DNS.Set("nas.local", nas)
	defer internet.HTTP(nas, 5000, nil).Close()
	defer internet.TLS(internet.Host("github.com"), 443, http.StripPrefix("/me", http.FileServer(http.Dir(gitRepository(t))))).Close()

	dir := userFolder(t, "examples")
	userFile(t, "examples/untrusted.py", `
import socket
try: socket.create_connection(("1.1.1.1", 443), 5)
except OSError: print("no network")`, 0o644)
	userFile(t, "examples/fetch.py", `import urllib.request as u; print(u.urlopen("https://example.com/").read().decode(), end="")`, 0o644)
	userFile(t, "examples/bot", "#!/bin/sh\ncurl -sS https://api.anthropic.com/ | tee answer\n", 0o755)
	userFile(t, "data/a.csv", "1\n2\n3\n", 0o644)
	for _, example := range examples {
		t.Run(example, func(t *testing.T) {
			var part string
			for p := range want {
				if strings.Contains(example, p) && len(p) > len(part) {
					part = p
				}
			}
			cmd := testnet.Command("/bin/sh", "-c", example)
			cmd.Dir = dir
			cmd.Env = append(cmd.Env, "API_KEY=key", "OTHER_KEY=key")
			r := finish(t, cmd).exits(0)
			if part == "" || !strings.Contains(r.stdout, want[part]) {
				t.Errorf("it prints %q, without %q\n%s", r.stdout, want[part], r.stderr)
			}
			delete(want, part)
		})
	}
	if text, err := os.ReadFile(filepath.Join(dir, "repo/file")); string(text) != "content\n" {
		t.Errorf("the clone has %q, %v", text, err)
	}
	if len(wireLog(t, filepath.Join(dir, "calls.jsonl"))) != 2 {
		t.Error("the log has not the two records of one tunnel")
	}
}

// addresses are those of the machine's resolver.
func addresses(name string) []netip.Addr {
	return internet.DNS.Get(name)
}

// gitRepository makes a repository that a plain file server serves as repo.git.
func gitRepository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	script := fmt.Sprintf(`cd %s; export HOME=%s
		git init -q work; cd work; echo content >file; git add file
		git -c user.name=t -c user.email=t@ok.test commit -qm one
		cd ..; git clone -q --bare work repo.git; cd repo.git; git update-server-info`, dir, dir)
	if out, err := exec.Command("/bin/sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// Each test that the docs name is there.
func TestDocs_NameTests(t *testing.T) {
	sources, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, source := range sources {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	docs, _ := filepath.Glob("../docs/*.md")
	named := 0
	for _, doc := range docs {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`Test[A-Z][A-Za-z0-9]*_[A-Za-z0-9]+`).FindAllString(string(text), -1) {
			named++
			if !strings.Contains(all.String(), "func "+name+"(") {
				t.Errorf("%s names %s, which is no test", doc, name)
			}
		}
	}
	if named < 30 {
		t.Errorf("%d tests are named", named)
	}
}
