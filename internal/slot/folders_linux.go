package slot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/peercred"
)

// Places are where slots have their folders.
type Places struct {
	// Runtime is gone after a boot (/run/lnk), State lasts (/var/lib/lnk).
	Runtime, State string
}

// A slot's folders, and whose they are:
//
//	RUNTIME/slots/N/          root 0711
//	  net/                    the agent's, of the shared group, 2770: the socket folder
//	  control/                the proxy's 0700, and the binder may go through it
//	  run/                    the agent's 0700: its runtime folder
//	  record.json             root 0600: what runs (see record)
//	STATE/slots/N/            root 0711
//	  home/                   the agent's 0700
//	  wire/                   the proxy's 0700: where a bind may log
const (
	netFolder     = "net"
	controlFolder = "control"
	runFolder     = "run"
	homeFolder    = "home"
	wireFolder    = "wire"
	recordName    = "record.json"
	recordNew     = "record.json.new"

	controlSocket = "control.sock"
	boundMark     = "control.sock.bound"
	inSocket      = "in.sock"
)

func (p Places) runtime(number int) string {
	return filepath.Join(p.Runtime, "slots", fmt.Sprint(number))
}

func (p Places) state(number int) string {
	return filepath.Join(p.State, "slots", fmt.Sprint(number))
}

// Control is the path of a slot's control socket, Net its socket folder, Wire
// the folder where its proxy may log.
func (p Places) Control(number int) string {
	return filepath.Join(p.runtime(number), controlFolder, controlSocket)
}

// Net is a slot's socket folder.
func (p Places) Net(number int) string { return filepath.Join(p.runtime(number), netFolder) }

// Wire is the folder where a slot's proxy may log.
func (p Places) Wire(number int) string { return filepath.Join(p.state(number), wireFolder) }

// Home is the folder that is a slot's agent's own.
func (p Places) Home(number int) string { return filepath.Join(p.state(number), homeFolder) }

// makeFolders makes a slot's folders, of which there must be none.
func (p Places) makeFolders(id ID, binder int) error {
	type folder struct {
		name     string
		uid, gid int
		mode     uint32
		binder   bool
	}
	for base, folders := range map[string][]folder{
		p.runtime(id.Number): {
			{netFolder, id.Agent, id.Shared, peercred.SharedMode, false},
			{controlFolder, id.Proxy, id.Proxy, 0o700, true},
			{runFolder, id.Agent, id.Agent, 0o700, false},
		},
		p.state(id.Number): {
			{homeFolder, id.Agent, id.Agent, 0o700, false},
			{wireFolder, id.Proxy, id.Proxy, 0o700, false},
		},
	} {
		fd, err := openBase(base, true)
		if err != nil {
			return err
		}
		for _, f := range folders {
			through := -1
			if f.binder && binder > 0 {
				through = binder
			}
			if err := makeFolder(fd, f.name, f.uid, f.gid, f.mode, through); err != nil {
				unix.Close(fd)
				return fmt.Errorf("%s: %w", base, err)
			}
		}
		unix.Close(fd)
	}
	return nil
}

// openBase opens a folder that is root's, and makes it if make.
func openBase(path string, make bool) (int, error) {
	if make {
		for _, part := range []string{filepath.Dir(filepath.Dir(path)), filepath.Dir(path), path} {
			if err := os.Mkdir(part, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
				return -1, err
			}
		}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("%s: %w", path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		unix.Close(fd)
		return -1, fmt.Errorf("%s is uid %d's with mode %04o: it must be root's, and only root may write it", path, st.Uid, st.Mode&0o7777)
	}
	if make {
		// The umask may have taken some away.
		if err := unix.Fchmod(fd, 0o711); err != nil {
			unix.Close(fd)
			return -1, err
		}
	}
	return fd, nil
}

// makeFolder makes one, closed to everybody until it is as it is to be.
func makeFolder(dirFD int, name string, uid, gid int, mode uint32, through int) error {
	if err := unix.Mkdirat(dirFD, name, 0o700); err != nil {
		return fmt.Errorf("making %s: %w", name, err)
	}
	fd, err := unix.Openat(dirFD, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("making %s: %w", name, err)
	}
	defer unix.Close(fd)
	if err := unix.Fchown(fd, uid, gid); err != nil {
		return fmt.Errorf("making %s: %w", name, err)
	}
	// Behind the owner: chown takes set-group-ID away.
	if err := unix.Fchmod(fd, mode); err != nil {
		return fmt.Errorf("making %s: %w", name, err)
	}
	if through >= 0 {
		if err := peercred.AllowTraverse(fd, through); err != nil {
			return fmt.Errorf("making %s: %w", name, err)
		}
	}
	var st unix.Stat_t
	want := mode
	if through >= 0 {
		want |= 0o010 // the ACL's mask
	}
	if err := unix.Fstat(fd, &st); err != nil || int(st.Uid) != uid || int(st.Gid) != gid || st.Mode&0o7777 != want {
		return fmt.Errorf("%s came out as %d:%d %04o, and not as %d:%d %04o", name, st.Uid, st.Gid, st.Mode&0o7777, uid, gid, want)
	}
	return nil
}

// wipe removes all that is in a slot's folders. Nothing of it runs any more.
// What isn't a slot's is an error, and stays.
func (p Places) wipe(number int) error {
	for base, known := range map[string][]string{
		p.runtime(number): {netFolder, controlFolder, runFolder, recordName, recordNew},
		p.state(number):   {homeFolder, wireFolder},
	} {
		fd, err := openBase(base, false)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		dir := os.NewFile(uintptr(fd), base)
		names, err := dir.Readdirnames(-1)
		dir.Close()
		if err != nil {
			return err
		}
		for _, name := range names {
			if !slices.Contains(known, name) {
				return fmt.Errorf("%s has %q, which is no slot's: move it away", base, name)
			}
		}
		if err := removeTrees(base, names); err != nil {
			return err
		}
	}
	return nil
}

const rmPath = "/bin/rm"

// removeTrees removes entries of a folder with all below them, and follows no
// link. By rm(1), whose descriptors don't grow with the depth of what a slot's
// users made.
func removeTrees(base string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	args := []string{"-rf", "--one-file-system", "--"}
	for _, name := range names {
		args = append(args, "./"+name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, rmPath, args...)
	cmd.Dir = base
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("wiping %s: rm: %w", base, err)
	}
	return nil
}

// remove removes a slot's folders, which must be wiped.
func (p Places) remove(number int) error {
	var all error
	for _, base := range []string{p.runtime(number), p.state(number)} {
		if err := unix.Rmdir(base); err != nil && !errors.Is(err, unix.ENOENT) {
			all = errors.Join(all, fmt.Errorf("%s: %w", base, err))
		}
	}
	return all
}

// sharedFolders are where every user may leave something.
var sharedFolders = []string{"/tmp", "/var/tmp", "/dev/shm", "/run/lock"}

// wipeShared removes what a slot's users left there. It is theirs, so it isn't
// looked into beyond that.
func wipeShared(id ID) error {
	var all error
	for _, folder := range sharedFolders {
		names, err := readNames(folder)
		if err != nil {
			continue // a machine may lack one
		}
		theirs := slices.DeleteFunc(names, func(name string) bool {
			var st unix.Stat_t
			return unix.Lstat(filepath.Join(folder, name), &st) != nil || int(st.Uid) != id.Agent && int(st.Uid) != id.Proxy
		})
		all = errors.Join(all, removeTrees(folder, theirs))
	}
	return all
}

func readNames(folder string) ([]string, error) {
	dir, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}
