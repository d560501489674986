package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"link.internal/lnk/internal/slot"
	"link.internal/lnk/internal/spec"
)

// Config is what lnk-supervisor is told, in TOML.
type Config struct {
	// Slots is how many there are at least.
	Slots int `toml:"slots"`
	// UIDs is the range that is the slots', for users and groups alike.
	UIDs string `toml:"uids"`
	// Binder is the user who may bind, by name or uid; empty: nobody.
	Binder string `toml:"binder"`
	// Limits are of each slot.
	Limits struct {
		Memory    string  `toml:"memory"`
		Processes int     `toml:"processes"`
		CPUs      float64 `toml:"cpus"`
		// Home is the size of the sandbox's home, and of its /tmp.
		Home string `toml:"home"`
	} `toml:"limits"`
	Blank struct {
		// Spec is the file of a spec for lnk sandbox wrap; empty: none.
		Spec string `toml:"spec"`
		// Harness is the program that waits in a blank sandbox, and its arguments.
		Harness []string `toml:"harness"`
	} `toml:"blank"`

	uids   slot.Range
	binder int
	limits slot.Limits
	wrap   []string
}

// defaults are what a configuration begins with.
func defaults() Config {
	var c Config
	c.UIDs = "70000-89999"
	c.Limits.Memory, c.Limits.Processes, c.Limits.CPUs, c.Limits.Home = "1G", 512, 2, "1G"
	return c
}

// maxSlots bounds what is asked for by mistake.
const maxSlots = 5000

// LoadConfig reads and checks a configuration. Unknown keys are errors.
func LoadConfig(path string) (*Config, error) {
	c := defaults()
	meta, err := toml.DecodeFile(path, &c)
	var syntax toml.ParseError
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%s: there is no such file", path)
	case errors.As(err, &syntax):
		return nil, fmt.Errorf("%s: line %d: %s", path, syntax.Position.Line, syntax.Message)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf("%s: there is no key %s", path, unknown[0])
	}
	// The library takes any case, and a spelling is one.
	for _, key := range meta.Keys() {
		if key.String() != strings.ToLower(key.String()) {
			return nil, fmt.Errorf("%s: there is no key %s", path, key)
		}
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &c, nil
}

func (c *Config) check() (err error) {
	if c.Slots < 0 || c.Slots > maxSlots {
		return fmt.Errorf("slots = %d: it is from 0 to %d", c.Slots, maxSlots)
	}
	if c.uids, err = slot.ParseRange(c.UIDs); err != nil {
		return fmt.Errorf("uids: %w", err)
	}
	if c.binder, err = lookUser(c.Binder); err != nil {
		return fmt.Errorf("binder: %w", err)
	}
	if c.binder >= c.uids.First && c.binder <= c.uids.Last {
		return fmt.Errorf("binder: %d is in uids, which are the slots'", c.binder)
	}
	limits := spec.Limits{Memory: c.Limits.Memory, Processes: c.Limits.Processes, CPUs: c.Limits.CPUs}
	memory, err := limits.ParseLimits()
	if err != nil {
		// The flags' names are the keys' here.
		return errors.New("limits: " + strings.ReplaceAll(err.Error(), "--", ""))
	}
	const fewest = 32 // what the slot's own processes need
	if c.Limits.Processes != 0 && c.Limits.Processes < fewest {
		return fmt.Errorf("limits: processes %d: a slot's own need %d", c.Limits.Processes, fewest)
	}
	c.limits = slot.Limits{Memory: int64(memory), Processes: c.Limits.Processes, CPUs: c.Limits.CPUs}
	if c.Limits.Home != "" {
		if _, err := spec.ParseSize(c.Limits.Home); err != nil {
			return fmt.Errorf("limits: home %w", err)
		}
		c.wrap = append(c.wrap, "--home-size", c.Limits.Home)
	}
	if len(c.Blank.Harness) == 0 || c.Blank.Harness[0] == "" {
		return errors.New("blank: harness names no program: a blank sandbox has one that waits to be bound")
	}
	if c.Blank.Spec != "" {
		if !filepath.IsAbs(c.Blank.Spec) {
			return fmt.Errorf("blank: spec %q is not an absolute path", c.Blank.Spec)
		}
		if err := checkSpec(c.Blank.Spec, c.Limits.Home != ""); err != nil {
			return err
		}
		c.wrap = append(c.wrap, "--spec", c.Blank.Spec)
	}
	return nil
}

// checkSpec wants a spec that every slot's wrap takes: one without a network
// of its own, since on a box a sandbox is always behind its proxy.
func checkSpec(path string, sized bool) error {
	s := spec.Spec{Reached: []string{"/"}}
	if err := s.Load(path, func(string) ([]byte, error) { return nil, errors.New("it is no path") }); err != nil {
		return fmt.Errorf("blank: spec: %w", err)
	}
	if s.Network != "" {
		return fmt.Errorf("blank: spec %s: [network] mode %q: on a box a sandbox is always behind its proxy: leave it out", path, s.Network)
	}
	if len(s.Reached) > 1 {
		return fmt.Errorf("blank: spec %s: reached: each slot reaches its own folder: leave it out", path)
	}
	if sized && s.Limits.HomeSize != "" {
		return fmt.Errorf("blank: spec %s: [limits] home: the configuration says it for all: leave it out of one", path)
	}
	if s.Home != "" {
		return fmt.Errorf("blank: spec %s: home: a blank sandbox has an empty one: leave it out", path)
	}
	if err := s.CheckWrap(); err != nil {
		return fmt.Errorf("blank: spec %w", err)
	}
	return nil
}

// lookUser finds a uid by name or number; -1 for none.
func lookUser(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	const nobody = 65534
	if uid, err := strconv.Atoi(name); err == nil {
		if uid < 0 || uid == nobody {
			return 0, fmt.Errorf("%q is no user's uid", name)
		}
		return uid, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, fmt.Errorf("there is no user %q: make it first (useradd --system %s)", name, name)
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil || uid == nobody {
		return 0, fmt.Errorf("%q is no user that can be one", name)
	}
	return uid, nil
}
