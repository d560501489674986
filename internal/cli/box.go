package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/box"
	"link.internal/lnk/internal/control"
)

// boxOptions are what all of lnk box takes.
type boxOptions struct {
	socket string
	json   bool
}

func (o *boxOptions) client() *box.Client { return box.NewClient(o.socket) }

func newBox() *cobra.Command {
	var o boxOptions
	c := &cobra.Command{
		Use:   "box",
		Short: "keep a machine that packs many agents, by its supervisor",
		Long: `Speak to lnk-supervisor, which keeps the slots of a box: users, folders, a
blank proxy and a blank sandbox each, until a service binds it to an agent.
Root and the group lnk may do all of it, the binder status and bind.`,
		Args: cobra.ArbitraryArgs,
		RunE: subcommandNeeded,
	}
	c.PersistentFlags().StringVar(&o.socket, "socket", box.SocketPath, "the supervisor's `SOCKET`")
	c.PersistentFlags().BoolVar(&o.json, "json", false, "print JSON")
	c.AddCommand(newBoxStatus(&o), newBoxAdd(&o), newBoxRemove(&o), newBoxRecycle(&o), newBoxLogs(&o), newBoxBind(&o), newBoxVerify(&o), newProbe())
	return c
}

func newBoxStatus(o *boxOptions) *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "list the slots, and how they stand",
		Example: "  lnk box status\n  lnk box status --json | jq '.[] | select(.state == \"blank\")'",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			slots, err := o.client().Slots(c.Context())
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(c.OutOrStdout(), slots)
			}
			return printSlots(c.OutOrStdout(), slots)
		},
	}
}

func printSlots(w io.Writer, slots []box.Slot) error {
	if len(slots) == 0 {
		_, err := fmt.Fprintln(w, "there is no slot: lnk box add 10")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SLOT\tSTATE\tSINCE\tAGENT\tPROXY\tGROUP\tSTARTS\tSTART\tMEMORY\tWHY")
	for _, s := range slots {
		memory := ""
		if s.Memory > 0 {
			memory = amount(s.Memory)
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%d\t%d\t%d\t%d\t%.0f ms\t%s\t%s\n", s.Number, s.State, s.Since.Local().Format("Jan 2 15:04:05"),
			s.Agent, s.Proxy, s.Group, s.Starts, s.StartMS, memory, clipped(s.Why))
	}
	return table.Flush()
}

func newBoxAdd(o *boxOptions) *cobra.Command {
	return &cobra.Command{
		Use:     "add N",
		Short:   "make N slots more, and wait until they are blank",
		Example: "  sudo lnk box add 20",
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("it takes how many")}
			}
			n, err := strconv.Atoi(args[0])
			if err != nil || n < 1 {
				return usageError{fmt.Errorf("%q is no number of slots", args[0])}
			}
			var added []box.Slot
			if err := o.client().Do(c.Context(), http.MethodPost, "/v1/slots", box.Add{Add: n}, &added); err != nil {
				return err
			}
			numbers := make([]int, len(added))
			for i, s := range added {
				numbers[i] = s.Number
			}
			if added, err = o.await(c.Context(), numbers); err != nil {
				return err
			}
			if o.json {
				err = printJSON(c.OutOrStdout(), added)
			} else {
				err = printSlots(c.OutOrStdout(), added)
			}
			if failed := slices.IndexFunc(added, func(s box.Slot) bool { return s.State == "waiting" }); err == nil && failed >= 0 {
				return fmt.Errorf("slot %d: %s", added[failed].Number, added[failed].Why)
			}
			return err
		},
	}
}

