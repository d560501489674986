// Package integration tests lnk as a person meets it: real programs, run by
// an ordinary user, in a real sandbox, against a small internet (testnet).
// Each test bears the id of the promise that it shows, and fails when the
// promise is broken. None imports a package of lnk's.
package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"link.internal/lnk/integration/testnet"
)

// internet is there for all tests.
var internet *testnet.Internet

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("integration: skipped: the test machine needs root, to make namespaces: sudo make root-test")
		return 0
	}
	bin := os.Getenv("LNK_BIN")
	if bin == "" {
		dir, err := os.MkdirTemp("", "lnk-bin-")
		if err != nil {
			return fail(err)
		}
		defer os.RemoveAll(dir)
		build := exec.Command("go", "build", "-tags", "nethttpomithttp2", "-o", dir+"/", "../cmd/...")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return fail(err)
		}
		bin = dir
		os.Setenv("LNK_BIN", bin) // for the same program in the namespaces
	}
	if !testnet.Inside() {
		// The tests' own client is built here, since the machine may have its
		// /tmp over the source.
		build := exec.Command("go", "build", "-o", filepath.Join(bin, "client"), "./client")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return fail(err)
		}
	}
	entered, code, err := testnet.Reexec(bin)
	if err != nil {
		return fail(err)
	}
	if !entered {
		return code
	}
	if internet, err = testnet.New(); err != nil {
		return fail(err)
	}
	return m.Run()
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "integration:", err)
	return 1
}

// needsFull leaves out a test of what the plain wall doesn't have.
func needsFull(t *testing.T) {
	t.Helper()
	if testnet.Plain() {
		t.Skip("this machine's wall is the plain one")
	}
}

// byProxy is what a run is given whose endpoints are only the proxy's: the
// plain wall refuses those that it could have no name for.
func byProxy(flags ...string) []string {
	if testnet.Plain() {
		return append(flags, "--names=false")
	}
	return flags
}

// result is how a command ended and what it wrote.
type result struct {
	t              *testing.T
	code           int
	stdout, stderr string
	took           time.Duration
}

// limit bounds every command.
const limit = 60 * time.Second

// lnk runs lnk as the ordinary user, in its home.
func lnk(t *testing.T, args ...string) result {
	t.Helper()
	return finish(t, testnet.Command(testnet.Lnk, args...))
}

// sandbox runs a shell script in a sandbox with these flags.
func sandbox(t *testing.T, flags []string, script string) result {
	t.Helper()
	return lnk(t, append(append([]string{"sandbox", "run"}, flags...), "--", "sh", "-c", script)...)
}

// finish runs a command to its end.
func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &stderr
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		cmd.Process.Kill()
		t.Fatalf("%v: still running after %v\nstdout: %s\nstderr: %s", cmd.Args, limit, &stdout, &stderr)
	}
	r := result{t: t, stdout: stdout.String(), stderr: stderr.String(), took: time.Since(start)}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		r.code = exit.ExitCode()
		if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
			r.code = -int(status.Signal())
		}
	case err != nil:
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return r
}

// exits wants an exit code.
func (r result) exits(code int) result {
	r.t.Helper()
	if r.code != code {
		r.t.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", r.code, code, r.stdout, r.stderr)
	}
	return r
}

// prints wants stdout to be exactly this.
func (r result) prints(want string) result {
	r.t.Helper()
	if r.stdout != want {
		r.t.Fatalf("stdout is %q, want %q\nstderr: %s", r.stdout, want, r.stderr)
	}
	return r
}

// says wants stderr to have a line that holds all of these.
func (r result) says(parts ...string) result {
	r.t.Helper()
lines:
	for line := range strings.Lines(r.stderr) {
		for _, part := range parts {
			if !strings.Contains(line, part) {
				continue lines
			}
		}
		return r
	}
	r.t.Fatalf("stderr has no line with %q:\n%s", parts, r.stderr)
	return r
}

// refusedInOneLine wants lnk's own refusal: exit code 125, nothing on stdout,
// one line on stderr (and one that points at --help) that holds these parts.
func (r result) refusedInOneLine(parts ...string) result {
	r.t.Helper()
	r.exits(125).prints("")
	lines := strings.Split(strings.TrimSuffix(r.stderr, "\n"), "\n")
	if len(lines) > 2 || len(lines) == 2 && !strings.Contains(lines[1], "--help") || !strings.HasPrefix(lines[0], "lnk sandbox: ") {
		r.t.Fatalf("not one clear line:\n%s", r.stderr)
	}
	for _, part := range parts {
		if !strings.Contains(lines[0], part) {
			r.t.Fatalf("the line lacks %q: %s", part, lines[0])
		}
	}
	return r.leavesNothing()
}

// leavesNothing wants no run folder and no process of the user's to be left.
func (r result) leavesNothing() result {
	r.t.Helper()
	if left := runFolders(); len(left) > 0 {
		r.t.Fatalf("folders are left: %v", left)
	}
	if left := processes(); len(left) > 0 {
		r.t.Fatalf("processes are left: %v", left)
	}
	return r
}

func runFolders() []string {
	var left []string
	for _, base := range []string{fmt.Sprintf("/run/user/%d/lnk", testnet.UID), "/tmp"} {
		for _, prefix := range []string{"lnk-run-", "lnk-new-"} {
			found, _ := filepath.Glob(filepath.Join(base, prefix+"*"))
			left = append(left, found...)
		}
	}
	return left
}

// processes are the ordinary user's, as "pid command", zombies left out.
func processes() []string {
	var found []string
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range entries {
		status, err := os.ReadFile(filepath.Join(dir, "status"))
		if err != nil || !strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t", testnet.UID)) || strings.Contains(string(status), "State:\tZ") {
			continue
		}
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		found = append(found, filepath.Base(dir)+" "+clip(strings.ReplaceAll(string(command), "\x00", " ")))
	}
	return found
}

// eventually waits for a condition, for a few seconds at most.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(8 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// userFile makes a file in the ordinary user's home, with its folders.
func userFile(t *testing.T, path, text string, mode os.FileMode) string {
	t.Helper()
	if !filepath.IsAbs(path) {
		path = filepath.Join(testnet.Home, path)
	}
	userFolder(t, filepath.Dir(path))
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, testnet.UID, testnet.UID); err != nil {
		t.Fatal(err)
	}
	return path
}

// userFolder makes a folder of the ordinary user's.
func userFolder(t *testing.T, path string) string {
	t.Helper()
	if !filepath.IsAbs(path) {
		path = filepath.Join(testnet.Home, path)
	}
	for at := path; at != "/"; at = filepath.Dir(at) {
		if _, err := os.Stat(at); err == nil {
			break
		}
		defer func() { os.Chown(at, testnet.UID, testnet.UID) }()
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func clip(text string) string { return text[:min(len(text), 60)] }
