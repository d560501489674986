package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"link.internal/lnk/integration/testnet"
)

// PR1, RUN1: the exit code is the program's, or 128 and its signal.
func TestPR1_ExitCodes(t *testing.T) {
	for _, test := range []struct {
		script string
		want   int
	}{
		{"exit 0", 0}, {"exit 7", 7}, {"exit 127", 127}, {"exit 255", 255},
		{"kill -TERM $$", 143}, {"kill -SEGV $$", 139}, {"kill -KILL $$", 137}, {"kill -INT $$", 130},
	} {
		t.Run(test.script, func(t *testing.T) {
			sandbox(t, nil, test.script).exits(test.want).leavesNothing()
			sandbox(t, []string{"--internet-host", "ok.test"}, test.script).exits(test.want).leavesNothing()
		})
	}
}

func TestRUN1_Codes126And127And125(t *testing.T) {
	lnk(t, "sandbox", "run", "--", "no-such-program").exits(127).says("lnk sandbox:", "no-such-program", "not found")
	lnk(t, "sandbox", "run", "--", "/usr/bin/no-such-program").exits(127).says("not found")
	userFile(t, "plain/data", "x", 0o644)
	lnk(t, "sandbox", "run", "--read", "plain", "--", "plain/data").exits(126).says("lnk sandbox:", "not executable")
	lnk(t, "sandbox", "run", "--", "/usr").exits(126).says("folder")
	userFile(t, "plain/noexec", "no first line", 0o755)
	lnk(t, "sandbox", "run", "--read", "plain", "--", "plain/noexec").exits(126).says("exec format error")
	lnk(t, "sandbox", "run").refusedInOneLine("no program")
}

func TestRUN1_StandardStreams(t *testing.T) {
	cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--", "sh", "-c", "cat; echo err >&2")
	cmd.Stdin = strings.NewReader(strings.Repeat("x", 1<<20))
	r := finish(t, cmd).exits(0)
	if r.stdout != strings.Repeat("x", 1<<20) || r.stderr != "err\n" {
		t.Fatalf("%d bytes of stdout, stderr %q", len(r.stdout), r.stderr)
	}
}

// Arguments and variables are bytes, and reach the program as they are.
func TestRUN1_ArgumentsAreBytes(t *testing.T) {
	odd := "\xff\xfe \n'\"$x"
	lnk(t, "sandbox", "run", "--env", "ODD="+odd, "--", "sh", "-c", `printf '%s|%s|%s' "$1" "$2" "$ODD"`, "sh", odd, "").
		exits(0).prints(odd + "||" + odd)
	// What looks like a flag after the program is the program's.
	lnk(t, "sandbox", "run", "--", "echo", "--write", "/", "--").exits(0).prints("--write / --\n")
	lnk(t, "sandbox", "run", "echo", "--verbose").exits(0).prints("--verbose\n")
}

