// Package idle lets go of memory that a process has no use for while nothing
// is asked of it: the pages of its own code. The kernel maps those around each
// that is used, so that most of a program is in memory after its start, of which
// an idle one uses little. They come back from the page cache when they are used.
package idle

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// After is how long after its start a process gives its code back: by then
// what is started at once has been.
const After = time.Second

// GiveBackSoon has a process that keeps its /proc give its code back when it is
// idle. What can't be found is kept.
func GiveBackSoon() *time.Timer {
	return time.AfterFunc(After, func() {
		if code, err := OwnCode(); err == nil {
			code.GiveBack()
		}
	})
}

// Code are a program's mappings of its own code and constants.
type Code []mapping

type mapping struct{ from, to uintptr }

// highest is below where a program is loaded whose place is chosen at its
// start, and above where others are. The constants of such a one are written
// then, and would be lost.
const highest = 1 << 32

// OwnCode finds this program's. It reads /proc.
func OwnCode() (Code, error) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	return codeIn(string(maps), self), nil
}

// codeIn reads maps (proc_pid_maps(5)) up to the program's first mapping that
// can be written: what is behind it may have been.
func codeIn(maps, program string) (code Code) {
	for line := range strings.Lines(maps) {
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[5] != program {
			continue
		}
		begin, end, _ := strings.Cut(fields[0], "-")
		from, fromErr := strconv.ParseUint(begin, 16, 64)
		to, toErr := strconv.ParseUint(end, 16, 64)
		if rights := fields[1]; fromErr != nil || toErr != nil || to > highest || rights != "r-xp" && rights != "r--p" {
			break
		}
		code = append(code, mapping{uintptr(from), uintptr(to)})
	}
	return code
}

// GiveBack lets go of it (madvise(2), MADV_DONTNEED).
func (c Code) GiveBack() error {
	for _, m := range c {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("giving code back: %w", errno)
		}
	}
	return nil
}
