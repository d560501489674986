package control

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/bind"
)

// maxRouteFile bounds each file, in bytes.
const maxRouteFile = 1 << 20

// LoadRoutes reads the files that the command line named into a binding, whose
// agent's name is the caller's.
func LoadRoutes(f bind.RouteFiles, b *bind.Binding) error {
	if (f.CallerKey != "" || f.URLSecret != "") && f.Routes == "" {
		return errors.New("--caller-key-file and --url-secret-file are for --routes")
	}
	if f.Routes == "" {
		return nil
	}
	data, err := readSecret("--routes", f.Routes)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &b.Routes, json.RejectUnknownMembers(true)); err != nil {
		return fmt.Errorf("--routes %s: it is no list of routes: %s", f.Routes, describe(err))
	}
	if f.CallerKey == "" {
		return errors.New("--routes needs --caller-key-file: who calls them shows that key")
	}
	key, err := readSecret("--caller-key-file", f.CallerKey)
	if err != nil {
		return err
	}
	b.Caller = &bind.Caller{Name: b.Agent, Key: string(bytes.TrimRight(key, "\r\n"))}
	if b.Agent == "" {
		b.Caller.Name = "agent"
	}
	if f.URLSecret != "" {
		secret, err := readSecret("--url-secret-file", f.URLSecret)
		if err != nil {
			return err
		}
		if b.URLSecret = string(bytes.TrimRight(secret, "\r\n")); b.URLSecret == "" {
			return fmt.Errorf("--url-secret-file %s: it is empty", f.URLSecret)
		}
	}
	return b.CheckRoutes()
}

// readSecret reads a file that is closed to others than its user and group.
func readSecret(flag, path string) ([]byte, error) {
	fail := func(err error) ([]byte, error) { return nil, fmt.Errorf("%s %s: %w", flag, path, err) }
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(errors.Unwrap(err))
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return fail(err)
	case !info.Mode().IsRegular():
		return fail(errors.New("it is no file"))
	case info.Mode().Perm()&0o007 != 0:
		return fail(errors.New("everybody may open it, and it has secrets: chmod 600"))
	}
	data, err := io.ReadAll(io.LimitReader(file, maxRouteFile+1))
	if err != nil {
		return fail(err)
	}
	if len(data) > maxRouteFile {
		return fail(fmt.Errorf("it has more than %d bytes", maxRouteFile))
	}
	return data, nil
}
