package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"link.internal/lnk/integration/testnet"
)

const wholeSpec = `# all that a spec has
read = ["data"]
write = ["out"]
env = ["GREETING=hello"]

[internet]
allow = ["ok.test", "db.test"]
tcp = ["db.test:5432"]
per_minute = 600
pause_after = 50

[lan]
allow = ["nas.local"]

[network]
mode = "proxy"
names = true

[commands]
allow = ["sh", "cat", "curl", "touch", "ls", "python3"]

[wire]
file = "log/calls.jsonl"
agent = "scout"
`

// RUN4: a spec says what flags say, its paths start at its folder, and flags add to it.
func TestRUN4_Spec(t *testing.T) {
	site(t, "ok.test")
	site(t, "more.test")
	dir := userFolder(t, "specs")
	defer os.RemoveAll(dir)
	for _, folder := range []string{"data", "out", "log", "extra"} {
		userFolder(t, "specs/"+folder)
	}
	userFile(t, "specs/data/file", "data\n", 0o644)
	userFile(t, "specs/extra/file", "extra\n", 0o644)
	spec := userFile(t, "specs/app.toml", strings.Replace(wholeSpec, "names = true", fmt.Sprint("names = ", !testnet.Plain()), 1), 0o644)
	script := `cd ~/specs; cat data/file; touch out/made; echo $GREETING; curl -sS http://ok.test/; cat extra/file; curl -s -o /dev/null -w '%{http_code}\n' http://more.test/`
	run := func(flags ...string) result {
		return lnk(t, append(append([]string{"sandbox", "run", "--spec", spec}, flags...), "--", "sh", "-c", script)...)
	}
	run().prints("data\nhello\nhello from ok.test\n403\n")
	run("--read", filepath.Join(dir, "extra"), "--internet-host", "more.test").exits(0).prints("data\nhello\nhello from ok.test\nextra\n200\n")
	if _, err := os.Stat(filepath.Join(dir, "out/made")); err != nil {
		t.Error(err)
	}
	records := wireLog(t, filepath.Join(dir, "log/calls.jsonl"))
	if len(records) == 0 || records[0].Agent != "scout" {
		t.Errorf("the log has %+v", records)
	}
	r := lnk(t, "sandbox", "spec", "check", spec).exits(0)
	if !strings.Contains(r.stdout, "is in order: 3 hosts, 1 endpoints, 2 paths, 6 programs; network proxy\n") {
		t.Errorf("check says %q", r.stdout)
	}
	// What one says and the other denies.
	for flag, want := range map[string][]string{
		"--per-minute=5": {"internet.per_minute", "--per-minute", "600"}, "--agent=other": {"wire.agent", "--agent"}, "--network=none": {"network.mode", "--network"},
		"--upstream=http://127.0.0.1:1": nil,
	} {
		if want == nil {
			continue // the spec says nothing of it, so the flag does
		}
		run(flag).refusedInOneLine(append(want, spec)...)
	}
	run("--per-minute=600").prints("data\nhello\nhello from ok.test\n403\n")
}

