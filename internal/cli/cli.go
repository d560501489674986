// Package cli is lnk's command line: what a person types, and what they read.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"link.internal/lnk/internal/runner"
)

// Version is set by the linker.
var Version = "development"

// exitError is a command that ended with a code and has said all there is to say.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Main is lnk. It returns the exit code.
func Main(args []string) int {
	if err := dropInherited(); err != nil {
		fmt.Fprintln(os.Stderr, "lnk:", err)
		return runner.ExitRefused
	}
	root := newRoot()
	root.SetArgs(args)
	command, err := root.ExecuteContextC(context.Background())
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	}
	printError(os.Stderr, command, err)
	var failed *runner.Error
	if errors.As(err, &failed) {
		return failed.Code
	}
	return runner.ExitRefused
}

// usageError is a command line that isn't one.
type usageError struct{ error }

func printError(w io.Writer, command *cobra.Command, err error) {
	// An error may quote a file's bytes, or what a process inside said.
	fmt.Fprintln(w, prefix, printable(err.Error()))
	var usage usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(w, "%s see %s --help\n", prefix, command.CommandPath())
	}
}

// prefix begins each line that lnk says beside the program's own.
const prefix = "lnk sandbox:"

// Root is lnk's commands, for whoever writes their pages and completions.
func Root() *cobra.Command { return newRoot() }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "lnk",
		Short:         "a sandbox for AI agents and other programs you don't trust",
		Version:       Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Example:       "  lnk sandbox run --internet-host api.anthropic.com --write . -- ./bot",
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	sandbox := &cobra.Command{
		Use:   "sandbox",
		Short: "run programs that reach only what you list",
		Args:  cobra.ArbitraryArgs,
		RunE:  subcommandNeeded,
	}
	sandbox.AddCommand(newRun(), newWrap(), newLearn(), newSpec(), newExplain(), newKey(), newProxy(), newBind(), newBridge(), newList(), newWire(),
		newDo("pause", "refuse a run's new calls, and let open ones stand still", "Refuse a run's new calls, and let its open tunnels stand still. Nothing is lost."),
		newDo("resume", "let a paused run's calls go on", "Let a paused run's calls go on."),
		newDo("stop", "end all of a run's calls, for good", "End all of a run's calls, for good. The program runs on, and is told nothing\nbut refusals."),
	)
	root.AddCommand(sandbox, newBox(), newDoctor())
	root.Args, root.RunE = cobra.ArbitraryArgs, subcommandNeeded
	return root
}

func subcommandNeeded(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		hint := ""
		if c.SuggestionsMinimumDistance = 2; len(c.SuggestionsFor(args[0])) > 0 {
			hint = ": did you mean " + c.SuggestionsFor(args[0])[0] + "?"
		}
		return usageError{fmt.Errorf("unknown command %q for %q%s", args[0], c.CommandPath(), hint)}
	}
	return c.Help()
}
