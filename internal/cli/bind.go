package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"link.internal/lnk/internal/control"
)

func newBind() *cobra.Command {
	var socket string
	owner := os.Geteuid()
	c := &cobra.Command{
		Use:   "bind --control SOCKET [--owner UID] < line.json",
		Short: "bind a blank proxy, by the JSON object on standard input",
		Long: `Bind a blank proxy by the JSON object on standard input. It is sent only to a
socket that is owner's, is no link, and is served by owner. What the proxy
refuses is said in its own words, and binds nothing.`,
		Example: `  lnk sandbox proxy --blank --control ~/control.sock --dir ~/sockets --hold &
  echo '{"internet_host": ["api.anthropic.com"]}' | lnk sandbox bind --control ~/control.sock`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if socket == "" {
				return usageError{errors.New("--control SOCKET is missing")}
			}
			path, err := filepath.Abs(socket)
			if err != nil {
				return err
			}
			data, err := readBind(c.InOrStdin())
			if err != nil {
				return err
			}
			if err := control.SendBind(c.Context(), path, data, owner); err != nil {
				return fmt.Errorf("binding by %s: %w", socket, err)
			}
			return nil
		},
	}
	c.Flags().StringVar(&socket, "control", "", "the proxy's control `SOCKET`")
	c.Flags().IntVar(&owner, "owner", owner, "the `UID` that the socket must be owned and served by")
	return c
}

// readBind reads the object that binds, and makes it one line.
func readBind(in io.Reader) ([]byte, error) {
	// Its end may be a line's, which is no part of it.
	data, err := io.ReadAll(io.LimitReader(in, control.MaxBind+2))
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	data = bytes.TrimRight(data, "\r\n")
	if len(data) > control.MaxBind {
		return nil, fmt.Errorf("standard input has more than %d bytes", control.MaxBind)
	}
	// An object over several lines is one line there: in JSON a line's end is a
	// space, and can't be in a text.
	return bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("\n"), []byte(" ")), []byte("\r"), []byte(" ")), nil
}
