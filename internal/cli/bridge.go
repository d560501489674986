package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/bridge"
	"link.internal/lnk/internal/peercred"
	"link.internal/lnk/internal/reach"
)

func newBridge() *cobra.Command {
	var listen string
	var stdio bool
	c := &cobra.Command{
		Use:   "bridge unix:FOLDER/in.sock:PORT [--listen PORT | --stdio]",
		Short: "lead a port of this machine's loopback into a sandbox",
		Long: `Lead connections to a port of this machine's loopback to a port inside the
sandbox whose socket folder is named. Its in.sock is reached as itself: through
no link, and only as a socket that the folder's owner made and serves.`,
		Example: `  lnk sandbox bridge unix:$HOME/sockets/in.sock:3000
  lnk sandbox bridge unix:$HOME/sockets/in.sock:3000 --listen 8080
  ssh -o ProxyCommand='lnk sandbox bridge unix:/run/bot/in.sock:22 --stdio' bot`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("it takes one unix:FOLDER/in.sock:PORT")}
			}
			to, err := parseInside(args[0])
			if err != nil {
				return err
			}
			defer to.Folder.Close()
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			if stdio {
				if listen != "" {
					return usageError{errors.New("--stdio listens nowhere: leave --listen out")}
				}
				return bridgeStdio(ctx, to, c.InOrStdin(), c.OutOrStdout())
			}
			port := to.Port
			if listen != "" {
				if port, err = reach.ParsePort(listen); err != nil {
					return fmt.Errorf("--listen: %w", err)
				}
			}
			l, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				return fmt.Errorf("--listen %d: %w", port, err)
			}
			context.AfterFunc(ctx, func() { l.Close() })
			fmt.Fprintf(c.ErrOrStderr(), "%s %s leads to port %d inside\n", prefix, l.Addr(), to.Port)
			bridge.Serve(ctx, l, to, func(err error) {
				fmt.Fprintln(c.ErrOrStderr(), prefix, printable(err.Error()))
			})
			return nil
		},
	}
	c.Flags().StringVar(&listen, "listen", "", "the `PORT` of this machine's loopback (default: the one inside)")
	c.Flags().BoolVar(&stdio, "stdio", false, "lead standard input and output there instead")
	return c
}

// parseInside reads unix:FOLDER/in.sock:PORT, and opens the folder.
func parseInside(text string) (bridge.To, error) {
	fail := func(why error) (bridge.To, error) {
		return bridge.To{}, fmt.Errorf("%q is no unix:FOLDER/%s:PORT: %w", text, bridge.SocketName, why)
	}
	rest, ok := strings.CutPrefix(text, "unix:")
	at := strings.LastIndex(rest, ":")
	if !ok || at < 0 {
		return fail(errors.New("it begins with unix: and ends with a port"))
	}
	port, err := reach.ParsePort(rest[at+1:])
	if err != nil {
		return fail(err)
	}
	path, err := filepath.Abs(rest[:at])
	if err != nil {
		return fail(err)
	}
	if filepath.Base(path) != bridge.SocketName {
		return fail(fmt.Errorf("the way into a sandbox is called %s", bridge.SocketName))
	}
	folder, err := peercred.OpenFolder(filepath.Dir(path))
	if err != nil {
		return fail(err)
	}
	return bridge.To{Folder: folder, Owner: folder.UID, Port: port}, nil
}

// bridgeStdio leads in and out to the port until the port has nothing more to say.
func bridgeStdio(ctx context.Context, to bridge.To, in io.Reader, out io.Writer) error {
	conn, err := to.Dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	context.AfterFunc(ctx, func() { conn.Close() })
	go func() {
		io.Copy(conn, in)
		conn.CloseWrite()
	}()
	if _, err = io.Copy(out, conn); ctx.Err() != nil {
		return nil // it was told to end
	}
	return err
}