// RUN4: what is wrong with a spec names the file, the line, the key and what to do.
func TestRUN4_BadSpecs(t *testing.T) {
	for text, want := range map[string][]string{
		"[internet]\nalow = []\n":           {"line 2", "internet.alow", "did you mean internet.allow"},
		"Read = []\n":                       {"line 1", "Read", "did you mean read"},
		"[Internet]\nallow = []\n":          {"Internet"},
		"read = \"x\"\n":                    {"line 1", "read"},
		"[internet]\nper_minute = \"x\"\n":  {"line 2", "per_minute"},
		"[internet]\nper_minute = -1\n":     {"line 2", "internet.per_minute", "negative"},
		"[internet]\nallow = [\"a.test\"\n": {"line"},
		"read = []\nread = []\n":            {"line 2", "read"},
		"internet = 3\n":                    {"internet"},
		"[network]\nmode = \"none\"\n[internet]\nallow = [\"a.test\"]\n[commands]\nallow=[\"*\"]\n": {"--network none", "contradict"},
		"[network]\nmode = \"some\"\n[commands]\nallow=[\"*\"]\n":                                   {"some", "proxy, none, host"},
		"[internet]\nallow = [\"a b\"]\n[commands]\nallow=[\"*\"]\n":                                {"a b"},
		"[internet]\ntcp = [\"a.test:22\"]\n[commands]\nallow=[\"*\"]\n":                            {"a.test:22", "--internet-host a.test"},
		"[model]\nports = [11434]\n":                                                                {"line 2", "model.ports", "isn't served yet"},
		"ports = [\"808080\"]\n[commands]\nallow=[\"*\"]\n":                                         {"808080", "PORT[:INSIDE]"},
		"[tools]\nuse = [\"gh\"]\n":                                                                 {"tools.use", "isn't served yet"},
		"[browser]\nallow = [\"*\"]\n":                                                              {"browser.allow", "isn't served yet"},
		"read = [\"no-such-folder\"]\n[commands]\nallow=[\"*\"]\n":                                  {"no-such-folder", "doesn't exist"},
		"read = [\"\"]\n": {"read", "empty"},
		"[commands]\nallow = [\"no-such-program\"]\n": {"no-such-program", "[commands] allow"},
		"\x00\xff": {"line 1"},
		"[limits]\nmemory = \"much\"\n[commands]\nallow=[\"*\"]\n": {"much"},
	} {
		spec := userFile(t, "bad.toml", text, 0o644)
		for _, args := range [][]string{{"run", "--spec", spec, "--", "true"}, {"spec", "check", spec}} {
			lnk(t, append([]string{"sandbox"}, args...)...).refusedInOneLine(want...)
		}
	}
	lnk(t, "sandbox", "run", "--spec", "nowhere.toml", "--", "true").refusedInOneLine("nowhere.toml", "no such file")
	lnk(t, "sandbox", "run", "--spec", "no-such-agent", "--", "true").refusedInOneLine("no-such-agent", "no ready spec", "claude-code")
	lnk(t, "sandbox", "run", "--spec", testnet.Home, "--", "true").refusedInOneLine("is no file")
	secret := filepath.Join(testnet.Home, "unreadable.toml")
	os.WriteFile(secret, nil, 0o600)
	defer os.Remove(secret)
	lnk(t, "sandbox", "run", "--spec", secret, "--", "true").refusedInOneLine("permission denied")
}

// RUN4: 200 mutated specs: each is refused in one line that names the file, or
// is a spec.
func TestRUN4_MutatedSpecs(t *testing.T) {
	dir := userFolder(t, "mutated")
	defer os.RemoveAll(dir)
	for _, folder := range []string{"data", "out", "log"} {
		userFolder(t, "mutated/"+folder)
	}
	random := rand.New(rand.NewPCG(7, 7))
	letters := []byte("abcxyz=[]\"'#.,0123456789_-\n \x00\xff")
	for range 200 {
		text := []byte(wholeSpec)
		for range 1 + random.IntN(3) {
			at := random.IntN(len(text))
			switch random.IntN(4) {
			case 0:
				text[at] = letters[random.IntN(len(letters))]
			case 1:
				text = slices.Delete(text, at, min(len(text), at+1+random.IntN(12)))
			case 2:
				text = slices.Insert(text, at, letters[random.IntN(len(letters))])
			case 3:
				text = append(text[:at:at], append([]byte(wholeSpec[random.IntN(len(wholeSpec)):]), text[at:]...)...)
			}
		}
		spec := userFile(t, "mutated/app.toml", string(text), 0o644)
		r := lnk(t, "sandbox", "spec", "check", spec)
		if r.code != 0 && (r.code != 125 || strings.Count(r.stderr, "\n") != 1 || !strings.HasPrefix(r.stderr, "lnk sandbox: ")) || strings.Contains(r.stderr, "goroutine") {
			t.Errorf("exit code %d for\n%s\n%s", r.code, text, r.stderr)
		}
	}
}

