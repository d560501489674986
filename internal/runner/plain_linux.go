package runner

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// noPowers is the full wall's failure where what bwrap starts has no
// capability. Nothing was started in it.
type noPowers struct{ why string }

func (e *noPowers) Error() string { return e.why }

func (e *noPowers) plain() *plainWall { return &plainWall{Why: e.why} }

// plainWall is why the full wall can't be had.
type plainWall struct {
	Why string `json:"why"`
	// For is what it was found with: another boot, bwrap or profile may have it.
	For string `json:"for"`
}

// A full wall is tried for at each start, which costs nothing where it can be
// had. Where it can't, the trying is a start of bwrap that leads to nothing,
// so what was found is kept for a while, in a file that only this user writes
// and no sandbox sees.
const (
	plainName = "plain-wall.json"
	plainKept = 15 * time.Minute
)

// rememberedPlain is what was found a short while ago, on the same boot with
// the same programs; nil where the full wall is to be tried.
func rememberedPlain(bwrap string) *plainWall {
	folder := runtimeFolder()
	if folder == "" {
		return nil
	}
	path := filepath.Join(folder, plainName)
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()).Abs() > plainKept {
		return nil
	}
	data, err := os.ReadFile(path)
	var found plainWall
	if err != nil || json.Unmarshal(data, &found) != nil || found.Why == "" || found.For != machineState(bwrap) {
		return nil
	}
	return &found
}

// remember keeps what was found. Where it can't be kept, it is found again.
func (p *plainWall) remember(bwrap string) {
	base, err := openRuntimeFolder()
	if err != nil {
		return
	}
	defer base.Close()
	p.For = machineState(bwrap)
	data, err := json.Marshal(p)
	if err != nil {
		return
	}
	temporary := fmt.Sprintf("%s.%d", plainName, os.Getpid())
	fd, err := unix.Openat(int(base.Fd()), temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return
	}
	file := os.NewFile(uintptr(fd), temporary)
	_, err = file.Write(data)
	file.Close()
	if err == nil {
		err = unix.Renameat(int(base.Fd()), temporary, int(base.Fd()), plainName)
	}
	if err != nil {
		unix.Unlinkat(int(base.Fd()), temporary, 0)
	}
}

// machineState is what the answer depends on: the boot, the two programs, and
// the AppArmor profile that lnk itself is under.
func machineState(bwrap string) string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	label, _ := os.ReadFile("/proc/self/attr/current")
	state := []string{strings.TrimSpace(string(boot)), strings.Trim(string(label), "\x00\n")}
	for _, path := range []string{bwrap, "/proc/self/exe"} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			state = append(state, err.Error())
			continue
		}
		state = append(state, fmt.Sprintf("%d:%d:%o:%d", st.Dev, st.Ino, st.Mode, st.Ctim.Nano()))
	}
	return strings.Join(state, " ")
}
