package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/slot"
)

// state is what outlives the supervisor and a boot: which slot has which ids.
type state struct {
	Slots []slot.ID `json:"slots"`
}

const (
	stateName = "slots.json"
	stateNew  = "slots.json.new"
)

// loadState reads it; none is an empty one. One that can't be read is an
// error, and not the same: uids would be given away twice.
func loadState(folder string) (state, error) {
	var s state
	path := filepath.Join(folder, stateName)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("%s is damaged (%w): put it back from a copy, or remove all slots' users and it", path, err)
	}
	seen := make(map[int]bool)
	for _, id := range s.Slots {
		for _, n := range []int{id.Agent, id.Proxy, id.Shared} {
			if n <= 0 || seen[n] {
				return s, fmt.Errorf("%s is damaged: the id %d can't be: put it back from a copy", path, n)
			}
			seen[n] = true
		}
	}
	return s, nil
}

// save writes it, whole or not at all.
func (s state) save(folder string) error {
	data, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	temporary := filepath.Join(folder, stateNew)
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(append(data, '\n'))
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(temporary, filepath.Join(folder, stateName))
	}
	if dir, openErr := os.Open(folder); err == nil && openErr == nil {
		err = dir.Sync()
		dir.Close()
	}
	if err != nil {
		os.Remove(temporary)
		return fmt.Errorf("keeping which slot has which uids: %w", err)
	}
	return nil
}
