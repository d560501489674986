// Package testnet is a machine and an internet for tests, in namespaces of
// their own: nothing that is done there is seen or reached outside.
//
// The machine is the calling process in new mount, network and pid
// namespaces; what it leaves running ends with it. It has one ordinary user (User), an empty /home, /tmp and /run, a certificate
// store that trusts the test internet, and one interface:
//
//	machine  10.77.0.2, fd77::2  ──  10.77.0.1, fd77::1  internet
//
// The internet has public-looking addresses, one or more for each name that a
// test makes up, a DNS server whose answers and log the test controls, and
// the servers that the test starts.
package testnet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// User is the ordinary user of the machine, UID its uid and gid.
const (
	User = "tester"
	UID  = 20001
	// Stranger is another user's uid, for what must be kept from it.
	Stranger = 20002
	Home     = "/home/" + User
	// BinDir is where the machine has lnk and its sisters.
	BinDir = "/srv/lnk"
)

// inside marks the process that runs in the namespaces.
const inside = "LNK_TESTNET_INSIDE"

// Inside reports whether this is the process in the namespaces.
func Inside() bool { return os.Getenv(inside) != "" }

// Reexec runs this very program again in new namespaces, with the programs of
// binDir at BinDir, and returns its exit code; entered is true in that one.
// It must be called before anything else is done, as root.
func Reexec(binDir string) (entered bool, code int, err error) {
	if os.Getenv(inside) != "" {
		return true, 0, enter(os.Getenv(inside))
	}
	if os.Geteuid() != 0 {
		return false, 0, errors.New("the test machine needs root, to make namespaces: sudo make root-test")
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"="+binDir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID,
		Pdeathsig:  unix.SIGKILL,
	}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return false, exit.ExitCode(), nil
	}
	return false, 0, err
}

// enter makes the machine's files.
func enter(binDir string) error {
	os.Unsetenv(inside)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	// Read before /tmp is covered, where it may lie.
	programs := make(map[string][]byte)
	entries, err := os.ReadDir(binDir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if programs[entry.Name()], err = os.ReadFile(filepath.Join(binDir, entry.Name())); err != nil {
			return err
		}
	}
	outside, err := os.Open("/tmp")
	if err != nil {
		return err
	}
	defer outside.Close()
	for _, m := range []struct{ path, options string }{
		{"/home", "mode=755"}, {"/tmp", "mode=1777"}, {"/run", "mode=755"}, {"/srv", "mode=755"}, {"/mnt", "mode=755"},
	} {
		if err := unix.Mount("tmpfs", m.path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, m.options); err != nil {
			return fmt.Errorf("covering %s: %w", m.path, err)
		}
	}
	if err := keepBuilds(outside); err != nil {
		return err
	}
	if err := os.Mkdir(BinDir, 0o755); err != nil {
		return err
	}
	for name, data := range programs {
		if err := os.WriteFile(filepath.Join(BinDir, name), data, 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{Home, fmt.Sprintf("/run/user/%d", UID)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
			return err
		}
		if err := os.Chown(dir, UID, UID); err != nil {
			return err
		}
	}
	if Plain() {
		if err := takePowers(); err != nil {
			return err
		}
	}
	return replaceEtc(map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/sh\n" +
			fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh\n", User, UID, UID, Home) +
			fmt.Sprintf("stranger:x:%d:%d::/home/stranger:/bin/sh\n", Stranger, Stranger) +
			"sshd:x:20003:65534::/run/sshd:/usr/sbin/nologin\n" + // which sshd looks for
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group":         fmt.Sprintf("root:x:0:\n%s:x:%d:\nstranger:x:%d:\nnogroup:x:65534:\n", User, UID, Stranger),
		"hosts":         "127.0.0.1 localhost\n::1 localhost\n",
		"resolv.conf":   "nameserver " + dnsAddress + "\noptions timeout:2 attempts:1\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
	})
}

// keepBuilds shows go test's own folders in the new /tmp, where it writes
// what it learns of a test.
func keepBuilds(outside *os.File) error {
	names, err := outside.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "go-build") {
			continue
		}
		if err := os.Mkdir("/tmp/"+name, 0o700); err != nil {
			return err
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d/%s", outside.Fd(), name), "/tmp/"+name, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("keeping %s: %w", name, err)
		}
	}
	return nil
}

// replaceEtc mounts files over those of /etc, which stay as they are outside.
func replaceEtc(files map[string]string) error {
	dir := "/mnt/etc"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		from, to := filepath.Join(dir, name), filepath.Join("/etc", name)
		if err := os.WriteFile(from, []byte(text), 0o644); err != nil {
			return err
		}
		real, err := filepath.EvalSymlinks(to)
		if err != nil {
			return fmt.Errorf("%s: %w", to, err)
		}
		if err := unix.Mount(from, real, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting over %s: %w", real, err)
		}
	}
	return nil
}

// trust puts a certificate into the machine's store, alone.
func trust(pem []byte) error {
	dir := "/mnt/certs"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "ca-certificates.crt"), pem, 0o644); err != nil {
		return err
	}
	if err := unix.Mount(dir, "/etc/ssl/certs", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting over /etc/ssl/certs (apt install ca-certificates): %w", err)
	}
	return nil
}

// Command makes a command that the ordinary user runs in its home, with a
// login's environment.
func Command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = Home
	cmd.Env = Environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: UID, Gid: UID},
		Pdeathsig:  unix.SIGKILL,
	}
	return cmd
}

// Environment is the ordinary user's.
func Environment() []string {
	return []string{
		"HOME=" + Home, "USER=" + User, "LOGNAME=" + User, "SHELL=/bin/sh", "LANG=C.UTF-8",
		"PATH=" + strings.Join([]string{BinDir, "/usr/local/bin", "/usr/bin", "/bin"}, ":"),
		fmt.Sprintf("XDG_RUNTIME_DIR=/run/user/%d", UID),
	}
}

// Lnk is the path of lnk on the machine.
const Lnk = BinDir + "/lnk"
