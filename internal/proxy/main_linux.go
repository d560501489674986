package proxy

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/bind"
	"link.internal/lnk/internal/channel"
	"link.internal/lnk/internal/control"
	"link.internal/lnk/internal/routes"
)

// exitRefused is the exit code of all that the proxy itself refuses.
const exitRefused = 125

// Main is link-sandbox-proxy. It returns the exit code.
func Main(args []string, stderr io.Writer) int {
	if len(args) > 0 && args[0] == thenFlag {
		return then(args[1:], stderr)
	}
	if len(args) > 1 && args[0] == routes.KeeperFlag {
		return routes.Keep(args[1:])
	}
	if len(args) > 1 && args[0] == routes.ExecFlag {
		fmt.Fprintln(stderr, "link-sandbox-proxy:", routes.Exec(args[1:]))
		return exitRefused
	}
	if os.Getenv("GOMAXPROCS") == "" {
		// What takes time is in the kernel, where it counts for nothing: a second
		// processor only has goroutines wake each other across the two.
		runtime.GOMAXPROCS(1)
	}
	beside, err := startBeside(args)
	if err != nil {
		fmt.Fprintln(stderr, "link-sandbox-proxy:", err)
		return exitRefused
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	if err := harden(); err != nil {
		fmt.Fprintln(stderr, "link-sandbox-proxy:", err)
		return exitRefused
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	defer stop()
	p := &Proxy{
		log: log, servers: make(map[*http.Server]struct{}), grounds: make(map[*ground]struct{}), told: make(chan channel.FromProxy, maxTold), fatal: make(chan error, 1),
		refused: func(r channel.Refused) {
			fmt.Fprintf(stderr, "link-sandbox-proxy: refused %s: %s\n", r.What, r.Why)
		},
	}
	ctx, p.ready = beside.run(ctx)
	err = p.main(ctx, args, stderr)
	code := beside.end()
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return code
	}
	fmt.Fprintln(stderr, p.fail(err))
	return exitRefused
}

func (p *Proxy) main(ctx context.Context, args []string, stderr io.Writer) error {
	fs := flag.NewFlagSet("link-sandbox-proxy", flag.ContinueOnError)
	at := Places{Binder: -1, AgentUser: -1, Group: -1}
	hold := false
	fs.StringVar(&at.Dir, "dir", "", "serve in the socket `FOLDER`, an absolute path of a folder with mode 0700")
	fs.IntVar(&at.AgentUser, "agent-user", -1, "share the socket folder with the user `UID`, whose sandbox this proxy serves: its mode is then 2770")
	fs.IntVar(&at.Group, "group", -1, "with --agent-user: the `GID` of the folder's group, which only the two users are in")
	fs.Func("port", "let `PORT[:INSIDE]` of this machine's loopback lead to a port inside the sandbox (repeatable)", func(text string) error {
		port, err := bind.ParsePort(text)
		at.Ports = append(at.Ports, port)
		return err
	})
	fs.IntVar(&at.Port, "listen", 0, "serve on `PORT` of this machine's loopback")
	fs.Func("dns", "answer names on `ADDRESS:PORT` of this machine's loopback: each endpoint's name has an address there, which leads to it", func(text string) (err error) {
		at.DNS, err = loopbackAddress(text)
		return err
	})
	fs.StringVar(&at.Control, "control", "", "make the control `SOCKET`, an absolute path outside of the socket folder")
	fs.BoolVar(&at.Blank, "blank", false, "hold no rules until one line on the control socket brings them")
	fs.IntVar(&at.Binder, "binder", -1, "let the user `UID` use the control socket beside this one")
	fs.BoolVar(&hold, "hold", false, "with --blank: wait until told to end, without a program after --")
	withRunner := fs.Bool(channelFlag, false, "take rules from, and end with, the runner at descriptor 3")
	var rules bind.Binding
	rules.AddFlags(fs)
	var files bind.RouteFiles
	files.AddFlags(fs)
	fs.SetOutput(io.Discard) // an error is said once, by Main
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		usage(fs, stderr)
		return err
	} else if err != nil {
		return fmt.Errorf("%w: see lnk sandbox proxy --help", err)
	}
	if err := at.checkBlank(hold, fs.Args(), !reflect.DeepEqual(rules, bind.Binding{}) || files != (bind.RouteFiles{})); err != nil {
		return err
	}
	if err := at.check(); err != nil {
		return err
	}
	if at.shared() {
		// Its sockets are the group's too.
		unix.Umask(0o117)
	}
	if rules.Names != nil && at.Dir == "" {
		return errors.New("--names is for a sandbox, which needs --dir: --dns answers for endpoints alone")
	}
	if err := at.checkWire(rules.Wire); err != nil {
		return err
	}
	if *withRunner {
		p.runner = channel.NewChild(os.NewFile(channel.FD, "channel"))
		ctx, err := p.serveRunner(ctx)
		if err != nil {
			return err
		}
		done := make(chan struct{})
		go p.tellRunner(done)
		if err = p.Run(ctx, at); err == nil {
			p.tellLast(done)
		}
		return err
	}
	if at.Blank {
		return p.Run(ctx, at)
	}
	if err := control.LoadRoutes(files, &rules); err != nil {
		return err
	}
	service, err := NewService(rules, "", ahead{}, p.log, p.refused)
	if err != nil {
		return err
	}
	p.service.Store(service)
	return p.Run(ctx, at)
}

