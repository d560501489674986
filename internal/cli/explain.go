package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"link.internal/lnk/internal/commands"
	"link.internal/lnk/internal/reach"
	"link.internal/lnk/internal/runner"
	"link.internal/lnk/internal/spec"
	"link.internal/lnk/internal/wall"
	"link.internal/lnk/specs"
)

func newSpec() *cobra.Command {
	c := &cobra.Command{
		Use:   "spec",
		Short: "look at specs, files that say what flags say",
		Args:  cobra.ArbitraryArgs,
		RunE:  subcommandNeeded,
	}
	check := &cobra.Command{
		Use:     "check FILE",
		Short:   "check a spec as a run would, and start nothing",
		Long:    "Check a spec as a run would, and start nothing: every key, host, path and\nprogram. It prints one line, and exits with 125 when the spec is refused.",
		Example: "  lnk sandbox spec check app.toml\n  lnk sandbox spec check claude-code",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("name one spec: a file, or a ready one")}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			p, err := (&options{file: args[0]}).plan()
			if err != nil {
				return err
			}
			s := p.spec
			fmt.Fprintf(c.OutOrStdout(), "%s is in order: %d hosts, %d endpoints, %d paths, %d programs; network %s\n", args[0],
				len(s.Rules.InternetHost)+len(s.Rules.LANHost), len(s.Rules.TCP), len(s.Read)+len(s.Write), len(s.Commands), s.Mode())
			return nil
		},
	}
	list := &cobra.Command{
		Use: "list", Short: "list the ready specs", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			for _, name := range specs.Names() {
				fmt.Fprintln(c.OutOrStdout(), name)
			}
			return nil
		},
	}
	c.AddCommand(check, list)
	return c
}

func newExplain() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "explain [flags] HOST[:PORT] | PATH | PROGRAM",
		Short: "say what a sandbox would do with a host, a file or a program",
		Long: `Say what a sandbox with these flags, or of this spec, would do with a host
(a name with a dot, or with a port), a file (a path with a slash) or a program
(a name), and by which entry. It asks the code that decides in a run, and
starts and looks up nothing. It exits with 1 for what would be refused.`,
		Example: `  lnk sandbox explain --spec app.toml api.example.com
  lnk sandbox explain --spec app.toml db.example.com:5432
  lnk sandbox explain --write . ~/.ssh/id_ed25519
  lnk sandbox explain --spec app.toml git`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("name one host, path or program")}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			p, err := o.plan()
			if err != nil {
				return err
			}
			allowed := p.explain(c.OutOrStdout(), args[0])
			if !allowed {
				return exitError(1)
			}
			return nil
		},
	}
	o.addTo(c)
	c.Flags().SetInterspersed(true)
	return c
}

// planned is a sandbox that could be started.
type planned struct {
	spec   *spec.Spec
	wall   *wall.Wall
	rules  *reach.Rules
	list   *commands.List // nil: any program
	caller spec.Caller
	path   string // the sandbox's PATH
}

// plan does what a run does before it starts anything.
func (o *options) plan() (*planned, error) {
	o.planned = true
	if err := o.load(); err != nil {
		return nil, err
	}
	p := &planned{spec: &o.spec}
	var err error
	if p.rules, err = o.spec.Rules.Compile(); err != nil {
		return nil, err
	}
	if p.caller, err = spec.ThisCaller(); err != nil {
		return nil, err
	}
	programs, err := findSisters()
	if err != nil {
		return nil, err
	}
	grants, err := o.spec.Grants(p.caller, programs.all(), runner.Folders(), programs.relay)
	if err != nil {
		return nil, err
	}
	if p.wall, err = wall.Plan(grants); err != nil {
		return nil, err
	}
	if _, p.path, err = o.spec.Environment(p.caller, p.wall.Dir); err != nil {
		return nil, err
	}
	if o.spec.Rules.Wire != "" {
		if folder := p.wall.Writable(o.spec.Rules.Wire); folder != "" {
			return nil, fmt.Errorf("--wire %s: it lies in %s, which the sandbox may write, and so erase: log elsewhere", o.spec.Rules.Wire, folder)
		}
	}
	if len(o.spec.Commands) == 0 {
		if o.spec.Spec != "" {
			return nil, fmt.Errorf("%s: [commands] allow lists no program, so none may run: lnk sandbox learn --spec %s -- program prints what to add", o.spec.Spec, o.spec.Spec)
		}
		return p, nil
	}
	p.list, err = commands.Resolve(o.spec.Commands, p.where())
	if err != nil {
		return nil, fmt.Errorf("[commands] allow (--command): %w", err)
	}
	return p, nil
}

