package wall

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// home makes a home with the folders and links of a table: "a/b", "link -> a".
func home(t *testing.T, entries ...string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if link, target, ok := strings.Cut(entry, " -> "); ok {
			if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Join(dir, entry), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// planned returns what the sandbox has below home, as "KIND path".
func planned(t *testing.T, home string, g Grants) ([]string, error) {
	t.Helper()
	g.Home, g.Homes, g.Relay = home, []string{home}, "/usr/bin/true"
	if g.Dir == "" {
		g.Dir = "/"
	}
	g.User, g.Group = Identity{1000, "u"}, Identity{1000, "g"}
	w, err := Plan(g)
	if err != nil {
		return nil, err
	}
	names := map[kind]string{readOnly: "ro", readWrite: "rw", tmpfs: "tmpfs", hidden: "hidden", link: "link"}
	var got []string
	for _, m := range w.mounts.sorted() {
		if rest, ok := strings.CutPrefix(m.dest, home); ok {
			got = append(got, names[m.kind]+" ~"+rest)
		}
	}
	return got, nil
}

func TestPlan(t *testing.T) {
	for _, test := range []struct {
		name        string
		entries     []string
		read, write []string
		want        []string
	}{
		{"nothing", []string{"a"}, nil, nil, []string{"tmpfs ~"}},
		{"a folder", []string{"a/b"}, []string{"a"}, nil, []string{"tmpfs ~", "ro ~/a"}},
		{"the most specific", []string{"a/b/c"}, []string{"a/b"}, []string{"a", "a/b/c"}, []string{"tmpfs ~", "rw ~/a", "ro ~/a/b", "rw ~/a/b/c"}},
		{"what lies between is pinned", []string{"a/b/c"}, []string{"a/b/c"}, []string{"a"}, []string{"tmpfs ~", "rw ~/a", "rw ~/a/b", "ro ~/a/b/c"}},
		{"writable wins over readable", []string{"a"}, []string{"a"}, []string{"a"}, []string{"tmpfs ~", "rw ~/a"}},
		{"a link", []string{"real", "l -> real"}, []string{"l"}, nil, []string{"tmpfs ~", "link ~/l", "ro ~/real"}},
		{"a link on the way", []string{"real/x", "l -> real"}, []string{"l/x"}, nil, []string{"tmpfs ~", "link ~/l", "ro ~/real/x"}},
		{"the home", []string{"a"}, []string{"."}, nil, []string{"ro ~", "hidden ~/.lnk", "hidden ~/Link/Agents", "hidden ~/Link/History"}},
		{"the home, writable", nil, nil, []string{"."}, []string{"rw ~", "hidden ~/.lnk", "rw ~/Link", "hidden ~/Link/Agents", "hidden ~/Link/History"}},
		{"an agent's folder by name", []string{"Link/Agents/a"}, []string{".", "Link/Agents/a"}, nil, []string{"ro ~", "hidden ~/.lnk", "hidden ~/Link/Agents", "ro ~/Link/Agents/a", "hidden ~/Link/History"}},
		{"all agents by name", []string{"Link/Agents/a"}, []string{"Link/Agents"}, nil, []string{"tmpfs ~", "ro ~/Link/Agents"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := home(t, test.entries...)
			under := func(paths []string) (all []string) {
				for _, path := range paths {
					all = append(all, filepath.Join(dir, path))
				}
				return all
			}
			got, err := planned(t, dir, Grants{Read: under(test.read), Write: under(test.write)})
			if err != nil || !slices.Equal(got, test.want) {
				t.Errorf("got %q, %v\nwant %q", got, err, test.want)
			}
		})
	}
}

func TestPlanRefuses(t *testing.T) {
	for _, test := range []struct {
		name    string
		entries []string
		write   string
		want    string
	}{
		{"what isn't there", nil, "a", "doesn't exist"},
		{"lnk's own folder", []string{".lnk/x"}, ".lnk/x", ".lnk"},
		{"lnk's own folder, by a link", []string{".lnk", "l -> .lnk"}, "l", ".lnk"},
		{"a protected link in a writable grant", []string{"other", ".lnk -> other"}, ".", "no folder"},
		{"a loop", []string{"a -> b", "b -> a"}, "a", "too many links"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := home(t, test.entries...)
			if got, err := planned(t, dir, Grants{Write: []string{filepath.Join(dir, test.write)}}); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestWorkingFolder(t *testing.T) {
	dir := home(t, "project/sub", "Link/Agents/a", "alias -> project")
	for _, test := range []struct {
		dir  string
		want []string
		at   string
	}{
		{"project", []string{"tmpfs ~", "ro ~/project"}, "project"},
		{"alias/sub", []string{"tmpfs ~", "link ~/alias", "ro ~/project/sub"}, "alias/sub"},
		{".", []string{"tmpfs ~"}, "."},
		{"Link", []string{"tmpfs ~", "ro ~/Link", "hidden ~/Link/Agents", "hidden ~/Link/History"}, "Link"},
	} {
		got, err := planned(t, dir, Grants{Dir: filepath.Join(dir, test.dir)})
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, %v", test.dir, got, err)
		}
	}
	if _, err := planned(t, dir, Grants{Dir: filepath.Join(dir, "Link/Agents/a")}); err == nil {
		t.Error("a protected working folder is taken")
	}
}
