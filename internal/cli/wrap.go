package cli

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"link.internal/lnk/internal/peercred"
	"link.internal/lnk/internal/spec"
)

func newWrap() *cobra.Command {
	o := options{wrap: true}
	c := &cobra.Command{
		Use:   "wrap --reach FOLDER [flags] -- program [args…]",
		Short: "run a program behind a proxy that runs already",
		Long: `Run a program in a sandbox as run does, whose way out is a proxy that runs
already: lnk sandbox proxy --dir FOLDER, blank or not. The folder isn't seen
inside. One that is yours with mode 2770 is kept as it is; any other becomes
yours alone (0700). Of several folders, the first one's proxy is the way out,
and each may add names; all are shared with one group, or none is.`,
		Example: `  lnk sandbox proxy --blank --control ~/control.sock --dir ~/sockets --hold &
  lnk sandbox wrap --reach ~/sockets --read /opt/bot -- /opt/bot/bot`,
		DisableFlagsInUseLine: true,
		Args:                  programNeeded,
		RunE:                  func(_ *cobra.Command, args []string) error { return run(&o, args) },
	}
	o.addTo(c)
	return c
}

// openReached opens the socket folders that a sandbox reaches: the caller's
// own, and shared alike.
func openReached(paths []string, caller spec.Caller) (folders []*peercred.Folder, err error) {
	defer func() {
		if err != nil {
			for _, f := range folders {
				f.Close()
			}
		}
	}()
	for _, path := range paths {
		if path, err = filepath.Abs(path); err != nil {
			return folders, err
		}
		f, err := peercred.OpenFolder(path)
		if err != nil {
			return folders, fmt.Errorf("--reach: %w", err)
		}
		folders = append(folders, f)
		if f.UID != caller.UID {
			return folders, fmt.Errorf("--reach %s: it is uid %d's, and the sandbox's sockets are made in a folder of its own user, uid %d", path, f.UID, caller.UID)
		}
		if err := f.OnlySockets(); err != nil {
			return folders, fmt.Errorf("--reach %s: it is no socket folder: %w", path, err)
		}
		for _, other := range folders[:len(folders)-1] {
			if f.Same(other) {
				return folders, fmt.Errorf("--reach %s: it is named twice", path)
			}
		}
		first := folders[0]
		switch {
		case f.Shared() != first.Shared():
			return folders, fmt.Errorf("--reach: %s has mode %04o and %s has %04o: the folders that one sandbox reaches are shared alike", first.Path(), first.Mode, path, f.Mode)
		case f.Shared() && f.GID != first.GID:
			return folders, fmt.Errorf("--reach: %s is of group %d and %s of %d: the folders that one sandbox reaches are shared alike", first.Path(), first.GID, path, f.GID)
		}
	}
	// Only once none of them is refused.
	for _, f := range folders {
		if f.Shared() || f.Mode == peercred.PrivateMode {
			continue
		}
		if err := f.MakePrivate(); err != nil {
			return folders, err
		}
	}
	return folders, nil
}
