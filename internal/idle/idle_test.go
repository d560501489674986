package idle

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Code that was given back is there when it is used.
func TestGiveBack(t *testing.T) {
	resident := func() string {
		data, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(data), "RssFile:")
		line, _, _ := strings.Cut(rest, "\n")
		return strings.TrimSpace(line)
	}
	code, err := OwnCode()
	if err != nil || len(code) < 2 {
		t.Fatalf("%+v, %v", code, err)
	}
	before := resident()
	for range 3 {
		if err := code.GiveBack(); err != nil {
			t.Fatal(err)
		}
	}
	if after := resident(); after == before {
		t.Errorf("%s before, %s after", before, after)
	}
}

func TestCodeIn(t *testing.T) {
	const text, constants, data, other = "00400000-0066d000 r-xp 00001000 fd:00 123  /usr/lib/lnk/lnk-relay\n", "0066d000-00a00000 r--p 0026e000 fd:00 123  /usr/lib/lnk/lnk-relay\n",
		"00a00000-00a40000 rw-p 00600000 fd:00 123  /usr/lib/lnk/lnk-relay\n", "7f0000000000-7f0000010000 r-xp 00000000 fd:00 9  /usr/lib/other.so\n"
	both := Code{{0x400000, 0x66d000}, {0x66d000, 0xa00000}}
	for _, test := range []struct {
		name, maps string
		want       Code
	}{
		{"as Go links it", text + constants + data + other, both},
		{"another's isn't its own", other + text + constants, both},
		{"constants behind data may have been written", text + data + constants, both[:1]},
		{"its place is chosen at its start", "55e4a0000000-55e4a0200000 r-xp 00000000 fd:00 123  /usr/lib/lnk/lnk-relay\n", nil},
		{"nothing", "", nil}, {"no line of maps", "x\n00400000 r-xp 0 0 0 /usr/lib/lnk/lnk-relay\n", nil},
	} {
		if got := codeIn(test.maps, "/usr/lib/lnk/lnk-relay"); !slices.Equal(got, test.want) {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
}
