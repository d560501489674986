package commands

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func where(t *testing.T) (Where, string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// /tmp can't be listed, where TempDir may lie: it is another folder to the test.
	return Where{
		Linked: func(string, unix.Stat_t) string { return "" },
		Path:   "/usr/bin:/bin", Dir: dir, Home: dir,
		Visible: func(real string) bool { return !strings.Contains(real, "hidden") },
		Writable: func(real string) string {
			if strings.Contains(real, "writable") {
				return "/writable"
			}
			return ""
		},
	}, dir
}

func TestResolve(t *testing.T) {
	w, _ := where(t)
	list, err := Resolve([]string{"sh", "/bin/sh", "/usr/bin/env", "sh"}, w)
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Paths) != 2 || list.Any || len(list.Loaders) == 0 {
		t.Errorf("%+v", list)
	}
	for _, p := range append(list.Paths, list.Loaders...) {
		if real, _ := filepath.EvalSymlinks(p.Path); real != p.Path || p.Ino == 0 {
			t.Errorf("%+v isn't what its links lead to", p)
		}
	}
	if list, err = Resolve([]string{"sh", "*"}, w); err != nil || !list.Any || len(list.Paths) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err = Resolve([]string{"/usr/bin/"}, w); err != nil || len(list.Paths) != 1 || !list.Paths[0].Folder {
		t.Errorf("%+v, %v", list, err)
	}
	for entry, want := range map[string]string{
		"": "empty", "no-such-program": "PATH", "/no/such": "no such file", "/usr/bin": "a folder", "/usr/bin/sh/": "no folder", "/dev/null": "no program",
		"/etc/passwd": "isn't executable", "*.sh": "wildcard", "/": "every program", "/tmp/": "/tmp",
	} {
		if _, err := Resolve([]string{entry}, w); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", entry, err)
		}
	}
	if _, err := Resolve(make([]string, MaxEntries+1), w); err == nil {
		t.Error("too many entries were taken")
	}
}

func TestInterpreterOf(t *testing.T) {
	if got := interpreterOf("/usr/bin/env"); !slices.Contains([]string{"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"}, got) {
		t.Errorf("env is loaded by %q", got)
	}
	if got := interpreterOf("/etc/passwd"); got != "" {
		t.Errorf("passwd is loaded by %q", got)
	}
}

func FuzzInterpreter(f *testing.F) {
	head, err := os.ReadFile("/usr/bin/env")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(head[:4096])
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, head []byte) {
		if name := interpreter(head); strings.Contains(name, "\x00") {
			t.Errorf("%q", name)
		}
	})
}
