package wire

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Read gives each record of a log to f, the rotated file's first. With
// follow it then waits for more, across rotations, until ctx ends or the log
// is removed, as a run's is at its end. A line that is no record is passed over.
func Read(ctx context.Context, path string, follow bool, f func(Record) error) error {
	var changes *watcher
	if follow {
		// Older than the reading, so that nothing falls between.
		var err error
		if changes, err = watch(path); err != nil {
			return fmt.Errorf("following %s: %w", path, err)
		}
		defer changes.close()
	}
	if err := readOnce(Rotated(path), f); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	current := &tail{path: path}
	defer current.close()
	for {
		if err := current.read(f); err != nil {
			return err
		}
		if current.file == nil {
			return fmt.Errorf("the log %s: %w", path, os.ErrNotExist)
		}
		if !follow {
			return nil
		}
		more, err := changes.wait(ctx)
		if err != nil {
			return err
		}
		if !more {
			return current.read(f)
		}
	}
}

func readOnce(path string, f func(Record) error) error {
	t := &tail{path: path}
	defer t.close()
	if err := t.read(f); err != nil {
		return err
	}
	if t.file == nil {
		return os.ErrNotExist
	}
	return nil
}

// tail reads a file as it grows, and the next one when it has been rotated.
type tail struct {
	path string
	file *os.File
	in   *bufio.Reader
	part []byte // of a line that isn't whole yet
}

func (t *tail) close() {
	if t.file != nil {
		t.file.Close()
	}
}

// read gives f what there is.
func (t *tail) read(f func(Record) error) error {
	for {
		if t.file == nil {
			file, err := os.OpenFile(t.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("reading the log: %w", err)
			}
			t.file, t.in, t.part = file, bufio.NewReader(file), nil
		}
		// Whether it was rotated is asked before it is read to its end.
		rotated := t.rotated()
		if err := t.lines(f); err != nil {
			return err
		}
		if !rotated {
			return nil
		}
		before := t.file
		t.file = nil
		// Rotated more than once meanwhile, another file stands between.
		if between := t.between(before); between != nil {
			err := between.lines(f)
			between.close()
			if err != nil {
				before.Close()
				return err
			}
		}
		before.Close()
	}
}

// between opens the rotated file, unless it is the one that was read before.
func (t *tail) between(before *os.File) *tail {
	file, err := os.OpenFile(Rotated(t.path), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	was, wasErr := before.Stat()
	is, isErr := file.Stat()
	if wasErr != nil || isErr != nil || os.SameFile(was, is) {
		file.Close()
		return nil
	}
	return &tail{path: t.path, file: file, in: bufio.NewReader(file)}
}

func (t *tail) lines(f func(Record) error) error {
	for {
		chunk, err := t.in.ReadSlice('\n')
		t.part = append(t.part, chunk...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the log: %w", err)
		}
		line := bytes.TrimSpace(t.part)
		t.part = t.part[:0]
		var record Record
		if json.Unmarshal(line, &record) != nil {
			continue
		}
		if err := f(record); err != nil {
			return err
		}
	}
}

func (t *tail) rotated() bool {
	open, err := t.file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(t.path)
	return err == nil && !os.SameFile(open, named)
}

// watcher hears of changes in a log's folder (inotify(7)). That the folder
// itself is gone is not heard while a file of it is open.
type watcher struct {
	file *os.File
	name string
}

func watch(path string) (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(path), unix.IN_MODIFY|unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVED_TO|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_ONLYDIR); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &watcher{os.NewFile(uintptr(fd), "inotify"), filepath.Base(path)}, nil
}

func (w *watcher) close() { w.file.Close() }

// wait waits for a change. more is false when the log was removed or ctx ended.
func (w *watcher) wait(ctx context.Context) (more bool, err error) {
	stop := context.AfterFunc(ctx, func() { w.file.Close() })
	defer stop()
	buf := make([]byte, 4096)
	n, err := w.file.Read(buf)
	if ctx.Err() != nil {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// The mask of each event follows its watch's number.
	for at := 0; at+unix.SizeofInotifyEvent <= n; {
		mask := uint32(buf[at+4]) | uint32(buf[at+5])<<8 | uint32(buf[at+6])<<16 | uint32(buf[at+7])<<24
		length := int(uint32(buf[at+12]) | uint32(buf[at+13])<<8 | uint32(buf[at+14])<<16 | uint32(buf[at+15])<<24)
		at += unix.SizeofInotifyEvent
		name := string(bytes.TrimRight(buf[at:min(at+length, n)], "\x00"))
		at += length
		if mask&(unix.IN_IGNORED|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0 || mask&unix.IN_DELETE != 0 && name == w.name {
			return false, nil
		}
	}
	return true, nil
}
