// Package internal holds lnk's own packages. Its one test holds the house's
// rule of who may import whom.
package internal

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "link.internal/lnk/"

// mayImport is the table of docs/architecture.md.
var mayImport = map[string][]string{
	"internal/reach":       {},
	"internal/bind":        {"reach"},
	"internal/control":     {"bind", "peercred"},
	"internal/channel":     {"bind"},
	"internal/bridge":      {"peercred"},
	"internal/routes":      {"bind", "confine", "peercred"},
	"internal/spec":        {"bind", "wall"},
	"internal/handoff":     {},
	"internal/egress":      {"bind", "reach", "socks", "peercred"},
	"internal/socks":       {},
	"internal/names":       {"reach"},
	"internal/wire":        {},
	"internal/clienthello": {},
	"internal/proxy":       {"clienthello", "confine", "reach", "bind", "bridge", "channel", "control", "handoff", "egress", "idle", "names", "peercred", "routes", "wire"},
	"internal/confine":     {},
	"internal/relay":       {"channel", "commands", "handoff", "idle", "confine"},
	"internal/commands":    {},
	"internal/idle":        {},
	"internal/wall":        {},
	"internal/peercred":    {},
	"internal/runner":      {"bind", "bridge", "channel", "idle", "peercred", "wall"},
	"internal/slot":        {"peercred"},
	"internal/box":         {},
	"internal/supervisor":  {"box", "peercred", "slot", "spec"},
	"internal/cli":         {"bind", "box", "bridge", "channel", "commands", "confine", "control", "peercred", "reach", "runner", "spec", "wall", "wire"},

	"cmd/lnk":                {"cli"},
	"cmd/lnk-relay":          {"relay"},
	"cmd/link-sandbox-proxy": {"proxy"},
	"cmd/lnk-supervisor":     {"supervisor"},
}

// mustNotLink are packages that a small process must not carry, with why.
var mustNotLink = map[string]map[string]string{
	"cmd/lnk-relay": {
		"net":                        "every sandbox has a relay, and net doubles its memory",
		"github.com/spf13/cobra":     "the relay has no command line",
		"github.com/BurntSushi/toml": "the relay reads no spec",
		module + "internal/wall":     "the relay is inside the wall",
		module + "internal/egress":   "the relay reaches nothing",
		module + "internal/slot":     "the relay keeps no slots",
	},
	"cmd/link-sandbox-proxy": {
		"github.com/spf13/cobra":     "the proxy holds secrets: little code, little memory",
		"github.com/BurntSushi/toml": "the proxy reads no spec",
		module + "internal/wall":     "the proxy builds no wall",
		module + "internal/relay":    "the proxy is outside",
		module + "internal/slot":     "the proxy keeps no slots",
	},
}

type pkg struct {
	ImportPath    string
	Imports, Deps []string
}

func list(t *testing.T, pattern string) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps=false", "-json=ImportPath,Imports,Deps", pattern).Output()
	if err != nil {
		t.Fatal(err)
	}
	var packages []pkg
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	for decoder.More() {
		var p pkg
		if err := decoder.Decode(&p); err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
	return packages
}

func TestWhoImportsWhom(t *testing.T) {
	house, err := os.ReadFile("../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range mayImport {
		if strings.HasPrefix(name, "internal/") && !strings.Contains(string(house), "| `"+name+"` |") {
			t.Errorf("docs/architecture.md has no %s", name)
		}
	}
	for _, p := range append(list(t, module+"internal/..."), list(t, module+"cmd/...")...) {
		name := strings.TrimPrefix(p.ImportPath, module)
		if name == "internal" {
			continue
		}
		allowed, ok := mayImport[name]
		if !ok {
			t.Errorf("%s is not in the table: add it, here and in docs/architecture.md", name)
		}
		for _, imported := range p.Imports {
			short, ours := strings.CutPrefix(imported, module+"internal/")
			if ours && !slices.Contains(allowed, short) {
				t.Errorf("%s imports %s", name, short)
			}
		}
		for _, dep := range p.Deps {
			if why, bad := mustNotLink[name][dep]; bad {
				t.Errorf("%s links %s: %s", name, dep, why)
			}
		}
	}
}
