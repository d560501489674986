package control

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"link.internal/lnk/internal/bind"
)

// MaxBind is the longest line that binds a proxy, in bytes, its end not counted.
const MaxBind = 1 << 20

// line is what binds a proxy (docs/bind.schema.json).
type line struct {
	bind.Binding `json:",inline"`
	// What is known and not served yet.
	Model       []int    `json:"model"`
	BrowserHost []string `json:"browser_host"`
	Tools       []string `json:"tools"`
}

// ParseBind reads the line that binds a proxy, strictly: unknown, duplicate
// and wrongly cased names, bytes behind the object and bad UTF-8 are refused.
// Its errors quote nothing of a value, which may be a secret.
func ParseBind(data []byte) (bind.Binding, error) {
	var l line
	if len(data) > MaxBind {
		return bind.Binding{}, fmt.Errorf("the line has more than %d bytes", MaxBind)
	}
	if err := json.Unmarshal(data, &l, json.RejectUnknownMembers(true)); err != nil {
		return bind.Binding{}, errors.New(describe(err))
	}
	if jsontext.Value(data).Kind() != '{' {
		return bind.Binding{}, errors.New("the line is no JSON object")
	}
	for name, given := range map[string]bool{
		"model": len(l.Model) > 0, "browser_host": len(l.BrowserHost) > 0, "tools": len(l.Tools) > 0,
	} {
		if given {
			return bind.Binding{}, fmt.Errorf("%s isn't served yet: leave it out", name)
		}
	}
	return l.Binding, l.CheckRoutes()
}

// describe says where a line is wrong, without what stands there.
func describe(err error) string {
	var semantic *json.SemanticError
	if errors.As(err, &semantic) {
		where := strings.TrimPrefix(string(semantic.JSONPointer), "/")
		if where == "" {
			return "the line is no JSON object"
		}
		if errors.Is(err, json.ErrUnknownName) {
			return fmt.Sprintf("there is no %.100q in a bind", where)
		}
		return fmt.Sprintf("%.100q is of another type", where)
	}
	var syntactic *jsontext.SyntacticError
	if errors.As(err, &syntactic) {
		if errors.Is(err, jsontext.ErrDuplicateName) {
			return fmt.Sprintf("%.100q is there twice", strings.TrimPrefix(string(syntactic.JSONPointer), "/"))
		}
		return fmt.Sprintf("it is no JSON: at byte %d", syntactic.ByteOffset)
	}
	return "it is no JSON object"
}
