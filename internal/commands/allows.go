package commands

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxInterpreters is how deep scripts may name scripts (execve(2)).
const maxInterpreters = 5

// RefusedError is a program that the list doesn't have.
type RefusedError struct {
	// Path is its real path.
	Path string
	// For is the script that names it; empty: it is the program that was given.
	For string
}

// Error says what to add.
func (e *RefusedError) Error() string {
	what := e.Path
	if e.For != "" {
		what = fmt.Sprintf("%s, which %s starts,", e.Path, e.For)
	}
	return fmt.Sprintf("%s isn't on the list of programs: add it to [commands] allow (--command %s)", what, e.Path)
}

// Check refuses a program that isn't on the list, or is a script whose first
// line starts one that isn't.
func (l *List) Check(path string) error {
	if l.Any {
		return nil
	}
	script := ""
	for range maxInterpreters {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return err
		}
		if !l.has(real) {
			return &RefusedError{real, script}
		}
		script = real
		if path = Interpreter(real); path == "" {
			return nil
		}
		if _, err := os.Stat(path); err != nil {
			return nil // execve says it better
		}
	}
	return nil
}

func (l *List) has(real string) bool {
	var st unix.Stat_t
	if unix.Stat(real, &st) != nil {
		return false
	}
	for _, p := range l.Paths {
		if p.Dev == st.Dev && p.Ino == st.Ino || p.Folder && strings.HasPrefix(real, p.Path+"/") {
			return true
		}
	}
	return false
}

// Interpreter is what a script's first line starts (execve(2), Interpreter
// scripts); empty for what is no script, or can't be read.
func Interpreter(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, 256) // BINPRM_BUF_SIZE
	n, _ := f.Read(buf)
	return interpreterLine(buf[:n])
}

func interpreterLine(head []byte) string {
	text, ok := strings.CutPrefix(string(head), "#!")
	if !ok {
		return ""
	}
	line, _, _ := strings.Cut(text, "\n")
	for _, field := range strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' || r == 0 }) {
		return field
	}
	return ""
}

// Own is a file of lnk's own, at the path that it has in the sandbox.
func Own(file, inside string) (Path, error) {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return Path{}, fmt.Errorf("%s: %w", file, err)
	}
	return Path{Path: inside, Dev: st.Dev, Ino: st.Ino}, nil
}

// Listed reports whether a list has a real path already.
func (l *List) Listed(real string) bool { return l != nil && (l.Any || l.has(real)) }
