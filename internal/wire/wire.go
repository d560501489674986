// Package wire is the log of every call a sandbox made: one JSON object a
// line, one append a record, in a file of mode 0600.
//
// A record never holds a key, a placeholder, a URL secret or a query string:
// Record has no field that could, and Path is cut at its query. A record
// that could not be written is missing, and the gap shows in seq: a full disk
// stops no traffic.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Verdict is what became of a call.
type Verdict string

// A tunnel has two records, open and end. Any other call has one.
const (
	Allowed Verdict = "allowed"
	Refused Verdict = "refused"
	Open    Verdict = "open"
	End     Verdict = "end"
)

// Record is one line. Absent fields are left out.
type Record struct {
	Seq     uint64    `json:"seq"`
	Time    time.Time `json:"time"`
	Agent   string    `json:"agent,omitempty"`
	From    string    `json:"from"`
	Method  string    `json:"method,omitempty"`
	Host    string    `json:"host,omitempty"`
	Port    uint16    `json:"port,omitempty"`
	Path    string    `json:"path,omitempty"`
	Verdict Verdict   `json:"verdict"`
	Reason  string    `json:"reason,omitempty"`
	Address string    `json:"address,omitempty"`
	Status  int       `json:"status,omitempty"`
	Up      int64     `json:"up,omitempty"`
	Down    int64     `json:"down,omitempty"`
	// MS is how long the call took, in milliseconds.
	MS int64 `json:"ms"`
}

// maxField bounds each text of a record that a sandbox chose.
const maxField = 1024

// Log appends records. The zero value, and nil, keep none.
type Log struct {
	agent string
	path  string
	limit int64

	mu   sync.Mutex
	file *os.File
	size int64
	seq  uint64
}

// Rotated is what the file before the current one is called.
func Rotated(path string) string { return path + ".1" }

// OpenLog opens path for appending, or creates it with mode 0600. A file that
// others could write, or that is another user's, is refused: its lines would
// prove nothing. A file that would grow over limit bytes becomes Rotated,
// in place of an earlier one, and a new one begins.
func OpenLog(path, agent string, limit int64) (*Log, error) {
	file, size, err := openFile(path)
	if err != nil {
		return nil, err
	}
	return &Log{file: file, size: size, agent: agent, path: path, limit: limit}, nil
}

func openFile(path string) (file *os.File, size int64, err error) {
	file, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("opening the wire log: %w", err)
	}
	if size, err = checkFile(file); err == nil && unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		// Two would number their records alike, and rotate each other's away.
		err = errors.New("another proxy logs there")
	}
	if err != nil {
		file.Close()
		return nil, 0, fmt.Errorf("the wire log %s: %w", path, err)
	}
	return file, size, nil
}

func checkFile(file *os.File) (size int64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return 0, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return 0, errors.New("it is not a regular file")
	case int(st.Uid) != os.Geteuid():
		return 0, errors.New("it is another user's file")
	case st.Mode&0o077 != 0:
		return 0, fmt.Errorf("its mode is %04o: others could read it (chmod 600)", st.Mode&0o7777)
	}
	return st.Size, nil
}

// Append writes one record, giving it its number, and its time if it has none.
func (l *Log) Append(r Record) {
	if l == nil || l.file == nil {
		return
	}
	path, _, _ := strings.Cut(r.Path, "?")
	r.Path = clip(path)
	r.Method = clip(r.Method)
	r.Host = clip(r.Host)
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	r.Time = r.Time.UTC()
	r.Agent = l.agent
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	r.Seq = l.seq
	line, err := json.Marshal(r)
	if err != nil {
		return // a record of plain fields can't fail; the gap shows if it does
	}
	line = append(line, '\n')
	if l.size > 0 && l.size+int64(len(line)) > l.limit {
		l.rotate()
	}
	n, err := l.file.Write(line)
	l.size += int64(n)
	if err != nil && n > 0 {
		l.dropTorn(int64(n))
	}
}

// rotate begins a new file. Where it can't, the old one grows on.
func (l *Log) rotate() {
	if err := os.Rename(l.path, Rotated(l.path)); err != nil {
		return
	}
	file, size, err := openFile(l.path)
	if err != nil {
		os.Rename(Rotated(l.path), l.path)
		return
	}
	l.file.Close()
	l.file, l.size = file, size
}

// dropTorn takes back the part of a record that a full disk had room for, so
// that every line stays whole.
func (l *Log) dropTorn(n int64) {
	if size, err := l.file.Seek(0, io.SeekEnd); err == nil {
		l.file.Truncate(size - n)
		l.size -= n
	}
}

func clip(text string) string {
	if len(text) > maxField {
		return text[:maxField] + "…"
	}
	return text
}

// Close closes the file.
func (l *Log) Close() error {
	if l == nil || l.file == nil {
		return nil
	}
	return l.file.Close()
}
