package bind

import (
	"fmt"
	"strings"

	"link.internal/lnk/internal/reach"
)

// Port is a port of this machine's loopback that leads to one inside a sandbox.
type Port struct {
	Outside uint16 `json:"outside"`
	Inside  uint16 `json:"inside"`
}

// ParsePort reads PORT or PORT:INSIDE; without INSIDE the two are the same.
func ParsePort(text string) (Port, error) {
	outside, inside, two := strings.Cut(text, ":")
	if !two {
		inside = outside
	}
	var p Port
	var err error
	if p.Outside, err = reach.ParsePort(outside); err == nil {
		p.Inside, err = reach.ParsePort(inside)
	}
	if err != nil {
		return Port{}, fmt.Errorf("%q is no PORT[:INSIDE], such as 8080 or 8080:3000: %w", text, err)
	}
	return p, nil
}

// String is PORT:INSIDE.
func (p Port) String() string { return fmt.Sprintf("%d:%d", p.Outside, p.Inside) }
