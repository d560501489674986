package spec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// file is a spec as it is written.
type file struct {
	Read  []string `toml:"read"`
	Write []string `toml:"write"`
	Home  *string  `toml:"home"`
	Env   []string `toml:"env"`
	Ports []string `toml:"ports"`

	Reached []string `toml:"reached"`

	Internet struct {
		Allow      []string `toml:"allow"`
		TCP        []string `toml:"tcp"`
		Upstream   *string  `toml:"upstream"`
		PerMinute  *int     `toml:"per_minute"`
		PauseAfter *int     `toml:"pause_after"`
	} `toml:"internet"`
	LAN struct {
		Allow []string `toml:"allow"`
	} `toml:"lan"`
	Network struct {
		Mode  *string `toml:"mode"`
		Names *bool   `toml:"names"`
	} `toml:"network"`
	Commands struct {
		Allow []string `toml:"allow"`
	} `toml:"commands"`
	Wire struct {
		File  *string `toml:"file"`
		Agent *string `toml:"agent"`
	} `toml:"wire"`
	Limits struct {
		Memory    *string  `toml:"memory"`
		Processes *int     `toml:"processes"`
		CPUs      *float64 `toml:"cpus"`
		Home      *string  `toml:"home"`
		UserNS    *bool    `toml:"userns"`
	} `toml:"limits"`
	Model struct {
		Ports []int `toml:"ports"`
	} `toml:"model"`
	Browser struct {
		Allow []string `toml:"allow"`
	} `toml:"browser"`
	Tools struct {
		Use []string `toml:"use"`
	} `toml:"tools"`
}

// Key is one key of a spec.
type Key struct {
	// Name is as it is written, its table before a dot.
	Name string
	// Type is what its value is.
	Type string
	// Flag is the flag of run that says the same; empty: none.
	Flag string
	// Doc is a sentence.
	Doc string
}

// Keys are all keys of a spec, in the order of docs/spec.md, which is held
// against them by a test, as are the fields of file.
var Keys = []Key{
	{"read", "list of paths", "--read", "what it may read"},
	{"write", "list of paths", "--write", "what it may read and write"},
	{"home", "path", "--home", "a folder that is its home and lasts: yours, mode 0700"},
	{"env", "list of texts", "--env", "`NAME=VALUE` to set, `NAME` to pass on from here"},
	{"ports", "list of texts", "--port", "ports of this machine's loopback that lead to one inside: `PORT` or `PORT:INSIDE`"},
	{"reached", "list of paths", "--reach", "socket folders of proxies that run already; for `lnk sandbox wrap`"},
	{"internet.allow", "list of hosts", "--internet-host", "hosts it may reach, on 443 and 80"},
	{"internet.tcp", "list of host:port", "--tcp", "other ports of hosts that it may reach"},
	{"internet.upstream", "text", "--upstream", "where its traffic leaves from"},
	{"internet.per_minute", "number", "--per-minute", "requests and tunnels a minute; 0: no limit"},
	{"internet.pause_after", "number", "--pause-after", "refusals in a minute that pause the wire; 0: never"},
	{"lan.allow", "list of hosts", "--lan-host", "hosts of your network it may reach"},
	{"network.mode", "text", "--network", "`proxy`, `none` or `host`"},
	{"network.names", "true or false", "--names", "whether each listed host has an address inside"},
	{"commands.allow", "list of programs", "--command", "programs it may run: a name, a path, a folder ending in `/`, `*`"},
	{"wire.file", "path", "--wire", "where every call is logged"},
	{"wire.agent", "text", "--agent", "who the log says is calling"},
	{"limits.memory", "text", "--memory", "memory, such as `512M` or `2G`"},
	{"limits.processes", "number", "--processes", "processes and threads at a time"},
	{"limits.cpus", "number", "--cpus", "processors, such as `1.5`"},
	{"limits.home", "text", "--home-size", "size of its empty home, and of its /tmp, such as `1G`"},
	{"limits.userns", "true or false", "--userns", "whether it may make user namespaces, and chroot in them, for a browser's own sandbox"},
	{"model.ports", "list of numbers", "", "model runtimes; not served yet"},
	{"browser.allow", "list of hosts", "", "pages it may open; not served yet"},
	{"tools.use", "list of names", "", "tools outside; not served yet"},
}

// FileError is what is wrong with a spec, and where.
type FileError struct {
	File string
	Line int // 0: unknown
	Err  error
}

// Error gives the file, and the line where it is known.
func (e *FileError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s: line %d: %v", e.File, e.Line, e.Err)
	}
	return fmt.Sprintf("%s: %v", e.File, e.Err)
}

