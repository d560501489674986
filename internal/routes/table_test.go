package routes

import "testing"

// ROUTE1: the most specific prefix wins, by whole segments.
func TestFind(t *testing.T) {
	table := make(table)
	for _, prefix := range []string{"/model", "/tools", "/tools/search", "/tools/search/now", "/a%2Fb"} {
		table[prefix] = &route{prefix: prefix}
	}
	for path, want := range map[string]string{
		"/model": "/model|", "/model/": "/model|/", "/model/v1/x": "/model|/v1/x", "/models": "|", "/mode": "|", "/": "|", "": "|", "/tools/search": "/tools/search|", "/tools/search/": "/tools/search|/", "/tools/searches": "/tools|/searches",
		"/tools/search/now/x": "/tools/search/now|/x", "/tools/search/later": "/tools/search|/later", "/a%2Fb/c": "/a%2Fb|/c", "/a/b": "|", "//model": "|", "/Model": "|",
	} {
		r, rest := table.find(path)
		got := "|"
		if r != nil {
			got = r.prefix + "|" + rest
		}
		if got != want {
			t.Errorf("%q: %q and not %q", path, got, want)
		}
	}
}
