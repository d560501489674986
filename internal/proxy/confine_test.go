package proxy

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/confine"
)

// The test confines a child of its own, which is this program again.
func TestMain(m *testing.M) {
	if dir := os.Getenv("CONFINE_SELF"); dir != "" {
		fmt.Print(confined(dir))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func confined(dir string) string {
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return "skip: " + errno.Error()
	}
	files, err := confine.NewFiles()
	if err == nil {
		err = files.Read("/usr", "/nowhere")
	}
	if err == nil {
		err = files.Write(filepath.Join(dir, "own"), "/dev/null")
	}
	if err == nil {
		err = files.Restrict()
	}
	if err != nil {
		return err.Error()
	}
	if err := confine.Self(); err != nil {
		return err.Error()
	}
	var seen []string
	try := func(name string, err error) {
		seen = append(seen, fmt.Sprintf("%s:%v", name, err == nil))
	}
	try("own", os.WriteFile(filepath.Join(dir, "own/file"), nil, 0o600))
	_, err = os.ReadFile(filepath.Join(dir, "other"))
	try("other", err)
	try("write", os.WriteFile(filepath.Join(dir, "new"), nil, 0o600))
	_, err = os.ReadDir("/usr")
	try("usr", err)
	try("exec", exec.Command("/usr/bin/true").Run())
	data, err := os.ReadFile("/usr/bin/true")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "own/copy"), data, 0o700)
	}
	if err == nil && exec.Command(filepath.Join(dir, "own/copy")).Run() == nil {
		return "what it wrote is executed"
	}
	try("copy", err)
	_, err = unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	try("vsock", err)
	done := make(chan error)
	go func() { // on whichever thread
		_, err := os.ReadFile(filepath.Join(dir, "other"))
		done <- err
	}()
	try("goroutine", <-done)
	return strings.Join(seen, " ")
}

func TestConfineSelf(t *testing.T) {
	if abi, err := confine.LandlockABI(); err != nil || abi == 0 {
		t.Skip("this kernel has no Landlock")
	}
	dir := t.TempDir()
	os.Mkdir(filepath.Join(dir, "own"), 0o700)
	os.WriteFile(filepath.Join(dir, "other"), []byte("x"), 0o600)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "CONFINE_SELF="+dir)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("%v: %s", err, exit.Stderr)
	}
	if strings.HasPrefix(string(out), "skip") {
		t.Skipf("built with cgo, as for -race: %s", out)
	}
	if string(out) != "own:true other:false write:false usr:true exec:true copy:true vsock:false goroutine:false" {
		t.Errorf("got %s", out)
	}
}
