// Package spec turns what a person wrote, as flags, into the rules of a
// proxy and the grants of a wall. It checks all of it before anything starts.
package spec

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"link.internal/lnk/internal/bind"
	"link.internal/lnk/internal/wall"
)

// Spec is one sandbox, as asked for. The zero value has no network and sees
// no file of the person's but the working folder.
type Spec struct {
	Rules bind.Rules
	// Read and Write are paths, as written.
	Read, Write []string
	// Env are NAME=VALUE to set, or NAME to pass on.
	Env []string
	// Home is a folder that is the program's home and lasts; empty: none does.
	Home string
	// Network is proxy, none or host; empty: proxy if anything is listed, else none.
	Network string
	// Commands are the entries of the programs that it may run. With a spec
	// there must be some.
	Commands []string
	Limits   Limits
	// Routes are the files of the proxy's own routes.
	Routes bind.RouteFiles
	// Ports lead into the sandbox: PORT[:INSIDE].
	Ports []string
	// Reached are socket folders of proxies that run already.
	Reached []string
	// Spec is the file that was loaded, as it was named; empty: none.
	Spec string
}

// Limits are what all of a sandbox's processes may take together. 0 and ""
// are no limit.
type Limits struct {
	Memory    string
	Processes int
	CPUs      float64
	// HomeSize is of the empty home, and of /tmp.
	HomeSize string
	// UserNS lets it make user namespaces; nil: not.
	UserNS *bool
}

// The modes of the network.
const (
	ModeProxy = "proxy"
	ModeNone  = "none"
	ModeHost  = "host"
)

// Mode is the network's: what was asked for, or what the lists need.
func (s *Spec) Mode() string {
	switch {
	case s.Network != "":
		return s.Network
	case s.Rules.Network() || len(s.Reached) > 0 || s.Routes.Routes != "":
		return ModeProxy
	default:
		return ModeNone
	}
}

// AddFlags defines the flags that make a Spec, for run.
func (s *Spec) AddFlags(fs *flag.FlagSet) {
	s.Rules.AddFlags(fs)
	s.Routes.AddFlags(fs)
	fs.Var((*bind.List)(&s.Ports), "port", "let `PORT[:INSIDE]` of this machine's loopback lead to a port inside (repeatable)")
	fs.StringVar(&s.Network, "network", "", "`MODE` of its network: proxy, none, or host for this machine's own (default: proxy if a host is listed, else none)")
	s.addWallFlags(fs)
}

// AddWrapFlags defines the flags for wrap, whose proxy runs already.
func (s *Spec) AddWrapFlags(fs *flag.FlagSet) {
	fs.Var((*bind.List)(&s.Reached), "reach", "the socket `FOLDER` of a proxy that runs already (repeatable: the first is its way out)")
	s.addWallFlags(fs)
}

func (s *Spec) addWallFlags(fs *flag.FlagSet) {
	fs.Var((*bind.List)(&s.Read), "read", "a `PATH` it may read (repeatable)")
	fs.Var((*bind.List)(&s.Write), "write", "a `PATH` it may read and write (repeatable)")
	fs.StringVar(&s.Home, "home", "", "a `FOLDER` that is its home and lasts, yours with mode 0700 (without: an empty one)")
	fs.Var((*bind.List)(&s.Env), "env", "`NAME[=VALUE]` to set, or to pass on from here (repeatable)")
	fs.Var((*bind.List)(&s.Commands), "command", "a `PROGRAM` it may run, and no other: a name, a path, a folder ending in /, or * for any (repeatable)")
	fs.StringVar(&s.Limits.Memory, "memory", "", "the `MEMORY` that all its processes may take together, such as 512M")
	fs.IntVar(&s.Limits.Processes, "processes", 0, "the `NUMBER` of processes and threads that it may have at a time")
	fs.Float64Var(&s.Limits.CPUs, "cpus", 0, "the `NUMBER` of processors that it may use, such as 1.5")
	fs.StringVar(&s.Limits.HomeSize, "home-size", "", "the `SIZE` that its empty home may have, and its /tmp, such as 1G")
	fs.BoolFunc("userns", "let it make user namespaces, and chroot in them, for a browser's own sandbox", func(text string) error {
		on, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("it is true or false, and not %q", text)
		}
		s.Limits.UserNS = &on
		return nil
	})
}

