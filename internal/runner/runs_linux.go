package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// About is what a run says of itself, in its folder.
type About struct {
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	// Program is the command that was given.
	Program []string `json:"program"`
	// Network says that the run has a proxy of its own.
	Network bool `json:"network"`
	// Reached are the socket folders of proxies that ran already.
	Reached []string `json:"reached,omitempty"`
	// Wire is where it logs; empty: in its folder.
	Wire string `json:"wire,omitempty"`
}

// maxAbout bounds what is read of another run's file: a command line may have
// 2 MiB (execve(2)).
const maxAbout = 8 << 20

func (a About) write(dirFD int) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	fd, err := unix.Openat(dirFD, aboutName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), aboutName)
	defer file.Close()
	_, err = file.Write(data)
	return err
}

// Found is a run of this user's that is alive.
type Found struct {
	// ID is the random part of its folder's name, in lower case.
	ID string
	About
	path string
}

// Control is the path of its proxy's control socket.
func (f Found) Control() string { return filepath.Join(f.path, controlName) }

// WirePath is where it logs.
func (f Found) WirePath() string {
	if f.Wire != "" {
		return f.Wire
	}
	return filepath.Join(f.path, wireName)
}

// Wait returns when the run is over, or ctx has ended.
func (f Found) Wait(ctx context.Context) {
	dir, err := os.OpenFile(f.path, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer dir.Close()
		for unix.Flock(int(dir.Fd()), unix.LOCK_SH) == unix.EINTR {
		}
	}()
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// Runs finds this user's runs, the oldest first, in both of the places where
// runs are: one may have been started without XDG_RUNTIME_DIR. A run is alive
// while its folder is locked; what is left of others is removed by the next run.
func Runs() ([]Found, error) {
	var found []Found
	for _, open := range []func() (*os.File, error){openRuntimeFolder, openTmp} {
		base, err := open()
		if errors.Is(err, errNoFolder) {
			continue
		}
		if err != nil {
			return nil, err
		}
		in, err := runsIn(base)
		base.Close()
		if err != nil {
			return nil, err
		}
		found = append(found, in...)
	}
	slices.SortFunc(found, func(a, b Found) int { return a.Started.Compare(b.Started) })
	return found, nil
}

func runsIn(base *os.File) ([]Found, error) {
	names, err := base.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("looking for runs in %s: %w", base.Name(), err)
	}
	var found []Found
	for _, name := range names {
		id, ok := strings.CutPrefix(name, runPrefix)
		if !ok {
			continue
		}
		if about, ok := alive(base, name); ok {
			found = append(found, Found{ID: strings.ToLower(id), About: about, path: filepath.Join(base.Name(), name)})
		}
	}
	return found, nil
}

func alive(base *os.File, name string) (About, bool) {
	fd, err := unix.Openat(int(base.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return About{}, false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || int(st.Uid) != os.Geteuid() {
		return About{}, false
	}
	if !errors.Is(unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK) {
		return About{}, false
	}
	aboutFD, err := unix.Openat(fd, aboutName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return About{}, false
	}
	file := os.NewFile(uintptr(aboutFD), aboutName)
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxAbout))
	if err != nil {
		return About{}, false
	}
	var about About
	return about, json.Unmarshal(data, &about) == nil
}

// Find finds the one run whose id begins with prefix; with an empty prefix,
// the only one there is.
func Find(prefix string) (Found, error) {
	runs, err := Runs()
	if err != nil {
		return Found{}, err
	}
	prefix = strings.ToLower(prefix)
	runs = slices.DeleteFunc(runs, func(f Found) bool { return !strings.HasPrefix(f.ID, prefix) })
	switch {
	case len(runs) == 1:
		return runs[0], nil
	case len(runs) > 1:
		return Found{}, fmt.Errorf("%d runs are meant: name one of them (lnk sandbox list)", len(runs))
	case prefix == "":
		return Found{}, errors.New("nothing runs (lnk sandbox list)")
	default:
		return Found{}, fmt.Errorf("no run is called %q (lnk sandbox list)", prefix)
	}
}
