package routes

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const listenBacklog = 512

// listener is a listening socket that nobody but who holds its file can connect
// to. It is never open to others (its mode is 0600 before it has a name), and
// listens only when its name is gone.
type listener struct {
	file *os.File
	at   *os.File // its file, which has no name any more (O_PATH)
}

func listenNameless() (*listener, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	l := &listener{file: os.NewFile(uintptr(fd), "route")}
	fail := func(err error) (*listener, error) {
		l.close()
		return nil, err
	}
	// Through the folder's descriptor, a path is short however deep it lies.
	dir, err := os.OpenFile(tempDir(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer dir.Close()
	name := fmt.Sprintf("/proc/self/fd/%d/lnk-route-%s", dir.Fd(), rand.Text())
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return fail(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		return fail(fmt.Errorf("%s: %w", name, err))
	}
	atFD, err := unix.Open(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	unix.Unlink(name)
	if err != nil {
		return fail(err)
	}
	l.at = os.NewFile(uintptr(atFD), name)
	if err := unix.Listen(fd, listenBacklog); err != nil {
		return fail(err)
	}
	return l, nil
}

// tempDir is TMPDIR where there is one.
func tempDir() string {
	if info, err := os.Stat(os.TempDir()); err == nil && info.IsDir() {
		return os.TempDir()
	}
	return "/tmp"
}

func (l *listener) dial(ctx context.Context) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", l.at.Fd()))
}

// close may be called twice, and on one that is half made.
func (l *listener) close() {
	l.file.Close()
	l.at.Close()
}

// Listeners are some that were made ahead of time: a proxy that is bound is
// waited for, and a socket takes the file system a quarter of that time. The
// nil Listeners has none.
type Listeners struct {
	mu    sync.Mutex
	ready []*listener
}

// NewListeners makes n.
func NewListeners(n int) (*Listeners, error) {
	all := &Listeners{}
	for range n {
		l, err := listenNameless()
		if err != nil {
			all.Close()
			return nil, fmt.Errorf("making a socket for a route's program: %w", err)
		}
		all.ready = append(all.ready, l)
	}
	return all, nil
}

// take returns one that is ready, or makes one.
func (all *Listeners) take() (*listener, error) {
	if all != nil {
		all.mu.Lock()
		defer all.mu.Unlock()
		if last := len(all.ready) - 1; last >= 0 {
			l := all.ready[last]
			all.ready = all.ready[:last]
			return l, nil
		}
	}
	return listenNameless()
}

// Close ends those that nobody took. It returns nil.
func (all *Listeners) Close() error {
	if all == nil {
		return nil
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, l := range all.ready {
		l.close()
	}
	all.ready = nil
	return nil
}
