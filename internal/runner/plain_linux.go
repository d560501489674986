package runner

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
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

// maxPlain bounds what is read of it.
const maxPlain = 4 << 10

// rememberedPlain is what was found a short while ago, on the same boot with
// the same programs; nil where the full wall is to be tried. It counts only as
// this user's own file, in a folder where nobody else can put one.
func rememberedPlain(state func() string) *plainWall {
	// The common case, at the cost of one call.
	if _, err := os.Lstat(filepath.Join(runtimeFolder(), plainName)); err != nil {
		return nil
	}
	base, err := openRuntimeFolder()
	if err != nil {
		return nil
	}
	defer base.Close()
	fd, err := unix.Openat(int(base.Fd()), plainName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	file := os.NewFile(uintptr(fd), plainName)
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return nil
	}
	if time.Since(time.Unix(st.Mtim.Unix())).Abs() > plainKept {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(file, maxPlain))
	var found plainWall
	if err != nil || json.Unmarshal(data, &found) != nil || found.Why == "" || found.For != state() {
		return nil
	}
	return &found
}

// remember keeps what was found. Where it can't be kept, it is found again.
func (p *plainWall) remember() {
	base, err := openRuntimeFolder()
	if err != nil {
		return
	}
	defer base.Close()
	data, err := json.Marshal(p)
	if err != nil {
		return
	}
	if len(data) > maxPlain {
		return
	}
	temporary := plainName + "." + rand.Text()
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

// forgetPlain is for a full wall that was had.
func forgetPlain() {
	if base, err := openRuntimeFolder(); err == nil {
		unix.Unlinkat(int(base.Fd()), plainName, 0)
		base.Close()
	}
}
