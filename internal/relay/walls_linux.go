package relay

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/channel"
)

// The two walls, by what the relay has and does in each:
//
//	                     full                            plain
//	its uid              0, which is the caller's         the caller's own
//	its capabilities     those of wall.relayCapabilities  none
//	the program          in a user namespace nested in    in the relay's user namespace
//	                     the relay's
//	user namespaces      one more, the program's          those that seccomp refuses
//	undumpable           once the program is mapped       from the first moment
//	ports                any                              from 1024
//	lo                   127.0.0.2 beside 127.0.0.1       127.0.0.1
//
// In both the program has the caller's uid, no capability, no_new_privs,
// Landlock's scopes and seccomp. preparations are what comes before the
// proxy is spoken to, by whether the wall is plain.
var preparations = map[bool]func(*channel.Start) error{false: prepareFull, true: preparePlain}

// noPowersError is the full wall's where what bwrap gave has no effect:
// AppArmor's profile for bwrap leaves its children capabilities in name only,
// and containers may leave them none.
type noPowersError struct{ err error }

func (e *noPowersError) Error() string {
	return fmt.Sprintf("what is started by bwrap has no capability here%s: %v", confinedBy(), e.err)
}

func (e *noPowersError) Unwrap() error { return e.err }

// withoutPowers makes an error of missing capabilities one that is told apart.
func withoutPowers(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return &noPowersError{err}
	}
	return err
}

// confinedBy names the AppArmor profile that this process is under.
func confinedBy() string {
	label, err := os.ReadFile("/proc/self/attr/apparmor/current")
	if err != nil {
		label, err = os.ReadFile("/proc/self/attr/current")
	}
	text := strings.TrimSpace(strings.TrimRight(string(label), "\x00\n"))
	if err != nil || text == "" || text == "unconfined" || len(text) > 200 {
		return ""
	}
	return fmt.Sprintf(" (AppArmor has it as %q)", text)
}

func prepareFull(start *channel.Start) error {
	if !start.Host {
		if err := tryPort(); err != nil {
			return withoutPowers(err)
		}
	}
	if err := limitUserNamespaces(start.UserNamespaces); err != nil {
		return withoutPowers(err)
	}
	if start.Proxy {
		return withoutPowers(addLoopbackAddress())
	}
	return nil
}

// tryPort binds a port under 1024, which shows whether a capability is one.
func tryPort() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 1, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return fmt.Errorf("binding a port under 1024: %w", err)
	}
	return nil
}

// manyNamespaces is what a browser's own sandbox needs.
const manyNamespaces = "256"

// limitUserNamespaces lets one more be made below this one: the program's. more
// is for one that makes its own.
func limitUserNamespaces(more bool) error {
	limit := "1"
	if more {
		limit = manyNamespaces
	}
	if err := writeFile("/proc/sys/user/max_user_namespaces", limit); err != nil {
		return fmt.Errorf("limiting user namespaces: %w", err)
	}
	return nil
}

// writeFile writes to a file of the kernel's in one call. An os.File would have
// the runtime make an epoll instance, of which a start has no other use.
func writeFile(path, text string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(fd)
	if n, err := unix.Write(fd, []byte(text)); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	} else if n != len(text) {
		return fmt.Errorf("%s: %w", path, io.ErrShortWrite)
	}
	return nil
}

// preparePlain makes sure that the program, which is to have the same uid in
// the same user namespace, gets nothing of the relay's.
func preparePlain(*channel.Start) error {
	if err := becomeUndumpable(); err != nil {
		return err
	}
	var data [2]unix.CapUserData
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&head, &data[0]); err != nil {
		return fmt.Errorf("reading capabilities: %w", err)
	}
	if data != [2]unix.CapUserData{} {
		return fmt.Errorf("bug: the plain wall's relay has capabilities: %v", data)
	}
	return nil
}

// becomeUndumpable keeps this process's memory, descriptors and environment
// from the program: proc(5), ptrace(2).
func becomeUndumpable() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming undumpable: %w", err)
	}
	return nil
}
