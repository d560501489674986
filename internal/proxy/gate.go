package proxy

import (
	"sync"
	"time"
)

// state is whether the wire is open. What it says is judged before anything
// else of a request.
type state uint8

const (
	running state = iota
	paused
	stopped
)

// gate holds the state, and those who wait for it to change. A stop is final.
type gate struct {
	mu      sync.Mutex
	state   state
	why     string
	changed chan struct{} // closed at each change; nil before anybody waited
}

// now returns the state and why it is so.
func (g *gate) now() (state, string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state, g.why
}

// set changes the state, and reports whether it did.
func (g *gate) set(to state, why string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state == to || g.state == stopped {
		return false
	}
	g.state, g.why = to, why
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
	return true
}

// wait returns when the wire isn't paused, and whether it is running.
func (g *gate) wait() bool {
	for {
		g.mu.Lock()
		if g.state != paused {
			defer g.mu.Unlock()
			return g.state == running
		}
		if g.changed == nil {
			g.changed = make(chan struct{})
		}
		changed := g.changed
		g.mu.Unlock()
		<-changed
	}
}

// refusalWindow is what "in a minute" means to pause-after.
const refusalWindow = time.Minute

// refusals counts the refusals of the last minute.
type refusals struct {
	limit int // 0: none
	mu    sync.Mutex
	times []time.Time // the last limit of them, a ring
	next  int
}

// add counts one, and reports whether it is one too many.
func (r *refusals) add(now time.Time) bool {
	if r.limit == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.times) < r.limit {
		r.times = append(r.times, now)
		r.next = len(r.times) % r.limit
	} else {
		r.times[r.next] = now
		r.next = (r.next + 1) % r.limit
	}
	oldest := r.times[0]
	if len(r.times) == r.limit {
		oldest = r.times[r.next]
	}
	return len(r.times) == r.limit && now.Sub(oldest) < refusalWindow
}

// reset forgets them, when a paused wire is resumed.
func (r *refusals) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times, r.next = nil, 0
}
