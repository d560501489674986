package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/integration/testnet"
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

type slotRow struct {
	Number  int     `json:"number"`
	State   string  `json:"state"`
	Agent   int     `json:"agent"`
	Proxy   int     `json:"proxy"`
	StartMS float64 `json:"start_ms"`
}

func slotRows() (rows []slotRow, err error) {
	out, err := exec.Command(testnet.Lnk, "box", "status", "--json").Output()
	if err != nil {
		return nil, err
	}
	return rows, json.Unmarshal(out, &rows)
}

// slots measures a box of 10, 100 and 500: how long it takes from the start of
// the supervisor on a machine without any slot, users included, until all are
// blank.
func (b *bench) slots() error {
	end, err := ownEtc()
	if err != nil {
		return err
	}
	defer end()
	for _, n := range []int{10, 100, 500} {
		if err := b.slotsOf(n); err != nil {
			return fmt.Errorf("%d slots: %w", n, err)
		}
	}
	return nil
}

func (b *bench) slotsOf(n int) error {
	config := fmt.Sprintf("slots = %d\nuids = \"71000-79999\"\nbinder = \"%d\"\n[blank]\nharness = [\"/usr/bin/sleep\", \"infinity\"]\n", n, binderUID)
	if err := os.WriteFile("/srv/box.toml", []byte(config), 0o644); err != nil {
		return err
	}
	begun := time.Now()
	daemon := supervisor("serve")
	var log strings.Builder
	daemon.Stderr = &log
	if err := daemon.Start(); err != nil {
		return err
	}
	defer func() {
		daemon.Process.Signal(unix.SIGTERM)
		daemon.Wait()
		supervisor("purge").Run()
		os.RemoveAll("/run/lnk")
	}()
	var rows []slotRow
	for {
		var err error
		rows, err = slotRows()
		if err == nil && len(rows) == n && !slices.ContainsFunc(rows, func(r slotRow) bool { return r.State != "blank" }) {
			break
		}
		if time.Since(begun) > 5*time.Minute {
			return fmt.Errorf("they aren't all blank: %s", log.String())
		}
		time.Sleep(250 * time.Millisecond) // asking takes processors too
	}
	each := float64(time.Since(begun).Milliseconds()) / float64(n)
	b.rows = append(b.rows, row{fmt.Sprintf("%d slots, users made and all started, each", n), fmt.Sprintf("%.0f ms", each), "", "", "≤ 60 ms, flat in N"})
	time.Sleep(3 * time.Second) // idle, as they would be
	memory, err := pssOfPID(daemon.Process.Pid)
	if err != nil {
		return err
	}
	if n == 500 {
		b.rows = append(b.rows, row{"the supervisor with 500 slots (PSS)", fmt.Sprintf("%.1f MiB", memory), "", "", "≤ 40 MiB"})
	}
	if n != 100 {
		return nil
	}
	return b.oneSlot(rows)
}

// oneSlot measures what a slot of a hundred weighs, and its bind and recycling.
func (b *bench) oneSlot(rows []slotRow) error {
	s := rows[len(rows)/2]
	total, parts := 0.0, []string{}
	entries, _ := filepath.Glob("/proc/[0-9]*")
	sums := make(map[string]float64)
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
		sums[strings.TrimSpace(string(command))] += pss
	}
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range sums {
			if !yield(name) {
				return
			}
		}
	}) {
		parts = append(parts, fmt.Sprintf("%s %.1f", name, sums[name]))
		if name != "sleep" {
			total += sums[name]
		}
	}
	b.rows = append(b.rows, row{"a blank slot of a hundred, without its harness (PSS)", fmt.Sprintf("%.1f MiB", total), strings.Join(parts, ", "), "", "≤ 14 MiB"})
	var binds, recycles []float64
	for i := range 30 {
		cmd := exec.Command(testnet.Lnk, "box", "bind", "--slot", fmt.Sprint(rows[i].Number))
		cmd.Stdin = strings.NewReader(`{"internet_host":["api.test"],"tcp":["api.test:5432"],"agent":"scout"}`)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: binderUID, Gid: binderUID}}
		begun := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("bind: %w: %s", err, out)
		}
		binds = append(binds, float64(time.Since(begun).Microseconds())/1000)
	}
	for i := range 30 {
		begun := time.Now()
		if out, err := exec.Command(testnet.Lnk, "box", "recycle", fmt.Sprint(rows[i].Number)).CombinedOutput(); err != nil {
			return fmt.Errorf("recycle: %w: %s", err, out)
		}
		recycles = append(recycles, float64(time.Since(begun).Microseconds())/1000)
	}
	b.rows = append(b.rows,
		row{"`lnk box bind`, the whole command, of a hundred slots", fmt.Sprintf("%.1f ms", median(binds)), "", "", "≤ 20 ms"},
		row{"`lnk box recycle` of a bound slot, until it is blank again", fmt.Sprintf("%.0f ms", median(recycles)), "", "", "≤ 200 ms"})
	return nil
}
