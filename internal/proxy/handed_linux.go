package proxy

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/handoff"
)

// proxyAddress is where the program finds its proxy inside the sandbox.
const proxyAddress = "127.0.0.1:40781"

// serveLocal takes relays one at a time: it asks each for the listeners that
// this proxy serves, and serves those that it is handed until they or the
// relay end.
func (p *Proxy) serveLocal(local *net.UnixListener) {
	for {
		conn, err := local.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptBackoff)
			continue
		}
		if err := p.serveRelay(conn); err != nil && !errors.Is(err, io.EOF) {
			p.tellFailed(err)
		}
	}
}

func (p *Proxy) serveRelay(conn *net.UnixConn) error {
	file, err := conn.File()
	conn.Close()
	if err != nil {
		return err
	}
	defer file.Close()
	relay, err := handoff.NewProxyEnd(file)
	if err != nil {
		return err
	}
	if err := relay.Ask([]handoff.Listener{{ID: 1, Network: "tcp", Address: proxyAddress}}); err != nil {
		return err
	}
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			// Closing waits for an accept that the inside may have made
			// blocking, so nothing here waits for it.
			go l.Close()
		}
	}()
	for {
		handed, err := relay.Receive()
		if err != nil {
			return err
		}
		if handed.Err != nil {
			p.tellFailed(handed.Err)
			continue
		}
		listener, err := newHandedListener(handed.File)
		if err != nil {
			p.tellFailed(err)
			continue
		}
		listeners = append(listeners, listener)
		go p.serveHTTP(listener, "sandbox")
		p.tellHanded(handed.Listener.Address)
	}
}

// handedListener accepts on a socket that was made inside the sandbox.
type handedListener struct {
	*net.TCPListener
}

func newHandedListener(file *os.File) (net.Listener, error) {
	listener, err := net.FileListener(file)
	file.Close()
	if err != nil {
		return nil, err
	}
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		listener.Close()
		return nil, errors.New("handed a listener that isn't TCP")
	}
	return &handedListener{tcp}, nil
}

// acceptBackoff is how long to wait for descriptors to come free.
const acceptBackoff = 50 * time.Millisecond

// Accept returns the next connection, with the options that it inherited set
// anew. An error other than of this process's own limits means that the
// inside broke the listener, and ends it.
func (l *handedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptTCP()
		if err != nil {
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
				time.Sleep(acceptBackoff)
				continue
			}
			return nil, net.ErrClosed
		}
		raw, err := conn.SyscallConn()
		if err == nil {
			var prepareErr error
			err = raw.Control(func(fd uintptr) { prepareErr = handoff.PrepareAccepted(int(fd)) })
			if err == nil {
				err = prepareErr
			}
		}
		if err != nil {
			conn.Close()
			continue
		}
		return conn, nil
	}
}
