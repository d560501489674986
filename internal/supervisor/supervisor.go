// Package supervisor is lnk-supervisor: the daemon of a box, which makes slots
// (package slot), keeps them blank and whole, and tells of them (package box).
//
// It is root with few capabilities, holds no secret, and sees no bind. Slots
// outlive it: stopped, killed or upgraded, it finds them again.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/box"
	"link.internal/lnk/internal/slot"
)

// Options are where things are.
type Options struct {
	Config string
	Places slot.Places
	// Lnk and Proxy are paths of lnk and link-sandbox-proxy.
	Lnk, Proxy string
	Version    string
	Logger     *slog.Logger
}

// Supervisor keeps a box's slots.
type Supervisor struct {
	options Options
	config  *Config
	slots   *slot.Config
	lock    *os.File // of the state: there is one supervisor
	logs    *logs

	mu    sync.Mutex // of all below
	state state
	live  map[int]*slot.Slot
	wg    sync.WaitGroup

	ctx      context.Context // ends with the supervisor
	changing sync.Mutex      // slots are made and removed one request at a time
}

// New checks everything, and starts nothing.
func New(o Options) (*Supervisor, error) {
	config, err := LoadConfig(o.Config)
	if err != nil {
		return nil, err
	}
	s := &Supervisor{options: o, config: config, live: make(map[int]*slot.Slot), logs: newLogs()}
	for _, folder := range []string{o.Places.Runtime, o.Places.State} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return nil, err
		}
	}
	if s.lock, err = lockState(o.Places.State); err != nil {
		return nil, err
	}
	if s.state, err = loadState(o.Places.State); err != nil {
		return nil, err
	}
	cgroups, err := slot.NewCgroups(config.limits)
	if err != nil {
		return nil, err
	}
	watcher, err := slot.NewWatcher()
	if err != nil {
		return nil, err
	}
	s.slots = &slot.Config{
		Places: o.Places, Cgroups: cgroups, Limits: config.limits, Watcher: watcher, Binder: config.binder,
		Lnk: o.Lnk, Proxy: o.Proxy, Wrap: config.wrap, Harness: config.Blank.Harness,
		Log: s.logs.open,
		At:  make(chan struct{}, 2*runtime.NumCPU()), Logger: o.Logger,
	}
	return s, nil
}

// lockState makes sure that there is one supervisor.
func lockState(folder string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := slot.Lock(file); err != nil {
		file.Close()
		return nil, fmt.Errorf("another lnk-supervisor keeps the slots of %s", folder)
	}
	return file, nil
}

// Run keeps the slots until ctx ends; their processes go on. ready is called
// once the slots are known and being started.
func (s *Supervisor) Run(ctx context.Context, ready func()) error {
	defer s.lock.Close()
	defer s.slots.Cgroups.Close()
	defer s.slots.Watcher.Close()
	if err := slot.EndStray(ctx, s.slots.Cgroups, s.options.Places, s.state.Slots); err != nil {
		s.options.Logger.Error("ending what is no slot's any more", "err", err)
	}
	// The users of those that are known may have been removed by hand.
	if err := slot.MakeUsers(s.state.Slots); err != nil {
		return err
	}
	for _, id := range s.state.Slots {
		s.start(ctx, id)
	}
	if missing := s.config.Slots - len(s.state.Slots); missing > 0 {
		if _, err := s.add(ctx, missing); err != nil {
			// Those that are there are kept all the same.
			if len(s.state.Slots) == 0 {
				return err
			}
			s.options.Logger.Error("making the slots that are missing", "err", err)
		}
	}
	ready()
	<-ctx.Done()
	s.changing.Lock() // no slot is begun any more
	defer s.changing.Unlock()
	s.wg.Wait()
	return nil
}

func (s *Supervisor) start(ctx context.Context, id slot.ID) *slot.Slot {
	one := slot.New(id, s.slots)
	s.mu.Lock()
	s.live[id.Number] = one
	s.mu.Unlock()
	s.wg.Go(func() { one.Run(ctx) })
	return one
}

