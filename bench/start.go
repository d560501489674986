package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
)

// start measures the start and the end of a run against bwrap alone.
func (b *bench) start() error {
	bwrap, err := bwrapAlone(nil)
	if err != nil {
		return err
	}
	const n = 40
	for _, test := range []struct{ what, host, reach string }{
		{"`run -- true`, no network", "", "≤ 2.5 × bwrap"},
		{"`run --internet-host x -- true`, proxy and relay up", "x.test", "≤ 5 × bwrap, ≤ 35 ms"},
	} {
		args := []string{"sandbox", "run"}
		if test.host != "" {
			args = append(args, "--internet-host", test.host)
		}
		var peers []contender
		for _, s := range b.peers.sandboxes {
			if test.host == "" || s.proxied {
				command := s.args(test.host, "true")
				peers = append(peers, contender{s.name, timed(command[0], command[1:]...)})
			}
		}
		if err := b.paired(test.what, "ms", test.reach, n, timed(testnet.Lnk, append(args, "--", "true")...), []contender{{"bwrap alone", bwrap}}, peers...); err != nil {
			return err
		}
	}
	if err := b.startPlain(); err != nil {
		return err
	}
	out, err := testnet.Command(testnet.Lnk, "sandbox", "run", "--verbose", "--internet-host", "x.test", "--", "true").CombinedOutput()
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, " ms ") {
			b.report.Steps = append(b.report.Steps, strings.TrimSpace(strings.TrimPrefix(line, "lnk sandbox:")))
		}
	}
	return nil
}

const bwrapPath = "/usr/bin/bwrap"

// bwrapAlone runs true in bwrap with the very arguments that lnk gives it: the
// same namespaces and file system, without relay, nested namespace and runner.
func bwrapAlone(change func([]string) []string) (func() (float64, error), error) {
	args, err := bwrapArgs()
	if err != nil {
		return nil, err
	}
	if change != nil {
		args = change(args)
	}
	const firstExtra = 3
	var contents []string
	for i, arg := range args {
		if arg != "--file" {
			continue
		}
		args[i+1] = fmt.Sprint(firstExtra + len(contents))
		contents = append(contents, args[i+2])
	}
	args[len(args)-1] = "/usr/bin/true"
	return func() (float64, error) {
		cmd := testnet.Command(bwrapPath, args...)
		for _, path := range contents {
			file, err := os.Open(path)
			if err != nil {
				return 0, err
			}
			defer file.Close()
			cmd.ExtraFiles = append(cmd.ExtraFiles, file)
		}
		start := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("bwrap: %w: %s", err, out)
		}
		return float64(time.Since(start).Microseconds()) / 1000, nil
	}, nil
}

// bwrapArgs learns them from lnk, by standing in for bwrap once.
func bwrapArgs() ([]string, error) {
	const spy, list = "/mnt/spy", "/tmp/bwrap-args"
	if err := os.WriteFile(spy, []byte("#!/bin/sh\nfor a in \"$@\"; do printf '%s\\0' \"$a\"; done >"+list+"\n"), 0o755); err != nil {
		return nil, err
	}
	if err := unix.Mount(spy, "/usr/bin/bwrap", "", unix.MS_BIND, ""); err != nil {
		return nil, err
	}
	testnet.Command(testnet.Lnk, "sandbox", "run", "--", "true").Run() // the spy builds no sandbox
	if err := unix.Unmount("/usr/bin/bwrap", 0); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(list)
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00"), nil
}