// channelFlag is for the runner alone.
const channelFlag = "channel"

// usage lists the flags that are for people.
func usage(fs *flag.FlagSet, w io.Writer) {
	fmt.Fprintln(w, "usage: lnk sandbox proxy (--dir FOLDER | --listen PORT) [flags]")
	fs.VisitAll(func(f *flag.Flag) {
		if f.Name == channelFlag {
			return
		}
		kind, text := flag.UnquoteUsage(f)
		fmt.Fprintf(w, "  --%-28s %s\n", f.Name+" "+kind, text)
	})
}

// checkBlank refuses what a blank proxy can't be given, and what is for one alone.
func (at Places) checkBlank(hold bool, program []string, rules bool) error {
	switch {
	case !at.Blank && len(program) > 0:
		return fmt.Errorf("unexpected argument %q: a program is for --blank", program[0])
	case !at.Blank && hold:
		return errors.New("--hold is for --blank")
	case !at.Blank && at.Binder >= 0 && at.Control == "":
		return errors.New("--binder is for --control")
	case at.Binder == nobody:
		return errors.New("--binder 65534 is nobody, which is no user's identity")
	case !at.Blank:
		return nil
	case at.Port != 0 || at.DNS.IsValid():
		return errors.New("--listen and --dns aren't taken with --blank: it serves a socket folder alone")
	case at.Dir == "" || at.Control == "":
		return errors.New("--blank needs --dir FOLDER and --control SOCKET")
	case rules:
		return errors.New("rules aren't taken with --blank: the line that binds it brings them")
	case hold == (len(program) > 0):
		return errors.New("--blank needs either --hold or a program after --")
	}
	return nil
}

func (at Places) check() error {
	switch {
	case at.Dir == "" && at.Port == 0:
		return errors.New("nowhere to serve: give --dir FOLDER or --listen PORT")
	case at.Port < 0 || at.Port > 65535:
		return fmt.Errorf("--listen %d: a port goes from 1 to 65535", at.Port)
	case at.Control != "" && !filepath.IsAbs(at.Control):
		return fmt.Errorf("--control %q is not an absolute path", at.Control)
	case at.Control != "" && !isFolder(filepath.Dir(at.Control)):
		return fmt.Errorf("--control %s: there is no folder %s", at.Control, filepath.Dir(at.Control))
	case (at.AgentUser >= 0) != (at.Group >= 0):
		return errors.New("--agent-user and --group go together")
	case at.shared() && at.Dir == "":
		return errors.New("--agent-user is for --dir")
	case at.AgentUser == nobody:
		return errors.New("--agent-user 65534 is nobody, which is no user's identity")
	case at.shared() && at.AgentUser == os.Geteuid():
		return errors.New("--agent-user is this proxy's own user: leave it and --group out, and serve in a folder of mode 0700")
	case len(at.Ports) > 0 && at.Dir == "":
		return errors.New("--port is for --dir: it leads into the sandbox behind it")
	case at.Control != "" && at.Dir != "" && lies(at.Control, at.Dir):
		return fmt.Errorf("--control %s lies in the socket folder, which the sandbox writes", at.Control)
	}
	return nil
}

// checkWire refuses a log that the sandbox's user could erase.
func (at Places) checkWire(path string) error {
	if path != "" && at.Dir != "" && lies(path, at.Dir) {
		return fmt.Errorf("the log %s lies in the socket folder, where it could be erased: log elsewhere", path)
	}
	return nil
}

// loopbackAddress reads an address and port of this machine's loopback: from
// any other, strangers would be answered.
func loopbackAddress(text string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(text)
	if err != nil || at.Port() == 0 || !at.Addr().Unmap().IsLoopback() {
		return netip.AddrPort{}, errors.New("it is none of this machine's loopback, such as 127.0.0.1:5353")
	}
	return at, nil
}

// nobody stands for every user that a user namespace doesn't map (user_namespaces(7)).
const nobody = 65534

// lies reports whether a file is in a folder or below it, by whatever links.
func lies(path, folder string) bool {
	for _, real := range []func(string) string{filepath.Clean, realPath} {
		if strings.HasPrefix(real(filepath.Dir(path))+"/", real(folder)+"/") {
			return true
		}
	}
	return false
}

func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// harden gives up what the proxy has no use for, before it reads anything.
func harden() error {
	// Sockets and logs are this user's alone.
	unix.Umask(0o177)
	// Nobody of this user's reads the memory of what will hold keys, and no
	// core holds it: a piped core_pattern ignores RLIMIT_CORE, hence both.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming undumpable: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbidding core dumps: %w", err)
	}
	// It is a thread's, and Go has several already.
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno == unix.ENOTSUP {
		return errors.New("it was built with cgo: build it with CGO_ENABLED=0 (make build)")
	} else if errno != 0 {
		return fmt.Errorf("setting no_new_privs: %w", errno)
	}
	// Whatever was inherited is passed to nobody.
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("closing inherited descriptors on exec: %w", err)
	}
	return nil
}