// add makes n slots more. Which ids they have is kept before their users are
// made, so that none is ever forgotten.
func (s *Supervisor) add(ctx context.Context, n int) ([]*slot.Slot, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, errEnding
	}
	s.mu.Lock()
	have := slices.Clone(s.state.Slots)
	s.mu.Unlock()
	if n < 1 || len(have)+n > maxSlots {
		return nil, fmt.Errorf("add %d: there are %d slots, and %d at most", n, len(have), maxSlots)
	}
	ids, err := s.config.uids.Allocate(have, n)
	if err != nil {
		return nil, err
	}
	// Before anything is kept or made: what is another's stays another's.
	if err := slot.CheckUsers(ids); err != nil {
		return nil, err
	}
	if err := s.setState(append(have, ids...)); err != nil {
		return nil, err
	}
	if err := slot.MakeUsers(ids); err != nil {
		if undo := errors.Join(slot.RemoveUsers(ids), s.setState(have)); undo != nil {
			s.options.Logger.Error("undoing", "err", undo)
		}
		return nil, err
	}
	var added []*slot.Slot
	for _, id := range ids {
		added = append(added, s.start(ctx, id))
	}
	return added, nil
}

func (s *Supervisor) setState(ids []slot.ID) error {
	slices.SortFunc(ids, func(a, b slot.ID) int { return a.Number - b.Number })
	next := state{Slots: ids}
	if err := next.save(s.options.Places.State); err != nil {
		return err
	}
	s.mu.Lock()
	s.state = next
	s.mu.Unlock()
	return nil
}

// remove ends a slot and takes everything of it away.
func (s *Supervisor) remove(ctx context.Context, number int) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	one, err := s.slot(number)
	if err != nil {
		return err
	}
	// One that is gone was ended by a removal that failed behind it.
	if err := one.Do(ctx, true); err != nil && !errors.Is(err, slot.ErrGone) {
		return err
	}
	if err := slot.RemoveUsers([]slot.ID{one.ID}); err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.live, number)
	rest := slices.DeleteFunc(slices.Clone(s.state.Slots), func(id slot.ID) bool { return id.Number == number })
	s.mu.Unlock()
	s.logs.forget(number)
	return s.setState(rest)
}

var errEnding = errors.New("the supervisor is ending")

var errNoSlot = errors.New("there is no such slot")

func (s *Supervisor) slot(number int) (*slot.Slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one, ok := s.live[number]
	if !ok {
		return nil, fmt.Errorf("slot %d: %w", number, errNoSlot)
	}
	return one, nil
}

// list is all slots, by number, with what each weighs if weighed.
func (s *Supervisor) list(weighed bool) []box.Slot {
	s.mu.Lock()
	all := make([]*slot.Slot, 0, len(s.live))
	for _, one := range s.live {
		all = append(all, one)
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *slot.Slot) int { return a.Number - b.Number })
	list := make([]box.Slot, 0, len(all))
	for _, one := range all {
		list = append(list, s.describe(one, weighed))
	}
	return list
}

func (s *Supervisor) describe(one *slot.Slot, weighed bool) box.Slot {
	info, places := one.Info(), s.options.Places
	var memory int64
	if weighed {
		memory, _ = s.slots.Cgroups.Memory(info.Number)
	}
	return box.Slot{
		Number: info.Number, State: string(info.State), Since: info.Since, Why: info.Why, Agent: info.Agent, Proxy: info.Proxy, Group: info.Shared,
		Control: places.Control(info.Number), Folder: places.Net(info.Number), Wire: places.Wire(info.Number), Home: places.Home(info.Number),
		Generation: info.Generation, Starts: info.Recycles, StartMS: float64(info.Started.Microseconds()) / 1000, Memory: memory,
	}
}

// End ends every slot's processes and wipes their folders, and keeps their
// users; Purge takes those away as well, and all that is kept of slots.
func (s *Supervisor) End(ctx context.Context, purge bool) error {
	defer s.lock.Close()
	defer s.slots.Cgroups.Close()
	if err := slot.EndStray(ctx, s.slots.Cgroups, s.options.Places, nil); err != nil {
		return err
	}
	if err := slot.WipeShared(s.state.Slots); err != nil {
		return err
	}
	if !purge {
		return nil
	}
	if err := slot.RemoveUsers(s.state.Slots); err != nil {
		return err
	}
	return os.RemoveAll(s.options.Places.State)
}
