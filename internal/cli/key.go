package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newKey() *cobra.Command {
	return &cobra.Command{
		Use:   "key FOLDER",
		Short: "make an ssh key for a home that lasts, and print its public half",
		Long: `Make an ssh key of the sandbox's own in FOLDER/.ssh, where FOLDER is a home for
--home, and print its public half. FOLDER is made if it isn't there. A key that
is there already is kept, and its public half printed. Make it before the first
run: what runs there can put a key of its own.`,
		Example: "  lnk sandbox key ~/agent-home\n  lnk sandbox run --home ~/agent-home --internet-host github.com --tcp github.com:22 -- git clone git@github.com:me/repo.git",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("name one folder")}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			public, err := makeKey(args[0])
			if err != nil {
				return fmt.Errorf("the key: %w", err)
			}
			_, err = io.WriteString(c.OutOrStdout(), public)
			return err
		},
	}
}

// keygenPath makes keys in the form that ssh reads.
const keygenPath = "/usr/bin/ssh-keygen"

// publicKey is a line of authorized_keys (sshd(8)), as ssh-keygen prints it.
var publicKey = regexp.MustCompile(`^ssh-ed25519 [A-Za-z0-9+/=]+( [ -~]*)?\n$`)

// makeKey returns the public half. The folder is what a sandbox writes, so no
// link in it is followed, and what is printed is made from the private half.
func makeKey(home string) (string, error) {
	if err := os.MkdirAll(home, 0o700); err != nil {
		return "", err
	}
	at, err := openOwn(unix.AT_FDCWD, home)
	if err != nil {
		return "", err
	}
	defer at.Close()
	if err := unix.Mkdirat(int(at.Fd()), ".ssh", 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return "", fmt.Errorf("%s/.ssh: %w", home, err)
	}
	folder, err := openOwn(int(at.Fd()), ".ssh")
	if err != nil {
		return "", fmt.Errorf("in %s: %w", home, err)
	}
	defer folder.Close()
	if _, err := os.Stat(keygenPath); err != nil {
		return "", fmt.Errorf("%s is missing: install it (apt install openssh-client, or dnf install openssh)", keygenPath)
	}
	const name = "id_ed25519"
	var st unix.Stat_t
	switch err := unix.Fstatat(int(folder.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case errors.Is(err, unix.ENOENT):
		unix.Unlinkat(int(folder.Fd()), name+".pub", 0)
		if _, err := keygen(folder, "-q", "-t", "ed25519", "-N", "", "-C", "lnk sandbox"); err != nil {
			return "", err
		}
	case err != nil:
		return "", err
	case st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid():
		return "", fmt.Errorf("%s/.ssh/%s is no file of yours", home, name)
	}
	public, err := keygen(folder, "-y")
	if err != nil {
		return "", err
	}
	if !publicKey.MatchString(public) {
		return "", fmt.Errorf("%s/.ssh/%s is no ed25519 key", home, name)
	}
	return public, nil
}

// openOwn opens a folder of this user's, itself and no link to one.
func openOwn(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s is no folder, or a link: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || int(st.Uid) != os.Geteuid() {
		file.Close()
		return nil, fmt.Errorf("%s isn't yours", name)
	}
	return file, nil
}

// keygen runs ssh-keygen on the key in a folder that is held open.
func keygen(folder *os.File, args ...string) (string, error) {
	cmd := exec.Command(keygenPath, append(args, "-f", "/proc/self/fd/3/id_ed25519")...)
	cmd.ExtraFiles = []*os.File{folder}
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", keygenPath, err, strings.TrimSpace(said.String()))
	}
	return string(out), nil
}
