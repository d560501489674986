package control

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// fields are the names of a struct's members, by their order in it.
func fields(of reflect.Type) (names []string) {
	for i := range of.NumField() {
		f := of.Field(i)
		if f.Anonymous {
			names = append(names, fields(f.Type)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// The schema in the docs has the names of the code, and no others; and of
// lines, the two take and refuse the same.
func TestBind_Schema(t *testing.T) {
	const path = "../../docs/bind.schema.json"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Properties map[string]any
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	documented := slices.Sorted(func(yield func(string) bool) {
		for name := range doc.Properties {
			if !yield(name) {
				return
			}
		}
	})
	read := fields(reflect.TypeFor[line]())
	slices.Sort(read)
	if !slices.Equal(read, documented) {
		t.Errorf("read are\n%v, documented\n%v", read, documented)
	}
	schema, err := jsonschema.NewCompiler().Compile(path)
	if err != nil {
		t.Fatal(err)
	}
	caller := `"caller":{"name":"agent","key":"k"}`
	for _, text := range []string{
		`{}`, `{"internet_host":["a.test"],"tcp":["a.test:22"],"lan_host":["*"],"upstream":"direct","names":false,"per_minute":5,"pause_after":1,"wire":"/x","agent":"a"}`,
		`{"routes":[{"prefix":"/a/b","serve":{"unix":"/x.sock"}}],` + caller + `}`, `{"routes":[{"prefix":"/a","serve":{"program":["true","x"]},"given":{"k":[1]}}],` + caller + `,"url_secret":"s-1_~."}`,
		`{"routes":[],"caller":null,"model":[],"url_secret":""}`, `{` + caller + `}`, `{"names":null}`,
		// Each of these is refused.
		`[]`, `null`, `1`, `{"x":1}`, `{"Tcp":[]}`, `{"internet_host":"a.test"}`, `{"internet_host":[1]}`, `{"per_minute":"5"}`, `{"per_minute":1.5}`, `{"names":"true"}`, `{"wire":1}`, `{"model":[1]}`, `{"tools":["a"]}`, `{"browser_host":["a"]}`,
		`{"routes":{}}`, `{"routes":[{"prefix":"/a","serve":{"unix":"/x.sock"}}]}`, `{"routes":[{"prefix":"/a","serve":{"unix":"/x.sock"}}],"caller":null}`,
		`{"routes":[{"serve":{"unix":"/x"}}],` + caller + `}`, `{"routes":[{"prefix":"/a"}],` + caller + `}`, `{"routes":[{"prefix":"/a","serve":{}}],` + caller + `}`,
		`{"routes":[{"prefix":"/a","serve":{"unix":"/x","program":["y"]}}],` + caller + `}`, `{"routes":[{"prefix":"/a","serve":{"unix":"x"}}],` + caller + `}`, `{"routes":[{"prefix":"/a","serve":{"program":[]}}],` + caller + `}`,
		`{"routes":[{"prefix":"a","serve":{"unix":"/x"}}],` + caller + `}`, `{"routes":[{"prefix":"/a/","serve":{"unix":"/x"}}],` + caller + `}`, `{"routes":[{"prefix":"/a//b","serve":{"unix":"/x"}}],` + caller + `}`, `{"routes":[{"prefix":"/","serve":{"unix":"/x"}}],` + caller + `}`,
		`{"routes":[{"prefix":"/a","serve":{"program":["y"]},"given":[]}],` + caller + `}`, `{"routes":[{"prefix":"/a","serve":{"program":["y"]},"more":1}],` + caller + `}`,
		`{"caller":{"name":"a"}}`, `{"caller":{"key":"a"}}`, `{"caller":{"name":"a","key":""}}`, `{"caller":{"name":"a:b","key":"k"}}`, `{"caller":{"name":"a","key":"k k"}}`, `{"caller":{"name":"a","key":"k","x":1}}`, `{"url_secret":"a/b"}`, `{"url_secret":"a%"}`,
	} {
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		bySchema := schema.Validate(value)
		_, byCode := ParseBind([]byte(text))
		if (bySchema == nil) != (byCode == nil) {
			t.Errorf("%s: the schema says %v, the code %v", text, bySchema, byCode)
		}
	}
}
