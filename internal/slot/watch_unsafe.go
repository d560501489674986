//go:build linux

package slot

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Watcher tells when something is made in a folder: a proxy's control socket,
// the mark that it is bound, a relay's in.sock. Each says by that that it is
// ready, also to a supervisor that was started later and finds it there.
type Watcher struct {
	file *os.File

	mu   sync.Mutex
	told map[int]func(name string)
}

// NewWatcher begins with no folder.
func NewWatcher() (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	w := &Watcher{file: os.NewFile(uintptr(fd), "inotify"), told: make(map[int]func(string))}
	go w.read()
	return w, nil
}

// Close ends all watching.
func (w *Watcher) Close() error { return w.file.Close() }

// Add has told called with the name of whatever is made in a folder, or with ""
// when some names were missed, until the folder is removed. It must not block.
func (w *Watcher) Add(folder string, told func(name string)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	var wd int
	var addErr error
	if err := raw.Control(func(fd uintptr) {
		wd, addErr = unix.InotifyAddWatch(int(fd), folder, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW)
	}); err != nil {
		return err
	}
	if addErr != nil {
		return fmt.Errorf("watching %s: %w (fs.inotify.max_user_watches)", folder, addErr)
	}
	w.told[wd] = told
	return nil
}

func (w *Watcher) read() {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				panic(fmt.Sprintf("bug: inotify: %v", err))
			}
			return
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			event := (*unix.InotifyEvent)(unsafe.Pointer(&rest[0]))
			name := strings.TrimRight(string(rest[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+int(event.Len)]), "\x00")
			rest = rest[unix.SizeofInotifyEvent+int(event.Len):]
			if event.Mask&unix.IN_Q_OVERFLOW != 0 {
				w.tellAll()
				continue
			}
			w.mu.Lock()
			told := w.told[int(event.Wd)]
			if event.Mask&unix.IN_IGNORED != 0 {
				delete(w.told, int(event.Wd))
			}
			w.mu.Unlock()
			if told != nil && event.Mask&unix.IN_IGNORED == 0 {
				told(name)
			}
		}
	}
}

// tellAll has everybody look, since something may have been missed.
func (w *Watcher) tellAll() {
	w.mu.Lock()
	all := slices.Collect(maps.Values(w.told))
	w.mu.Unlock()
	for _, told := range all {
		told("")
	}
}
