package supervisor

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/box"
	"link.internal/lnk/internal/slot"
)

// Version is set by the linker.
var Version = "development"

const usage = `usage: lnk-supervisor serve|check|end|purge [flags]

  serve   keep the slots of this box, until told to end; they outlive it
  check   check the configuration, and start nothing
  end     end every slot; their users stay, and serve begins with them
  purge   end every slot, and remove their users and all that is kept
`

// Main is lnk-supervisor. It returns the exit code.
func Main(args []string, stderr io.Writer) int {
	fs := flag.NewFlagSet("lnk-supervisor", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	o := Options{Version: Version}
	fs.StringVar(&o.Config, "config", "/etc/lnk/supervisor.toml", "the `FILE` of its configuration")
	fs.StringVar(&o.Places.Runtime, "runtime", filepath.Dir(box.SocketPath), "the `FOLDER` of what is gone after a boot")
	fs.StringVar(&o.Places.State, "state", "/var/lib/lnk", "the `FOLDER` of what lasts")
	fs.StringVar(&o.Lnk, "lnk", "/usr/bin/lnk", "the `PATH` of lnk")
	fs.StringVar(&o.Proxy, "proxy", "/usr/lib/lnk/link-sandbox-proxy", "the `PATH` of link-sandbox-proxy")
	help := func() {
		fmt.Fprint(stderr, usage)
		fs.SetOutput(stderr)
		fs.PrintDefaults()
	}
	if len(args) == 0 || args[0] == "help" || args[0] == "--help" || args[0] == "-h" {
		help()
		return 0
	}
	if args[0] == "--version" || args[0] == "version" {
		fmt.Fprintln(stderr, "lnk-supervisor", Version)
		return 0
	}
	run, ok := map[string]func(Options) error{
		"serve": serve, "check": check,
		"end":   func(o Options) error { return end(o, false) },
		"purge": func(o Options) error { return end(o, true) },
	}[args[0]]
	err := fmt.Errorf("unknown command %q", args[0])
	if ok {
		if err = fs.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
			help()
			return 0
		}
		if err == nil && fs.NArg() > 0 {
			err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, "lnk-supervisor:", err)
		fmt.Fprintln(stderr, "lnk-supervisor: see lnk-supervisor help")
		return 2
	}
	o.Logger = slog.New(slog.NewTextHandler(stderr, nil))
	if err := run(o); err != nil {
		fmt.Fprintln(stderr, "lnk-supervisor:", err)
		return 1
	}
	return 0
}

func check(o Options) error {
	_, err := LoadConfig(o.Config)
	return err
}

func mustBeRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("it makes users and cgroups, so it is run by root")
	}
	return nil
}

func serve(o Options) error {
	if err := mustBeRoot(); err != nil {
		return err
	}
	unix.Umask(0o022)
	for _, path := range []string{o.Lnk, o.Proxy} {
		if info, err := os.Stat(path); err != nil || !filepath.IsAbs(path) || info.Mode()&0o111 == 0 {
			return fmt.Errorf("%s is no program: install lnk, or say where it is (--lnk, --proxy)", path)
		}
	}
	s, err := New(o)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	l, err := listen(filepath.Join(o.Places.Runtime, filepath.Base(box.SocketPath)))
	if err != nil {
		return err
	}
	s.ctx = ctx
	failed := make(chan error, 1)
	go watchdog(ctx, func() { s.list(false) })
	go func() {
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				s.logs.cut()
			}
		}
	}()
	serving := false
	err = s.Run(ctx, func() {
		// Who connected before waits until the slots are known.
		serving = true
		go func() {
			failed <- s.Serve(ctx, l)
			stop()
		}()
		daemon.SdNotify(false, daemon.SdNotifyReady)
	})
	stop()
	daemon.SdNotify(false, daemon.SdNotifyStopping)
	if !serving {
		l.Close()
		return err
	}
	return errors.Join(err, <-failed)
}

// watchdog tells systemd that it is alive, where that is asked for (sd_watchdog_enabled(3)).
func watchdog(ctx context.Context, alive func()) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil || interval == 0 {
		return
	}
	tick := time.NewTicker(interval / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			alive() // or it is not said
			daemon.SdNotify(false, daemon.SdNotifyWatchdog)
		}
	}
}

func end(o Options, purge bool) error {
	if err := mustBeRoot(); err != nil {
		return err
	}
	// A configuration that is gone or wrong keeps nobody from ending slots.
	for _, folder := range []string{o.Places.Runtime, o.Places.State} {
		if _, err := os.Stat(folder); errors.Is(err, os.ErrNotExist) && folder == o.Places.State {
			return nil
		}
	}
	lock, err := lockState(o.Places.State)
	if err != nil {
		return fmt.Errorf("%w: stop it first (systemctl stop lnk-supervisor)", err)
	}
	kept, err := loadState(o.Places.State)
	if err != nil {
		lock.Close()
		return err
	}
	cgroups, err := slot.NewCgroups(slot.Limits{})
	if err != nil {
		lock.Close()
		return err
	}
	s := &Supervisor{options: o, state: kept, lock: lock, slots: &slot.Config{Cgroups: cgroups, Places: o.Places}}
	return s.End(context.Background(), purge)
}
