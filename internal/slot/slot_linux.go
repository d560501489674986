package slot

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// State is where a slot is in its life.
type State string

// The states of a slot. It is whole and blank, or whole and bound, or else in
// one of the others, in which nothing of it is served.
const (
	Starting State = "starting"
	Blank    State = "blank"
	Bound    State = "bound"
	Ending   State = "ending"
	Waiting  State = "waiting" // after a failure, until it is started anew
)

// Config is what all slots have in common.
type Config struct {
	Places  Places
	Cgroups *Cgroups
	Limits  Limits
	Watcher *Watcher
	// Binder is the uid that may bind; negative: the proxy's own alone.
	Binder int
	// Lnk and Proxy are paths of lnk and link-sandbox-proxy.
	Lnk, Proxy string
	// Wrap are the flags of lnk sandbox wrap, and Harness the program and its arguments.
	Wrap, Harness []string
	// Log gives the standard output and error of a slot's processes.
	Log func(number int) *os.File
	// At bounds how many slots are being started at a time.
	At chan struct{}
	// Logger is told of every change.
	Logger *slog.Logger
}

// Slot is one. Its life is Run; the other methods may be called at any time.
type Slot struct {
	ID
	config *Config

	mu       sync.Mutex
	state    State
	since    time.Time
	why      string // of Waiting
	recycles int
	started  time.Duration // how long its last start took
	id       string        // of its tenancy

	changed  chan struct{} // something was made in its folders
	commands chan Command
	gone     chan struct{} // Run has returned
}

// Command is what is asked of a slot.
type Command struct {
	// Remove ends it and takes it away; otherwise it is made anew.
	Remove bool
	Done   chan error
}

// Info is what is known of a slot.
type Info struct {
	ID
	State    State
	Since    time.Time
	Why      string
	Recycles int
	Started  time.Duration
	// Generation is another for each tenancy.
	Generation string
}

// New returns a slot whose users are there.
func New(id ID, config *Config) *Slot {
	return &Slot{ID: id, config: config, state: Starting, since: time.Now(), changed: make(chan struct{}, 1), commands: make(chan Command), gone: make(chan struct{})}
}

// Info is how it stands.
func (s *Slot) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Info{s.ID, s.state, s.since, s.why, s.recycles, s.started, s.id}
}

// ErrGone is a slot that was removed.
var ErrGone = errors.New("it is gone")

