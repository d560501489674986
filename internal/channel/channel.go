// Package channel is what the runner says to the two processes it starts, the
// proxy outside the sandbox and the relay inside, and what they answer: JSON
// objects, one a line, over one socket pair for each.
//
//	runner                          proxy
//	  ── {"serve":{rules, …}} ───────▶   once, first
//	  ◀─ {"ready":true} ──────────────   it listens in its folder; or {"failed":"…"}
//	  ◀─ {"handed":"127.0.0.1:40781"} ─  it serves a listener made in the sandbox; or {"failed":"…"}
//	  ◀─ {"refused":{code, what, why}}   any number of times, bounded
//	  ── (end of file) ──────────────▶   the run is over
//	  ◀─ {"summary":{…}} ─────────────   last, then it exits
//
//	runner                          relay
//	  ── {"start":{args, env, …}} ───▶   once, first; after the proxy is ready
//	  ◀─ {"here":true} ───────────────   the wall stands; at any time before the next
//	  ◀─ {"started":true} ────────────   the program's execve succeeded; or {"failed":{…}}
//	  ── {"signal":15} ──────────────▶   any number of times
//	  ◀─ {"executed":{path, refused}} ─  a program that isn't listed, or that was learnt
//	  ◀─ {"stopped":20} ──────────────   the program stopped (Ctrl-Z)
//	  ── {"continue":{foreground}} ──▶   fg or bg
//	  ◀─ {"exited":{code, signal}} ───   last, then it exits
//	  ── (end of file) ──────────────▶   the runner is gone: so is the sandbox
//
// The socket is the lifeline too: each end closes it by ending, however it
// ends, and the other end acts on the end of file. Its descriptors are
// close-on-exec everywhere but in the process they are for.
//
// The relay is less trusted than the runner and so is the proxy: what they
// send is bounded here, and what they quote is quoted again before a person
// sees it.
package channel

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/bind"
)

// ToProxy is a message from the runner to the proxy.
type ToProxy struct {
	Serve *Serve `json:"serve,omitempty"`
}

// Serve makes a proxy somebody's.
type Serve struct {
	Binding bind.Binding `json:"binding"`
	// Wire is where the log goes unless the rules say where.
	Wire string `json:"wire,omitempty"`
}

// FromProxy is a message from the proxy to the runner.
type FromProxy struct {
	Ready   bool     `json:"ready,omitempty"`
	Failed  string   `json:"failed,omitempty"`
	Handed  string   `json:"handed,omitempty"`
	Refused *Refused `json:"refused,omitempty"`
	Summary *Summary `json:"summary,omitempty"`
}

// Refused tells of the first refusal of its kind.
type Refused struct {
	Code string `json:"code"`
	// What is host:port in canonical form, or what was sent, quoted.
	What string `json:"what"`
	// Why says what to do.
	Why string `json:"why"`
}

// Summary is what a proxy saw in all.
type Summary struct {
	// Reached and Refused count calls by host:port, the busiest first, at
	// most SummaryRows of each.
	Reached []Row `json:"reached,omitempty"`
	Refused []Row `json:"refused,omitempty"`
	// More counts the hosts left out of either list.
	More int `json:"more,omitempty"`
	// Up and Down are bytes from and to the sandbox.
	Up   int64 `json:"up"`
	Down int64 `json:"down"`
}

// SummaryRows bounds each list of a Summary.
const SummaryRows = 20

// Row is one host:port and how often it was called.
type Row struct {
	What  string `json:"what"`
	Calls int    `json:"calls"`
}

// ToRelay is a message from the runner to the relay.
type ToRelay struct {
	Start  *Start `json:"start,omitempty"`
	Signal int    `json:"signal,omitempty"`
	// Group sends the signal to the program's process group, as a terminal does.
	Group    bool      `json:"group,omitempty"`
	Continue *Continue `json:"continue,omitempty"`
}

// Start is the program to start. Args, Env and Dir are bytes, in base64 on
// the wire, since no kernel asks them to be text.
type Start struct {
	Args [][]byte `json:"args"`
	Env  [][]byte `json:"env"`
	Dir  []byte   `json:"dir"`
	// UID and GID are the caller's own, as the program sees itself.
	UID int `json:"uid"`
	GID int `json:"gid"`
	// Folders are the paths of the socket folders that the descriptors from
	// FolderFD on are opened on. The relay makes in.sock in each.
	Folders [][]byte `json:"folders,omitempty"`
	// Proxy says that a proxy waits in each of them.
	Proxy bool `json:"proxy,omitempty"`
	// Foreground says that the program takes the terminal at its start.
	Foreground bool `json:"foreground,omitempty"`
	// Terminal says that there is a controlling terminal to give and take.
	Terminal bool `json:"terminal,omitempty"`
	// Ignored are the signals that the caller had ignored, as nohup does.
	Ignored []int `json:"ignored,omitempty"`
	// Host says that the network is the machine's own, in which nothing is made.
	Host bool `json:"host,omitempty"`
	// Plain says that the wall is the plain one: the relay has no capability,
	// and is the caller's own uid as the program is.
	Plain bool `json:"plain,omitempty"`
	// Files is the caller's soft limit on descriptors; 0: as the relay has it.
	Files uint64 `json:"files,omitempty"`
	// Writable are the paths in the sandbox that its mounts let be written.
	Writable [][]byte `json:"writable,omitempty"`
	// UserNamespaces says that the program may make its own.
	UserNamespaces bool `json:"user_namespaces,omitempty"`
	// Commands are the programs that may be executed; nil: any.
	Commands *Commands `json:"commands,omitempty"`
	// Mounts are what must lie in the sandbox before anything is started.
	Mounts []Mount `json:"mounts,omitempty"`
}