// RUN4: the ready specs load, each by its name.
func TestRUN4_ReadySpecs(t *testing.T) {
	r := lnk(t, "sandbox", "spec", "list").exits(0)
	names := strings.Fields(r.stdout)
	for _, want := range []string{"claude-code", "codex", "opencode", "aider", "npm", "pip", "cargo", "git"} {
		if !slices.Contains(names, want) {
			t.Errorf("there is no %s", want)
		}
	}
	for _, name := range names {
		r := lnk(t, "sandbox", "spec", "check", name)
		// A program that isn't installed here is named.
		if r.code != 0 && !strings.Contains(r.stderr, "no program of that name") && !strings.Contains(r.stderr, "no such file") && !strings.Contains(r.stderr, "doesn't see") {
			t.Errorf("%s: %s", name, r.stderr)
		}
	}
	// The folder that it is started in has no say in what a name is.
	hostile := userFile(t, "git", "write = [\"/\"]\n[commands]\nallow = [\"*\"]\n", 0o644)
	defer os.Remove(hostile)
	if r := lnk(t, "sandbox", "spec", "check", "git"); strings.Contains(r.stdout, "1 paths") {
		t.Errorf("a file is taken for the ready spec: %s", r.stdout)
	}
	lnk(t, "sandbox", "run", "--spec", "claude-code", "--write", ".", "--network=proxy", "--", "sh", "-c", "echo $HTTPS_PROXY").refusedOrPrints("http://127.0.0.1:40781\n")
}

// refusedOrPrints is for what depends on the working folder.
func (r result) refusedOrPrints(want string) {
	r.t.Helper()
	if r.code != 125 {
		r.exits(0).prints(want)
	}
}

