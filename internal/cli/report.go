package cli

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/channel"
)

// report says on standard error what happens beside the program. It prints
// from a goroutine of its own: whoever reads standard error may not, and a
// run must go on all the same.
type report struct {
	out     *os.File
	verbose bool
	network bool // there is a proxy, which tells what it saw
	start   time.Time
	last    time.Time
	seen    map[string]bool
	held    []string
	learnt  []string // programs that were executed
	lines   chan string
	done    chan struct{}
}

// maxQueued bounds the lines that wait for a reader; more are left out.
const maxQueued = 1024

func newReport(out *os.File, verbose, network bool) *report {
	now := time.Now()
	r := &report{
		out: out, verbose: verbose, network: network, start: now, last: now, seen: make(map[string]bool),
		lines: make(chan string, maxQueued), done: make(chan struct{}),
	}
	go func() {
		defer close(r.done)
		for line := range r.lines {
			fmt.Fprintln(out, prefix, line)
		}
	}()
	return r
}

// printGrace bounds the wait for a reader at the end.
const printGrace = time.Second

// close waits until all is printed, or nobody reads it. Nothing may be said after it.
func (r *report) close() {
	r.flush()
	close(r.lines)
	select {
	case <-r.done:
	case <-time.After(printGrace):
	}
}

// Refused prints a refusal, once.
func (r *report) Refused(refused channel.Refused) {
	line := fmt.Sprintf("refused %s: %s", printable(refused.What), printable(refused.Why))
	if r.seen[line] {
		return
	}
	r.seen[line] = true
	r.say(line)
}

// Step says how long a part of the start took.
func (r *report) Step(name string) {
	now := time.Now()
	if r.verbose {
		r.say(fmt.Sprintf("%6.1f ms (+%.1f) %s", ms(now.Sub(r.start)), ms(now.Sub(r.last)), printable(name)))
	}
	r.last = now
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Done prints what was held, and the summary.
func (r *report) Done(summary *channel.Summary) {
	r.flush()
	if !r.verbose {
		return
	}
	if !r.network {
		r.say("it had no network")
		return
	}
	if summary == nil {
		r.say("its proxy ended before it told what was reached")
		return
	}
	for _, list := range []struct {
		verb string
		rows []channel.Row
	}{{"reached", summary.Reached}, {"refused", summary.Refused}} {
		if len(list.rows) == 0 {
			r.say(list.verb + " nothing")
		}
		for _, row := range list.rows {
			r.say(fmt.Sprintf("%s %s (%d)", list.verb, printable(row.What), row.Calls))
		}
	}
	if summary.More > 0 {
		r.say(fmt.Sprintf("and %d more", summary.More))
	}
	r.say(fmt.Sprintf("%s sent, %s received", amount(summary.Up), amount(summary.Down)))
}

// say prints a line, or holds it while the program has the terminal in raw
// mode, where it would land in the middle of its screen.
func (r *report) say(line string) {
	if r.raw() {
		if len(r.held) < maxQueued {
			r.held = append(r.held, line)
		}
		return
	}
	r.flush()
	r.queue(line)
}

func (r *report) flush() {
	for _, line := range r.held {
		r.queue(line)
	}
	r.held = nil
}

func (r *report) queue(line string) {
	select {
	case r.lines <- line:
	default: // nobody has read for a long time
	}
}

func (r *report) raw() bool {
	termios, err := unix.IoctlGetTermios(int(r.out.Fd()), unix.TCGETS)
	return err == nil && termios.Lflag&unix.ICANON == 0
}

// printable keeps what a sandbox chose from steering a terminal.
func printable(text string) string {
	if strings.IndexFunc(text, func(c rune) bool { return !strconv.IsPrint(c) }) < 0 {
		return text
	}
	return strconv.Quote(text)
}

func amount(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
