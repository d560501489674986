package names

import (
	"container/list"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"time"

	"link.internal/lnk/internal/reach"
)

// first is the lowest address of a table.
var first = asNumber(reach.FirstInside)

func asNumber(addr netip.Addr) uint32 {
	bytes := addr.As4()
	return binary.BigEndian.Uint32(bytes[:])
}

// reuseAfter is how long an address has been idle before it stands for
// another name. It is far longer than TTL, for which a program may keep it.
const reuseAfter = time.Hour

// ErrFull is a table, or a wildcard's share of it, with no address to give.
var ErrFull = errors.New("every address is in use")

// Table says which name an address of the sandbox's loopback stands for. It
// promises that an address stands for one name at a time, and for no other
// before it has been idle for an hour with no connection.
//
// A name that is listed by itself keeps its address. The names of a wildcard
// are the sandbox's to make up, so each wildcard has a share of its own, and
// can't take the addresses of another's.
type Table struct {
	mu      sync.Mutex
	byName  map[string]*entry
	entries []*entry // by address, from first on
	shares  map[string]*list.List
}

type entry struct {
	name  string
	addr  netip.Addr
	used  time.Time
	conns int
	share *list.List    // those of one wildcard, the longest idle first
	place *list.Element // in share; both are nil for a name that keeps its address
}

// NewTable returns a table that has these names' places: the first
// addresses, in order.
func NewTable(endpoints []reach.Inside) *Table {
	t := &Table{byName: make(map[string]*entry), shares: make(map[string]*list.List)}
	for _, e := range endpoints {
		t.newEntry(e.Name, time.Time{})
	}
	return t
}

// Share is what the names of one wildcard may take of a table.
type Share struct {
	// Name tells shares apart. It is empty for names that are listed by
	// themselves, which the lists bound.
	Name string
	// Limit is in addresses.
	Limit int
}

// Address returns a canonical name's address, and gives it one if it has
// none. The error is ErrFull.
func (t *Table) Address(name string, share Share) (netip.Addr, error) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.byName[name]; e != nil {
		e.touch(now)
		return e.addr, nil
	}
	if share.Name == "" {
		e := t.newEntry(name, now)
		return e.addr, nil
	}
	lru := t.shares[share.Name]
	if lru == nil {
		lru = list.New()
		t.shares[share.Name] = lru
	}
	if lru.Len() < share.Limit {
		e := t.newEntry(name, now)
		e.share, e.place = lru, lru.PushBack(e)
		return e.addr, nil
	}
	e := idle(lru, now)
	if e == nil {
		return netip.Addr{}, ErrFull
	}
	delete(t.byName, e.name)
	e.name = name
	t.byName[name] = e
	e.touch(now)
	return e.addr, nil
}

func (t *Table) newEntry(name string, now time.Time) *entry {
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], first+uint32(len(t.entries)))
	e := &entry{name: name, addr: netip.AddrFrom4(addr), used: now}
	t.entries = append(t.entries, e)
	t.byName[name] = e
	return e
}

func (e *entry) touch(now time.Time) {
	e.used = now
	if e.share != nil {
		e.share.MoveToBack(e.place)
	}
}

// idle returns the entry that was used longest ago, if that was long enough.
func idle(lru *list.List, now time.Time) *entry {
	// One with connections is in use now, whenever it was asked for last. They
	// are looked at a few at a time, so that no question costs more.
	for range 16 {
		front := lru.Front()
		if front == nil {
			return nil
		}
		e := front.Value.(*entry)
		if e.conns == 0 {
			if now.Sub(e.used) < reuseAfter {
				return nil
			}
			return e
		}
		e.touch(now)
	}
	return nil
}

// Enter returns the name that an address stands for, for as long as the
// connection lasts that leave ends.
func (t *Table) Enter(addr netip.Addr) (name string, leave func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.at(addr)
	if e == nil {
		return "", nil, false
	}
	e.conns++
	return e.name, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		e.conns--
		e.touch(time.Now())
	}, true
}

// Name returns the name that an address stands for now.
func (t *Table) Name(addr netip.Addr) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.at(addr)
	if e == nil {
		return "", false
	}
	return e.name, true
}

func (t *Table) at(addr netip.Addr) *entry {
	addr = addr.Unmap()
	if !addr.Is4() {
		return nil
	}
	n := asNumber(addr)
	if n < first || n-first >= uint32(len(t.entries)) {
		return nil
	}
	return t.entries[n-first]
}