// CheckWrap refuses what is for run: the network's rules are those of the
// proxy that runs already.
func (s *Spec) CheckWrap() error {
	if len(s.Reached) == 0 {
		return errors.New("no proxy to reach: name its socket folder with --reach")
	}
	if !reflect.DeepEqual(s.Rules, bind.Rules{}) || s.Network != "" || len(s.Ports) > 0 {
		return fmt.Errorf("%s: what it says of the network is for lnk sandbox run: a proxy that runs already has rules of its own", s.Spec)
	}
	_, err := s.checkLimits()
	return err
}

// checkLimits reads the limits that are sizes: the home's.
func (s *Spec) checkLimits() (homeSize int64, err error) {
	if _, err := s.Limits.ParseLimits(); err != nil {
		return 0, err
	}
	if s.Limits.HomeSize == "" {
		return 0, nil
	}
	if s.Home != "" {
		return 0, errors.New("--home-size is for an empty home, and --home lasts: leave one out")
	}
	homeSize, err = ParseSize(s.Limits.HomeSize)
	if err != nil {
		return 0, fmt.Errorf("--home-size %w", err)
	}
	return homeSize, nil
}

// ParsePorts reads the ports that lead in.
func (s *Spec) ParsePorts() ([]bind.Port, error) {
	var ports []bind.Port
	for _, text := range s.Ports {
		port, err := bind.ParsePort(text)
		if err != nil {
			return nil, fmt.Errorf("--port: %w", err)
		}
		if slices.ContainsFunc(ports, func(p bind.Port) bool { return p.Outside == port.Outside }) {
			return nil, fmt.Errorf("--port: %d leads to two ports inside", port.Outside)
		}
		ports = append(ports, port)
	}
	return ports, nil
}

// Check refuses what could never be meant, and makes the log's path absolute.
func (s *Spec) Check() error {
	if len(s.Reached) > 0 {
		return fmt.Errorf("%s: reached is for lnk sandbox wrap: run starts a proxy of its own", s.Spec)
	}
	if _, err := s.Rules.Compile(); err != nil {
		return err
	}
	if _, err := bind.ParseUpstream(s.Rules.Upstream); err != nil {
		return err
	}
	if _, err := s.checkLimits(); err != nil {
		return err
	}
	if _, err := s.ParsePorts(); err != nil {
		return err
	}
	if len(s.Ports) > 0 && s.Network == ModeHost {
		return errors.New("--port leads into a network of the sandbox's own, and --network host is this machine's: leave one out")
	}
	switch s.Network {
	case "", ModeProxy:
	case ModeNone, ModeHost:
		if s.Routes.Routes != "" {
			return fmt.Errorf("--network %s has no proxy, which serves --routes: leave one out", s.Network)
		}
		if s.Rules.Network() {
			return fmt.Errorf("--network %s and a list of hosts contradict each other: leave one out", s.Network)
		}
	default:
		return fmt.Errorf("--network %q is none of proxy, none, host", s.Network)
	}
	for flag, given := range map[string]bool{
		"--agent": s.Rules.Agent != "", "--upstream": s.Rules.Upstream != "", "--per-minute": s.Rules.PerMinute != 0, "--pause-after": s.Rules.PauseAfter != 0, "--names": s.Rules.Names != nil,
	} {
		if given && s.Mode() != ModeProxy {
			return fmt.Errorf("%s is for the proxy, and nothing here needs one: add --internet-host, or leave it out", flag)
		}
	}
	if s.Rules.Wire != "" {
		if home, err := os.UserHomeDir(); err == nil && strings.HasPrefix(s.Rules.Wire, "~/") {
			s.Rules.Wire = home + s.Rules.Wire[1:]
		}
		path, err := filepath.Abs(s.Rules.Wire)
		if err != nil {
			return fmt.Errorf("--wire: %w", err)
		}
		s.Rules.Wire = path
		if s.Mode() != ModeProxy {
			return fmt.Errorf("--wire logs what the proxy does, and nothing here needs a proxy: add --internet-host, or leave it out")
		}
	}
	return nil
}

