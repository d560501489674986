package spec

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

// Table is the table of docs/spec.md.
func table() string {
	var text strings.Builder
	text.WriteString("| key | value | flag | what |\n|---|---|---|---|\n")
	for _, k := range Keys {
		flag := "–"
		if k.Flag != "" {
			flag = "`" + k.Flag + "`"
		}
		fmt.Fprintf(&text, "| `%s` | %s | %s | %s |\n", k.Name, k.Type, flag, k.Doc)
	}
	return text.String()
}

// The documented keys are those that are read, and each flag is one.
func TestKeys(t *testing.T) {
	var fields []string
	root := reflect.TypeFor[file]()
	for i := range root.NumField() {
		f := root.Field(i)
		name := f.Tag.Get("toml")
		if f.Type.Kind() != reflect.Struct {
			fields = append(fields, name)
			continue
		}
		for j := range f.Type.NumField() {
			fields = append(fields, name+"."+f.Type.Field(j).Tag.Get("toml"))
		}
	}
	known := make(map[string]Key)
	for _, k := range Keys {
		known[k.Name] = k
	}
	for _, name := range fields {
		if _, ok := known[name]; !ok {
			t.Errorf("%s is read and not in Keys", name)
		}
	}
	if len(fields) != len(Keys) {
		t.Errorf("%d keys are read, and %d are in Keys", len(fields), len(Keys))
	}
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	new(Spec).AddFlags(fs)
	wrap := flag.NewFlagSet("", flag.ContinueOnError)
	new(Spec).AddWrapFlags(wrap)
	for _, k := range Keys {
		if k.Flag != "" && fs.Lookup(strings.TrimPrefix(k.Flag, "--")) == nil && wrap.Lookup(strings.TrimPrefix(k.Flag, "--")) == nil {
			t.Errorf("%s: there is no flag %s", k.Name, k.Flag)
		}
	}
	docs, err := os.ReadFile("../../docs/spec.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(docs), table()) {
		t.Errorf("docs/spec.md doesn't have the table:\n%s", table())
	}
}

// Whatever is in a file, it is a spec or an error.
func FuzzParse(f *testing.F) {
	f.Add("read = [\"x\"]\n[internet]\nallow = [\"a.test\"]\n")
	f.Add("[limits]\nmemory = \"1G\"\ncpus = 1.5\n")
	f.Add("internet.allow = [\"*\"]")
	f.Fuzz(func(t *testing.T, text string) {
		var s Spec
		if err := s.parse("fuzz.toml", "/fuzz", text); err == nil {
			s.Check()
		} else if strings.Contains(err.Error(), "bug") {
			t.Error(err)
		}
	})
}