// Unwrap returns what is wrong.
func (e *FileError) Unwrap() error { return e.Err }

// maxFile bounds a spec, in bytes.
const maxFile = 1 << 20

// Load adds what a file says to what the flags said. name is a path, with a
// slash or a dot in it, or the name of a ready spec.
func (s *Spec) Load(name string, ready func(string) ([]byte, error)) error {
	// A name without a dot or slash is a ready one's: whose folder it is that
	// lnk is started in has no say in it.
	if !strings.ContainsAny(name, "/.") {
		data, err := ready(name)
		if err != nil {
			return err
		}
		return s.parse(name, "", string(data))
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	data, err := readFile(path)
	folder := filepath.Dir(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("--spec %s: there is no such file", name)
	case err != nil:
		return fmt.Errorf("--spec %s: %w", name, err)
	}
	return s.parse(name, folder, string(data))
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is no file")
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("it has more than %d bytes", maxFile)
	}
	return os.ReadFile(path)
}

// parse reads TOML, strictly: every key is one of Keys, spelled as it is there.
func (s *Spec) parse(name, folder, text string) error {
	fail := func(line int, err error) error { return &FileError{name, line, err} }
	var f file
	meta, err := toml.Decode(text, &f)
	var syntax toml.ParseError
	switch {
	case errors.As(err, &syntax):
		message := syntax.Message
		if strings.Contains(message, "struct {") {
			message = "it is a table, and is given a value" // not in this language's words
		}
		if syntax.LastKey != "" {
			message = syntax.LastKey + ": " + message
		}
		return fail(syntax.Position.Line, errors.New(message))
	case err != nil:
		return fail(0, errors.New(strings.TrimPrefix(err.Error(), "toml: ")))
	}
	for _, key := range meta.Keys() {
		if err := checkKey(key, meta.Type(key...)); err != nil {
			return fail(lineOf(text, key), err)
		}
	}
	if err := s.merge(&f, folder); err != nil {
		var at *keyError
		if errors.As(err, &at) {
			return fail(lineOf(text, strings.Split(at.key, ".")), err)
		}
		return fail(0, err)
	}
	s.Spec = name
	return nil
}

// checkKey wants a key that there is, in its very spelling: the library takes
// any case.
func checkKey(key toml.Key, kind string) error {
	name := strings.Join(key, ".")
	known := func(n string) bool { return slices.ContainsFunc(Keys, func(k Key) bool { return k.Name == n }) }
	table := func(n string) bool {
		return slices.ContainsFunc(Keys, func(k Key) bool { return strings.HasPrefix(k.Name, n+".") })
	}
	switch {
	case known(name) || table(name) && kind == "Hash":
		return nil
	case table(name):
		return &keyError{name, fmt.Errorf("it is a table: write [%s]", name)}
	}
	best, distance := "", 3
	for _, k := range Keys {
		if d := editDistance(name, k.Name); d < distance {
			best, distance = k.Name, d
		}
	}
	if best != "" {
		return &keyError{name, fmt.Errorf("no such key: did you mean %s?", best)}
	}
	return &keyError{name, errors.New("no such key: docs/spec.md has them all")}
}

// keyError is about one key.
type keyError struct {
	key string
	err error
}

func (e *keyError) Error() string { return e.key + ": " + e.err.Error() }

func (e *keyError) Unwrap() error { return e.err }

// lineOf finds the line of a key, which the library doesn't tell; 0 where it
// isn't the only one of its name.
func lineOf(text string, key []string) int {
	if len(key) == 0 {
		return 0
	}
	last, table := key[len(key)-1], strings.Join(key[:len(key)-1], ".")
	found, in := 0, ""
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			in = strings.Trim(strings.SplitN(line, "#", 2)[0], "[] \t")
			if in == strings.Join(key, ".") {
				return n + 1
			}
			continue
		}
		left, _, ok := strings.Cut(line, "=")
		left = strings.Trim(left, " \t\"'")
		if ok && (in == table && left == last || in == "" && left == strings.Join(key, ".")) {
			if found > 0 {
				return 0
			}
			found = n + 1
		}
	}
	return found
}

// editDistance is Levenshtein's.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		previous := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := previous
			if a[i] != b[j] {
				cost = 1 + min(previous, row[j], row[j+1])
			}
			previous, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}

