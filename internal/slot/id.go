// Package slot is what a box packs an agent into: an agent's user, a proxy's
// user, a group that only the two are in, their folders, a cgroup, and in them
// a blank proxy and a blank sandbox.
//
// It promises: a slot is whole and blank, whole and bound, or gone, and is
// made anew from nothing when either of its processes ends; nothing of one
// tenant's is there for the next; and no user of one slot reaches anything of
// another's. It holds no secret and sees no bind.
package slot

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// ID is a slot's number, from 1, and its users. It is what is kept on disk.
type ID struct {
	Number int `json:"number"`
	// Agent and Proxy are uids, each with a group of its own of the same
	// number; Shared is the gid of the group of the two.
	Agent  int `json:"agent"`
	Proxy  int `json:"proxy"`
	Shared int `json:"shared"`
}

// AgentName, ProxyName and SharedName are in passwd and group.
func (id ID) AgentName() string  { return fmt.Sprintf("lnk-agent-%d", id.Number) }
func (id ID) ProxyName() string  { return fmt.Sprintf("lnk-proxy-%d", id.Number) }
func (id ID) SharedName() string { return fmt.Sprintf("lnk-slot-%d", id.Number) }

// perSlot is how many ids of the range a slot takes.
const perSlot = 3

// Range is a range of uids and gids that is the supervisor's.
type Range struct{ First, Last int }

// ParseRange reads "70000-89999".
func ParseRange(text string) (Range, error) {
	first, last, ok := strings.Cut(text, "-")
	var r Range
	var err error
	if ok {
		r.First, err = strconv.Atoi(first)
	}
	if ok && err == nil {
		r.Last, err = strconv.Atoi(last)
	}
	const most = 1<<31 - 1 // some programs take more for negative
	switch {
	case !ok || err != nil:
		return Range{}, fmt.Errorf("%q is no range of uids, such as 70000-89999", text)
	case r.First < 1000 || r.Last > most || r.Last < r.First+perSlot-1:
		return Range{}, fmt.Errorf("%q: a range goes from 1000 at least, and has room for a slot's %d ids", text, perSlot)
	case r.First <= 65535 && 65534 <= r.Last:
		return Range{}, fmt.Errorf("%q has 65534, which is nobody, or 65535, which is no uid", text)
	}
	return r, nil
}

// Allocate finds ids for n more slots, none of which is taken: by another
// slot, by anyone that getent knows, or by a range of subordinate ids.
func (r Range) Allocate(have []ID, n int) ([]ID, error) {
	used, numbers := make(map[int]bool), make(map[int]bool)
	for _, id := range have {
		used[id.Agent], used[id.Proxy], used[id.Shared] = true, true, true
		numbers[id.Number] = true
	}
	var free []int
	for id := r.First; id <= r.Last && len(free) < perSlot*n; {
		var candidates []int
		for ; id <= r.Last && len(candidates) < perSlot*n-len(free); id++ {
			if !used[id] {
				candidates = append(candidates, id)
			}
		}
		taken, err := taken(candidates)
		if err != nil {
			return nil, err
		}
		free = append(free, slices.DeleteFunc(candidates, func(id int) bool { return taken[id] })...)
	}
	if len(free) < perSlot*n {
		return nil, fmt.Errorf("the range %d-%d has room for %d slots more, and %d are wanted: widen uids", r.First, r.Last, len(free)/perSlot, n)
	}
	ids := make([]ID, 0, n)
	for number := 1; len(ids) < n; number++ {
		if numbers[number] {
			continue
		}
		three := free[perSlot*len(ids):]
		ids = append(ids, ID{Number: number, Agent: three[0], Proxy: three[1], Shared: three[2]})
	}
	return ids, nil
}

// taken are those of some ids that are a user's or a group's already.
func taken(ids []int) (map[int]bool, error) {
	taken := make(map[int]bool)
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = strconv.Itoa(id)
	}
	for _, database := range []string{"passwd", "group"} {
		entries, err := getent(database, keys...)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			taken[e.id] = true
		}
	}
	for _, path := range []string{"/etc/subuid", "/etc/subgid"} {
		if err := addSubordinate(path, ids, taken); err != nil {
			return nil, err
		}
	}
	return taken, nil
}

// entry is one of passwd or group.
type entry struct {
	name string
	id   int
	gid  int // of passwd
	// members are of group.
	members []string
}

const getentPath = "/usr/bin/getent"

// getent looks keys up in all of the machine's databases (getent(1)). Those
// that aren't there are left out; a lookup that failed is an error, and not the
// same as one that found nothing.
func getent(database string, keys ...string) ([]entry, error) {
	var entries []entry
	const atOnce = 1000
	for len(keys) > 0 {
		n := min(len(keys), atOnce)
		cmd := commandWithin(getentPath, append([]string{database}, keys[:n]...)...)
		keys = keys[n:]
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		var exit *exec.ExitError
		const someNotFound = 2
		if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == someNotFound) {
			return nil, fmt.Errorf("getent %s: %w %s", database, err, bytes.TrimSpace(stderr.Bytes()))
		}
		for line := range strings.Lines(string(out)) {
			fields := strings.Split(strings.TrimSuffix(line, "\n"), ":")
			if len(fields) < 4 {
				return nil, fmt.Errorf("getent %s: %q is no entry", database, line)
			}
			e := entry{name: fields[0]}
			if e.id, err = strconv.Atoi(fields[2]); err != nil {
				return nil, fmt.Errorf("getent %s: %q is no entry", database, line)
			}
			if database == "passwd" {
				e.gid, _ = strconv.Atoi(fields[3])
			} else if fields[3] != "" {
				e.members = strings.Split(fields[3], ",")
			}
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// addSubordinate adds the ids that a file of subordinate ids gives away (subuid(5)).
func addSubordinate(path string, ids []int, taken map[int]bool) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Split(strings.TrimSpace(lines.Text()), ":")
		if len(fields) != 3 {
			continue
		}
		first, err1 := strconv.Atoi(fields[1])
		count, err2 := strconv.Atoi(fields[2])
		if err1 != nil || err2 != nil {
			continue
		}
		for _, id := range ids {
			if id >= first && id-first < count {
				taken[id] = true
			}
		}
	}
	return lines.Err()
}
