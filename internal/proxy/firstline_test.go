package proxy

import (
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"bufio"

	"link.internal/lnk/internal/reach"
)

func TestBadTarget(t *testing.T) {
	for _, test := range []struct {
		line string
		bad  bool
	}{
		{"CONNECT ok.test:443 HTTP/1.1", false}, {"CONNECT [2a0a::1]:443 HTTP/1.0", false}, {"CONNECT ok.test HTTP/1.1", true}, {"CONNECT a b:443 HTTP/1.1", true},
		{"CONNECT \x00:1 HTTP/1.1", true}, {"CONNECT  HTTP/1.1", true},
		{"GET http://ok.test/ HTTP/1.1", false}, {"GET http://ok.test/%zz HTTP/1.1", true}, {"GET http://[::1/ HTTP/1.1", true}, {"GET http://a b/ HTTP/1.1", true},
		{"GET / HTTP/1.1", false}, {"", false}, {"CONNECT", false}, {"CONNECT a:1", false}, {"nonsense at all", false}, {"CONNECT a HTTP/2.0", false},
		{"X: http://a b HTTP/1.1", false},
	} {
		if _, _, err := badTarget([]byte(test.line)); (err != nil) != test.bad {
			t.Errorf("%q: %v", test.line, err)
		}
	}
}

// What passes the look at the first line, and the HTTP server takes, is a
// target or is judged by whoever serves it.
func FuzzRequestLine(f *testing.F) {
	for _, seed := range []string{"CONNECT ok.test:443 HTTP/1.1", "GET http://ok.test/x?y HTTP/1.1", "CONNECT %00:1 HTTP/1.1", "GET http://a@b:80/ HTTP/1.1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if strings.ContainsAny(line, "\r\n") {
			return
		}
		_, _, err := badTarget([]byte(line))
		request, parseErr := http.ReadRequest(bufio.NewReader(iotest.HalfReader(strings.NewReader(line + "\r\nHost: x\r\n\r\n"))))
		if parseErr != nil || err != nil || request.Method != http.MethodConnect {
			return
		}
		if _, err := reach.ParseTarget(request.RequestURI); err != nil && strings.HasPrefix(line, "CONNECT ") && strings.Contains(line, " HTTP/1.") && request.RequestURI != "" {
			t.Fatalf("%q passed, and asks for %q: %v", line, request.RequestURI, err)
		}
	})
}
