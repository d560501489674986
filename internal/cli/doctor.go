package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/bind"
	"link.internal/lnk/internal/channel"
	"link.internal/lnk/internal/confine"
	"link.internal/lnk/internal/runner"
	"link.internal/lnk/internal/spec"
	"link.internal/lnk/internal/wall"
)

// state is how a check came out.
type state string

const (
	stateReady   state = "ready"
	stateReduced state = "reduced" // it works, and something that could be had can't
	stateMissing state = "missing" // no sandbox can be started
)

// check is one thing that was tried.
type check struct {
	Name  string `json:"name"`
	State state  `json:"state"`
	// Found is what is there, Gives what that is good for, Do what would give
	// more, empty when nothing would.
	Found string `json:"found"`
	Gives string `json:"gives"`
	Do    string `json:"do,omitempty"`
}

func newDoctor() *cobra.Command {
	var asJSON, all bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "say whether this machine has what a sandbox needs, and what to do",
		Long: `Say whether this machine has what a sandbox needs. It starts one, with
nothing in it, rather than guess. One line says that all is ready. Else a table
says what was tried, what it gives and what to do, and when a sandbox can't be
started, the exit code is 1.`,
		Example: `  lnk doctor
  lnk doctor --all
  lnk doctor --json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			checks := examine()
			var out strings.Builder
			missing, reduced := count(checks, stateMissing), count(checks, stateReduced)
			switch {
			case asJSON:
				encoder := json.NewEncoder(&out)
				encoder.SetEscapeHTML(false)
				encoder.SetIndent("", "  ")
				if err := encoder.Encode(checks); err != nil {
					return err
				}
			case missing == 0 && reduced == 0 && !all:
				fmt.Fprintln(&out, "ready:", readyLine(checks))
			default:
				printTable(&out, checks)
			}
			if _, err := io.WriteString(c.OutOrStdout(), out.String()); err != nil {
				return err
			}
			if missing > 0 {
				return exitError(1)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&all, "all", false, "print the table also when all is ready")
	c.Flags().BoolVar(&asJSON, "json", false, "print the checks as JSON")
	return c
}

func count(checks []check, s state) (n int) {
	for _, c := range checks {
		if c.State == s {
			n++
		}
	}
	return n
}

func readyLine(checks []check) string {
	var found []string
	for _, c := range checks {
		if c.Name != checkPrograms && c.Name != checkFolder {
			found = append(found, c.Found)
		}
	}
	return strings.Join(found, ", ")
}

// printTable says first what is missing, each on a line.
func printTable(out io.Writer, checks []check) {
	for _, c := range checks {
		if c.State == stateMissing && c.Do != "" {
			fmt.Fprintf(out, "missing: %s\n", printable(c.Do))
		}
	}
	if count(checks, stateMissing) > 0 {
		fmt.Fprintln(out)
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "CHECK\tSTATE\tFOUND\tGIVES")
	for _, c := range checks {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", c.Name, c.State, printable(c.Found), c.Gives)
	}
	table.Flush()
	for _, c := range checks {
		if c.State == stateReduced && c.Do != "" {
			fmt.Fprintf(out, "\n%s: %s\n", c.Name, printable(c.Do))
		}
	}
}

// The checks, in the order in which a run needs them.
const (
	checkPrograms = "lnk's programs"
	checkBubble   = "bubblewrap"
	checkWall     = "wall"
	checkLandlock = "Landlock"
	checkFolder   = "run folder"
)

// examine tries what a run needs.
func examine() []check {
	programs, programsErr := findSisters()
	checks := []check{
		made(checkPrograms, filepath.Dir(programs.relay), "the runner, the relay and the proxy", programsErr),
		made(checkBubble, bwrapVersion(), "builds the wall", checkBwrap()),
	}
	if count(checks, stateMissing) == 0 {
		checks = append(checks, tryWall(programs))
	} else {
		checks = append(checks, check{Name: checkWall, State: stateMissing, Found: "not tried", Gives: "the sandbox"})
	}
	base, err := runner.Base()
	return append(checks, landlock(), made(checkFolder, base, "where runs keep their sockets", err))
}

// made is a check that has no middle.
func made(name, found, gives string, err error) check {
	if err != nil {
		return check{Name: name, State: stateMissing, Found: "no", Gives: gives, Do: err.Error()}
	}
	return check{Name: name, State: stateReady, Found: found, Gives: gives}
}

func landlock() check {
	c := check{Name: checkLandlock, State: stateReady, Gives: "the proxy keeps no file but its own"}
	abi, err := confine.LandlockABI()
	switch {
	case err != nil:
		c.State, c.Found, c.Do = stateMissing, "an error", err.Error()
	case abi == 0:
		c.Found, c.Gives = "no Landlock", "nothing: no promise of today's rests on it"
	case abi < confine.ScopeABI:
		c.Found = fmt.Sprintf("Landlock ABI %d", abi)
	default:
		c.Found = fmt.Sprintf("Landlock ABI %d", abi)
		c.Gives += "; a program signals none but its own"
	}
	return c
}

func bwrapVersion() string {
	out, err := exec.Command(bwrapPath, "--version").Output()
	version := strings.TrimSpace(string(out))
	if err != nil || version == "" {
		version = checkBubble
	}
	var st unix.Stat_t
	if unix.Stat(bwrapPath, &st) == nil && st.Mode&unix.S_ISUID != 0 {
		version += " (setuid)"
	}
	return version
}

// tryWall starts a sandbox with a proxy, as any run would.
func tryWall(programs sisters) check {
	c := check{Name: checkWall, State: stateReady, Found: "user namespaces, the full wall", Gives: "isolation; DNS inside; endpoints by name on every port"}
	plain, err := startTrue(programs)
	switch {
	case err != nil:
		c.State, c.Found, c.Gives, c.Do = stateMissing, "none", "the sandbox", err.Error()
	case plain != "":
		c.State, c.Found = stateReduced, "user namespaces, the plain wall"
		c.Gives = "the same isolation; endpoints by name if listed by themselves, from port 1024; no DNS inside"
		c.Do = plain + ": " + fullWall(plain)
	}
	return c
}

// fullWall says what would give the full wall, by what took it.
func fullWall(why string) string {
	switch {
	case strings.Contains(why, "AppArmor"):
		return "load lnk's own AppArmor profiles, as its package does (copy packaging/apparmor/lnk to /etc/apparmor.d/lnk, and run apparmor_parser -r /etc/apparmor.d/lnk), with lnk at /usr/bin/lnk; they are for AppArmor 4"
	case strings.Contains(why, "setuid"):
		return "where user namespaces are allowed, bwrap needs no setuid: chmod u-s " + bwrapPath
	default:
		return "whoever runs this container, or set up this machine's security module, can leave bwrap the capabilities of its own user namespaces"
	}
}

// startTrue returns why the wall is the plain one, if it is.
func startTrue(programs sisters) (plain string, err error) {
	if err := os.Chdir("/"); err != nil { // this one may be gone
		return "", err
	}
	caller, err := spec.ThisCaller()
	if err != nil {
		return "", err
	}
	var s spec.Spec
	s.Rules.InternetHost = []string{"localhost.invalid"}
	grants, err := s.Grants(caller, programs.all(), runner.Folders(), programs.relay)
	if err != nil {
		return "", err
	}
	plan, err := wall.Plan(grants)
	if err != nil {
		return "", err
	}
	env, _, err := s.Environment(caller, "/")
	if err != nil {
		return "", err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer null.Close()
	try := &runner.Run{
		Wall: plan, Rules: bind.Binding{Rules: s.Rules}, Network: true, Args: []string{wall.RelayPath, "nothing"}, Env: env, UID: caller.UID, GID: caller.GID,
		Bwrap: bwrapPath, Proxy: programs.proxy,
		Stdin: null, Stdout: null, Stderr: null, Report: silent{}, Try: true, NoTerminal: true,
	}
	code, err := try.Run()
	signal.Reset()
	if err != nil {
		return "", err
	}
	if code != 0 {
		return "", errors.New("a sandbox was started, and what was to do nothing in it failed")
	}
	return try.Plain(), nil
}

// silent is a Reporter that says nothing.
type silent struct{}

func (silent) Refused(channel.Refused) {}
func (silent) Learnt(string)           {}
func (silent) Step(string)             {}
func (silent) Done(*channel.Summary)   {}
