package wall

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// relayCapabilities are what the full wall's relay has until the program has
// started. The plain wall's has none.
var relayCapabilities = []string{
	"CAP_NET_BIND_SERVICE", // listeners on ports under 1024
	"CAP_SETFCAP",          // user_namespaces(7): mapping uid 0 into the program's namespace
	"CAP_SYS_RESOURCE",     // writing max_user_namespaces
	"CAP_NET_ADMIN",        // a second address on lo
	"CAP_SETPCAP",          // dropping from the bounding set
}

// Args returns bwrap's arguments, which end with the relay, and the files
// that bwrap must inherit from descriptor firstFD on, in their order. The
// caller closes them. plain is for the plain wall.
func (w *Wall) Args(firstFD int, plain bool) (args []string, files []*os.File, err error) {
	args = []string{
		// --unshare-all only tries for a user namespace: the other asks.
		"--unshare-all", "--unshare-user",
		// Without --die-with-parent: bwrap killed by it before it has mapped its
		// child's ids leaves a child that waits for ever. The relay ends by
		// itself with the runner, and with bwrap.
		"--hostname", hostname, "--as-pid-1",
	}
	if w.grants.HostNetwork {
		args = append(args, "--share-net")
	}
	if plain {
		args = append(args, "--uid", strconv.Itoa(w.grants.User.ID), "--gid", strconv.Itoa(w.grants.Group.ID), "--cap-drop", "ALL")
	} else {
		args = append(args, "--uid", "0", "--gid", "0")
		for _, c := range relayCapabilities {
			args = append(args, "--cap-add", c)
		}
	}
	var readOnlyLater []string
	for _, m := range w.mounts.sorted() {
		switch m.kind {
		case readOnly:
			args = append(args, "--ro-bind", m.source, m.dest)
		case readWrite:
			args = append(args, "--bind", m.source, m.dest)
		case tmpfs:
			if m.size > 0 {
				args = append(args, "--size", strconv.FormatInt(m.size, 10))
			}
			args = append(args, "--perms", m.perms, "--tmpfs", m.dest)
		case hidden:
			args = append(args, "--tmpfs", m.dest)
			readOnlyLater = append(readOnlyLater, m.dest)
		case link:
			args = append(args, "--symlink", m.source, m.dest)
		case proc:
			args = append(args, "--proc", m.dest)
		case dev:
			args = append(args, "--dev", m.dest)
		case made, copied:
			if plain && m.dest == hostsPath {
				m.source += w.endpoints()
			}
			file, err := content(m)
			if err != nil {
				closeAll(files)
				return nil, nil, err
			}
			args = append(args, "--perms", "0644", "--file", strconv.Itoa(firstFD+len(files)), m.dest)
			files = append(files, file)
		}
	}
	for _, dest := range append(readOnlyLater, "/") {
		args = append(args, "--remount-ro", dest)
	}
	return append(args, "--", RelayPath), files, nil
}

// content opens the bytes of a file for bwrap to copy.
func content(m mount) (*os.File, error) {
	if m.kind == copied {
		return os.Open(m.source)
	}
	fd, err := unix.MemfdCreate("lnk", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making %s: %w", m.dest, err)
	}
	file := os.NewFile(uintptr(fd), m.dest)
	if _, err := file.WriteString(m.source); err != nil {
		file.Close()
		return nil, fmt.Errorf("making %s: %w", m.dest, err)
	}
	if _, err := file.Seek(0, 0); err != nil {
		file.Close()
		return nil, fmt.Errorf("making %s: %w", m.dest, err)
	}
	return file, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
