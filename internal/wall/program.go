package wall

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotFound and ErrNotExecutable are what a program can be that no grant
// would help.
var (
	ErrNotFound      = errors.New("not found")
	ErrNotExecutable = errors.New("not executable")
)

// HiddenError is a program, or the interpreter of a script, that the sandbox
// doesn't see.
type HiddenError struct {
	// Program is the file that is hidden.
	Program string
	// Read is what to grant.
	Read []string
}

// Error gives the flags to add.
func (e *HiddenError) Error() string {
	flags := ""
	for _, path := range e.Read {
		flags += " --read " + shellQuote(path)
	}
	return fmt.Sprintf("%s lies in a folder that the sandbox doesn't see: add%s", e.Program, flags)
}

// CheckProgram finds a program as execvp(3) would, by the PATH that the
// sandbox gets, and refuses one that this machine has and the sandbox has not.
// It changes nothing: the relay looks again, inside. It returns what it found.
func (w *Wall) CheckProgram(name, searchPath string) (found string, err error) {
	if name == "" {
		return "", fmt.Errorf("the program's name is empty: %w", ErrNotFound)
	}
	if found, err = w.lookPath(name, searchPath); err != nil {
		return "", err
	}
	if err := w.checkVisible(found); err != nil {
		return "", err
	}
	return found, w.checkInterpreter(found, searchPath)
}

func (w *Wall) lookPath(name, searchPath string) (string, error) {
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(w.Dir, path)
		}
		return path, executable(path)
	}
	var denied error
	for _, folder := range filepath.SplitList(searchPath) {
		if !filepath.IsAbs(folder) {
			folder = filepath.Join(w.Dir, folder)
		}
		path := filepath.Join(folder, name)
		switch err := executable(path); {
		case err == nil:
			return path, nil
		case errors.Is(err, ErrNotExecutable) && denied == nil:
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("%q is not in PATH: %w", name, ErrNotFound)
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, os.ErrPermission):
		// In a folder that may not be searched, as a root's is in a PATH that su kept.
		return fmt.Errorf("%q: %w", path, ErrNotFound)
	case err != nil:
		return fmt.Errorf("%q: %w", path, ErrNotExecutable)
	case info.IsDir():
		return fmt.Errorf("%q is a folder: %w", path, ErrNotExecutable)
	case unix.Access(path, unix.X_OK) != nil:
		return fmt.Errorf("%q has no execute permission: %w", path, ErrNotExecutable)
	}
	return nil
}

// checkVisible wants every link on the way to the file, and the file.
func (w *Wall) checkVisible(path string) error {
	real, links, err := resolve(filepath.Clean(path))
	if err != nil {
		return err
	}
	var missing []string
	for _, l := range links {
		if m, ok := w.mounts.byDest[l.dest]; ok && m.kind == link {
			continue
		}
		if !w.Visible(filepath.Dir(l.dest)) {
			missing = append(missing, l.dest)
		}
	}
	if !w.Visible(real) {
		missing = append(missing, w.installation(real))
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return &HiddenError{Program: path, Read: slices.Compact(missing)}
	}
	return nil
}

// installation is what to grant so that a program works: the folder above
// its bin, where its libraries lie, unless that holds more than programs.
func (w *Wall) installation(real string) string {
	folder := filepath.Dir(real)
	if base := filepath.Base(folder); base != "bin" && base != "sbin" {
		return real
	}
	prefix := filepath.Dir(folder)
	if w.tooWide(prefix) || filepath.Base(prefix) == ".local" {
		return real
	}
	return prefix
}

// checkInterpreter does the same for what a script's first line names, and
// for what env(1) is told to find there (execve(2), Interpreter scripts).
func (w *Wall) checkInterpreter(path, searchPath string) error {
	const maxLine = 256 // BINPRM_BUF_SIZE
	f, err := os.Open(path)
	if err != nil {
		return nil // it may be executed and not read
	}
	defer f.Close()
	line, err := bufio.NewReader(io.LimitReader(f, maxLine)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) || !strings.HasPrefix(line, "#!") {
		return nil
	}
	fields := strings.Fields(line[2:])
	if len(fields) == 0 {
		return nil
	}
	interpreter := fields[0]
	if executable(interpreter) != nil {
		return nil // execve says it better
	}
	if err := w.checkVisible(interpreter); err != nil {
		return err
	}
	if filepath.Base(interpreter) != "env" {
		return nil
	}
	for _, word := range fields[1:] {
		if strings.HasPrefix(word, "-") || strings.Contains(word, "=") {
			continue
		}
		found, err := w.lookPath(word, searchPath)
		if err != nil {
			return nil // env says it better
		}
		return w.checkVisible(found)
	}
	return nil
}

// shellQuote makes a path safe to paste.
func shellQuote(path string) string {
	for _, c := range path {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("/._-+@%,:=", c) {
			return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
		}
	}
	return path
}
