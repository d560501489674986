package proxy

import (
	"os"
	"strings"
	"testing"
)

// Code that was given back is there when it is used.
func TestGiveBackCode(t *testing.T) {
	resident := func() string {
		data, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(data), "RssFile:")
		line, _, _ := strings.Cut(rest, "\n")
		return strings.TrimSpace(line)
	}
	code, err := codeMappings()
	if err != nil || len(code) < 2 {
		t.Fatalf("%+v, %v", code, err)
	}
	before := resident()
	for range 3 {
		if err := giveBack(code); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s before, %s after", before, resident())
	if _, ok := parseMapping("Size:                  4 kB"); ok {
		t.Error("a line of an entry is taken for its first")
	}
	for line, want := range map[string]bool{
		"00400000-0066d000 r-xp 00001000 fd:00 123  /usr/lib/lnk/link-sandbox-proxy": true, "00a00000-00a40000 rw-p 00600000 fd:00 123  /usr/lib/lnk/link-sandbox-proxy": false,
	} {
		m, ok := parseMapping(line)
		if !ok || m.unwritten("Anonymous:             0 kB") != want || m.unwritten("Anonymous:             4 kB") {
			t.Errorf("%s: %+v", line, m)
		}
	}
}
