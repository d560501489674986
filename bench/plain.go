package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

// plainArgs are what lnk gives bwrap for the plain wall.
func plainArgs(full []string) []string {
	var args []string
	for i := 0; i < len(full); i++ {
		switch full[i] {
		case "--uid", "--gid":
			args = append(args, full[i], fmt.Sprint(testnet.UID))
			i++
		case "--cap-add":
			i++
		default:
			args = append(args, full[i])
		}
	}
	return args
}

// startPlain measures what finding out the wall costs, and a start in the
// plain one, which a setuid bwrap (up to 0.10) gives on any machine.
func (b *bench) startPlain() error {
	const n = 2000
	start := time.Now()
	for range n {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 1, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return err
		}
		unix.Close(fd)
	}
	b.add("finding out that the wall is the full one: a port bound, of each start", one(float64(time.Since(start).Microseconds())/n/1000, "ms"), "≤ 1 ms")

	if err := unix.Mount("tmpfs", "/mnt", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	defer unix.Unmount("/mnt", unix.MNT_DETACH)
	real, err := os.ReadFile("/usr/bin/bwrap")
	if err != nil {
		return err
	}
	if err := os.WriteFile("/mnt/bwrap", real, 0o755); err != nil {
		return err
	}
	base, err := bwrapAlone(plainArgs)
	if err != nil {
		return err
	}
	if err := os.Chmod("/mnt/bwrap", os.ModeSetuid|0o755); err != nil {
		return err
	}
	if err := unix.Mount("/mnt/bwrap", "/usr/bin/bwrap", "", unix.MS_BIND, ""); err != nil {
		return err
	}
	defer unix.Unmount("/usr/bin/bwrap", unix.MNT_DETACH)
	if err := testnet.Command(testnet.Lnk, "sandbox", "run", "--names=true", "--internet-host", "x.test", "--", "true").Run(); err == nil {
		b.add("a start in the plain wall", text("no plain wall here: this bwrap takes no setuid"), "")
		return nil
	}
	found := fmt.Sprintf("/run/user/%d/lnk/plain-wall.json", testnet.UID)
	anew := func(f func() (float64, error)) func() (float64, error) {
		return func() (float64, error) {
			os.Remove(found)
			return f()
		}
	}
	none := timed(testnet.Lnk, "sandbox", "run", "--", "true")
	proxied := timed(testnet.Lnk, "sandbox", "run", "--internet-host", "x.test", "--", "true")
	for _, test := range []struct {
		what  string
		run   func() (float64, error)
		reach string
	}{
		{"the plain wall: `run -- true`, no network", none, "≤ 2.5 × bwrap"},
		{"the plain wall: proxy and relay up", proxied, "≤ 5 × bwrap, ≤ 35 ms"},
		{"the same, found out anew, which is once in 15 minutes", anew(proxied), ""},
	} {
		if err := b.paired(test.what, "ms", test.reach, 30, test.run, []contender{{"bwrap alone", base}}); err != nil {
			return err
		}
	}
	os.Remove(found)
	return nil
}