// RUN10: a home that lasts, and the sandbox's own key in it.
func TestRUN10_Home(t *testing.T) {
	home := filepath.Join(testnet.Home, "agent-home")
	defer os.RemoveAll(home)
	r := lnk(t, "sandbox", "key", home).exits(0)
	if !strings.HasPrefix(r.stdout, "ssh-ed25519 ") {
		t.Fatalf("got %q", r.stdout)
	}
	lnk(t, "sandbox", "key", home).exits(0).prints(r.stdout)
	for path, mode := range map[string]os.FileMode{home: 0o700, home + "/.ssh": 0o700, home + "/.ssh/id_ed25519": 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	flags := []string{"--home", home}
	sandbox(t, flags, `echo kept >~/file; ls -A ~; stat -c %a ~; echo $HOME`).exits(0).prints(".ssh\nfile\n700\n" + testnet.Home + "\n")
	sandbox(t, flags, "cat ~/file; cat ~/.ssh/id_ed25519.pub").exits(0).prints("kept\n" + r.stdout)
	sandbox(t, nil, "ls -A ~").exits(0).prints("")
	// A grant in the person's own home is seen beside it, and no more of that.
	userFile(t, "own/deep/file", "granted\n", 0o644)
	userFile(t, "own/other", "not granted\n", 0o644)
	sandbox(t, append(flags, "--read", testnet.Home+"/own/deep"), "cat ~/own/deep/file; cat ~/own/other; touch ~/own/new; ls ~/own").exits(0).prints("granted\ndeep\nnew\n")
	if _, err := os.Stat(testnet.Home + "/own/new"); err == nil {
		t.Error("the person's own folder was written")
	}
	// Of the person's own home nothing is seen, and a log in the sandbox's is refused.
	userFile(t, "secret", "mine\n", 0o644)
	sandbox(t, flags, "cat ~/secret").exits(1)
	sandbox(t, append(flags, "--internet-host", "ok.test", "--wire", home+"/log"), "true").refusedInOneLine("--wire", "may write")
	os.Chmod(home, 0o755)
	sandbox(t, flags, "true").refusedInOneLine("--home", "chmod 700")
	os.Chmod(home, 0o700)
	os.Chown(home, testnet.Stranger, testnet.Stranger)
	sandbox(t, flags, "true").exits(125)
	os.Chown(home, testnet.UID, testnet.UID)
	for _, bad := range []string{testnet.Home, "/", "/nowhere", "/etc/passwd", "~"} {
		sandbox(t, []string{"--home", bad}, "true").refusedInOneLine("--home")
	}
	spec := userFile(t, "home.toml", "home = \"agent-home\"\n[commands]\nallow = [\"*\"]\n", 0o644)
	lnk(t, "sandbox", "run", "--spec", spec, "--", "cat", testnet.Home+"/file").exits(0).prints("kept\n")
	// The key works where it is known.
	if _, err := os.Stat("/usr/sbin/sshd"); err == nil {
		keys := sshServer(t, "keyed.test")
		public, _ := os.ReadFile(home + "/.ssh/id_ed25519.pub")
		folders, _ := filepath.Glob("/srv/sshd-*")
		os.WriteFile(folders[0]+"/authorized", public, 0o644)
		if out, err := exec.Command("cp", keys+"/known_hosts", home+"/.ssh/known_hosts").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		os.Chown(home+"/.ssh/known_hosts", testnet.UID, testnet.UID)
		sandbox(t, byProxy(append(flags, "--internet-host", "keyed.test", "--tcp", "keyed.test:22")...), "ssh "+testnet.User+"@keyed.test echo in").exits(0).prints("in\n")
	}
}

// NET8: the modes of the network.
func TestNET8_Network(t *testing.T) {
	plain, _ := site(t, "ok.test")
	sandbox(t, []string{"--network", "host"}, fmt.Sprintf("curl -sS http://ok.test/; curl -sS --max-time 5 http://%s/; env | grep -ic proxy; cat /etc/resolv.conf | head -1", plain.Addr)).
		prints(fmt.Sprintf("hello from ok.test\nhello from %s\n0\nnameserver 45.80.255.53\n", plain.Addr))
	sandbox(t, []string{"--network", "none"}, "curl -sS --max-time 5 http://ok.test/ 2>/dev/null; env | grep -ic proxy").prints("0\n")
	sandbox(t, []string{"--network", "proxy"}, "curl -s -o /dev/null -w '%{http_code}\n' http://ok.test/").exits(0).prints("403\n").says("refused ok.test:80")
	for _, mode := range []string{"host", "none"} {
		sandbox(t, []string{"--network", mode, "--internet-host", "ok.test"}, "true").refusedInOneLine("--network "+mode, "contradict")
		sandbox(t, []string{"--network", mode, "--wire", "x.log"}, "true").refusedInOneLine("--wire")
	}
	sandbox(t, []string{"--network", "some"}, "true").refusedInOneLine("some")
	// The rest of the wall holds.
	sandbox(t, []string{"--network", "host"}, "id -u; grep CapEff /proc/self/status | cut -f2; ls -A ~; touch /usr/x 2>/dev/null || echo held; unshare -U true 2>/dev/null || echo held").
		exits(0).prints(fmt.Sprintf("%d\n0000000000000000\nheld\nheld\n", testnet.UID))
}

// RUN8: limits are refused where nothing could hold them.
func TestRUN8_Limits(t *testing.T) {
	for _, bad := range [][]string{{"--memory", "much"}, {"--memory", "1M"}, {"--memory", "-5M"}, {"--processes=-1"}, {"--cpus=-1"}, {"--cpus=0.001"}, {"--memory", "99999999999999T"}} {
		sandbox(t, bad, "true").refusedInOneLine(strings.SplitN(bad[0], "=", 2)[0])
	}
	// The test machine has no systemd; packaging/box/limits.sh has one.
	sandbox(t, []string{"--memory", "512M"}, "touch /tmp/started").refusedInOneLine("limits need", "leave --memory")
}

// explain says what would happen, from the code that decides.
func TestExplain(t *testing.T) {
	dir := userFolder(t, "explained")
	defer os.RemoveAll(dir)
	userFolder(t, "explained/data")
	spec := userFile(t, "explained/app.toml", "read = [\"data\"]\n[internet]\nallow = [\"*.ok.test\", \"db.test\"]\ntcp = [\"db.test:5432\"]\n[commands]\nallow = [\"sh\"]\n", 0o644)
	for what, want := range map[string]string{
		"a.ok.test": "0 a.ok.test:443: reached, by [internet] allow \"*.ok.test\"", "ok.test": "1 ok.test:443: refused (host): add it to [internet] allow (--internet-host ok.test)",
		"db.test:5432": "0 db.test:5432: reached, by [internet] allow \"db.test\" (" + spec + ": line 3) and [internet] tcp \"db.test:5432\" (" + spec + ": line 4)", "db.test:22": "1 db.test:22: refused (port)",
		"127.0.0.1:80": "1 127.0.0.1:80: refused (this-machine)", "sh": "0 /usr/bin/sh: runs, by [commands] allow", "id": "1 refused: /usr/bin/id isn't on the list",
		dir + "/data": "0 " + dir + "/data: read, by the grant of", "~/.ssh": "1", "/usr/bin/id": "1 /usr/bin/id: read, as the system's folders are\nrefused: /usr/bin/id",
	} {
		r := lnk(t, "sandbox", "explain", "--spec", spec, what)
		if got := fmt.Sprintf("%d %s%s", r.code, r.stdout, r.stderr); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	if r := lnk(t, "sandbox", "explain", "--internet-host", "*", "x.test"); r.code != 0 || !strings.Contains(r.stdout, `by [internet] allow "*"`) {
		t.Errorf("got %s", r.stdout)
	}
}

// RUN10: what a program leaves in its home leads neither lnk nor bwrap elsewhere.
func TestRUN10_HostileHome(t *testing.T) {
	home := userFolder(t, "hostile-home")
	defer os.RemoveAll(home)
	os.Chmod(home, 0o700)
	os.Chown(home, testnet.UID, testnet.UID)
	victim := userFolder(t, "victim")
	defer os.RemoveAll(victim)
	project := userFolder(t, "project/sub")
	defer os.RemoveAll(testnet.Home + "/project")
	sandbox(t, []string{"--home", home}, "ln -s /oldroot"+victim+" ~/project; ln -s "+victim+" ~/.ssh").exits(0)
	sandbox(t, []string{"--home", home, "--write", project}, "true").refusedInOneLine("--home", "project", "remove it")
	lnk(t, "sandbox", "key", home).refusedInOneLine("link")
	if entries, _ := os.ReadDir(victim); len(entries) > 0 {
		t.Errorf("%v was made outside", entries)
	}
	os.Remove(home + "/project")
	sandbox(t, []string{"--home", home, "--write", project}, "touch ~/project/sub/made").exits(0)
	if _, err := os.Stat(project + "/made"); err != nil {
		t.Error(err)
	}
	// A public half that the program wrote is not what is printed.
	os.Remove(home + "/.ssh")
	sandbox(t, []string{"--home", home}, "mkdir ~/.ssh; printf '\\033[2Jssh-ed25519 AAAAevil\\n' >~/.ssh/id_ed25519.pub").exits(0)
	if r := lnk(t, "sandbox", "key", home).exits(0); strings.Contains(r.stdout, "evil") || strings.Contains(r.stdout, "\x1b") {
		t.Errorf("got %q", r.stdout)
	}
	// A grant of the home itself, and a home that lasts, are one too many.
	sandbox(t, []string{"--home", home, "--read", testnet.Home}, "true").refusedInOneLine("--home", "leave one out")
}
