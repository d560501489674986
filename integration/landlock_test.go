package integration

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"link.internal/lnk/integration/testnet"
)

// RUN3: what a grant lets be read is not written by other means than files: a
// pipe in it is not either, by Landlock.
func TestRUN3_ReadOnlyPipes(t *testing.T) {
	// Below the home, which the sandbox may write, Landlock can't tell it apart.
	const dir = "/srv/piped"
	userFolder(t, dir)
	defer os.RemoveAll(dir)
	os.Chown(dir, testnet.UID, testnet.UID)
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o666); err != nil {
		t.Fatal(err)
	}
	os.Chmod(pipe, 0o666)
	// Somebody reads from it, so that opening it wouldn't wait.
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	sandbox(t, []string{"--read", dir}, `(echo out >/srv/piped/pipe) 2>/dev/null && echo LEAK; echo done`).exits(0).prints("done\n")
	sandbox(t, []string{"--write", dir}, `echo out >/srv/piped/pipe && echo written; mkdir -p /srv/piped/a/b && echo x >/srv/piped/a/f && mv /srv/piped/a/f /srv/piped/a/b/g && ln /srv/piped/a/b/g /srv/piped/h && : >/srv/piped/h && cat /srv/piped/h && rm -r /srv/piped/a && echo all`).
		exits(0).prints("written\nall\n")
	// What is the sandbox's own stays writable: its home, /tmp, devices, its own /proc.
	sandbox(t, nil, `echo x >~/f && mv ~/f /tmp/f && ln -s f /tmp/l && mkfifo /tmp/p && echo >/dev/null && echo x >/dev/shm/s && echo 5 >/proc/self/oom_score_adj && python3 -c 'import pty; print(len(pty.openpty()))' && echo all`).exits(0).prints("2\nall\n")
}

// [limits] userns: user namespaces, and chroot in them, are there when asked
// for, and nothing else is.
func TestLimits_UserNamespaces(t *testing.T) {
	const script = `unshare --user --map-root-user --pid --fork sh -c 'id -u; /usr/sbin/chroot / true && echo chroot; mount -t tmpfs x /tmp 2>/dev/null || echo no mount; cat ~/../../etc/shadow 2>/dev/null; echo end'; unshare --mount true 2>/dev/null || echo no mounts`
	if testnet.Plain() {
		sandbox(t, []string{"--userns"}, "true").refusedInOneLine("--userns", "plain wall")
		return
	}
	sandbox(t, []string{"--userns"}, script).exits(0).prints("0\nchroot\nno mount\nend\nno mounts\n")
	sandbox(t, nil, "unshare --user true").exits(1)
	spec := userFile(t, "userns.toml", "[commands]\nallow = [\"*\"]\n[limits]\nuserns = true\n", 0o644)
	lnk(t, "sandbox", "run", "--spec", spec, "--", "unshare", "--user", "true").exits(0)
}
