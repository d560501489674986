package proxy

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/landlock-lsm/go-landlock/landlock"

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

// giveUpFiles gives up the user's files, but the folders of its sockets and of
// its log, and giveUpCalls the system calls that it has no use for. A proxy
// that was taken over then holds what it was told, and the network.
//
// What the programs of its routes are started from stays, and this program,
// which starts them: they are confined as it is.
func giveUpFiles(at Places, service *Service) error {
	var folders []string
	for _, folder := range []string{at.Dir, folderOf(at.Control), folderOf(service.wirePath)} {
		if folder != "" {
			folders = append(folders, folder)
		}
	}
	files := service.routes.Files()
	if self, err := os.Executable(); err == nil && len(files) > 0 {
		files = append(files, self)
	}
	if err := restrictFiles(readable(), files, folders); err != nil {
		return fmt.Errorf("giving up the user's files: %w", err)
	}
	return nil
}

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

// restrictFiles leaves this process the files and those below the folders of
// read to read and execute, and those below write to change as well, where the kernel has Landlock; nothing can be opened
// elsewhere. What is missing of read is left out. It needs no_new_privs, and a
// program that was built without cgo.
func restrictFiles(read, files, write []string) error {
	abi, err := confine.LandlockABI()
	if err != nil || abi == 0 {
		return err
	}
	// Each version that this kernel has in full, and no guess at what it has
	// beyond the newest that is known here.
	versions := []landlock.Config{landlock.V1, landlock.V2, landlock.V3, landlock.V4, landlock.V5, landlock.V6}
	config := versions[min(abi, len(versions))-1]
	err = config.RestrictPaths(
		landlock.RODirs(read...).IgnoreIfMissing(),
		landlock.ROFiles(files...),
		landlock.RWDirs(write...),
		landlock.RWFiles("/dev/null"),
	)
	if err != nil {
		return fmt.Errorf("by Landlock: %w", err)
	}
	return nil
}
