package slot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"
)

// The programs that make and remove users, by absolute path.
const (
	sysusersPath = "/usr/bin/systemd-sysusers"
	useraddPath  = "/usr/sbin/useradd"
	groupaddPath = "/usr/sbin/groupadd"
	userdelPath  = "/usr/sbin/userdel"
	groupdelPath = "/usr/sbin/groupdel"
)

const (
	noHome  = "/nonexistent"
	noShell = "/usr/sbin/nologin"
)

// MakeUsers makes the users and groups of slots that aren't there yet, in one
// batch, and checks each by getent. It may be called again.
func MakeUsers(ids []ID) error {
	missing, err := missingUsers(ids)
	if err != nil || len(missing) == 0 {
		return err
	}
	make := makeByUseradd
	if _, err := os.Stat(sysusersPath); err == nil {
		make = makeBySysusers
	}
	if err := make(missing); err != nil {
		return err
	}
	if missing, err = missingUsers(ids); err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("%d slots' users weren't made, slot %d's among them", len(missing), missing[0].Number)
	}
	return nil
}

// CheckUsers is an error where a name or an id of slots' is another's already.
func CheckUsers(ids []ID) error {
	_, err := missingUsers(ids)
	return err
}

// missingUsers are the slots of which something is missing. A name or id that
// is another's is an error.
func missingUsers(ids []ID) (missing []ID, err error) {
	var users, groups []string
	for _, id := range ids {
		users = append(users, id.AgentName(), id.ProxyName(), strconv.Itoa(id.Agent), strconv.Itoa(id.Proxy))
		groups = append(groups, id.AgentName(), id.ProxyName(), id.SharedName(), strconv.Itoa(id.Agent), strconv.Itoa(id.Proxy), strconv.Itoa(id.Shared))
	}
	byUser, err := index("passwd", users)
	if err != nil {
		return nil, err
	}
	byGroup, err := index("group", groups)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		whole := true
		for _, want := range []struct {
			in   map[string]entry
			kind string
			name string
			id   int
		}{
			{byGroup, "group", id.AgentName(), id.Agent}, {byGroup, "group", id.ProxyName(), id.Proxy}, {byGroup, "group", id.SharedName(), id.Shared},
			{byUser, "user", id.AgentName(), id.Agent}, {byUser, "user", id.ProxyName(), id.Proxy},
		} {
			byName, named := want.in[want.name]
			byID, numbered := want.in[strconv.Itoa(want.id)]
			if named && byName.id != want.id || numbered && byID.name != want.name {
				return nil, fmt.Errorf("the %s %s is to be %d, and one of the two is another's: %s", want.kind, want.name, want.id, "remove it, or change uids")
			}
			if want.kind == "user" && named && byName.gid != want.id {
				return nil, fmt.Errorf("the user %s has the group %d, and must have its own, %d", want.name, byName.gid, want.id)
			}
			whole = whole && named
		}
		shared := byGroup[id.SharedName()]
		for _, member := range shared.members {
			if member != id.AgentName() && member != id.ProxyName() {
				return nil, fmt.Errorf("the group %s has the member %s, and must have only its slot's users", id.SharedName(), member)
			}
		}
		whole = whole && slices.Contains(shared.members, id.AgentName()) && slices.Contains(shared.members, id.ProxyName())
		if !whole {
			missing = append(missing, id)
		}
	}
	return missing, nil
}

// index is what getent finds, by name and by number.
func index(database string, keys []string) (map[string]entry, error) {
	entries, err := getent(database, keys...)
	if err != nil {
		return nil, err
	}
	found := make(map[string]entry, 2*len(entries))
	for _, e := range entries {
		found[e.name], found[strconv.Itoa(e.id)] = e, e
	}
	return found, nil
}

// makeBySysusers makes them all in one go (sysusers.d(5)).
func makeBySysusers(ids []ID) error {
	var lines bytes.Buffer
	for _, id := range ids {
		for _, u := range []struct {
			name, what string
			uid        int
		}{{id.AgentName(), "agent", id.Agent}, {id.ProxyName(), "proxy", id.Proxy}} {
			fmt.Fprintf(&lines, "g %s %d\nu %s %d:%d \"lnk slot %d, %s\" %s %s\n", u.name, u.uid, u.name, u.uid, u.uid, id.Number, u.what, noHome, noShell)
		}
		fmt.Fprintf(&lines, "g %s %d\nm %s %s\nm %s %s\n", id.SharedName(), id.Shared, id.AgentName(), id.SharedName(), id.ProxyName(), id.SharedName())
	}
	cmd := commandWithin(sysusersPath, "-")
	cmd.Stdin = &lines
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("systemd-sysusers: %w: %s", err, lastLine(out))
	}
	return nil
}

// makeByUseradd makes them one by one, where there is no systemd-sysusers.
func makeByUseradd(ids []ID) error {
	const exists = 9 // of useradd(8) and groupadd(8)
	run := func(path string, args ...string) error {
		out, err := commandWithin(path, args...).CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == exists) {
			return fmt.Errorf("%s %v: %w: %s", path, args, err, lastLine(out))
		}
		return nil
	}
	for _, id := range ids {
		if err := run(groupaddPath, "-g", strconv.Itoa(id.Shared), id.SharedName()); err != nil {
			return err
		}
		for name, uid := range map[string]int{id.AgentName(): id.Agent, id.ProxyName(): id.Proxy} {
			if err := run(groupaddPath, "-g", strconv.Itoa(uid), name); err != nil {
				return err
			}
			if err := run(useraddPath, "-u", strconv.Itoa(uid), "-g", strconv.Itoa(uid), "-G", id.SharedName(), "-M", "-d", noHome, "-s", noShell, "-c", fmt.Sprintf("lnk slot %d", id.Number), name); err != nil {
				return err
			}
			// Of a user that was there, the membership may be what is missing.
			if err := run("/usr/sbin/usermod", "-a", "-G", id.SharedName(), name); err != nil {
				return err
			}
		}
	}
	return nil
}

// RemoveUsers removes the users and groups of slots, where a name has the id
// that is the slot's. What is gone already is no error.
func RemoveUsers(ids []ID) error {
	var names []string
	for _, id := range ids {
		names = append(names, id.AgentName(), id.ProxyName(), id.SharedName())
	}
	users, err := index("passwd", names)
	if err != nil {
		return err
	}
	groups, err := index("group", names)
	if err != nil {
		return err
	}
	const notThere = 6 // of userdel(8) and groupdel(8)
	var all error
	for _, id := range ids {
		for _, step := range []struct {
			path, name string
			id         int
			in         map[string]entry
		}{
			{userdelPath, id.AgentName(), id.Agent, users}, {userdelPath, id.ProxyName(), id.Proxy, users}, {groupdelPath, id.SharedName(), id.Shared, groups},
			// userdel takes a user's own group along, where login.defs says so.
			{groupdelPath, id.AgentName(), id.Agent, groups}, {groupdelPath, id.ProxyName(), id.Proxy, groups},
		} {
			if e, ok := step.in[step.name]; !ok || e.id != step.id {
				continue
			}
			out, err := commandWithin(step.path, step.name).CombinedOutput()
			var exit *exec.ExitError
			if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == notThere) {
				all = errors.Join(all, fmt.Errorf("%s %s: %w: %s", step.path, step.name, err, lastLine(out)))
			}
		}
	}
	return all
}

// commandLimit bounds each command that looks up or changes users.
const commandLimit = 2 * time.Minute

// commandWithin is a command that is killed when it takes too long: a database
// of users may be on a network.
func commandWithin(path string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), commandLimit)
	cmd := exec.CommandContext(ctx, path, args...)
	context.AfterFunc(ctx, cancel)
	return cmd
}

func lastLine(out []byte) string {
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	return string(lines[len(lines)-1])
}
