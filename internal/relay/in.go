package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// in.sock is the way in: CONNECT PORT\n, answered with OK\n and then the bytes
// of that port on the sandbox's loopback, or with ERR why\n. Who may connect is
// its mode's to say: the folder's user, and the folder's group where it is
// shared. Inside, the folder isn't mounted.
const inSocket = "in.sock"

const (
	// maxIn bounds its connections at a time.
	maxIn = 256
	// inLimit bounds the wait for a request, and for the port.
	inLimit = 10 * time.Second
	// maxInLine bounds a request, in bytes.
	maxInLine = 64
	inBuffer  = 32 << 10
	sharedDir = 0o2770
)

// serveIn makes in.sock in a socket folder, and serves it from then on.
func serveIn(folder int) error {
	l, err := listenIn(folder)
	if err != nil {
		return err
	}
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	go func() {
		slots := make(chan struct{}, maxIn)
		for {
			var conn int
			var acceptErr error
			err := raw.Read(func(fd uintptr) bool {
				conn, _, acceptErr = unix.Accept4(int(fd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
				return acceptErr != unix.EAGAIN
			})
			if err != nil {
				return
			}
			if acceptErr != nil {
				// Out of descriptors, or a client that went away: nothing tells
				// when they come free.
				time.Sleep(50 * time.Millisecond)
				continue
			}
			slots <- struct{}{}
			go func() {
				defer func() { <-slots }()
				answerIn(os.NewFile(uintptr(conn), inSocket))
			}()
		}
	}()
	return nil
}

// listenIn makes the socket under another name, and gives it its own when it
// listens: open to this user alone, or in a shared folder to the folder's
// group, which it takes from the folder (inode(7), S_ISGID).
func listenIn(folder int) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(folder, &st); err != nil {
		return nil, err
	}
	mode := uint32(0o600)
	if st.Mode&0o7777 == sharedDir {
		mode = 0o660
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	// Of the kernel's: package crypto/rand would weigh more than all of this file.
	random := make([]byte, 16)
	if _, err := unix.Getrandom(random, 0); err != nil {
		unix.Close(fd)
		return nil, err
	}
	name := fmt.Sprintf(".%x", random)
	fail := func(err error) (*os.File, error) {
		unix.Close(fd)
		unix.Unlinkat(folder, name, 0)
		return nil, err
	}
	// The mode of the socket's file (unix(7)), which the umask cuts.
	if err := unix.Fchmod(fd, mode); err != nil {
		return fail(err)
	}
	umask := unix.Umask(0o777 &^ int(mode))
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", folder, name)})
	unix.Umask(umask)
	if err != nil {
		return fail(err)
	}
	if err := unix.Listen(fd, maxIn); err != nil {
		return fail(err)
	}
	err = unix.Renameat2(folder, name, folder, inSocket, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) && stale(folder) {
		// Of a sandbox that was killed.
		unix.Unlinkat(folder, inSocket, 0)
		err = unix.Renameat2(folder, name, folder, inSocket, unix.RENAME_NOREPLACE)
	}
	if errors.Is(err, unix.EEXIST) {
		return fail(errors.New("it is there already, and another sandbox serves it"))
	}
	if err != nil {
		return fail(err)
	}
	return os.NewFile(uintptr(fd), inSocket), nil
}

// stale reports whether in.sock is a socket on which nobody listens.
func stale(folder int) bool {
	var st unix.Stat_t
	if err := unix.Fstatat(folder, inSocket, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return false
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", folder, inSocket)})
	return errors.Is(err, unix.ECONNREFUSED)
}

// answerIn serves one connection to its end.
func answerIn(conn *os.File) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(inLimit))
	port, err := readIn(conn)
	var inside *os.File
	if err == nil {
		inside, err = dialInside(port)
	}
	if err != nil {
		fmt.Fprintf(conn, "ERR %v\n", err)
		return
	}
	defer inside.Close()
	if _, err := io.WriteString(conn, "OK\n"); err != nil {
		return
	}
	conn.SetDeadline(time.Time{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		passIn(inside, conn)
	}()
	passIn(conn, inside)
	<-done
}

// readIn reads the request, and not a byte behind it.
func readIn(conn io.Reader) (port uint16, err error) {
	var line []byte
	for one := make([]byte, 1); ; line = append(line, one[0]) {
		if _, err := io.ReadFull(conn, one); err != nil {
			return 0, errors.New("the request has no end")
		}
		if one[0] == '\n' {
			break
		}
		if len(line) == maxInLine {
			return 0, errors.New("the request is too long")
		}
	}
	text, ok := bytes.CutPrefix(line, []byte("CONNECT "))
	if !ok {
		return 0, errors.New("it takes CONNECT PORT")
	}
	// ParseUint takes leading zeros.
	n, err := strconv.ParseUint(string(text), 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != string(text) {
		return 0, errors.New("a port goes from 1 to 65535")
	}
	return uint16(n), nil
}

// dialInside connects to a port of the sandbox's loopback.
func dialInside(port uint16) (*os.File, error) {
	var err error
	for _, address := range []unix.Sockaddr{
		&unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}},
		&unix.SockaddrInet6{Port: int(port), Addr: [16]byte{15: 1}},
	} {
		family := unix.AF_INET
		if _, six := address.(*unix.SockaddrInet6); six {
			family = unix.AF_INET6
		}
		var fd int
		if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP); err != nil {
			continue
		}
		// It bounds connect(2) as well (socket(7), SO_SNDTIMEO).
		limit := unix.NsecToTimeval(int64(inLimit))
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)
		if err = unix.Connect(fd, address); err != nil {
			unix.Close(fd)
			continue
		}
		if toItself(fd) {
			// Where nothing listens, a port may be given to the very socket that
			// connects to it, which then speaks to itself (RFC 9293, section 3.5).
			unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			unix.Close(fd)
			err = unix.ECONNREFUSED
			continue
		}
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		if err = unix.SetNonblock(fd, true); err != nil {
			unix.Close(fd)
			continue
		}
		return os.NewFile(uintptr(fd), "inside"), nil
	}
	return nil, fmt.Errorf("nothing listens on port %d of the sandbox's loopback (%w)", port, err)
}

func toItself(fd int) bool {
	local, err := unix.Getsockname(fd)
	remote, remoteErr := unix.Getpeername(fd)
	if err != nil || remoteErr != nil {
		return false
	}
	switch l := local.(type) {
	case *unix.SockaddrInet4:
		r, ok := remote.(*unix.SockaddrInet4)
		return ok && l.Port == r.Port && l.Addr == r.Addr
	case *unix.SockaddrInet6:
		r, ok := remote.(*unix.SockaddrInet6)
		return ok && l.Port == r.Port && l.Addr == r.Addr
	}
	return false
}

var inBuffers = sync.Pool{New: func() any { return new([inBuffer]byte) }}

// passIn copies one direction, and passes its end on.
func passIn(to, from *os.File) {
	buffer := inBuffers.Get().(*[inBuffer]byte)
	defer inBuffers.Put(buffer)
	for {
		n, err := from.Read(buffer[:])
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				break
			}
		}
		if errors.Is(err, io.EOF) {
			if shutWrite(to) == nil {
				return
			}
			break
		}
		if err != nil {
			break
		}
	}
	// Broken: neither direction goes on.
	to.Close()
	from.Close()
}

func shutWrite(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var shutErr error
	if err := raw.Control(func(fd uintptr) { shutErr = unix.Shutdown(int(fd), unix.SHUT_WR) }); err != nil {
		return err
	}
	return shutErr
}
