package cli

import (
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"link.internal/lnk/internal/runner"
	"link.internal/lnk/internal/spec"
	"link.internal/lnk/internal/wall"
)

func newRun() *cobra.Command {
	var s spec.Spec
	var verbose bool
	c := &cobra.Command{
		Use:   "run [flags] -- program [args…]",
		Short: "run a program that gets just the files and hosts you list",
		Long: `Run a program in a sandbox. It sees the system's folders and the working
folder, read only, an empty home and an empty /tmp, and no network. Each flag
adds to that. Its exit code is lnk's; 125 is lnk's own refusal.`,
		Example: `  lnk sandbox run -- python3 untrusted.py
  lnk sandbox run --internet-host api.anthropic.com --write . -- ./bot
  lnk sandbox run --internet-host '*' -- curl -sI https://example.com
  lnk sandbox run --internet-host github.com --tcp github.com:22 --write . -- ./sync`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("no program to run: name it after --")}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return run(&s, args, verbose) },
	}
	fs := flag.NewFlagSet("run", flag.ContinueOnError)
	s.AddFlags(fs)
	fs.BoolVar(&verbose, "verbose", false, "say what is done, and at the end what was reached and refused")
	c.Flags().AddGoFlagSet(fs)
	c.Flags().SortFlags = false
	// What follows the program is the program's.
	c.Flags().SetInterspersed(false)
	return c
}

// run checks everything, then starts it.
func run(s *spec.Spec, args []string, verbose bool) error {
	report := newReport(os.Stderr, verbose, s.Rules.Network())
	defer report.close()
	if err := s.Check(); err != nil {
		return err
	}
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
	grants, err := s.Grants(caller, programs.all(), runner.Folders(), programs.relay)
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
	if err := plan.CheckProgram(args[0], path); err != nil {
		return programError(err)
	}
	report.Step("parsed")
	r := &runner.Run{
		Wall: plan, Rules: s.Rules,
		Args: args, Env: env, UID: caller.UID, GID: caller.GID,
		Bwrap: bwrapPath, Proxy: programs.proxy,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Report: report,
	}
	code, err := r.Run()
	if err != nil {
		return err
	}
	if code != 0 {
		return exitError(code)
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
