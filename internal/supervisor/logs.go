package supervisor

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// What a slot's processes write goes to the journal, which bounds it by slot.
// Without a journal it goes to memory that counts as the slot's own, and is cut
// when it has grown: it fills nothing that others need. A supervisor that is
// started later doesn't have it.
const (
	journalSocket  = "/run/systemd/journal/stdout"
	journalctlPath = "/usr/bin/journalctl"
	identifier     = "lnk-slot"
	maxLog         = 1 << 20
	keptLines      = 200
)

// logs are those in memory, by slot.
type logs struct {
	mu    sync.Mutex
	files map[int]*os.File
}

func newLogs() *logs { return &logs{files: make(map[int]*os.File)} }

// open opens where a slot's processes write; nil: nowhere.
func (l *logs) open(number int) *os.File {
	if file, err := openJournal(fmt.Sprintf("%s-%d", identifier, number)); err == nil {
		return file
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	file := l.files[number]
	if file == nil {
		fd, err := unix.MemfdCreate(fmt.Sprintf("%s-%d", identifier, number), unix.MFD_CLOEXEC)
		if err != nil {
			return nil
		}
		// Whoever writes shares this description, and goes on at its end.
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND); err != nil {
			unix.Close(fd)
			return nil
		}
		file = os.NewFile(uintptr(fd), identifier)
		l.files[number] = file
	}
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), identifier)
}

func (l *logs) forget(number int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if file := l.files[number]; file != nil {
		file.Close()
		delete(l.files, number)
	}
}

// openJournal opens a stream to the journal (its header is that of
// sd_journal_stream_fd(3)), as a unit of its own: by it the journal bounds it.
func openJournal(name string) (*os.File, error) {
	conn, err := net.Dial("unix", journalSocket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	const priority, levelPrefix, syslog, kmsg, console = 6, 0, 0, 0, 0
	if _, err := fmt.Fprintf(conn, "%s\n%s.service\n%d\n%d\n%d\n%d\n%d\n", name, name, priority, levelPrefix, syslog, kmsg, console); err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn).File()
}

// cut empties those that have grown.
func (l *logs) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, file := range l.files {
		if info, err := file.Stat(); err == nil && info.Size() > maxLog {
			file.Truncate(0)
		}
	}
}

// read is what a slot's processes wrote last.
func (l *logs) read(ctx context.Context, number int) (string, error) {
	if _, err := os.Stat(journalSocket); err == nil {
		out, err := exec.CommandContext(ctx, journalctlPath, "--no-pager", "-o", "short-iso", "-n", strconv.Itoa(keptLines), "-t", fmt.Sprintf("%s-%d", identifier, number)).Output()
		if err != nil {
			return "", fmt.Errorf("journalctl: %w", err)
		}
		return string(out), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	file := l.files[number]
	if file == nil {
		return "", nil
	}
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(io.NewSectionReader(file, max(0, info.Size()-maxLog), maxLog))
	return string(data), err
}