// Commands are a list of programs.
type Commands struct {
	// Learn allows everything, and tells of it.
	Learn bool `json:"learn,omitempty"`
	// Paths are files and folders that may be executed, Loaders what they are
	// loaded by.
	Paths   []Command `json:"paths,omitempty"`
	Loaders []Command `json:"loaders,omitempty"`
}

// Command is a file, or a folder for all below it, as the runner found it.
type Command struct {
	Path   []byte `json:"path"`
	Folder bool   `json:"folder,omitempty"`
	Dev    uint64 `json:"dev"`
	Ino    uint64 `json:"ino"`
}

// Executed is a program that was refused, or learnt, told of once.
type Executed struct {
	Path    []byte `json:"path"`
	Refused bool   `json:"refused,omitempty"`
	// Unseen says why it couldn't be looked at; Path is then empty.
	Unseen string `json:"unseen,omitempty"`
	// Loader says that it is what listed programs are loaded by.
	Loader bool `json:"loader,omitempty"`
}

// Mount is a file or folder that was granted, as the runner opened it. bwrap
// mounts by path, and a path can come to name another file in between.
type Mount struct {
	Path []byte `json:"path"`
	Dev  uint64 `json:"dev,omitempty"`
	Ino  uint64 `json:"ino,omitempty"`
	// Hidden says that an empty folder of the sandbox's own covers it.
	Hidden bool `json:"hidden,omitempty"`
}

// Continue follows a stop.
type Continue struct {
	// Foreground gives the program the terminal first.
	Foreground bool `json:"foreground,omitempty"`
}

// FromRelay is a message from the relay to the runner.
type FromRelay struct {
	// Here comes first: bwrap has built the wall.
	Here    bool    `json:"here,omitempty"`
	Started bool    `json:"started,omitempty"`
	Failed  *Failed `json:"failed,omitempty"`
	Stopped int     `json:"stopped,omitempty"`
	Exited  *Exited `json:"exited,omitempty"`
	// Executed comes any number of times, bounded.
	Executed *Executed `json:"executed,omitempty"`
}

// Failed says why the program was not started.
type Failed struct {
	// Code is the exit code that follows: 125, 126 or 127.
	Code int    `json:"code"`
	Why  string `json:"why"`
	// NoPowers says that what bwrap gave has no effect here, so that the full
	// wall can't be had, and the plain one may. Nothing was started.
	NoPowers bool `json:"no_powers,omitempty"`
}

// Exited is the program's end: a code, or the signal that ended it.
type Exited struct {
	Code   int `json:"code"`
	Signal int `json:"signal,omitempty"`
}

// The descriptors that the relay and the proxy are started with, after 0, 1
// and 2, which lead to the runner's log.
const (
	// FD is the channel.
	FD = 3
	// StdinFD and the two after it become the program's 0, 1 and 2.
	StdinFD = 4
	// FolderFD is the first socket folder, opened with O_PATH (the relay's
	// only). The others follow, and behind them what bwrap copies.
	FolderFD = 7
)

const (
	// maxFrom bounds a line from a process that a sandbox may have taken over.
	maxFrom = 64 << 10
	// maxTo bounds a line from the runner: the kernel lets args and env be
	// 6 MiB at the very most (execve(2)), 8 MiB in base64.
	maxTo = 9 << 20
)

// Conn is one end of a channel. Send may be called by several goroutines,
// Receive by one.
type Conn struct {
	file *os.File
	in   *bufio.Scanner
	mu   sync.Mutex
}

// NewRunner returns the runner's end.
func NewRunner(file *os.File) *Conn { return newConn(file, maxFrom) }

// NewChild returns the end of the process that the runner started.
func NewChild(file *os.File) *Conn { return newConn(file, maxTo) }

func newConn(file *os.File, limit int) *Conn {
	in := bufio.NewScanner(file)
	in.Buffer(make([]byte, 0, 2048), limit)
	return &Conn{file: file, in: in}
}

// Send writes one message.
func (c *Conn) Send(message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("channel: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("channel: %w", err)
	}
	return nil
}

// Receive reads one message into the struct that message points to, whose
// fields it resets. It returns io.EOF when the other end is gone.
func (c *Conn) Receive(message any) error {
	if !c.in.Scan() {
		err := c.in.Err()
		if err == nil || errors.Is(err, os.ErrClosed) {
			return io.EOF
		}
		return fmt.Errorf("channel: %w", err)
	}
	if err := json.Unmarshal(c.in.Bytes(), message); err != nil {
		return fmt.Errorf("channel: %w", err)
	}
	return nil
}

// Close closes this end, which the other reads as the end.
func (c *Conn) Close() error { return c.file.Close() }

// CloseWrite says that nothing more comes from this end, which the other
// reads as the end, and still receives.
func (c *Conn) CloseWrite() error {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("channel: %w", err)
	}
	var shutErr error
	if err := raw.Control(func(fd uintptr) { shutErr = unix.Shutdown(int(fd), unix.SHUT_WR) }); err != nil {
		return fmt.Errorf("channel: %w", err)
	}
	return shutErr
}

// Pair makes a channel: the runner's end, and the file that the other process
// inherits as descriptor FD.
func Pair() (runner *Conn, child *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("channel: %w", err)
	}
	// This end is polled; the child's is a description of its own.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("channel: %w", err)
	}
	return NewRunner(os.NewFile(uintptr(fds[0]), "channel")), os.NewFile(uintptr(fds[1]), "channel"), nil
}
