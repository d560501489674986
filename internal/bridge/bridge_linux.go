// Package bridge is the way in, seen from outside: it leads connections to a
// port inside a sandbox, through the in.sock that the sandbox's relay made in
// the socket folder.
//
//	bridge                    relay
//	  ── CONNECT 3000\n ──────▶
//	  ◀─ OK\n ────────────────   then the bytes of that port, both ways
//	  ◀─ ERR why\n ───────────   instead
//
// The sandbox's user writes that folder. So in.sock is reached as itself:
// never through a link, only a socket of that user's, and only when what
// listens on it runs as that user; else not one byte is sent.
package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"link.internal/lnk/internal/peercred"
)

// SocketName is in.sock's name in the socket folder.
const SocketName = "in.sock"

// dialLimit bounds how long a relay has to answer.
const dialLimit = 15 * time.Second

// maxAnswer bounds its answer, in bytes.
const maxAnswer = 256

// To is a port inside a sandbox.
type To struct {
	Folder *peercred.Folder
	// Owner is the user whose sandbox it is.
	Owner int
	Port  uint16
}

// Dial connects to the port.
func (to To) Dial(ctx context.Context) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	conn, err := to.Folder.DialOwned(ctx, SocketName, to.Owner)
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(dialLimit))
	if err = to.connect(conn); err != nil {
		conn.Close()
		return nil, err
	}
	conn.SetDeadline(time.Time{})
	return conn, nil
}

// Sweep takes away an in.sock on which nobody listens any more.
func Sweep(folder *peercred.Folder) {
	conn, err := folder.DialOwned(context.Background(), SocketName, folder.UID)
	if err == nil {
		conn.Close()
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		folder.Remove(SocketName)
	}
}

func (to To) connect(conn io.ReadWriter) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %d\n", to.Port); err != nil {
		return fmt.Errorf("in.sock: %w", err)
	}
	// A byte at a time: what is behind the line is the port's.
	var answer []byte
	for one := make([]byte, 1); len(answer) < maxAnswer; answer = append(answer, one[0]) {
		if _, err := io.ReadFull(conn, one); err != nil {
			return fmt.Errorf("in.sock: no answer: %w", err)
		}
		if one[0] != '\n' {
			continue
		}
		if why, failed := strings.CutPrefix(string(answer), "ERR "); failed {
			return fmt.Errorf("port %d inside: %q", to.Port, why)
		}
		if string(answer) == "OK" {
			return nil
		}
		break
	}
	return errors.New("in.sock: an answer that is none")
}

// maxConnections bounds those of one port at a time: as many as a relay takes.
const maxConnections = 256

// acceptBackoff is how long to wait for descriptors to come free.
const acceptBackoff = 50 * time.Millisecond

// Serve leads each connection to the port, until the listener is closed. One
// that can't be led there is closed, and failed is told why.
func Serve(ctx context.Context, l net.Listener, to To, failed func(error)) {
	slots := make(chan struct{}, maxConnections)
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptBackoff)
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		go func() {
			defer func() { <-slots }()
			defer conn.Close()
			inside, err := to.Dial(ctx)
			if err != nil {
				failed(err)
				return
			}
			defer inside.Close()
			Join(ctx, conn.(*net.TCPConn), inside)
		}()
	}
}

// Stream is one whose two directions end apart.
type Stream interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// Join copies both ways until both directions have ended, one has failed, or
// ctx ends. The caller closes both.
func Join(ctx context.Context, a, b Stream) {
	stop := context.AfterFunc(ctx, func() {
		a.Close()
		b.Close()
	})
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pass(a, b)
	}()
	pass(b, a)
	<-done
}

// pass copies one direction. The kernel moves the bytes: neither end is wrapped.
func pass(to, from Stream) {
	if _, err := io.Copy(to, from); err != nil {
		to.Close()
		from.Close()
		return
	}
	to.CloseWrite()
}
