package bind

import (
	"net/url"
	"strings"
	"testing"
)

func TestNormal(t *testing.T) {
	for in, want := range map[string]string{
		"/": "/", "/a/b": "/a/b", "/a/./b": "/a/b", "/a/../b": "/b", "/a/b/..": "/a/", "/a/.": "/a/", "/../../a": "/a", "/..": "/", "/%2e%2e/a": "/a", "/a/%2E%2E/b": "/b",
		"/%6Dodel": "/model", "/a%2fb": "/a%2Fb", "/a%2F..%2Fb": "/a%2F..%2Fb", "/a//b": "/a//b", "/a%20b": "/a%20b", "/a%7eb": "/a~b", "/...": "/...", "/a/..b": "/a/..b", "/%252e": "/%252e", "/a/": "/a/", "/a%2Fb\"": "/a%2Fb%22", "/..%2f..%2fx|": "/..%2F..%2Fx%7C", "/\u00e9": "/%C3%A9", "/a\\b^`{<#": "/a%5Cb%5E%60%7B%3C%23",
		"": "!", "a": "!", "/%": "!", "/%4": "!", "/%zz": "!",
	} {
		got, err := NormalPath(in)
		if err != nil {
			got = "!"
		}
		if got != want {
			t.Errorf("%q: %q and not %q", in, got, want)
		}
	}
}

func TestCheckPrefix(t *testing.T) {
	for _, prefix := range []string{"", "/", "model", "/model/", "/a//b", "/a/../b", "/./a", "/%6Dodel", "/a%2fb", "/a b", "/a?b", "/a#b", "/a\\b", "/\u00e9", "/%zz", "/model/.."} {
		if err := checkPrefix(prefix); err == nil {
			t.Errorf("the prefix %q is taken", prefix)
		}
	}
}

// A path in normal form is its own, and has no dot segment.
func FuzzNormal(f *testing.F) {
	for _, seed := range []string{"/a/../b", "/%2e%2E/%2f", "/a%2fb//c/.", "/..%2f|"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		got, err := NormalPath(path)
		if err != nil {
			return
		}
		if again, err := NormalPath(got); err != nil || again != got {
			t.Errorf("%q: %q, and then %q, %v", path, got, again, err)
		}
		// What is sent is what was matched, and logged.
		plain, err := url.PathUnescape(got)
		if sent := (&url.URL{Path: plain, RawPath: got}).EscapedPath(); err != nil || sent != got {
			t.Errorf("%q: %q is sent as %q, %v", path, got, sent, err)
		}
		for _, segment := range strings.Split(got, "/") {
			if segment == "." || segment == ".." {
				t.Errorf("%q: %q", path, got)
			}
		}
	})
}
