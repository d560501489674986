package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"link.internal/lnk/internal/channel"
	"link.internal/lnk/internal/confine"
	"link.internal/lnk/internal/runner"
	"link.internal/lnk/internal/spec"
	"link.internal/lnk/internal/wall"
)

func newDoctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "say whether this machine has what a sandbox needs, and what to do",
		Long: `Say whether this machine has what a sandbox needs. It starts one, with
nothing in it, rather than guess. One line says that all is ready; else each
line says what is missing and what to do, and the exit code is 1.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ready, missing := examine()
			if len(missing) == 0 {
				fmt.Fprintln(c.OutOrStdout(), "ready:", strings.Join(ready, ", "))
				return nil
			}
			for _, line := range missing {
				fmt.Fprintln(c.OutOrStdout(), "missing:", line)
			}
			return exitError(1)
		},
	}
}

// examine tries what a run needs, in the order in which a run needs it.
func examine() (ready, missing []string) {
	programs, err := findSisters()
	if err != nil {
		missing = append(missing, err.Error())
	}
	if err := checkBwrap(); err != nil {
		missing = append(missing, err.Error())
	} else {
		ready = append(ready, bwrapVersion())
	}
	if len(missing) == 0 {
		if err := tryWall(programs); err != nil {
			missing = append(missing, err.Error())
		} else {
			ready = append(ready, "user namespaces", "the full wall")
		}
	}
	abi, err := confine.LandlockABI()
	switch {
	case err != nil:
		missing = append(missing, err.Error())
	case abi == 0:
		// Nothing that lnk does yet is weaker without it.
		ready = append(ready, "no Landlock (lists of programs will need it: boot with lsm=landlock,…)")
	default:
		ready = append(ready, fmt.Sprintf("Landlock ABI %d", abi))
	}
	return ready, missing
}

func bwrapVersion() string {
	out, err := exec.Command(bwrapPath, "--version").Output()
	if err != nil {
		return "bubblewrap"
	}
	return strings.TrimSpace(string(out))
}

// tryWall runs true in a sandbox with a proxy, as any run would.
func tryWall(programs sisters) error {
	caller, err := spec.ThisCaller()
	if err != nil {
		return err
	}
	caller.Dir = "/"
	var s spec.Spec
	s.Rules.InternetHost = []string{"localhost.invalid"}
	plan, err := wall.Plan(s.Grants(caller, programs.all(), runner.Folders(), programs.relay))
	if err != nil {
		return err
	}
	env, _, err := s.Environment(caller, "/")
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	try := &runner.Run{
		Wall: plan, Rules: s.Rules, Args: []string{"true"}, Env: env, UID: caller.UID, GID: caller.GID,
		Bwrap: bwrapPath, Proxy: programs.proxy,
		Stdin: null, Stdout: null, Stderr: null, Report: silent{},
	}
	code, err := try.Run()
	if err != nil {
		return err
	}
	if code != 0 {
		return errors.New("a sandbox was started, and true in it failed")
	}
	return nil
}

// silent is a Reporter that says nothing.
type silent struct{}

func (silent) Refused(channel.Refused) {}
func (silent) Step(string)             {}
func (silent) Done(*channel.Summary)   {}
