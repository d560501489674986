// Package specs holds the ready specs, which lnk finds by name.
package specs

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed *.toml
var files embed.FS

// Read returns the ready spec of a name. The error names those there are.
func Read(name string) ([]byte, error) {
	data, err := files.ReadFile(name + ".toml")
	if err != nil {
		return nil, fmt.Errorf("--spec %s: there is no such file, and no ready spec of that name: there are %s", name, strings.Join(Names(), ", "))
	}
	return data, nil
}

// Names are those of the ready specs, in order.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		names = append(names, strings.TrimSuffix(entry.Name(), ".toml"))
	}
	slices.Sort(names)
	return names
}
