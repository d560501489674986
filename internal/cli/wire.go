package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/control"
	"link.internal/lnk/internal/runner"
	"link.internal/lnk/internal/wire"
)

// shownID is how much of a run's id is shown: enough to name it.
const shownID = 8

// listed is a run as list prints it.
type listed struct {
	Run     string          `json:"run"`
	PID     int             `json:"pid"`
	Started time.Time       `json:"started"`
	Program []string        `json:"program"`
	Log     string          `json:"log,omitempty"`
	Reached []string        `json:"reached,omitempty"`
	Wire    *control.Status `json:"wire,omitempty"`
}

func newList() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "list",
		Short:   "list your runs, and how their wires stand",
		Example: "  lnk sandbox list\n  lnk sandbox list --json",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			runs, err := runner.Runs()
			if err != nil {
				return err
			}
			rows := []listed{}
			for _, run := range runs {
				row := listed{Run: run.ID, PID: run.PID, Started: run.Started, Program: run.Program, Reached: run.Reached}
				if run.Network {
					row.Log = run.WirePath()
					status, err := control.Ask(c.Context(), run.Control(), "status")
					if err != nil {
						status = control.Status{State: "gone", Why: err.Error()}
					}
					row.Wire = &status
				}
				rows = append(rows, row)
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), rows)
			}
			if len(rows) == 0 {
				_, err := fmt.Fprintln(c.OutOrStdout(), "nothing runs")
				return err
			}
			return printRuns(c.OutOrStdout(), rows)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printRuns(w io.Writer, rows []listed) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RUN\tPID\tSTARTED\tWIRE\tREACHED\tREFUSED\tUP\tDOWN\tPROGRAM")
	for _, row := range rows {
		state, reached, refused, up, down := "none", "", "", "", ""
		if len(row.Reached) > 0 {
			state = "elsewhere"
		}
		if s := row.Wire; s != nil {
			state = s.State
			reached, refused, up, down = fmt.Sprint(s.Reached), fmt.Sprint(s.Refused), amount(s.Up), amount(s.Down)
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", row.Run[:min(shownID, len(row.Run))], row.PID,
			row.Started.Local().Format("15:04:05"), state, reached, refused, up, down, clipped(strings.Join(row.Program, " ")))
	}
	return table.Flush()
}

// clipped keeps a program's arguments to one line of a table.
func clipped(text string) string {
	const most = 60
	if len(text) > most {
		text = text[:most] + "…"
	}
	return printable(text)
}

func printJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// newDo makes pause, resume and stop.
func newDo(verb, short, long string) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     verb + " [RUN]",
		Short:   short,
		Long:    long + "\n\nRUN is the beginning of a run's id, as list prints it; it may be left out\nwhile there is only one.",
		Example: "  lnk sandbox " + verb + "\n  lnk sandbox " + verb + " k3x7",
		Args:    atMostOneRun,
		RunE: func(c *cobra.Command, args []string) error {
			run, err := findRun(args)
			if err != nil {
				return err
			}
			if !run.Network {
				return noWire(run, "so no wire to "+verb)
			}
			status, err := control.Ask(c.Context(), run.Control(), verb)
			if err != nil {
				return fmt.Errorf("run %s: %w", run.ID[:shownID], err)
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), listed{Run: run.ID, PID: run.PID, Started: run.Started, Program: run.Program, Log: run.WirePath(), Wire: &status})
			}
			fmt.Fprintf(c.OutOrStdout(), "%s is %s\n", run.ID[:shownID], status.State)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func findRun(args []string) (runner.Found, error) {
	if len(args) == 0 {
		return runner.Find("")
	}
	if args[0] == "" {
		return runner.Found{}, errors.New("the run's id is empty (lnk sandbox list)")
	}
	return runner.Find(args[0])
}

func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}

func atMostOneRun(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usageError{fmt.Errorf("unexpected argument %q: name one run", args[1])}
	}
	return nil
}

func newWire() *cobra.Command {
	var follow, asJSON bool
	c := &cobra.Command{
		Use:   "wire [RUN]",
		Short: "show the log of a run's calls",
		Long: `Show the log of a run's calls: what was asked for, what became of it, and
how much it moved. RUN is the beginning of a run's id, as list prints it, or
the path of a log that --wire made; it may be left out while there is only one.`,
		Example: "  lnk sandbox wire\n  lnk sandbox wire k3x7 -f\n  lnk sandbox wire calls.jsonl --json",
		Args:    atMostOneRun,
		RunE: func(c *cobra.Command, args []string) error {
			path, run, err := logPath(args)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, unix.SIGTERM)
			defer stop()
			if run != nil && follow {
				// A log that was asked for outlives its run, and is not removed.
				go func() {
					run.Wait(ctx)
					stop()
				}()
			}
			out := newLogPrinter(c.OutOrStdout(), asJSON)
			err = wire.Read(ctx, path, follow, out.print)
			if errors.Is(err, unix.EPIPE) {
				return nil // whoever read it has had enough
			}
			return err
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on as it grows, until the run ends")
	c.Flags().BoolVar(&asJSON, "json", false, "print the records as they are, one a line")
	return c
}

// noWire says why a run has none of its own.
func noWire(run runner.Found, what string) error {
	if len(run.Reached) > 0 {
		return fmt.Errorf("run %s has no proxy of its own: it reaches that of %s, whose wire is that proxy's to tell of", run.ID[:shownID], strings.Join(run.Reached, ", "))
	}
	return fmt.Errorf("run %s has no network, %s", run.ID[:shownID], what)
}

// logPath is a run's log, or a log by its path.
func logPath(args []string) (string, *runner.Found, error) {
	if len(args) == 1 && strings.ContainsAny(args[0], "/.") {
		return args[0], nil, nil
	}
	run, err := findRun(args)
	if err != nil {
		return "", nil, err
	}
	if !run.Network {
		return "", nil, noWire(run, "so no log")
	}
	return run.WirePath(), &run, nil
}

// logPrinter prints records as a table that grows, or as JSON.
type logPrinter struct {
	out    io.Writer
	asJSON bool
	headed bool
}

func newLogPrinter(out io.Writer, asJSON bool) *logPrinter {
	return &logPrinter{out: out, asJSON: asJSON}
}

func (p *logPrinter) print(r wire.Record) error {
	if p.asJSON {
		return json.NewEncoder(p.out).Encode(r)
	}
	// Fixed widths: the next record may come in an hour.
	const format = "%-12s  %-7s  %-12s  %-7s  %6s  %10s  %10s  %7s  %s\n"
	if !p.headed {
		p.headed = true
		if _, err := fmt.Fprintf(p.out, format, "TIME", "VERDICT", "REASON", "METHOD", "STATUS", "UP", "DOWN", "MS", "TARGET"); err != nil {
			return err
		}
	}
	target := r.Host
	if r.Port != 0 {
		target = net.JoinHostPort(r.Host, fmt.Sprint(r.Port)) + r.Path
	}
	if target == "" {
		target = "(" + r.From + ")"
	}
	status := ""
	if r.Status != 0 {
		status = fmt.Sprint(r.Status)
	}
	_, err := fmt.Fprintf(p.out, format, r.Time.Local().Format("15:04:05.000"), printable(string(r.Verdict)), printable(r.Reason),
		clipped(r.Method), status, amount(r.Up), amount(r.Down), fmt.Sprint(r.MS), printable(target))
	return err
}
