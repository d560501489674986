package spec

import (
	"slices"
	"strings"
	"testing"

	"link.internal/lnk/internal/bind"
)

func TestEnvironment(t *testing.T) {
	caller := Caller{User: "u", Home: "/home/u", Env: []string{"PATH=/bin", "SECRET=x", "TERM=t", "LC_ALL=C", "EMPTY=", "HTTP_PROXY=http://other"}}
	for _, test := range []struct {
		name    string
		env     []string
		network bool
		has     []string
		hasNot  []string
		err     string
	}{
		{name: "clean", has: []string{"PATH=/bin", "TERM=t", "LC_ALL=C", "HOME=/home/u", "USER=u", "PWD=/w"}, hasNot: []string{"SECRET", "HTTP_PROXY", "NODE_USE_ENV_PROXY"}},
		{name: "named", env: []string{"SECRET", "A=b=c", "EMPTY"}, has: []string{"SECRET=x", "A=b=c", "EMPTY="}},
		{name: "a proxy", network: true, has: []string{"HTTP_PROXY=" + proxyURL, "https_proxy=" + proxyURL, "NO_PROXY=localhost,127.0.0.1,::1"}},
		{name: "a proxy of one's own", network: true, env: []string{"HTTP_PROXY=x"}, has: []string{"HTTP_PROXY=x", "http_proxy=x", "HTTPS_PROXY=" + proxyURL}},
		{name: "unset", env: []string{"NOPE"}, err: "isn't set"},
		{name: "the caller's proxy", network: true, env: []string{"HTTP_PROXY"}, err: "isn't passed on"},
		{name: "no name", env: []string{"=x"}, err: "no name"},
		{name: "a bad name", env: []string{"A-B=x"}, err: "no name"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := Spec{Env: test.env}
			if test.network {
				s.Rules.InternetHost = []string{"ok.test"}
			}
			env, path, err := s.Environment(caller, "/w")
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || path != "/bin" {
				t.Fatal(path, err)
			}
			for _, want := range test.has {
				if !slices.Contains(env, want) {
					t.Errorf("no %s in %q", want, env)
				}
			}
			for _, name := range test.hasNot {
				if slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
					t.Errorf("%s in %q", name, env)
				}
			}
		})
	}
}

func TestCheck(t *testing.T) {
	for _, test := range []struct {
		name  string
		rules bind.Rules
		want  string
	}{
		{"nothing", bind.Rules{}, ""},
		{"a host", bind.Rules{InternetHost: []string{"ok.test"}, Wire: "w", Agent: "a"}, ""},
		{"a bad host", bind.Rules{InternetHost: []string{"a b"}}, "--internet-host"},
		{"a log of nothing", bind.Rules{Wire: "w"}, "--wire"},
		{"a caller of nothing", bind.Rules{Agent: "a"}, "--agent"},
		{"a bad upstream", bind.Rules{InternetHost: []string{"ok.test"}, Upstream: "x"}, "--upstream"},
		{"a negative rate", bind.Rules{InternetHost: []string{"ok.test"}, PerMinute: -1}, "--per-minute"},
	} {
		s := Spec{Rules: test.rules}
		err := s.Check()
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
