package wire

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestAppend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wire")
	log, err := OpenLog(path, "scout", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				log.Append(Record{From: "sandbox", Host: strings.Repeat("h", 5000), Path: "/p?key=SECRET", Verdict: Allowed})
			}
		})
	}
	wg.Wait()
	log.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "SECRET") {
		t.Error("a query was logged")
	}
	seen := make(map[uint64]bool)
	for line := range strings.Lines(string(data)) {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		seen[r.Seq] = true
		if r.Agent != "scout" || r.Path != "/p" || len(r.Host) > maxField+3 || r.Time.IsZero() {
			t.Errorf("%+v", r)
		}
	}
	if len(seen) != 400 || !seen[1] || !seen[400] {
		t.Errorf("%d records", len(seen))
	}
}

func TestNoLog(t *testing.T) {
	var none *Log
	none.Append(Record{})
	(&Log{}).Append(Record{})
	if err := none.Close(); err != nil {
		t.Error(err)
	}
}

func TestOpenLogRefuses(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := os.WriteFile(open, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "target"), link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{open, link, dir, os.DevNull, filepath.Join(dir, "no", "such")} {
		if log, err := OpenLog(path, "", 1<<30); err == nil {
			log.Close()
			t.Errorf("%s was opened", path)
		}
	}
}