// await waits until slots are started, or failed at it, with a line of progress.
func (o *boxOptions) await(ctx context.Context, numbers []int) ([]box.Slot, error) {
	progress := newProgress()
	defer progress.end()
	for {
		slots, err := o.client().Slots(ctx)
		if err != nil {
			return nil, err
		}
		slots = slices.DeleteFunc(slots, func(s box.Slot) bool { return !slices.Contains(numbers, s.Number) })
		left := 0
		for _, s := range slots {
			if s.State == "starting" || s.State == "ending" {
				left++
			}
		}
		if left == 0 {
			return slots, nil
		}
		progress.say("%d of %d slots are started", len(slots)-left, len(slots))
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// progress is a line that is written over, where standard error is a terminal.
type progress struct{ on bool }

func newProgress() *progress { return &progress{isTerminal(os.Stderr)} }

func (p *progress) say(format string, args ...any) {
	if p.on {
		fmt.Fprintf(os.Stderr, "\r\x1b[K%s", fmt.Sprintf(format, args...))
	}
}

func (p *progress) end() { p.say("") }

// each does something with each slot that is named.
func (o *boxOptions) each(use, verb, short, example string, all bool, do func(ctx context.Context, number int) error) *cobra.Command {
	var every bool
	c := &cobra.Command{
		Use: use, Short: short, Example: example,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			var numbers []int
			for _, arg := range args {
				n, err := strconv.Atoi(arg)
				if err != nil || n < 1 {
					return usageError{fmt.Errorf("%q is no slot's number", arg)}
				}
				numbers = append(numbers, n)
			}
			if every {
				slots, err := o.client().Slots(c.Context())
				if err != nil {
					return err
				}
				for _, s := range slots {
					numbers = append(numbers, s.Number)
				}
			} else if len(numbers) == 0 {
				return usageError{errors.New("it takes the numbers of slots")}
			}
			progress := newProgress()
			defer progress.end()
			for i, number := range numbers {
				progress.say("%d of %d", i, len(numbers))
				if err := do(c.Context(), number); err != nil {
					return err
				}
			}
			if o.json {
				return printJSON(c.OutOrStdout(), numbers)
			}
			progress.end()
			_, err := fmt.Fprintf(c.OutOrStdout(), "%s: %d\n", verb, len(numbers))
			return err
		},
	}
	if all {
		c.Flags().BoolVar(&every, "all", false, "all slots")
	}
	return c
}

func newBoxRemove(o *boxOptions) *cobra.Command {
	return o.each("remove SLOT… | --all", "removed", "end slots, and remove their users and folders", "  sudo lnk box remove 7 8", true, func(ctx context.Context, number int) error {
		return o.client().Do(ctx, http.MethodDelete, fmt.Sprintf("/v1/slots/%d", number), nil, nil)
	})
}

func newBoxRecycle(o *boxOptions) *cobra.Command {
	return o.each("recycle SLOT…", "blank again", "end slots, bound or not, and make them anew", "  sudo lnk box recycle 7", true, func(ctx context.Context, number int) error {
		return o.client().Do(ctx, http.MethodPost, fmt.Sprintf("/v1/slots/%d/recycle", number), nil, nil)
	})
}

func newBoxLogs(o *boxOptions) *cobra.Command {
	return &cobra.Command{
		Use:     "logs SLOT",
		Short:   "print what a slot's proxy and sandbox wrote last",
		Example: "  sudo lnk box logs 7",
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("it takes one slot's number")}
			}
			n, err := strconv.Atoi(args[0])
			if err != nil || n < 1 {
				return usageError{fmt.Errorf("%q is no slot's number", args[0])}
			}
			var text string
			if err := o.client().Do(c.Context(), http.MethodGet, fmt.Sprintf("/v1/slots/%d/logs", n), nil, &text); err != nil {
				return err
			}
			if o.json {
				return printJSON(c.OutOrStdout(), text)
			}
			_, err = io.WriteString(c.OutOrStdout(), printableLines(text))
			return err
		},
	}
}

func newBoxBind(o *boxOptions) *cobra.Command {
	var number int
	c := &cobra.Command{
		Use:   "bind [--slot N] < line.json",
		Short: "bind a blank slot to an agent, by the JSON object on standard input",
		Long: `Bind a blank slot, any or the one that is named, by the JSON object on standard
input, and print which it was. It is sent to the slot's own proxy, over a control
socket that only the binder can reach: the supervisor never sees it.`,
		Example: `  echo '{"internet_host": ["api.anthropic.com"]}' | lnk box bind`,
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			data, err := readBind(c.InOrStdin())
			if err != nil {
				return err
			}
			slots, err := o.client().InState(c.Context(), "blank")
			if err == nil && number != 0 && !slices.ContainsFunc(slots, func(s box.Slot) bool { return s.Number == number }) {
				slots, err = o.client().Slots(c.Context()) // to say what it is instead
			}
			if err != nil {
				return err
			}
			bound, err := bindOne(c.Context(), slots, number, data)
			if err != nil {
				return err
			}
			if o.json {
				return printJSON(c.OutOrStdout(), bound)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "slot %d\n", bound.Number)
			return err
		},
	}
	c.Flags().IntVar(&number, "slot", 0, "bind this `SLOT`")
	return c
}

// bindOne binds the first blank slot that another binder isn't quicker with.
func bindOne(ctx context.Context, slots []box.Slot, number int, data []byte) (box.Slot, error) {
	for _, s := range slots {
		if number != 0 && s.Number != number || s.State != "blank" {
			if s.Number == number {
				return box.Slot{}, fmt.Errorf("slot %d is %s, and not blank", number, s.State)
			}
			continue
		}
		err := control.SendBind(ctx, s.Control, data, s.Proxy)
		if err == nil {
			s.State = "bound"
			return s, nil
		}
		var notSent *control.NotSentError
		if number == 0 && (errors.Is(err, control.ErrBound) || errors.As(err, &notSent) && !errors.Is(err, os.ErrPermission)) {
			continue // another was quicker, or it is just ending
		}
		return box.Slot{}, fmt.Errorf("binding slot %d: %w", s.Number, err)
	}
	if number != 0 {
		return box.Slot{}, fmt.Errorf("there is no slot %d", number)
	}
	return box.Slot{}, fmt.Errorf("no slot is blank: lnk box add 10, or lnk box status says what they wait for")
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// printableLines keeps the lines of a text that somebody else wrote.
func printableLines(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(printable(strings.TrimSuffix(line, "\n")) + "\n")
	}
	return out.String()
}