func (p *planned) where() commands.Where {
	return commands.Where{Path: p.path, Dir: p.wall.Dir, Home: p.caller.Home, Visible: p.wall.Visible, Writable: p.wall.WritableIn, Linked: p.wall.LinkedIn}
}

// explain prints what would happen, and reports whether it is allowed.
func (p *planned) explain(out io.Writer, what string) bool {
	switch {
	case strings.Contains(what, "/"), what == "~", what == ".":
		return p.explainPath(out, what)
	case strings.ContainsAny(what, ".:"):
		return p.explainHost(out, what)
	default:
		return p.explainProgram(out, what)
	}
}

func (p *planned) explainHost(out io.Writer, what string) bool {
	if p.spec.Mode() == spec.ModeHost {
		fmt.Fprintf(out, "%s: reached, as everything is: the network is this machine's own\n", what)
		return true
	}
	targets := []string{what}
	if _, err := reach.ParseTarget(what); err != nil {
		targets = []string{what + ":443", what + ":80"}
	}
	allowed := false
	for _, text := range targets {
		target, err := reach.ParseTarget(text)
		if err != nil {
			fmt.Fprintf(out, "%s: refused: %v\n", text, err)
			continue
		}
		decision := p.rules.Decide(target, reach.Machine{})
		if !decision.Allowed {
			fmt.Fprintf(out, "%s: refused (%s): %s\n", target, decision.Code, decision.Why)
			continue
		}
		allowed = true
		fmt.Fprintf(out, "%s: reached, by %s\n", target, p.located(p.rules.By(target)))
	}
	return allowed
}

// located adds the lines of the spec to the entries that it has.
func (p *planned) located(entries []reach.Entry) string {
	data, err := os.ReadFile(p.spec.Spec)
	lines := strings.Split(string(data), "\n")
	var texts []string
	for _, e := range entries {
		text := fmt.Sprintf("%s %q", e.Key, e.Text)
		for n, line := range lines {
			if err == nil && (strings.Contains(line, `"`+e.Text+`"`) || strings.Contains(line, "'"+e.Text+"'")) {
				text += fmt.Sprintf(" (%s: line %d)", p.spec.Spec, n+1)
				break
			}
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " and ")
}

func (p *planned) explainPath(out io.Writer, what string) bool {
	path := what
	if what == "~" || strings.HasPrefix(what, "~/") {
		path = p.caller.Home + what[1:]
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(p.caller.Dir, path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		fmt.Fprintf(out, "%s: %v\n", path, err)
		return false
	}
	by := p.wall.Explain(real)
	fmt.Fprintf(out, "%s: %s\n", real, by)
	if info, err := os.Stat(real); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && p.wall.Visible(real) {
		return p.mayRun(out, real)
	}
	return p.wall.Visible(real)
}

func (p *planned) explainProgram(out io.Writer, what string) bool {
	found, err := p.wall.CheckProgram(what, p.path)
	if err != nil {
		fmt.Fprintf(out, "%s: %v\n", what, err)
		return false
	}
	return p.mayRun(out, found)
}

func (p *planned) mayRun(out io.Writer, path string) bool {
	if p.list == nil || p.list.Any {
		fmt.Fprintf(out, "%s: runs, as any program does\n", path)
		return true
	}
	if err := p.list.Check(path); err != nil {
		fmt.Fprintf(out, "refused: %v\n", err)
		return false
	}
	fmt.Fprintf(out, "%s: runs, by [commands] allow\n", path)
	return true
}