// Caller is who runs the sandbox, and where.
type Caller struct {
	UID, GID    int
	User, Group string
	// Home is the path that the sandbox's own home gets.
	Home string
	// Homes are all paths of the caller's home.
	Homes []string
	// Dir is the working folder.
	Dir string
	// Env is the caller's environment.
	Env []string
}

// ThisCaller reads who runs this process.
func ThisCaller() (Caller, error) {
	c := Caller{UID: os.Getuid(), GID: os.Getgid(), Env: os.Environ()}
	dir, err := os.Getwd()
	if err != nil {
		return c, fmt.Errorf("the working folder: %w: change to one that exists", err)
	}
	c.Dir = dir
	c.User, c.Group = "user", "group"
	home := os.Getenv("HOME")
	if u, err := user.LookupId(strconv.Itoa(c.UID)); err == nil {
		c.User = u.Username
		c.addHome(u.HomeDir)
	} else if name := os.Getenv("USER"); plainName(name) {
		c.User = name // a user of a directory service, which only libc knows
	}
	if g, err := user.LookupGroupId(strconv.Itoa(c.GID)); err == nil {
		c.Group = g.Name
	}
	c.addHome(home)
	c.Home = "/home/" + c.User
	if home != "" && usableHome(home) {
		c.Home = filepath.Clean(home)
	} else if len(c.Homes) > 0 && usableHome(c.Homes[0]) {
		c.Home = c.Homes[0]
	}
	return c, nil
}

func (c *Caller) addHome(home string) {
	if filepath.IsAbs(home) {
		c.Homes = append([]string{filepath.Clean(home)}, c.Homes...)
	}
}

// usableHome reports whether an empty folder can be put at a home's path
// without covering what every sandbox has there.
func usableHome(home string) bool {
	if !filepath.IsAbs(home) {
		return false
	}
	home = filepath.Clean(home)
	if strings.ContainsFunc(home, func(r rune) bool { return r < ' ' || r == ':' || r == 0x7f }) {
		return false // it could not stand in a passwd
	}
	for _, system := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev", "/proc", "/run", "/sys", "/opt", "/nix", "/var/run", "/var/tmp"} {
		if home == system || strings.HasPrefix(home, system+"/") {
			return false
		}
	}
	switch home {
	case "/", "/tmp", "/var", "/var/tmp", "/home", "/nonexistent":
		return false
	}
	return true
}

func plainName(name string) bool {
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.' {
			return false
		}
	}
	return name != ""
}

// Grants are what the wall is built from.
func (s *Spec) Grants(c Caller, programs, hidden []string, relay string) (wall.Grants, error) {
	rules, err := s.Rules.Compile()
	if err != nil {
		return wall.Grants{}, err
	}
	homeSize, err := s.checkLimits()
	if err != nil {
		return wall.Grants{}, err
	}
	var hosts []wall.Host
	for _, e := range rules.Endpoints() {
		hosts = append(hosts, wall.Host{Addr: e.Addr, Name: e.Name})
	}
	return wall.Grants{
		Hosts: hosts,
		Read:  s.Read, Write: s.Write,
		Dir: c.Dir, Home: c.Home, Homes: c.Homes,
		Programs: programs, Hidden: hidden, Relay: relay, Network: s.Mode() == ModeProxy, HostNetwork: s.Mode() == ModeHost, HomeDir: s.Home, HomeSize: homeSize,
		User:  wall.Identity{ID: c.UID, Name: c.User},
		Group: wall.Identity{ID: c.GID, Name: c.Group},
	}, nil
}
