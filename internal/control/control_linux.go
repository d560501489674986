// Package control is the control socket of a proxy, both ends.
//
// It takes one JSON object a line, and answers each with one line: what was
// asked for, or {"error":"…"}. It serves its own user, and one other if that
// is named: its mode is 0600, with an ACL entry for that other alone, and
// every connection's peer is asked for besides.
//
// A blank proxy is bound by its first good line (ParseBind), which is answered
// with {}. What doesn't hold binds nothing, and another may follow. From then
// on, and for a proxy that has its rules from the start, it takes:
//
//	{"do":"status"}   how the wire stands, and what it has seen
//	{"do":"pause"}    refuse new calls, let open ones stand still
//	{"do":"resume"}
//	{"do":"stop"}     end every call, for good
package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"link.internal/lnk/internal/peercred"
)

// Do is a request.
type Do struct {
	Do string `json:"do"`
}

// Status is how a wire stands.
type Status struct {
	// State is "running", "paused" or "stopped".
	State string `json:"state"`
	// Why is the reason of a pause or a stop.
	Why string `json:"why,omitempty"`
	// Reached and Refused count calls.
	Reached int `json:"reached"`
	Refused int `json:"refused"`
	// Open counts tunnels and requests under way.
	Open int `json:"open"`
	// Up and Down are bytes from and to the sandbox; those of open tunnels
	// are counted at their end.
	Up   int64 `json:"up"`
	Down int64 `json:"down"`
}

// answer is a line of the server's.
type answer struct {
	Error string `json:"error,omitempty"`
	Status
}

// Wire is what a control socket controls.
type Wire interface {
	Status() Status
	Pause(why string) bool
	Resume() bool
	Stop()
}

const (
	maxLine      = 64 << 10
	controlIdle  = time.Minute
	controlLimit = 10 * time.Second
	// acceptBackoff is how long to wait for descriptors to come free.
	acceptBackoff = 50 * time.Millisecond
)

// Server answers on a control socket.
type Server struct {
	// Wire returns what is controlled, nil as long as there is none.
	Wire func() Wire
	// Bind makes a blank proxy somebody's. It is called for a line that comes
	// while there is no wire, and must itself see to it that one wins. What
	// it returns besides is called once the answer has been sent.
	Bind func(line []byte) (answered func(), err error)
	// UIDs are the users who are served.
	UIDs []int
	// Blank says that a bind may come, which is longer than any other line.
	Blank bool
}

// Serve answers until the socket is closed, and then waits for those it is
// answering.
func (s Server) Serve(l *net.UnixListener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, which a sandbox can bring about: they come free.
			time.Sleep(acceptBackoff)
			continue
		}
		wg.Go(func() {
			defer conn.Close()
			if uid, err := peercred.UID(conn); err != nil || !slices.Contains(s.UIDs, uid) {
				return
			}
			s.serve(conn)
		})
	}
}

func (s Server) serve(conn net.Conn) {
	lines := bufio.NewScanner(conn)
	longest := maxLine
	if s.Blank {
		longest = MaxBind + 1
	}
	lines.Buffer(make([]byte, 0, 1024), longest)
	lines.Split(wholeLines)
	for {
		conn.SetDeadline(time.Now().Add(controlIdle))
		if !lines.Scan() {
			if s.Blank && errors.Is(lines.Err(), bufio.ErrTooLong) {
				reply(conn, answerError{fmt.Sprintf("the line has more than %d bytes", MaxBind)})
			}
			return
		}
		var what any
		answered := func() {}
		if wire := s.Wire(); wire != nil {
			what = carryOut(lines.Bytes(), wire)
		} else if then, err := s.Bind(lines.Bytes()); err != nil {
			what = answerError{err.Error()}
		} else {
			what, answered = struct{}{}, then
		}
		// It may have been a bind, with secrets in it.
		clear(lines.Bytes())
		err := reply(conn, what)
		answered()
		if err != nil {
			return
		}
	}
}

// wholeLines is bufio.ScanLines, without what has no end: who sent it may have
// gone before all of it was sent.
func wholeLines(data []byte, _ bool) (advance int, line []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, bytes.TrimSuffix(data[:i], []byte("\r")), nil
	}
	return 0, nil, nil
}

// answerError is an answer that is nothing else.
type answerError struct {
	Error string `json:"error"`
}

func reply(conn net.Conn, what any) error {
	line, err := json.Marshal(what)
	if err != nil {
		return err
	}
	_, err = conn.Write(append(line, '\n'))
	return err
}

func carryOut(line []byte, wire Wire) answer {
	var request Do
	if err := json.Unmarshal(line, &request); err != nil {
		return answer{Error: "it is no request: " + err.Error()}
	}
	var changed bool
	switch request.Do {
	case "status":
		changed = true
	case "pause":
		changed = wire.Pause("lnk sandbox pause paused it")
	case "resume":
		changed = wire.Resume()
	case "stop":
		wire.Stop()
		changed = true
	case "":
		// Whatever else it is, such as another bind.
		return answer{Error: ErrBound.Error()}
	default:
		return answer{Error: fmt.Sprintf("it can't do %q", request.Do)}
	}
	status := wire.Status()
	if !changed {
		return answer{Error: "it is " + status.State + " already"}
	}
	return answer{Status: status}
}

// Ask has the wire behind a control socket do something, and returns how it
// stands then.
func Ask(ctx context.Context, path, do string) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, controlLimit)
	defer cancel()
	conn, err := peercred.DialOwned(ctx, path, os.Geteuid())
	if err != nil {
		return Status{}, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(controlLimit))
	if err := json.NewEncoder(conn).Encode(Do{do}); err != nil {
		return Status{}, fmt.Errorf("the control socket: %w", err)
	}
	var got answer
	if err := json.NewDecoder(io.LimitReader(conn, maxLine)).Decode(&got); err != nil {
		return Status{}, fmt.Errorf("the control socket: %w", err)
	}
	if got.Error != "" {
		return Status{}, errors.New(got.Error)
	}
	return got.Status, nil
}

// SendBind sends a line to the control socket of a blank proxy, which owner, or
// this user, must serve. What the proxy refuses is an error in its own words.
func SendBind(ctx context.Context, path string, data []byte, owners ...int) error {
	ctx, cancel := context.WithTimeout(ctx, controlLimit)
	defer cancel()
	conn, err := peercred.DialOwned(ctx, path, owners...)
	if err != nil {
		return &NotSentError{err}
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(controlLimit))
	if _, err := conn.Write(append(slices.Clone(data), '\n')); err != nil {
		return fmt.Errorf("the control socket: %w", err)
	}
	var got answerError
	if err := json.NewDecoder(io.LimitReader(conn, maxLine)).Decode(&got); err != nil {
		return fmt.Errorf("the control socket: it answered nothing: is this user its own, or its binder? (%w)", err)
	}
	switch got.Error {
	case "":
		return nil
	case ErrBound.Error():
		return ErrBound
	}
	return errors.New(got.Error)
}

// ErrBound is the answer to a second bind.
var ErrBound = errors.New("this proxy is bound already")

// NotSentError is a bind of which nobody got a byte.
type NotSentError struct{ Err error }

// Error is why.
func (e *NotSentError) Error() string { return e.Err.Error() }

// Unwrap returns why.
func (e *NotSentError) Unwrap() error { return e.Err }
