package names

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

const (
	// maxQuery is the longest question over UDP that is read: a name, and the
	// options of a client that has many.
	maxQuery = 4096
	// maxStreams bounds the TCP connections, each with a question under way.
	maxStreams = 32
	// streamIdle is how long one may say nothing (RFC 7766, section 6.2.3).
	streamIdle = 10 * time.Second
	// retryAfter is the wait after an error that may pass.
	retryAfter = 50 * time.Millisecond
	// maxErrors in a row mean that a socket is of no use any more.
	maxErrors = 100
)

// ServeUDP answers on a socket until it is closed or useless, or ctx ends. It
// may be the sandbox's own, so nothing that it does is waited for elsewhere.
func (s *Server) ServeUDP(ctx context.Context, conn *net.UDPConn) {
	query := make([]byte, maxQuery)
	for failed := 0; failed < maxErrors; {
		n, _, flags, from, err := conn.ReadMsgUDPAddrPort(query, nil)
		if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
			return
		}
		if err != nil || from.Port() == 0 {
			// What comes from nobody is the end that a socket gives which the
			// inside has shut down.
			failed++
			time.Sleep(retryAfter)
			continue
		}
		failed = 0
		question := query[:n]
		if flags&unix.MSG_TRUNC != 0 {
			question = question[:min(n, headerSize)] // which is answered as malformed
		}
		reply, then, size := s.answer(question, true)
		switch {
		case reply == nil:
		case then == nil:
			conn.WriteToUDPAddrPort(pack(reply, size), from)
		case !s.enter():
			reply.Rcode = dns.RcodeServerFailure
			conn.WriteToUDPAddrPort(pack(reply, size), from)
		default:
			go func() {
				defer s.leave()
				s.complete(ctx, then)
				conn.WriteToUDPAddrPort(pack(reply, size), from)
			}()
		}
	}
}

// ServeTCP answers on a listener until it is closed.
func (s *Server) ServeTCP(ctx context.Context, l net.Listener) {
	var streams sync.WaitGroup
	defer streams.Wait()
	slots := make(chan struct{}, maxStreams)
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
			return
		}
		if err != nil {
			time.Sleep(retryAfter)
			continue
		}
		select {
		case slots <- struct{}{}:
			streams.Go(func() {
				defer func() { <-slots }()
				defer conn.Close()
				defer context.AfterFunc(ctx, func() { conn.Close() })()
				s.serveStream(ctx, conn)
			})
		default:
			conn.Close()
		}
	}
}

// serveStream answers one question after the other, each behind its length
// (RFC 1035, section 4.2.2).
func (s *Server) serveStream(ctx context.Context, conn net.Conn) {
	var length [2]byte
	for {
		conn.SetDeadline(time.Now().Add(streamIdle))
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		reply, then, size := s.answer(query, false)
		if reply == nil {
			return
		}
		if then != nil {
			if s.enter() {
				s.complete(ctx, then)
				s.leave()
			} else {
				reply.Rcode = dns.RcodeServerFailure
			}
		}
		data := pack(reply, size)
		conn.SetDeadline(time.Now().Add(streamIdle))
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(data))), data...)); err != nil {
			return
		}
	}
}

// enter reports whether one more answer may be waited for, until leave.
func (s *Server) enter() bool {
	select {
	case s.waiting <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s *Server) leave() { <-s.waiting }

func (s *Server) complete(ctx context.Context, then later) {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	then(ctx)
}
