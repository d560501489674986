package control

import (
	"strings"
	"testing"
)

func TestParseBind(t *testing.T) {
	rules, err := ParseBind([]byte(` {"internet_host": ["a.test"], "tcp": ["a.test:22"], "per_minute": 5, "names": false} `))
	if err != nil || rules.InternetHost[0] != "a.test" || rules.PerMinute != 5 || rules.NamesOn() {
		t.Errorf("%+v, %v", rules, err)
	}
	if rules, err := ParseBind([]byte("{}")); err != nil || rules.Network() {
		t.Errorf("%+v, %v", rules, err)
	}
	for text, want := range map[string]string{
		"": "no JSON", "null": "no JSON object", "[]": "", "3": "", `"x"`: "", "{} {}": "no JSON", "{}x": "no JSON",
		`{"internet_hosts": []}`: `no "internet_hosts"`, `{"Internet_host": []}`: `no "Internet_host"`, `{"tcp": [], "tcp": []}`: `"tcp" is there twice`,
		`{"per_minute": "5"}`: `"per_minute" is of another type`, `{"per_minute": 99999999999999999999}`: `"per_minute"`, `{"per_minute": 1.5}`: `"per_minute"`,
		"{\"agent\": \"\xff\"}": "no JSON", `{"tools": ["gh"]}`: "isn't served yet", `{"url_secret": "hunter2/"}`: "url_secret", `{"caller": {"name": "a", "key": "hunter2 hunter2"}}`: "its key",
		`{"routes": [{"prefix": "/a", "serve": {"unix": "/x"}}]}`: "without a caller", `{"caller": {"name": "a", "key": "k"}, "routes": [{"prefix": "/a", "serve": {"program": ["x"]}, "given": {"hunter2": 1, "x": [hunter2]}}]}`: "no JSON",
		strings.Repeat("[", 20000): "no JSON object", strings.Repeat(`{"a":`, 20000): "", `{"agent": "x"`: "no JSON", strings.Repeat(" ", MaxBind+1): "more than",
	} {
		_, err := ParseBind([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") || len(err.Error()) > 300 {
			t.Errorf("%.60q: %v", text, err)
		}
	}
}

func FuzzParseBind(f *testing.F) {
	f.Add([]byte(`{"internet_host": ["a.test"], "names": true}`))
	f.Add([]byte(`{"tcp": [], "tcp": []}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if rules, err := ParseBind(data); err == nil {
			rules.Compile()
		} else if strings.ContainsAny(err.Error(), "\n\x00") {
			t.Errorf("%q", err)
		}
	})
}
