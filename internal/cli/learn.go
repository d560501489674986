package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"link.internal/lnk/internal/commands"
)

// Learnt keeps a program that was executed.
func (r *report) Learnt(path string) { r.learnt = append(r.learnt, path) }

// printLearnt prints the entries that a spec lacks, ready to paste.
func (r *report) printLearnt(out io.Writer, known *commands.List) {
	slices.Sort(r.learnt)
	var missing []string
	for _, path := range slices.Compact(r.learnt) {
		if !known.Listed(path) {
			missing = append(missing, path)
		}
	}
	if len(missing) == 0 {
		fmt.Fprintln(out, "# the list has every program that was started")
		return
	}
	fmt.Fprintln(out, "[commands]\nallow = [")
	for _, path := range missing {
		fmt.Fprintf(out, "  %s,\n", strconv.Quote(path))
	}
	fmt.Fprintln(out, "]")
}
