package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newProxy() *cobra.Command {
	return &cobra.Command{
		Use:   "proxy (--dir FOLDER | --listen PORT) [flags]",
		Short: "run the filtering proxy alone, for any other sandbox or machine",
		Example: `  lnk sandbox proxy --listen 8888 --internet-host example.com
  mkdir -m 700 ~/sockets
  lnk sandbox proxy --dir ~/sockets --internet-host example.com
  lnk sandbox proxy --blank --control ~/control.sock --dir ~/sockets --hold`,
		// The flags are link-sandbox-proxy's own, and so is the process.
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			programs, err := findSisters()
			if err != nil {
				return err
			}
			err = unix.Exec(programs.proxy, append([]string{"link-sandbox-proxy"}, args...), os.Environ())
			return fmt.Errorf("executing %s: %w", programs.proxy, err)
		},
	}
}
