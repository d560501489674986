package cli

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"link.internal/lnk/internal/bind"
	"link.internal/lnk/internal/channel"
	"link.internal/lnk/internal/commands"
	"link.internal/lnk/internal/confine"
	"link.internal/lnk/internal/control"
	"link.internal/lnk/internal/runner"
	"link.internal/lnk/internal/spec"
	"link.internal/lnk/internal/wall"
	"link.internal/lnk/specs"
)

// options are what run, learn and explain take.
type options struct {
	spec    spec.Spec
	file    string
	verbose bool
	learn   bool
	wrap    bool // against proxies that run already
	planned bool // for either of the two: nothing is started
}

func (o *options) addTo(c *cobra.Command) {
	fs := flag.NewFlagSet("run", flag.ContinueOnError)
	fs.StringVar(&o.file, "spec", "", "a `FILE` that says the same as flags, which add to it; or the name of a ready one")
	if o.wrap {
		o.spec.AddWrapFlags(fs)
	} else {
		o.spec.AddFlags(fs)
	}
	fs.BoolVar(&o.verbose, "verbose", false, "say what is done, and at the end what was reached and refused")
	c.Flags().AddGoFlagSet(fs)
	c.Flags().SortFlags = false
	// What follows the program is the program's.
	c.Flags().SetInterspersed(false)
}

// load reads the spec, and checks it with the flags.
func (o *options) load() error {
	if o.file != "" {
		if err := o.spec.Load(o.file, specs.Read); err != nil {
			return err
		}
	}
	if o.wrap || o.planned && len(o.spec.Reached) > 0 {
		return o.spec.CheckWrap()
	}
	return o.spec.Check()
}

func newRun() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "run [flags] -- program [args…]",
		Short: "run a program that gets just the files and hosts you list",
		Long: `Run a program in a sandbox. It sees the system's folders and the working
folder, read only, an empty home and an empty /tmp, and no network. Each flag
adds to that. Its exit code is lnk's; 125 is lnk's own refusal.`,
		Example: `  lnk sandbox run -- python3 untrusted.py
  lnk sandbox run --internet-host api.anthropic.com --write . -- ./bot
  lnk sandbox run --internet-host '*' -- curl -sI https://example.com
  lnk sandbox run --internet-host github.com --tcp github.com:22 --write . -- ./sync
  lnk sandbox run --spec app.toml -- npm test
  lnk sandbox run --port 8080:3000 --write . -- ./server
  lnk sandbox run --command sh --command git -- sh -c 'git status'`,
		DisableFlagsInUseLine: true,
		Args:                  programNeeded,
		RunE:                  func(_ *cobra.Command, args []string) error { return run(&o, args) },
	}
	o.addTo(c)
	return c
}

func newLearn() *cobra.Command {
	o := options{learn: true}
	c := &cobra.Command{
		Use:   "learn [flags] -- program [args…]",
		Short: "run a program once, and print the programs it starts, for a spec",
		Long: `Run a program once as run does, with every program open, and print the
entries to add to [commands] allow. It writes nothing. A helper that a program
starts only now and then is found only if this run starts it.`,
		Example: `  lnk sandbox learn --spec app.toml -- npm test
  lnk sandbox learn --write . -- make`,
		DisableFlagsInUseLine: true,
		Args:                  programNeeded,
		RunE:                  func(_ *cobra.Command, args []string) error { return run(&o, args) },
	}
	o.addTo(c)
	return c
}

func programNeeded(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageError{errors.New("no program to run: name it after --")}
	}
	return nil
}

