package bind

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// Binding is all that makes a proxy somebody's: what the flags of lnk sandbox
// proxy say, with the routes and keys themselves in place of files. The zero
// value reaches nothing and serves no route. Its shape is docs/bind.schema.json.
type Binding struct {
	Rules
	// Routes are served under /_link/ to the caller.
	Routes []Route `json:"routes,omitempty"`
	// Caller is who calls them; nil is for no routes.
	Caller *Caller `json:"caller,omitempty"`
	// URLSecret is the first segment of every route's path; empty: there is none.
	URLSecret string `json:"url_secret,omitempty"`
}

// Route is a part of the paths under /_link/, and who serves it.
type Route struct {
	// Prefix is of whole segments: "/model", "/tools/search".
	Prefix string `json:"prefix"`
	Serve  Serve  `json:"serve"`
	// Given is a JSON object that the program is told, with its secrets; nil: {}.
	Given json.RawMessage `json:"given,omitempty"`
}

// Serve is a server of HTTP/1.1: one of the two.
type Serve struct {
	// Unix is the absolute path of a socket that this user or root owns and serves.
	Unix string `json:"unix,omitempty"`
	// Program is a program and its arguments, started by the proxy.
	Program []string `json:"program,omitempty"`
}

// Caller is who a route's calls must come from.
type Caller struct {
	Name string `json:"name"`
	// Key is what they carry, in visible ASCII characters.
	Key string `json:"key"`
}

// The most that a binding may have of each, and the longest.
const (
	maxRoutes = 256
	maxText   = 4 << 10
)

// CheckRoutes checks the routes, their caller and the URL secret. No error
// quotes a secret.
func (b *Binding) CheckRoutes() error {
	if len(b.Routes) > maxRoutes {
		return fmt.Errorf("routes: %d are more than %d", len(b.Routes), maxRoutes)
	}
	there := make(map[string]bool, len(b.Routes))
	for i, r := range b.Routes {
		if err := r.check(); err != nil {
			return fmt.Errorf("routes: number %d: %w", i+1, err)
		}
		if there[r.Prefix] {
			return fmt.Errorf("routes: the prefix %q is there twice", r.Prefix)
		}
		there[r.Prefix] = true
	}
	switch {
	case len(b.Routes) > 0 && b.Caller == nil:
		return errors.New("routes without a caller: name who calls them, and by what key")
	case b.Caller != nil && (!visible(b.Caller.Name) || strings.Contains(b.Caller.Name, ":")):
		return errors.New("caller: its name has visible ASCII characters, and no colon")
	case b.Caller != nil && !visible(b.Caller.Key):
		return errors.New("caller: its key has visible ASCII characters")
	}
	if s := b.URLSecret; s != "" && (strings.ContainsFunc(s, func(r rune) bool { return !unreserved(r) }) || s == "." || s == ".." || len(s) > maxText) {
		return errors.New("url_secret: it has letters, digits, -, ., _ and ~ alone")
	}
	return nil
}

func (r *Route) check() error {
	if len(r.Prefix) > maxText {
		return errors.New("its prefix is too long")
	}
	if err := checkPrefix(r.Prefix); err != nil {
		return err
	}
	if (r.Serve.Unix != "") == (len(r.Serve.Program) > 0) {
		return errors.New("serve is either unix or program")
	}
	if path := r.Serve.Unix; path != "" && (!filepath.IsAbs(path) || filepath.Clean(path) != path) {
		return fmt.Errorf("serve: %q is no absolute path", path)
	}
	for i, arg := range r.Serve.Program {
		if strings.Contains(arg, "\x00") || i == 0 && arg == "" {
			return errors.New("serve: its program can't be one")
		}
	}
	if r.Given != nil {
		if r.Serve.Unix != "" {
			return errors.New("given is for a program: a socket's server has its own")
		}
		var object map[string]json.RawMessage
		if err := json.Unmarshal(r.Given, &object); err != nil || object == nil {
			return errors.New("given is no JSON object")
		}
	}
	return nil
}

// visible reports whether a text is of visible ASCII characters, at least one.
func visible(text string) bool {
	return text != "" && len(text) <= maxText && !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// unreserved are the characters that a path has as themselves (RFC 3986, section 2.3).
func unreserved(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-._~", r)
}
