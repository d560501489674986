package proxy

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"link.internal/lnk/internal/channel"
	"link.internal/lnk/internal/control"
)

// maxTally bounds how many distinct targets are told apart: the names are
// the sandbox's to make up.
const maxTally = 256

// tally counts calls by target, and tells of each first refusal.
type tally struct {
	tell func(channel.Refused)

	mu           sync.Mutex
	reachedCalls map[string]int
	refusedCalls map[string]int
	told         map[string]bool
	toldNames    map[string]bool // of names that were asked for and aren't listed
	more         int
	reachedAll   int
	refusedAll   int
	pauses       int
	up, down     int64
}

func newTally(tell func(channel.Refused)) *tally {
	return &tally{
		tell:         tell,
		reachedCalls: make(map[string]int), refusedCalls: make(map[string]int), told: make(map[string]bool), toldNames: make(map[string]bool),
	}
}

func (t *tally) reached(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reachedAll++
	t.count(t.reachedCalls, what)
}

func (t *tally) refused(what string, why refusal) {
	t.mu.Lock()
	t.refusedAll++
	t.count(t.refusedCalls, what)
	key := string(why.code) + " " + what
	first := !t.told[key] && len(t.told) < maxTally
	last := len(t.told) == maxTally-1
	if first {
		t.told[key] = true
	}
	t.mu.Unlock()
	if !first {
		return
	}
	if last {
		t.tell(channel.Refused{Code: string(why.code), What: "more", Why: "only so many refusals are shown: --wire FILE logs them all"})
		return
	}
	text := why.why
	if why.detail != "" {
		text += " (" + why.detail + ")"
	}
	t.tell(channel.Refused{Code: string(why.code), What: what, Why: text})
}

// maxToldNames bounds the names that are told of, apart from the calls: a
// program that makes names up hides no refused call.
const maxToldNames = 64

// unlisted counts a name that was asked for and isn't listed.
func (t *tally) unlisted(name string, why refusal) {
	t.mu.Lock()
	t.refusedAll++
	t.count(t.refusedCalls, name)
	first := !t.toldNames[name] && len(t.toldNames) < maxToldNames
	last := len(t.toldNames) == maxToldNames-1
	if first {
		t.toldNames[name] = true
	}
	t.mu.Unlock()
	switch {
	case first && last:
		t.tell(channel.Refused{Code: string(why.code), What: "more names", Why: "only so many are shown: --wire FILE logs them"})
	case first:
		t.tell(channel.Refused{Code: string(why.code), What: name, Why: why.why})
	}
}

// paused tells that the wire paused itself, each time in words of its own:
// what was told once is not told again.
func (t *tally) paused(why string) {
	t.mu.Lock()
	t.pauses++
	n := t.pauses
	t.mu.Unlock()
	if n > 1 {
		why = fmt.Sprintf("%s (for the %d. time)", why, n)
	}
	t.tell(channel.Refused{Code: string(codePaused), What: "the wire", Why: why})
}

func (t *tally) count(in map[string]int, what string) {
	if _, known := in[what]; !known && len(in) >= maxTally {
		t.more++
		return
	}
	in[what]++
}

func (t *tally) moved(up, down int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.up += up
	t.down += down
}

// into fills in what is counted of a status.
func (t *tally) into(status *control.Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	status.Reached, status.Refused, status.Up, status.Down = t.reachedAll, t.refusedAll, t.up, t.down
}

func (t *tally) summary() channel.Summary {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := channel.Summary{Up: t.up, Down: t.down, More: t.more}
	s.Reached = busiest(t.reachedCalls, &s.More)
	s.Refused = busiest(t.refusedCalls, &s.More)
	return s
}

func busiest(calls map[string]int, more *int) []channel.Row {
	rows := make([]channel.Row, 0, len(calls))
	for what, n := range calls {
		rows = append(rows, channel.Row{What: what, Calls: n})
	}
	slices.SortFunc(rows, func(a, b channel.Row) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.What, b.What))
	})
	if len(rows) > channel.SummaryRows {
		*more += len(rows) - channel.SummaryRows
		rows = rows[:channel.SummaryRows]
	}
	return rows
}
