package spec

import (
	"fmt"
	"slices"
	"strings"
)

// passedOn are the variables that every sandbox gets from its caller: what a
// terminal and a language need, and nothing that holds a secret or loads code.
var passedOn = []string{
	"PATH", "TERM", "COLORTERM", "NO_COLOR", "LANG", "LANGUAGE", "TZ",
	"LC_ALL", "LC_ADDRESS", "LC_COLLATE", "LC_CTYPE", "LC_IDENTIFICATION", "LC_MEASUREMENT", "LC_MESSAGES",
	"LC_MONETARY", "LC_NAME", "LC_NUMERIC", "LC_PAPER", "LC_TELEPHONE", "LC_TIME",
}

// defaultPath is PATH where the caller has none, as a login would set it.
const defaultPath = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"

// proxyURL is where the program finds its proxy.
const proxyURL = "http://127.0.0.1:40781"

// proxyVariables point every client at the proxy that reads a variable at
// all: some read one case, some the other.
var proxyVariables = [][2]string{
	{"HTTP_PROXY", proxyURL}, {"http_proxy", proxyURL},
	{"HTTPS_PROXY", proxyURL}, {"https_proxy", proxyURL},
	{"ALL_PROXY", proxyURL}, {"all_proxy", proxyURL},
	// A server inside is reached directly.
	{"NO_PROXY", "localhost,127.0.0.1,::1"}, {"no_proxy", "localhost,127.0.0.1,::1"},
	// Node's own fetch reads the others only with this.
	{"NODE_USE_ENV_PROXY", "1"},
}

// Environment is the program's whole environment, and the PATH in it.
func (s *Spec) Environment(c Caller, workingFolder string) (env []string, path string, err error) {
	values := map[string]string{"PATH": defaultPath}
	theirs := make(map[string]string, len(c.Env))
	for _, entry := range c.Env {
		if name, value, ok := strings.Cut(entry, "="); ok {
			theirs[name] = value
		}
	}
	for _, name := range passedOn {
		if value, ok := theirs[name]; ok && value != "" {
			values[name] = value
		}
	}
	values["HOME"] = c.Home
	values["USER"], values["LOGNAME"] = c.User, c.User
	values["SHELL"] = "/bin/sh"
	values["PWD"] = workingFolder
	proxied := s.Mode() == ModeProxy
	if proxied {
		for _, v := range proxyVariables {
			values[v[0]] = v[1]
		}
	}
	named := make(map[string]bool)
	for _, entry := range s.Env {
		name, _, _ := strings.Cut(entry, "=")
		named[name] = true
	}
	for _, entry := range s.Env {
		name, value, given := strings.Cut(entry, "=")
		if !variableName(name) {
			return nil, "", fmt.Errorf("--env %q: %q is no name of a variable", entry, name)
		}
		if !given {
			if proxied && isProxyVariable(name) {
				return nil, "", fmt.Errorf("--env %s: the sandbox has its own proxy, so the one here isn't passed on: leave it out, or give --env %s=VALUE", name, name)
			}
			var ok bool
			if value, ok = theirs[name]; !ok {
				return nil, "", fmt.Errorf("--env %s: it isn't set here: set it, or give --env %s=VALUE", name, name)
			}
		}
		values[name] = value
		if proxied && isProxyVariable(name) && !named[otherCase(name)] {
			values[otherCase(name)] = value // some clients read one, some the other
		}
	}
	for name, value := range values {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env, values["PATH"], nil
}

// otherCase is a proxy's variable in the other spelling; NODE_USE_ENV_PROXY
// has one.
func otherCase(name string) string {
	for _, other := range []string{strings.ToLower(name), strings.ToUpper(name)} {
		if other != name && isProxyVariable(other) {
			return other
		}
	}
	return name
}

func isProxyVariable(name string) bool {
	return slices.ContainsFunc(proxyVariables, func(v [2]string) bool { return v[0] == name })
}

func variableName(name string) bool {
	if name == "" {
		return false
	}
	for i, r := range name {
		letter := r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return true
}