// Do has it carry out a command, and waits until it has.
func (s *Slot) Do(ctx context.Context, remove bool) error {
	c := Command{Remove: remove, Done: make(chan error, 1)}
	select {
	case s.commands <- c:
	case <-s.gone:
		return fmt.Errorf("slot %d: %w", s.Number, ErrGone)
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-c.Done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Slot) set(state State, why string) {
	s.mu.Lock()
	before := s.state
	s.state, s.why = state, why
	if before != state {
		s.since = time.Now()
	}
	s.mu.Unlock()
	if before != state || why != "" {
		s.config.Logger.Info("slot", "number", s.Number, "state", state, "why", why)
	}
}

// look has the slot look at its folders again.
func (s *Slot) look(string) {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// record is what lets a later supervisor find the slot's processes again.
type record struct {
	Boot string `json:"boot"`
	// Generation tells one tenancy of a slot from the next.
	Generation string `json:"generation"`
	// Bound was seen: the mark is the proxy's to take away, and this isn't.
	Bound   bool     `json:"bound"`
	Proxy   *process `json:"proxy"`
	Sandbox *process `json:"sandbox"`
}

const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 30 * time.Second
	// steady is how long a slot lives until its next failure is the first again.
	steady = 10 * time.Second
	// startLimit bounds the start of each of its processes.
	startLimit = 60 * time.Second
)

// Run lives the slot's life until it is removed, or ctx ends: then its
// processes go on, and the next supervisor finds them.
func (s *Slot) Run(ctx context.Context) {
	defer close(s.gone)
	backoff := firstBackoff
	running := s.adopt()
	for ctx.Err() == nil {
		var err error
		if running == nil {
			running, err = s.begin(ctx)
		}
		begun := time.Now()
		var asked *Command
		if err == nil {
			asked, err = s.serve(ctx, running)
		} else if ctx.Err() == nil {
			s.set(Waiting, err.Error())
		}
		if ctx.Err() != nil {
			return
		}
		running = nil
		if err != nil {
			s.set(Ending, err.Error())
		}
		if time.Since(begun) >= steady {
			backoff = firstBackoff
		}
		if asked == nil && err != nil {
			// It failed, or one of its processes ended.
			s.config.Logger.Warn("slot", "number", s.Number, "failed", err)
			if endErr := s.end(ctx); endErr != nil {
				s.set(Waiting, endErr.Error())
			} else {
				s.set(Waiting, err.Error())
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(backoff):
			case c := <-s.commands:
				asked = &c
			}
			backoff = min(2*backoff, maxBackoff)
		}
		if asked == nil {
			continue
		}
		s.set(Ending, "")
		err = s.end(ctx)
		if asked.Remove {
			if err == nil {
				err = s.remove()
			}
			if err == nil {
				asked.Done <- nil
				return
			}
		}
		if err != nil {
			s.set(Waiting, err.Error())
			asked.Done <- err
			continue
		}
		// Made anew, it is told of when it is blank again.
		backoff = firstBackoff
		running, err = s.begin(ctx)
		asked.Done <- err
		if err != nil && ctx.Err() == nil {
			s.set(Waiting, err.Error())
		}
	}
}

// serve waits until one of the processes ends, or something is asked.
func (s *Slot) serve(ctx context.Context, r *record) (*Command, error) {
	for {
		if !r.Bound && s.bound() {
			r.Bound = true
			if err := s.keep(r); err != nil {
				return nil, err
			}
		}
		state := Blank
		if r.Bound {
			state = Bound
		}
		s.set(state, "")
		select {
		case <-ctx.Done():
			return nil, nil
		case <-s.changed:
		case <-r.Proxy.done:
			return nil, fmt.Errorf("its proxy ended (%s)", r.Proxy.how)
		case <-r.Sandbox.done:
			return nil, fmt.Errorf("its sandbox ended (%s)", r.Sandbox.how)
		case c := <-s.commands:
			return &c, nil
		}
	}
}

// bound reports whether the proxy has marked that it is.
func (s *Slot) bound() bool {
	return s.made(controlFolder, boundMark)
}

func (s *Slot) made(folder, name string) bool {
	var st unix.Stat_t
	return unix.Lstat(filepath.Join(s.config.Places.runtime(s.Number), folder, name), &st) == nil
}

// begin makes a blank slot from nothing: whatever was there is ended and wiped.
func (s *Slot) begin(ctx context.Context) (*record, error) {
	select {
	case s.config.At <- struct{}{}:
		defer func() { <-s.config.At }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.set(Starting, "")
	begun := time.Now()
	c := s.config
	if err := s.end(ctx); err != nil {
		return nil, err
	}
	if err := c.Cgroups.Make(s.Number, c.Limits); err != nil {
		return nil, err
	}
	if err := c.Places.makeFolders(s.ID, c.Binder); err != nil {
		return nil, err
	}
	for _, folder := range []string{controlFolder, netFolder} {
		if err := c.Watcher.Add(filepath.Join(c.Places.runtime(s.Number), folder), s.look); err != nil {
			return nil, err
		}
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	r := &record{Boot: boot, Generation: rand.Text()}
	if r.Proxy, err = c.Cgroups.startProcess(s.Number, proxyPart, s.proxyCommand()); err != nil {
		return nil, err
	}
	if err := s.wait(ctx, r.Proxy, "its proxy", controlFolder, controlSocket); err != nil {
		return nil, err
	}
	if r.Sandbox, err = c.Cgroups.startProcess(s.Number, sandboxPart, s.sandboxCommand()); err != nil {
		return nil, err
	}
	if err := s.wait(ctx, r.Sandbox, "its sandbox", netFolder, inSocket); err != nil {
		return nil, err
	}
	if err := s.keep(r); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.recycles++
	s.started, s.id = time.Since(begun), r.Generation
	s.mu.Unlock()
	return r, nil
}

// wait waits until a process has made its socket.
func (s *Slot) wait(ctx context.Context, p *process, what, folder, name string) error {
	timeout := time.NewTimer(startLimit)
	defer timeout.Stop()
	for !s.made(folder, name) {
		select {
		case <-s.changed:
		case <-p.done:
			return fmt.Errorf("%s ended as it was started (%s): lnk box logs %d", what, p.how, s.Number)
		case <-timeout.C:
			return fmt.Errorf("%s isn't ready after %v: lnk box logs %d", what, startLimit, s.Number)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (s *Slot) proxyCommand() command {
	c := s.config
	args := []string{
		"--blank", "--hold", "--control", c.Places.Control(s.Number), "--dir", c.Places.Net(s.Number),
		"--agent-user", strconv.Itoa(s.Agent), "--group", strconv.Itoa(s.Shared),
	}
	if c.Binder >= 0 {
		args = append(args, "--binder", strconv.Itoa(c.Binder))
	}
	return command{
		path: c.Proxy, args: args, uid: s.Proxy, gid: s.Proxy, more: []uint32{uint32(s.Shared)}, out: c.Log(s.Number),
		env: []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HOME=" + noHome, "USER=" + s.ProxyName()},
	}
}

func (s *Slot) sandboxCommand() command {
	c := s.config
	args := append([]string{"sandbox", "wrap", "--reach", c.Places.Net(s.Number)}, c.Wrap...)
	args = append(append(args, "--"), c.Harness...)
	return command{
		path: c.Lnk, args: args, uid: s.Agent, gid: s.Agent, more: []uint32{uint32(s.Shared)}, out: c.Log(s.Number),
		env: []string{
			"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "HOME=" + noHome, "USER=" + s.AgentName(), "LOGNAME=" + s.AgentName(),
			"XDG_RUNTIME_DIR=" + filepath.Join(c.Places.runtime(s.Number), runFolder),
		},
	}
}

// keep writes the record, whole or not at all.
func (s *Slot) keep(r *record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	base := s.config.Places.runtime(s.Number)
	if err := os.WriteFile(filepath.Join(base, recordNew), data, 0o600); err != nil {
		return err
	}
	return os.Rename(filepath.Join(base, recordNew), filepath.Join(base, recordName))
}

// adopt finds a bound slot that an earlier supervisor started: both processes,
// whole, of this boot; nil where the slot is to be made anew. A blank one always
// is: nobody saw what was done to it meanwhile, and whoever took a bound proxy
// over could take its mark away.
func (s *Slot) adopt() *record {
	c := s.config
	data, err := os.ReadFile(filepath.Join(c.Places.runtime(s.Number), recordName))
	if err != nil {
		return nil
	}
	var r record
	boot, bootErr := bootID()
	if json.Unmarshal(data, &r) != nil || bootErr != nil || r.Boot != boot || r.Proxy == nil || r.Sandbox == nil {
		return nil
	}
	if r.Bound = r.Bound || s.bound(); !r.Bound {
		return nil
	}
	for _, p := range []*process{r.Proxy, r.Sandbox} {
		if err := c.Cgroups.adopt(s.Number, p); err != nil {
			c.Logger.Info("slot", "number", s.Number, "not found again", err)
			return nil
		}
	}
	if !s.made(controlFolder, controlSocket) || !s.made(netFolder, inSocket) {
		return nil
	}
	for _, folder := range []string{controlFolder, netFolder} {
		if err := c.Watcher.Add(filepath.Join(c.Places.runtime(s.Number), folder), s.look); err != nil {
			return nil
		}
	}
	s.mu.Lock()
	s.id = r.Generation
	s.mu.Unlock()
	c.Logger.Info("slot", "number", s.Number, "found again", true)
	return &r
}

// end ends every process of the slot, and wipes all that was its tenant's.
func (s *Slot) end(ctx context.Context) error {
	c := s.config
	// Also while the supervisor ends: half a slot is worse than a late end.
	if err := c.Cgroups.Kill(context.WithoutCancel(ctx), s.Number); err != nil {
		return err
	}
	// A cgroup that was killed as a whole kills what is later cloned into it
	// (seen on Linux 6.18), so the next processes get a new one.
	if err := c.Cgroups.Remove(s.Number); err != nil {
		return err
	}
	return errors.Join(c.Places.wipe(s.Number), wipeShared(s.ID))
}

// remove takes away what is left of an ended slot, but its users.
func (s *Slot) remove() error {
	return s.config.Places.remove(s.Number)
}

// WipeShared removes what slots' users left where every user may leave something.
func WipeShared(ids []ID) error {
	var all error
	for _, id := range ids {
		all = errors.Join(all, wipeShared(id))
	}
	return all
}

// EndStray ends and wipes whatever has a slot's cgroup and is none of ids.
func EndStray(ctx context.Context, c *Cgroups, places Places, ids []ID) error {
	var all error
	for _, number := range c.Numbers() {
		if slices.ContainsFunc(ids, func(id ID) bool { return id.Number == number }) {
			continue
		}
		err := c.Kill(ctx, number)
		if err == nil {
			err = errors.Join(places.wipe(number), c.Remove(number), places.remove(number))
		}
		all = errors.Join(all, err)
	}
	return all
}
