package integration

import (
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

// mountSmall mounts a file system of 32 KiB.
func mountSmall(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=32k,mode=700"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, testnet.UID, testnet.UID); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
}

func ownerOf(info os.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }
