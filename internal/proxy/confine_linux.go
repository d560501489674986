package proxy

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"link.internal/lnk/internal/confine"
)

// readable is what a proxy reads of the machine's files: how names are looked
// up, and what getent(1) is made of.
func readable() []string {
	folders := []string{"/etc", "/usr", "/bin", "/lib", "/lib64", "/nix/store", "/gnu/store"}
	// Each may be a link, to wherever the machine's network manager keeps it,
	// and be made anew there.
	for _, file := range []string{"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"} {
		if real, err := filepath.EvalSymlinks(file); err == nil && filepath.Dir(real) != "/" {
			folders = append(folders, filepath.Dir(real))
		}
	}
	return folders
}

// keptFiles are what a proxy keeps wherever it is: how names are looked up, and
// that it may take its sockets away, which are made by then. Those folders are
// on a file system that others need too.
func keptFiles(at Places) (*confine.Files, error) {
	files, err := confine.NewFiles()
	if err == nil {
		err = files.Read(readable()...)
	}
	if err == nil {
		err = files.Unlink(folders(at.Dir, folderOf(at.Control))...)
	}
	if err == nil {
		err = files.Write("/dev/null")
	}
	if err != nil {
		return nil, fmt.Errorf("giving up the user's files: %w", err)
	}
	return files, nil
}

// keepFiles keeps the folder of a service's log as well, what the programs of
// its routes are started from, and this program, which starts them: they are
// confined as it is. What isn't kept is given up by Restrict: a proxy that was
// taken over then holds what it was told, and the network.
func keepFiles(kept *confine.Files, service *Service) error {
	programs := service.routes.Files()
	if self, err := os.Executable(); err == nil && len(programs) > 0 {
		programs = append(programs, self)
	}
	err := kept.Read(programs...)
	if err == nil {
		err = kept.Write(folders(folderOf(service.wirePath))...)
	}
	if err != nil {
		return fmt.Errorf("giving up the user's files: %w", err)
	}
	return nil
}

func folders(paths ...string) []string {
	return slices.DeleteFunc(paths, func(path string) bool { return path == "" })
}

// giveUpCalls gives up the system calls that it has no use for.
func giveUpCalls() error {
	if err := confine.Self(); err != nil {
		return fmt.Errorf("giving up system calls: %w", err)
	}
	return nil
}

func folderOf(path string) string {
	if path == "" {
		return ""
	}
	return filepath.Dir(path)
}
