package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
	"link.internal/lnk/internal/box"
)

const binderUID = 20400

// ownEtc gives this machine an /etc that users can be made in.
func ownEtc() (end func(), err error) {
	const etc = "/mnt/etc-of-box"
	if err := os.MkdirAll(etc, 0o755); err != nil {
		return nil, err
	}
	if out, err := exec.Command("cp", "-a", "/etc/.", etc).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("copying /etc: %w: %s", err, out)
	}
	if err := unix.Mount(etc, "/etc", "", unix.MS_BIND, ""); err != nil {
		return nil, err
	}
	return func() {
		unix.Unmount("/etc", unix.MNT_DETACH)
		os.RemoveAll(etc)
	}, nil
}

func supervisor(command string) *exec.Cmd {
	cmd := exec.Command(testnet.BinDir+"/lnk-supervisor", command, "--config", "/srv/box.toml", "--state", "/srv/box", "--lnk", testnet.Lnk, "--proxy", testnet.BinDir+"/link-sandbox-proxy")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGTERM}
	return cmd
}

// slots measures boxes of several sizes: how long it takes from the start of
// the supervisor on a machine without any slot, users included, until all are
// blank; and what they weigh.
func (b *bench) slots() error {
	end, err := ownEtc()
	if err != nil {
		return err
	}
	defer end()
	g := growth{
		What: "Slots of a box", Of: "slots", Columns: []string{"made and started, ms each", "the supervisor (PSS), MiB", "a blank slot (PSS), MiB"},
		Grows: "The supervisor: two goroutines, two descriptors and two watches of each slot. A slot's own size falls, since what all share is shared by more.",
	}
	for _, n := range []int{1, 10, 100, 500} {
		values, err := b.slotsOf(n)
		if err != nil {
			return fmt.Errorf("%d slots: %w", n, err)
		}
		g.Points = append(g.Points, point{n, values})
	}
	b.grows(g)
	return nil
}

// slotsOf returns what growth tells of n slots.
func (b *bench) slotsOf(n int) ([]float64, error) {
	config := fmt.Sprintf("slots = %d\nuids = \"71000-79999\"\nbinder = \"%d\"\n[blank]\nharness = [\"/usr/bin/sleep\", \"infinity\"]\n", n, binderUID)
	if err := os.WriteFile("/srv/box.toml", []byte(config), 0o644); err != nil {
		return nil, err
	}
	begun := time.Now()
	daemon := supervisor("serve")
	var log strings.Builder
	daemon.Stderr = &log
	if err := daemon.Start(); err != nil {
		return nil, err
	}
	defer func() {
		daemon.Process.Signal(unix.SIGTERM)
		daemon.Wait()
		supervisor("purge").Run()
		os.RemoveAll("/run/lnk")
	}()
	client := box.NewClient(box.SocketPath)
	var slots []box.Slot
	for {
		var err error
		slots, err = client.InState(context.Background(), "blank")
		if err == nil && len(slots) == n {
			break
		}
		if time.Since(begun) > 5*time.Minute {
			return nil, fmt.Errorf("they aren't all blank: %s", log.String())
		}
		time.Sleep(50 * time.Millisecond) // asking takes processors too
	}
	each := float64(time.Since(begun).Microseconds()) / 1000 / float64(n)
	time.Sleep(3 * time.Second) // idle, as they would be
	memory, err := pssOfPID(daemon.Process.Pid)
	if err != nil {
		return nil, err
	}
	weight, parts := weightOf(slots[len(slots)/2])
	if n >= 10 {
		b.add(fmt.Sprintf("%d slots, users made and all started, each", n), one(each, "ms"), "≤ 60 ms, flat in N")
	}
	switch n {
	case 500:
		b.add("the supervisor with 500 slots (PSS)", one(memory, "MiB"), "≤ 40 MiB")
	case 100:
		f := one(weight, "MiB")
		f.Text = parts
		b.add("a blank slot of a hundred, without its harness (PSS)", f, "≤ 14 MiB")
		if err := b.oneSlot(slots); err != nil {
			return nil, err
		}
	}
	return []float64{each, memory, weight}, nil
}

// weightOf is what the processes of a slot weigh, its harness left out, in
// MiB, and each of them in words.
func weightOf(s box.Slot) (total float64, each string) {
	sums := make(map[string]float64)
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range entries {
		status, _ := os.ReadFile(dir + "/status")
		if !strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t", s.Agent)) && !strings.Contains(string(status), fmt.Sprintf("\nUid:\t%d\t", s.Proxy)) {
			continue
		}
		var pid int
		fmt.Sscan(filepath.Base(dir), &pid)
		pss, err := pssOfPID(pid)
		if err != nil {
			continue
		}
		command, _ := os.ReadFile(dir + "/comm")
		if name := strings.TrimSpace(string(command)); name != "sleep" {
			sums[name] += pss
			total += pss
		}
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		parts = append(parts, fmt.Sprintf("%s %.1f", name, sums[name]))
	}
	return total, strings.Join(parts, ", ")
}

// oneSlot measures the bind of a slot of many, and its recycling.
func (b *bench) oneSlot(slots []box.Slot) error {
	ms := func(begun time.Time) float64 { return float64(time.Since(begun).Microseconds()) / 1000 }
	next := 0
	bind, err := repeated(30, func() (float64, error) {
		cmd := exec.Command(testnet.Lnk, "box", "bind", "--slot", fmt.Sprint(slots[next].Number))
		next++
		cmd.Stdin = strings.NewReader(`{"internet_host":["api.test"],"tcp":["api.test:5432"],"agent":"scout"}`)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: binderUID, Gid: binderUID}}
		begun := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("bind: %w: %s", err, out)
		}
		return ms(begun), nil
	})
	if err != nil {
		return err
	}
	b.add("`lnk box bind`, the whole command, of a hundred slots", figure{Sample: bind, Unit: "ms"}, "≤ 20 ms")
	next = 0
	recycle, err := repeated(30, func() (float64, error) {
		begun := time.Now()
		out, err := exec.Command(testnet.Lnk, "box", "recycle", fmt.Sprint(slots[next].Number)).CombinedOutput()
		next++
		if err != nil {
			return 0, fmt.Errorf("recycle: %w: %s", err, out)
		}
		return ms(begun), nil
	})
	if err != nil {
		return err
	}
	b.add("`lnk box recycle` of a bound slot, until it is blank again", figure{Sample: recycle, Unit: "ms"}, "≤ 200 ms")
	return nil
}
