// Package control is the control socket of a proxy, both ends.
//
// It takes one JSON object a line, and answers each with one line: what was
// asked for, or {"error":"…"}. It serves its own user alone: its mode is 0600,
// and every connection's peer is asked for besides.
//
//	{"do":"status"}   how the wire stands, and what it has seen
//	{"do":"pause"}    refuse new calls, let open ones stand still
//	{"do":"resume"}
//	{"do":"stop"}     end every call, for good
package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
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

// Serve answers on a control socket until it is closed, and then waits
// for those it is answering.
func Serve(l *net.UnixListener, wire Wire) {
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
			if uid, err := peercred.UID(conn); err != nil || uid != os.Geteuid() {
				return
			}
			serve(conn, wire)
		})
	}
}

func serve(conn net.Conn, wire Wire) {
	lines := bufio.NewScanner(conn)
	lines.Buffer(make([]byte, 0, 1024), maxLine)
	for {
		conn.SetDeadline(time.Now().Add(controlIdle))
		if !lines.Scan() {
			return
		}
		line, err := json.Marshal(carryOut(lines.Bytes(), wire))
		if err != nil {
			return
		}
		if _, err := conn.Write(append(line, '\n')); err != nil {
			return
		}
	}
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