func TestRUN2_WhatItSees(t *testing.T) {
	userFile(t, "secret.txt", "mine", 0o600)
	userFile(t, ".ssh/id_ed25519", "key", 0o600)
	project := userFolder(t, "project")
	userFile(t, "project/code.txt", "code", 0o644)

	cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--", "sh", "-c", `
		cat code.txt; pwd
		[ -e ~/secret.txt ] && echo LEAK; [ -e ~/.ssh ] && echo LEAK
		ls -A ~ | grep -v '^project$'
		touch ~/mine && echo home-writable
		touch /tmp/mine && echo tmp-writable
		touch code.txt 2>/dev/null && echo LEAK
		touch /etc/x /usr/x /x /run/x 2>/dev/null && echo LEAK
		id -un; whoami
		ls /run
		[ -r /etc/ssl/certs/ca-certificates.crt ] && echo certificates
		[ -d /usr/share/zoneinfo ] && echo zoneinfo
		[ -e /etc/shadow ] && echo LEAK
		ls /sys 2>/dev/null && echo LEAK
		ls /dev | tr '\n' ' '`)
	cmd.Dir = project
	got := finish(t, cmd).exits(0).stdout
	want := "code" + project + "\nhome-writable\ntmp-writable\ntester\ntester\nlnk\ncertificates\nzoneinfo\n"
	dev := "core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero "
	if got != want+dev {
		t.Fatalf("got  %q\nwant %q", got, want+dev)
	}
	if _, err := os.Stat("/tmp/mine"); err == nil {
		t.Error("the sandbox's /tmp is the machine's")
	}
	if _, err := os.Stat(filepath.Join(testnet.Home, "mine")); err == nil {
		t.Error("the sandbox's home is the person's")
	}
}

// The home, / and what holds the home are never brought along as the working folder.
func TestRUN2_WorkingFolderThatIsTooWide(t *testing.T) {
	userFile(t, "secret.txt", "mine", 0o600)
	if err := os.WriteFile("/tmp/others.txt", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	defer os.Remove("/tmp/others.txt")
	for _, dir := range []string{testnet.Home, "/", "/home", "/tmp", "/run", "/etc", "/var"} {
		cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--", "sh", "-c",
			`cat ~/secret.txt /tmp/others.txt /etc/shadow 2>/dev/null; ls -d /run/user /etc/passwd- 2>/dev/null; true`)
		cmd.Dir = dir
		finish(t, cmd).exits(0).prints("")
	}
}

func TestRUN2_ProtectedFolders(t *testing.T) {
	userFile(t, ".lnk/key", "lnk", 0o600)
	userFile(t, "Link/Agents/scout/token", "scout", 0o600)
	userFile(t, "Link/History/log", "log", 0o600)
	userFile(t, "Link/readme", "readme", 0o644)
	script := `cat ~/Link/readme; cat ~/.lnk/key ~/Link/Agents/scout/token ~/Link/History/log 2>/dev/null; true`
	for _, flags := range [][]string{
		{"--read", testnet.Home}, {"--write", testnet.Home}, {"--read", "/"}, {"--read", "/home"}, {"--write", "/home"},
		{"--read", "~"}, {"--read", "Link", "--read", testnet.Home}, {"--read", "Link"},
	} {
		sandbox(t, flags, script).exits(0).prints("readme")
	}
	// Named, or a folder in one: granted.
	sandbox(t, []string{"--read", "Link/Agents"}, `cat ~/Link/Agents/scout/token`).exits(0).prints("scout")
	sandbox(t, []string{"--read", testnet.Home, "--read", "Link/Agents/scout"}, `cat ~/Link/Agents/scout/token; ls ~/Link/Agents; cat ~/Link/History/log 2>/dev/null; true`).
		exits(0).prints("scoutscout\n")
	// ~/.lnk never.
	lnk(t, "sandbox", "run", "--read", ".lnk", "--", "true").refusedInOneLine(".lnk")
	lnk(t, "sandbox", "run", "--read", ".lnk/key", "--", "true").refusedInOneLine(".lnk")
	cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--", "true")
	cmd.Dir = filepath.Join(testnet.Home, "Link/Agents/scout")
	finish(t, cmd).refusedInOneLine("Link/Agents", "--read")
}

// A protected folder can't be got rid of by renaming what is above it, and
// one that isn't there can't be made.
func TestRUN3_ProtectedFoldersCantBeReplaced(t *testing.T) {
	userFile(t, "Link/Agents/scout/token", "scout", 0o600)
	os.RemoveAll(filepath.Join(testnet.Home, ".lnk"))
	os.RemoveAll(filepath.Join(testnet.Home, "Link/History"))
	sandbox(t, []string{"--write", testnet.Home}, `
		mv ~/Link ~/Link2 2>/dev/null && echo LEAK
		mv ~/Link/Agents ~/x 2>/dev/null && echo LEAK
		rmdir ~/Link/Agents 2>/dev/null && echo LEAK
		mkdir -p ~/.lnk/made 2>/dev/null && echo LEAK
		touch ~/Link/History/made 2>/dev/null && echo LEAK
		touch ~/made && echo fine`).exits(0).prints("fine\n")
	for _, path := range []string{".lnk/made", "Link/History/made", "Link2"} {
		if _, err := os.Lstat(filepath.Join(testnet.Home, path)); err == nil {
			t.Errorf("%s was made", path)
		}
	}
	if _, err := os.Stat(filepath.Join(testnet.Home, "Link/Agents/scout/token")); err != nil {
		t.Error(err)
	}
	// A link in its place can't be covered, so the grant is refused.
	os.RemoveAll(filepath.Join(testnet.Home, ".lnk"))
	if err := os.Symlink("/tmp", filepath.Join(testnet.Home, ".lnk")); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(filepath.Join(testnet.Home, ".lnk"))
	lnk(t, "sandbox", "run", "--write", testnet.Home, "--", "true").refusedInOneLine(".lnk")
}

func TestRUN3_Grants(t *testing.T) {
	userFile(t, "a/b/file", "deep", 0o644)
	userFile(t, "a/top", "top", 0o644)
	sandbox(t, []string{"--read", "a"}, `cat ~/a/top; echo x >~/a/top; true`).exits(0).prints("top")
	sandbox(t, []string{"--write", "a"}, `echo new >~/a/top`).exits(0)
	if text, _ := os.ReadFile(filepath.Join(testnet.Home, "a/top")); string(text) != "new\n" {
		t.Errorf("a/top is %q", text)
	}
	// The most specific holds, whatever the order.
	for _, flags := range [][]string{
		{"--write", "a", "--read", "a/b"}, {"--read", "a/b", "--write", "a"},
	} {
		sandbox(t, flags, `touch ~/a/new && echo yes; touch ~/a/b/new 2>/dev/null || echo no; mv ~/a/b ~/a/c 2>/dev/null || echo pinned`).
			exits(0).prints("yes\nno\npinned\n")
	}
	for _, flags := range [][]string{
		{"--read", "a", "--write", "a/b"}, {"--write", "a/b", "--read", "a"},
	} {
		sandbox(t, flags, `touch ~/a/new2 2>/dev/null || echo no; touch ~/a/b/new && echo yes`).exits(0).prints("no\nyes\n")
	}
	// A file alone; a path with a space and a quote; a relative path through ..
	userFile(t, "odd dir'/f", "odd", 0o644)
	sandbox(t, []string{"--read", "odd dir'/f"}, `cat ~/"odd dir'/f"`).exits(0).prints("odd")
	sandbox(t, []string{"--read", "a/b/../b/file"}, `cat ~/a/b/file; ls ~/a`).exits(0).prints("deepb\n")
}

func TestRUN3_BadGrants(t *testing.T) {
	for _, test := range []struct{ flag, path, want string }{
		{"--read", "nope", "doesn't exist"},
		{"--write", "nope/deeper", "doesn't exist"},
		{"--read", "", "needs a path"},
		{"--read", "/proc", "of its own"},
		{"--write", "/dev/shm", "of its own"},
		{"--read", "/root/x", "may not look"},
		{"--write", testnet.BinDir + "/lnk", "lnk's own program"},
	} {
		lnk(t, "sandbox", "run", test.flag, test.path, "--", "true").refusedInOneLine(test.flag, test.want)
	}
	loop := filepath.Join(testnet.Home, "loop")
	if err := os.Symlink("loop", loop); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(loop)
	lnk(t, "sandbox", "run", "--read", "loop", "--", "true").refusedInOneLine("too many links")
}

// lnk's own programs can't be written, whatever is granted.
func TestRUN3_OwnPrograms(t *testing.T) {
	for _, name := range []string{"lnk", "lnk-relay", "link-sandbox-proxy"} {
		path := userFile(t, "tools/bin/"+name, "", 0o755)
		data, err := os.ReadFile(filepath.Join(testnet.BinDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	own := filepath.Join(testnet.Home, "tools/bin/lnk")
	r := finish(t, testnet.Command(own, "sandbox", "run", "--write", "tools", "--", "sh", "-c", `
		for f in lnk lnk-relay link-sandbox-proxy; do
			echo x >~/tools/bin/$f; rm -f ~/tools/bin/$f; mv ~/tools/bin/$f ~/tools/bin/x
		done 2>/dev/null
		mv ~/tools/bin ~/tools/bin2 2>/dev/null && echo LEAK
		touch ~/tools/bin/other && echo fine`)).exits(0)
	r.prints("fine\n")
	finish(t, testnet.Command(own, "sandbox", "run", "--", "true")).exits(0)
}

// RUN3: a program in an ungranted home is refused with what to add.
func TestRUN3_ProgramInTheHome(t *testing.T) {
	userFile(t, ".nvm/versions/node/v1/bin/tool", "#!/bin/sh\ncat \"${0%/*}/../lib/data\"\n", 0o755)
	userFile(t, ".nvm/versions/node/v1/lib/data", "works", 0o644)
	prefix := filepath.Join(testnet.Home, ".nvm/versions/node/v1")
	lnk(t, "sandbox", "run", "--", prefix+"/bin/tool").refusedInOneLine("--read " + prefix)
	lnk(t, "sandbox", "run", "--read", prefix, "--", prefix+"/bin/tool").exits(0).prints("works")
	// A link to it, by PATH.
	userFolder(t, ".local/bin")
	link := filepath.Join(testnet.Home, ".local/bin/tool")
	if err := os.Symlink(prefix+"/bin/tool", link); err != nil {
		t.Fatal(err)
	}
	cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--", "tool")
	cmd.Env = append(cmd.Env, "PATH="+filepath.Dir(link)+":/usr/bin:/bin")
	finish(t, cmd).refusedInOneLine("--read "+link, "--read "+prefix)
	cmd = testnet.Command(testnet.Lnk, "sandbox", "run", "--read", link, "--read", prefix, "--", "sh", "-c", "readlink $(command -v tool)")
	cmd.Env = append(cmd.Env, "PATH="+filepath.Dir(link)+":/usr/bin:/bin")
	finish(t, cmd).exits(0).prints(prefix + "/bin/tool\n")
	// A script whose interpreter lies there.
	userFile(t, "script/run", "#!"+prefix+"/bin/tool\n", 0o755)
	lnk(t, "sandbox", "run", "--read", "script", "--", "script/run").refusedInOneLine("--read " + prefix)
	userFile(t, "script/envrun", "#!/usr/bin/env tool\n", 0o755)
	cmd = testnet.Command(testnet.Lnk, "sandbox", "run", "--read", "script", "--", "script/envrun")
	cmd.Env = append(cmd.Env, "PATH="+filepath.Dir(link)+":/usr/bin:/bin")
	finish(t, cmd).refusedInOneLine("--read " + prefix)
}

func TestRUN5_Environment(t *testing.T) {
	cmd := testnet.Command(testnet.Lnk, "sandbox", "run", "--env", "GIVEN=1", "--env", "PASSED", "--", "env")
	cmd.Env = append(cmd.Env,
		"ANTHROPIC_API_KEY=secret", "AWS_SECRET_ACCESS_KEY=secret", "SSH_AUTH_SOCK=/run/x", "LD_PRELOAD=/x.so", "NODE_OPTIONS=--x",
		"PYTHONSTARTUP=/x", "HTTPS_PROXY=http://other:1", "http_proxy=http://other:1", "PASSED=yes", "TERM=xterm", "LC_ALL=C", "BASH_ENV=/x", "ENV=/x")
	want := fmt.Sprintf("GIVEN=1\nHOME=%s\nLANG=C.UTF-8\nLC_ALL=C\nLOGNAME=tester\nPASSED=yes\nPATH=%s:/usr/local/bin:/usr/bin:/bin\nPWD=%s\nSHELL=/bin/sh\nTERM=xterm\nUSER=tester\n",
		testnet.Home, testnet.BinDir, testnet.Home)
	finish(t, cmd).exits(0).prints(want)

	cmd = testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c", "env | grep -i proxy | sort")
	cmd.Env = append(cmd.Env, "HTTPS_PROXY=http://other:1", "http_proxy=http://other:1", "ftp_proxy=http://other:1", "NO_PROXY=*")
	url, direct := "http://127.0.0.1:40781", "localhost,127.0.0.1,::1"
	finish(t, cmd).exits(0).prints("ALL_PROXY=" + url + "\nHTTPS_PROXY=" + url + "\nHTTP_PROXY=" + url +
		"\nNODE_USE_ENV_PROXY=1\nNO_PROXY=" + direct + "\nall_proxy=" + url + "\nhttp_proxy=" + url + "\nhttps_proxy=" + url + "\nno_proxy=" + direct + "\n")

	lnk(t, "sandbox", "run", "--env", "UNSET_HERE", "--", "true").refusedInOneLine("UNSET_HERE", "isn't set")
	lnk(t, "sandbox", "run", "--env", "=x", "--", "true").refusedInOneLine("--env")
	lnk(t, "sandbox", "run", "--env", "A B=x", "--", "true").refusedInOneLine("--env")
	lnk(t, "sandbox", "run", "--internet-host", "ok.test", "--env", "HTTPS_PROXY", "--", "true").refusedInOneLine("HTTPS_PROXY")
	// What is named reaches the program and nothing on the way to it.
	lnk(t, "sandbox", "run", "--env", "LD_PRELOAD=/nowhere.so", "--env", "GODEBUG=x", "--", "sh", "-c", "echo $GODEBUG").exits(0).prints("x\n")
}

func TestBadFlags(t *testing.T) {
	for _, args := range [][]string{
		{"--no-such-flag"}, {"--internet-host"}, {"--verbose=maybe"},
		{"--internet-host", ""}, {"--internet-host", "a b"}, {"--internet-host", "ok.test:443"}, {"--internet-host", "https://ok.test"},
		{"--internet-host", "*.*.test"}, {"--internet-host", "a*.test"}, {"--internet-host", "127.0.0.1"}, {"--internet-host", "10.0.0.1"},
		{"--internet-host", "[::1]"}, {"--internet-host", "169.254.169.254"}, {"--internet-host", "metadata.google.internal"},
		{"--internet-host", "ok.test", "--tcp", "ok.test"}, {"--internet-host", "ok.test", "--tcp", "ok.test:0"},
		{"--internet-host", "ok.test", "--tcp", "ok.test:65536"}, {"--internet-host", "ok.test", "--tcp", "other.test:22"},
		{"--tcp", "ok.test:22"}, {"--internet-host", "ok.test", "--tcp", "*.test:22"},
		{"--lan-host", "0.0.0.0/0"}, {"--lan-host", "192.168.1.1/24"}, {"--lan-host", "127.0.0.1"}, {"--lan-host", "localhost"}, {"--lan-host", "*.local"},
		{"--wire", "/tmp/w"}, {"--internet-host", "ok.test", "--wire", "/nowhere/w"}, {"--internet-host", "ok.test", "--wire", "/dev/null"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			lnk(t, append(append([]string{"sandbox", "run"}, args...), "--", "touch", "/tmp/started")...).refusedInOneLine()
		})
	}
	finish(t, testnet.Command(testnet.Lnk, "sandbox", "walk")).refusedInOneLine("walk")
	finish(t, testnet.Command(testnet.Lnk, "walk")).refusedInOneLine("walk")
	finish(t, testnet.Command(testnet.Lnk, "sanbox")).refusedInOneLine("did you mean sandbox?")
}
