package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"

	"golang.org/x/sys/unix"
)

// A program after -- runs beside the proxy, and unsandboxed: with nothing of
// what the proxy gives up. So its process is started before that, as this very
// program, and executes it once the proxy serves.
const (
	thenFlag = "--then"
	thenFD   = 3
)

// then waits for the word of the proxy that started it, and becomes a program.
func then(program []string, stderr io.Writer) int {
	word := os.NewFile(thenFD, "the proxy's word")
	if n, _ := word.Read(make([]byte, 1)); n == 0 {
		return exitRefused // the proxy didn't come to serve
	}
	word.Close()
	path, err := exec.LookPath(program[0])
	if err == nil {
		err = unix.Exec(path, program, os.Environ())
	}
	fmt.Fprintf(stderr, "link-sandbox-proxy: %q: %v\n", program[0], err)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, unix.ENOENT) {
		return 127
	}
	return 126
}

// beside is the process of such a program; nil for none.
type beside struct {
	cmd  *exec.Cmd
	word *os.File
	done chan struct{}
}

// startBeside starts it, if there is a program after --.
func startBeside(args []string) (*beside, error) {
	at := slices.Index(args, "--")
	if at < 0 || at == len(args)-1 {
		return nil, nil
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	b := &beside{word: write, done: make(chan struct{})}
	b.cmd = exec.Command("/proc/self/exe", append([]string{thenFlag}, args[at+1:]...)...)
	b.cmd.Args[0] = "link-sandbox-proxy"
	b.cmd.Stdin, b.cmd.Stdout, b.cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	b.cmd.ExtraFiles = []*os.File{read}
	if err := b.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %q: %w", args[at+1], err)
	}
	go func() {
		defer close(b.done)
		b.cmd.Wait()
	}()
	return b, nil
}

// run returns a context that ends with the program, and what gives the word.
func (b *beside) run(ctx context.Context) (context.Context, func()) {
	if b == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		<-b.done
	}()
	return ctx, func() { b.word.Write([]byte{1}) }
}

// end tells a program that still runs to end, and returns its exit code.
func (b *beside) end() int {
	if b == nil {
		return 0
	}
	b.word.Close()
	select {
	case <-b.done:
	default:
		b.cmd.Process.Signal(unix.SIGTERM)
		<-b.done
	}
	if status, ok := b.cmd.ProcessState.Sys().(interface {
		Signaled() bool
		Signal() unix.Signal
	}); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return b.cmd.ProcessState.ExitCode()
}