// run checks everything, then starts it.
func run(o *options, args []string) error {
	s := &o.spec
	if err := o.load(); err != nil {
		return err
	}
	proxied := s.Mode() == spec.ModeProxy
	report := newReport(os.Stderr, o.verbose, proxied)
	defer report.close()
	caller, err := spec.ThisCaller()
	if err != nil {
		return err
	}
	programs, err := findSisters()
	if err != nil {
		return err
	}
	if err := checkBwrap(); err != nil {
		return err
	}
	reached, err := openReached(s.Reached, caller)
	if err != nil {
		return err
	}
	hidden := runner.Folders()
	for _, folder := range reached {
		defer folder.Close()
		hidden = append(hidden, folder.Real())
	}
	grants, err := s.Grants(caller, programs.all(), hidden, programs.relay)
	if err != nil {
		return err
	}
	plan, err := wall.Plan(grants)
	if err != nil {
		return err
	}
	if s.Rules.Wire != "" {
		if folder := plan.Writable(s.Rules.Wire); folder != "" {
			return fmt.Errorf("--wire %s: it lies in %s, which the sandbox may write, and so erase: log elsewhere", s.Rules.Wire, folder)
		}
	}
	env, path, err := s.Environment(caller, plan.Dir)
	if err != nil {
		return err
	}
	program, err := plan.CheckProgram(args[0], path)
	if err != nil {
		return programError(err)
	}
	listed, err := o.commands(plan, caller, path, program, programs.relay)
	if err != nil {
		return err
	}
	for _, note := range listed.notes {
		report.say(note)
	}
	memory, err := s.Limits.ParseLimits()
	if err != nil {
		return err
	}
	ports, err := s.ParsePorts()
	if err != nil {
		return err
	}
	binding := bind.Binding{Rules: s.Rules}
	if err := control.LoadRoutes(s.Routes, &binding); err != nil {
		return err
	}
	report.Step("parsed")
	r := &runner.Run{
		Wall: plan, Rules: binding, Reached: reached, Ports: ports, Network: proxied, Host: s.Mode() == spec.ModeHost, Commands: listed.channel,
		Limits:         runner.Limits{Memory: memory, Processes: s.Limits.Processes, CPUs: s.Limits.CPUs},
		UserNamespaces: s.Limits.UserNS != nil && *s.Limits.UserNS,
		Args:           args, Env: env, UID: caller.UID, GID: caller.GID,
		Bwrap: bwrapPath, Proxy: programs.proxy,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Report: report,
	}
	code, err := r.Run()
	if o.learn && err == nil {
		signal.Reset()
		report.printLearnt(os.Stdout, listed.list)
	}
	if err != nil {
		return err
	}
	if code != 0 {
		return exitError(code)
	}
	return nil
}

// programList is a list of programs, as it is needed here and there.
type programList struct {
	list    *commands.List
	channel *channel.Commands
	notes   []string
}

// commands resolves the list of programs, if there is one, and refuses the
// program to run when it isn't on it.
func (o *options) commands(plan *wall.Wall, caller spec.Caller, path, program, relay string) (programList, error) {
	s := &o.spec
	var l programList
	if s.Spec == "" && len(s.Commands) == 0 && !o.learn {
		return l, nil
	}
	if len(s.Commands) == 0 && !o.learn {
		return l, fmt.Errorf("%s: [commands] allow lists no program, so none may run: lnk sandbox learn --spec %s -- %s prints what to add", s.Spec, s.Spec, program)
	}
	list, err := commands.Resolve(s.Commands, commands.Where{
		Path: path, Dir: plan.Dir, Home: caller.Home, Visible: plan.Visible, Writable: plan.WritableIn, Linked: plan.LinkedIn,
	})
	if err != nil {
		return l, fmt.Errorf("[commands] allow (--command): %w", err)
	}
	l.list, l.notes = list, list.Notes
	if list.Any && !o.learn {
		return l, nil
	}
	if err := canList(); err != nil {
		return l, err
	}
	l.channel = &channel.Commands{Learn: o.learn}
	for _, p := range list.Paths {
		l.channel.Paths = append(l.channel.Paths, channel.Command{Path: []byte(p.Path), Folder: p.Folder, Dev: p.Dev, Ino: p.Ino})
	}
	for _, p := range list.Loaders {
		l.channel.Loaders = append(l.channel.Loaders, channel.Command{Path: []byte(p.Path), Dev: p.Dev, Ino: p.Ino})
	}
	if o.learn {
		return l, nil
	}
	if err := list.Check(program); err != nil {
		return l, fmt.Errorf("the program: %w", err)
	}
	// What ssh inside is preset to connect by.
	if s.Mode() == spec.ModeProxy {
		own, err := commands.Own(relay, wall.RelayPath)
		if err != nil {
			return l, err
		}
		l.channel.Paths = append(l.channel.Paths, channel.Command{Path: []byte(own.Path), Dev: own.Dev, Ino: own.Ino})
	}
	return l, nil
}

// canList refuses a machine that can't hold a list of programs.
func canList() error {
	abi, err := confine.LandlockABI()
	if err != nil {
		return err
	}
	if abi == 0 {
		return errors.New("a list of programs needs Landlock, which this kernel has not or has turned off: Linux 5.13 or newer, booted with lsm=landlock,… (lnk doctor)")
	}
	if scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err == nil && len(scope) > 0 && scope[0] == '3' {
		return errors.New("a list of programs needs to read what a program executes, which Yama forbids here for good: boot with kernel.yama.ptrace_scope below 3")
	}
	return nil
}

// programError gives a program that can't be run the code that shells give it.
func programError(err error) error {
	code := runner.ExitRefused
	switch {
	case errors.Is(err, wall.ErrNotFound):
		code = 127
	case errors.Is(err, wall.ErrNotExecutable):
		code = 126
	}
	return &runner.Error{Code: code, Err: fmt.Errorf("the program: %w", err)}
}
