package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// attempt is one thing that verify has somebody try. Each is a way out of a slot
// that the threat model names.
type attempt struct {
	// Name is what the table calls it.
	Name string `json:"name"`
	// Kind is a key of attempts, and Target what it is tried on.
	Kind   string `json:"kind"`
	Target string `json:"target"`
	// Expected is whether it is to succeed.
	Expected bool `json:"expected"`
}

// attempts are what can be tried. Each returns nil when it succeeded.
var attempts = map[string]func(target string) error{
	"list": func(path string) error { _, err := os.ReadDir(path); return err },
	"read": func(path string) error {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		if _, err = file.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
			return nil
		}
		return err
	},
	"write": func(folder string) error {
		path := filepath.Join(folder, fmt.Sprintf("verify-%d", os.Getpid()))
		file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		file.Close()
		return os.Remove(path)
	},
	"append": func(path string) error {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return file.Close()
	},
	"connect": func(path string) error { return dialAndClose("unix", path) },
	"hand":    func(path string) error { return dialAndClose("unixpacket", path) },
	"tcp":     func(address string) error { return dialAndClose("tcp", address) },
	// control is served only when the proxy answers.
	"control": func(path string) error {
		conn, err := net.Dial("unix", path)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(3 * time.Second))
		// No bind, and no request: it is answered with an error, by whom it serves.
		if _, err := conn.Write([]byte("verify\n")); err != nil {
			return err
		}
		_, err = conn.Read(make([]byte, 1))
		return err
	},
	"signal": func(pid string) error { return withPID(pid, func(n int) error { return unix.Kill(n, 0) }) },
	"trace": func(pid string) error {
		return withPID(pid, func(n int) error {
			if err := unix.PtraceSeize(n); err != nil {
				return err
			}
			return unix.PtraceDetach(n)
		})
	},
}

func dialAndClose(network, address string) error {
	conn, err := net.DialTimeout(network, address, 3*time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

func withPID(text string, f func(int) error) error {
	n, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	return f(n)
}

// result is what came of an attempt.
type attempted struct {
	Succeeded bool   `json:"succeeded"`
	Error     string `json:"error,omitempty"`
	// Absent says that what was tried isn't there to be seen, which proves
	// nothing but inside a sandbox.
	Absent bool `json:"absent,omitempty"`
}

// newProbe is verify's other half: it tries what it is told on standard input, as
// whoever it is run by and wherever it is run.
func newProbe() *cobra.Command {
	return &cobra.Command{
		Use: "probe", Hidden: true, Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var list []attempt
			if err := json.NewDecoder(c.InOrStdin()).Decode(&list); err != nil {
				return err
			}
			results := make([]attempted, len(list))
			for i, a := range list {
				try, ok := attempts[a.Kind]
				if !ok {
					return fmt.Errorf("bug: nobody can try %q", a.Kind)
				}
				err := try(a.Target)
				results[i].Succeeded = err == nil
				if err != nil {
					results[i].Error = err.Error()
					results[i].Absent = errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
				}
			}
			return json.NewEncoder(c.OutOrStdout()).Encode(results)
		},
	}
}
