package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"
)

func newKey() *cobra.Command {
	return &cobra.Command{
		Use:   "key FOLDER",
		Short: "make an ssh key for a home that lasts, and print its public half",
		Long: `Make an ssh key of the sandbox's own in FOLDER/.ssh, where FOLDER is a home for
--home, and print its public half. FOLDER is made if it isn't there. A key that
is there already is kept, and its public half printed.`,
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
			_, err = c.OutOrStdout().Write(public)
			return err
		},
	}
}

// keygenPath makes keys in the form that ssh reads.
const keygenPath = "/usr/bin/ssh-keygen"

// makeKey returns the public half, as a line of authorized_keys (sshd(8)).
func makeKey(home string) ([]byte, error) {
	folder := filepath.Join(home, ".ssh")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(folder, "id_ed25519")
	if public, err := os.ReadFile(path + ".pub"); err == nil {
		return public, nil
	}
	if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("%s is there without its public half: ssh-keygen -y -f %s prints it", path, path)
	}
	if _, err := os.Stat(keygenPath); err != nil {
		return nil, fmt.Errorf("%s is missing: install it (apt install openssh-client, or dnf install openssh)", keygenPath)
	}
	out, err := exec.Command(keygenPath, "-q", "-t", "ed25519", "-N", "", "-C", "lnk sandbox", "-f", path).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", keygenPath, err, out)
	}
	return os.ReadFile(path + ".pub")
}