// merge adds the file to the flags: lists are added up, and what is one value
// may not be two.
func (s *Spec) merge(f *file, folder string) error {
	for _, list := range []struct {
		key      string
		from     []string
		to       *[]string
		relative bool
	}{
		{"read", f.Read, &s.Read, true}, {"write", f.Write, &s.Write, true}, {"env", f.Env, &s.Env, false},
		{"ports", f.Ports, &s.Ports, false}, {"reached", f.Reached, &s.Reached, true},
		{"internet.allow", f.Internet.Allow, &s.Rules.InternetHost, false}, {"internet.tcp", f.Internet.TCP, &s.Rules.TCP, false},
		{"lan.allow", f.LAN.Allow, &s.Rules.LANHost, false},
		{"commands.allow", f.Commands.Allow, &s.Commands, false},
	} {
		var texts []string
		for _, text := range list.from {
			if list.relative || list.key == "commands.allow" && strings.Contains(text, "/") {
				var err error
				if text, err = absolute(text, folder); err != nil {
					return &keyError{list.key, err}
				}
			}
			texts = append(texts, text)
		}
		*list.to = append(texts, *list.to...)
	}
	for _, one := range []struct {
		key, flag string
		from      *string
		to        *string
		path      bool
	}{
		{"home", "--home", f.Home, &s.Home, true}, {"internet.upstream", "--upstream", f.Internet.Upstream, &s.Rules.Upstream, false},
		{"network.mode", "--network", f.Network.Mode, &s.Network, false}, {"wire.file", "--wire", f.Wire.File, &s.Rules.Wire, true},
		{"wire.agent", "--agent", f.Wire.Agent, &s.Rules.Agent, false}, {"limits.memory", "--memory", f.Limits.Memory, &s.Limits.Memory, false},
		{"limits.home", "--home-size", f.Limits.Home, &s.Limits.HomeSize, false},
	} {
		if one.from == nil {
			continue
		}
		value := *one.from
		if one.path {
			var err error
			if value, err = absolute(value, folder); err != nil {
				return &keyError{one.key, err}
			}
		}
		if *one.to != "" && *one.to != value {
			return &keyError{one.key, fmt.Errorf("it is %q here, and %s says %q: leave one out", value, one.flag, *one.to)}
		}
		*one.to = value
	}
	for _, number := range []struct {
		key, flag string
		from      *int
		to        *int
	}{
		{"internet.per_minute", "--per-minute", f.Internet.PerMinute, &s.Rules.PerMinute}, {"internet.pause_after", "--pause-after", f.Internet.PauseAfter, &s.Rules.PauseAfter},
		{"limits.processes", "--processes", f.Limits.Processes, &s.Limits.Processes},
	} {
		if number.from == nil {
			continue
		}
		if *number.from < 0 {
			return &keyError{number.key, errors.New("it can't be negative")}
		}
		if *number.to != 0 && *number.to != *number.from {
			return &keyError{number.key, fmt.Errorf("it is %d here, and %s says %d: leave one out", *number.from, number.flag, *number.to)}
		}
		*number.to = *number.from
	}
	if c := f.Limits.CPUs; c != nil {
		if s.Limits.CPUs != 0 && s.Limits.CPUs != *c {
			return &keyError{"limits.cpus", fmt.Errorf("it is %v here, and --cpus says %v: leave one out", *c, s.Limits.CPUs)}
		}
		s.Limits.CPUs = *c
	}
	if n := f.Limits.UserNS; n != nil {
		if s.Limits.UserNS != nil && *s.Limits.UserNS != *n {
			return &keyError{"limits.userns", fmt.Errorf("it is %v here, and --userns says %v: leave one out", *n, *s.Limits.UserNS)}
		}
		s.Limits.UserNS = n
	}
	if n := f.Network.Names; n != nil {
		if s.Rules.Names != nil && *s.Rules.Names != *n {
			return &keyError{"network.names", fmt.Errorf("it is %v here, and --names says %v: leave one out", *n, *s.Rules.Names)}
		}
		s.Rules.Names = n
	}
	for key, given := range map[string]bool{
		"model.ports": len(f.Model.Ports) > 0, "browser.allow": len(f.Browser.Allow) > 0, "tools.use": len(f.Tools.Use) > 0,
	} {
		if given {
			return &keyError{key, errors.New("it isn't served yet: leave it out")}
		}
	}
	return nil
}

// absolute makes a path of a spec one that doesn't depend on where lnk is
// started: a spec's paths start at its folder, ~ at the home.
func absolute(path, folder string) (string, error) {
	switch {
	case path == "":
		return "", errors.New("a path is empty")
	case path == "~", strings.HasPrefix(path, "~/"), filepath.IsAbs(path):
		return path, nil
	case folder == "":
		return "", fmt.Errorf("%q is relative, and a ready spec is in no folder", path)
	}
	joined := filepath.Join(folder, path)
	if strings.HasSuffix(path, "/") && joined != "/" {
		joined += "/" // of a folder of programs
	}
	return joined, nil
}
