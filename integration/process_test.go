package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// running is a command that a test talks with while it runs.
type running struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *transcript
	stderr *transcript
	begun  time.Time
	done   chan error
}

// transcript is what was written so far.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write adds to it.
func (s *transcript) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *transcript) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// start starts a command with pipes.
func start(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	r := &running{t: t, cmd: cmd, out: &transcript{}, stderr: &transcript{}, begun: time.Now(), done: make(chan error, 1)}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.in = in
	cmd.Stdout, cmd.Stderr = r.out, r.stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { r.done <- cmd.Wait() }()
	t.Cleanup(r.end)
	return r
}

// end ends it at the end of a test, so that it leaves nothing to the next.
func (r *running) end() {
	r.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-r.done:
	case <-time.After(8 * time.Second):
		r.cmd.Process.Kill()
	}
}

// until waits for text in what it writes.
func (r *running) until(text string) {
	r.t.Helper()
	defer func() {
		if r.t.Failed() {
			text := r.out.String()
			r.t.Logf("output so far:\n%q", text[max(0, len(text)-2000):])
		}
	}()
	eventually(r.t, fmt.Sprintf("%q in the output", text), func() bool {
		return strings.Contains(r.out.String(), text) || func() bool {
			select {
			case err := <-r.done:
				r.done <- err
				r.t.Fatalf("it ended (%v) without %q; stderr: %.2000s", err, text, r.stderr)
			default:
			}
			return false
		}()
	})
}

func (r *running) write(text string) {
	r.t.Helper()
	if _, err := io.WriteString(r.in, text); err != nil {
		r.t.Fatal(err)
	}
}

func (r *running) signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

// wait waits for its end.
func (r *running) wait() result {
	r.t.Helper()
	var err error
	select {
	case err = <-r.done:
		r.done <- err
	case <-time.After(limit):
		r.t.Fatalf("still running:\n%.2000s\n%.2000s", r.out, r.stderr)
	}
	got := result{t: r.t, stdout: r.out.String(), stderr: r.stderr.String(), took: time.Since(r.begun)}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got.code = exit.ExitCode()
		if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
			got.code = -int(status.Signal())
		}
	}
	return got
}

// terminal starts a command as the leader of a session with a terminal of
// its own, which the test types on.
func terminal(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("/dev/pts/%d", n)
	if err := os.Chown(name, int(cmd.SysProcAttr.Credential.Uid), 5); err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	resize(t, master, 24, 80)
	r := &running{t: t, cmd: cmd, in: master, out: &transcript{}, stderr: &transcript{}, begun: time.Now(), done: make(chan error, 1)}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go io.Copy(r.out, master)
	go func() { r.done <- cmd.Wait() }()
	t.Cleanup(r.end)
	return r
}

func resize(t *testing.T, master *os.File, rows, columns uint16) {
	t.Helper()
	size := struct{ rows, columns, x, y uint16 }{rows, columns, 0, 0}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, master.Fd(), unix.TIOCSWINSZ, uintptr(unsafe.Pointer(&size))); errno != 0 {
		t.Fatal(errno)
	}
}
