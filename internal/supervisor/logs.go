package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// What a slot's processes write goes to the journal, which bounds it, as
// IDENTIFIER-N; without a journal to a file that is cut when it has grown.
const (
	journalSocket  = "/run/systemd/journal/stdout"
	journalctlPath = "/usr/bin/journalctl"
	identifier     = "lnk-slot"
	maxLog         = 1 << 20
	keptLines      = 200
)

func logPath(folder string, number int) string {
	return filepath.Join(folder, "log", strconv.Itoa(number))
}

// openLog opens where a slot's processes write; nil: nowhere.
func openLog(folder string, number int) *os.File {
	if file, err := openJournal(fmt.Sprintf("%s-%d", identifier, number)); err == nil {
		return file
	}
	if err := os.MkdirAll(filepath.Join(folder, "log"), 0o700); err != nil {
		return nil
	}
	file, err := os.OpenFile(logPath(folder, number), os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil
	}
	return file
}

// openJournal opens a stream to the journal (its header is that of
// sd_journal_stream_fd(3)).
func openJournal(name string) (*os.File, error) {
	conn, err := net.Dial("unix", journalSocket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	const unit, priority, levelPrefix, syslog, kmsg, console = "", 6, 0, 0, 0, 0
	if _, err := fmt.Fprintf(conn, "%s\n%s\n%d\n%d\n%d\n%d\n%d\n", name, unit, priority, levelPrefix, syslog, kmsg, console); err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn).File()
}

// cutLogs empties the files that have grown. They are appended to, so whoever
// writes goes on at their begin.
func cutLogs(folder string) {
	entries, _ := os.ReadDir(filepath.Join(folder, "log"))
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.Size() > maxLog {
			os.Truncate(filepath.Join(folder, "log", e.Name()), 0)
		}
	}
}

// readLog is what a slot's processes wrote last.
func readLog(ctx context.Context, folder string, number int) (string, error) {
	if _, err := os.Stat(journalSocket); err == nil {
		out, err := exec.CommandContext(ctx, journalctlPath, "--no-pager", "-o", "short-iso", "-n", strconv.Itoa(keptLines), "-t", fmt.Sprintf("%s-%d", identifier, number)).Output()
		if err != nil {
			return "", fmt.Errorf("journalctl: %w", err)
		}
		return string(out), nil
	}
	file, err := os.Open(logPath(folder, number))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > maxLog {
		file.Seek(-maxLog, io.SeekEnd)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxLog))
	return string(data), err
}
