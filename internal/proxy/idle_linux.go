package proxy

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// idleAfter is how long after its start a proxy gives its code back: by then
// what is started at once has been.
const idleAfter = time.Second

// codeMappings are those of this program's code and constants, in which
// nothing was written. They are looked for before the proxy gives up its
// files, /proc among them.
func codeMappings() ([]mapping, error) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil, err
	}
	defer smaps.Close()
	var code []mapping
	var at mapping
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasSuffix(line, self) {
			at, _ = parseMapping(line)
		} else if strings.HasPrefix(line, "Anonymous:") {
			// Pages that were written are anonymous copies.
			if at.path == self && at.unwritten(line) {
				code = append(code, at)
			}
			at = mapping{}
		}
	}
	return code, lines.Err()
}

// giveBack lets go of their pages. The kernel maps those around each that is
// used, so that most of the file is in memory after a start, of which an idle
// proxy uses little. They come back from the page cache when they are used
// (madvise(2), MADV_DONTNEED).
func giveBack(code []mapping) error {
	for _, m := range code {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("giving code back: %w", errno)
		}
	}
	return nil
}

// mapping is the first line of an entry of smaps (proc_pid_smaps(5)).
type mapping struct {
	from, to uintptr
	rights   string
	path     string
}

func parseMapping(line string) (m mapping, ok bool) {
	var offset, device, inode string
	n, _ := fmt.Sscanf(line, "%x-%x %s %s %s %s %s", &m.from, &m.to, &m.rights, &offset, &device, &inode, &m.path)
	return m, n == 7
}

// unwritten reports whether a mapping is of code or constants, and the line
// of its anonymous pages says that there are none.
func (m mapping) unwritten(line string) bool {
	var kib int
	n, _ := fmt.Sscanf(line, "Anonymous: %d kB", &kib)
	return n == 1 && kib == 0 && (m.rights == "r-xp" || m.rights == "r--p")
}
