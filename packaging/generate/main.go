// Command generate writes what the packages carry beside the programs, from the
// commands themselves: man pages, completions, the changelog.
package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"link.internal/lnk/internal/cli"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: generate FOLDER VERSION")
		os.Exit(2)
	}
	if err := generate(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func generate(folder, version string) error {
	for _, name := range []string{"pages", "man", "man8", "lnk", "lnk-supervisor"} {
		if err := os.MkdirAll(filepath.Join(folder, name), 0o755); err != nil {
			return err
		}
	}
	root := cli.Root()
	root.DisableAutoGenTag = true
	date := time.Unix(0, 0).UTC() // the same bytes from the same commands
	header := &doc.GenManHeader{Section: "1", Source: "lnk " + version, Manual: "lnk", Date: &date}
	if err := doc.GenManTree(root, header, filepath.Join(folder, "pages")); err != nil {
		return err
	}
	pages, err := filepath.Glob(filepath.Join(folder, "pages", "*.1"))
	if err != nil {
		return err
	}
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		if err := compress(filepath.Join(folder, "man", filepath.Base(page)+".gz"), data); err != nil {
			return err
		}
	}
	supervisor, err := os.ReadFile("packaging/lnk-supervisor.8")
	if err != nil {
		return err
	}
	if err := compress(filepath.Join(folder, "man8", "lnk-supervisor.8.gz"), supervisor); err != nil {
		return err
	}
	if err := completions(root, folder); err != nil {
		return err
	}
	changes, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	copyright, err := os.ReadFile("packaging/scripts/copyright")
	if err != nil {
		return err
	}
	for _, name := range []string{"lnk", "lnk-supervisor"} {
		if err := compress(filepath.Join(folder, name, "changelog.gz"), changes); err != nil {
			return err
		}
		// deb-changelog(5).
		debian := fmt.Sprintf("%s (%s-1) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- the lnk project <lnk@link.internal>  %s\n", name, version, date.Format(time.RFC1123Z))
		if err := compress(filepath.Join(folder, name, "changelog.Debian.gz"), []byte(debian)); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, name, "copyright"), copyright, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func completions(root *cobra.Command, folder string) error {
	for name, write := range map[string]func(*bytes.Buffer) error{
		"lnk.bash": func(b *bytes.Buffer) error { return root.GenBashCompletionV2(b, true) },
		"lnk.zsh":  func(b *bytes.Buffer) error { return root.GenZshCompletion(b) },
		"lnk.fish": func(b *bytes.Buffer) error { return root.GenFishCompletion(b, true) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			return err
		}
		text := strings.TrimRight(b.String(), "\n") + "\n"
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compress writes without a name and time, which would differ each time.
func compress(path string, data []byte) error {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}
