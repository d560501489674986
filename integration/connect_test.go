package integration

import (
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"link.internal/lnk/integration/testnet"
)

// HT1, HT2: a call is answered alike, and judged and logged alike, whether its
// bytes come at once or in pieces, as the first of its connection or not.
func TestHT1HT2_HeadsInPieces(t *testing.T) {
	addr := internet.Host("ok.test")
	echo := internet.Echo(addr, 80)
	defer echo.Close()
	site := internet.HTTP(internet.Host("site.test"), 80, nil)
	defer site.Close()
	log := filepath.Join(testnet.Home, "pieces.wire")
	dir, _ := aProxy(t, "--internet-host", "ok.test", "--internet-host", "site.test", "--wire", log)
	out := filepath.Join(dir, "out.sock")
	// loggedAs checks what is logged of a call that was answered so.
	loggedAs := func(t *testing.T, before int, answer string) {
		t.Helper()
		want := 0 // what is no request at all
		switch {
		case strings.HasPrefix(answer, "HTTP/1.1 200"):
			want = 2
		case strings.Contains(answer, "Link-Refused"):
			want = 1
		}
		var got []record
		for range 100 {
			if got = wireLog(t, log)[before:]; len(got) == want {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		good := len(got) == want
		for i := range got {
			good = good && strings.EqualFold(got[i].Method, "CONNECT") && (want == 2 && got[i].Verdict == []string{"open", "end"}[i] && got[i].Host == "ok.test" || want == 1 && got[i].Verdict == "refused" && strings.Contains(answer, got[i].Reason))
		}
		if !good {
			t.Errorf("%q, and logged is %+v", answer, got)
		}
	}
	date := regexp.MustCompile(`Date: [^\r]*\r\n`)
	head := func(answer string) string { return date.ReplaceAllString(answer, "") }
	// talk sends pieces, each when the one before may have been read, and
	// returns all that is answered.
	talk := func(pieces ...string) string {
		conn := connect(t, out)
		defer conn.Close()
		for i, piece := range pieces {
			if i > 0 {
				time.Sleep(2 * time.Millisecond)
			}
			if _, err := io.WriteString(conn, piece); err != nil {
				break // it was answered before
			}
		}
		conn.(interface{ CloseWrite() error }).CloseWrite()
		answer, _ := io.ReadAll(conn)
		return head(string(answer))
	}
	cut := func(text string, size int) (pieces []string) {
		for len(text) > size {
			pieces, text = append(pieces, text[:size]), text[size:]
		}
		return append(pieces, text)
	}
	const ok = "HTTP/1.1 200 Connection established\r\n\r\n"
	for _, test := range []struct{ name, sent, want string }{
		{"a tunnel", "CONNECT ok.test:80 HTTP/1.1\r\nHost: ok.test:80\r\n\r\nhello", ok + "hello"},
		{"no Host, and HTTP/1.0", "CONNECT ok.test:80 HTTP/1.0\r\n\r\nhello", ok + "hello"},
		{"bare line ends", "CONNECT ok.test:80 HTTP/1.1\nHost: x\n\nhello", ok + "hello"},
		{"bare line ends, and others in what is tunnelled", "CONNECT ok.test:80 HTTP/1.1\nHost: x\n\nhello\r\n\r\nagain", ok + "hello\r\n\r\nagain"},
		{"what is tunnelled looks like a request", "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\n\r\nCONNECT no.test:1 HTTP/1.1\r\n\r\n", ok + "CONNECT no.test:1 HTTP/1.1\r\n\r\n"},
		{"many headers", "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X: "+strings.Repeat("y", 500)+"\r\n", 12) + "\r\nhello", ok + "hello"},
		{"credentials", "CONNECT ok.test:80 HTTP/1.1\r\nProxy-Authorization: Basic eDp5\r\nProxy-Connection: keep-alive\r\n\r\nhello", ok + "hello"},
		{"another Host decides nothing", "CONNECT ok.test:80 HTTP/1.1\r\nHost: no.test\r\n\r\nhello", ok + "hello"},
		{"another Host allows nothing", "CONNECT no.test:80 HTTP/1.1\r\nHost: ok.test\r\n\r\nhello", "403"},
		{"no such port", "CONNECT ok.test:99999 HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
		{"no port", "CONNECT ok.test HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
		{"a blank in the target", "CONNECT ok.test:80 x HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
		{"a body", "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", "400"},
		{"a body in chunks", "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		{"another coding", "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", "501"},
		{"two lengths", "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n", "400"},
		{"two Hosts", "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "400"},
		{"a blank in a Host", "CONNECT ok.test:80 HTTP/1.1\r\nHost: a b\r\n\r\n", "400"},
		{"a blank of another kind in a Host", "CONNECT ok.test:80 HTTP/1.1\r\nHost: \u2003x\r\n\r\n", "400"},
		{"a folded line", "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\nhello", ok + "hello"},
		{"no Host can be so", "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\x01y\r\n\r\n", "400"},
		{"no value can be so", "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\nX: \x01\r\n\r\n", "400"},
		{"no header can be called so", "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\nX (: y\r\n\r\n", "400"},
		{"no colon", "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\nX\r\n\r\n", "400"},
		{"what nobody expects", "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\nExpect: more\r\n\r\n", "417"},
		{"another version", "CONNECT ok.test:80 HTTP/2.0\r\nHost: x\r\n\r\n", "505"},
		{"too many headers", "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X: "+strings.Repeat("y", 500)+"\r\n", 100) + "\r\n", "431"},
		{"small letters", "connect ok.test:80 HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := len(wireLog(t, log))
			whole := talk(test.sent)
			loggedAs(t, before, whole)
			if status, refused := strings.CutPrefix(whole, "HTTP/1.1 "+test.want); !refused && whole != test.want {
				t.Errorf("at once: %q", whole)
			} else if refused && !strings.HasPrefix(status, " ") {
				t.Errorf("at once: %q", whole)
			}
			sizes := []int{1, 7, len(test.sent) / 2}
			if len(test.sent) > 4000 {
				sizes = []int{1000, 4096}
			}
			for _, size := range sizes {
				before := len(wireLog(t, log))
				if got := talk(cut(test.sent, size)...); got != whole && !(got == "" && len(test.sent) > 4000) {
					t.Errorf("%d at a time: %q; at once: %q", size, got, whole)
				}
				loggedAs(t, before, whole)
			}
		})
	}

	t.Run("behind a request", func(t *testing.T) {
		const get, call = "GET http://site.test/ HTTP/1.1\r\nHost: site.test\r\n\r\n", "CONNECT ok.test:80 HTTP/1.1\r\nHost: x\r\n\r\nhello"
		for _, pieces := range [][]string{{get + call}, {get, call}, {get, call[:1], call[1:]}} {
			if got := talk(pieces...); !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(got, ok+"hello") {
				t.Errorf("%q: %q", pieces, got)
			}
		}
	})
}
