// Package box is the supervisor's interface: HTTP and JSON over a Unix socket.
//
//	GET    /v1/status               → Status
//	GET    /v1/slots                → []Slot; with ?state=blank those in that state, not weighed
//	POST   /v1/slots {"add":N}      → []Slot, those that were added
//	POST   /v1/slots/N/recycle      → Slot, blank again
//	DELETE /v1/slots/N              → {}
//	GET    /v1/slots/N/logs         → text, where the machine keeps it
//	GET    /metrics                 → for Prometheus
//
// Root and the group lnk may do all of it; the binder may read slots and
// status. An error is {"error":"…"} with a status of 4xx or 5xx.
package box

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// SocketPath is where the supervisor listens.
const SocketPath = "/run/lnk/supervisor.sock"

// Slot is one slot as the interface gives it.
type Slot struct {
	Number int `json:"number"`
	// State is starting, blank, bound, ending or waiting.
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// Why says what a waiting slot failed at.
	Why string `json:"why,omitempty"`
	// Agent and Proxy are uids, Group the gid that the two share.
	Agent int `json:"agent"`
	Proxy int `json:"proxy"`
	Group int `json:"group"`
	// Control is the path of its control socket, Folder of its socket folder,
	// Wire of the folder where its proxy may log, Home of its agent's own.
	Control string `json:"control"`
	Folder  string `json:"folder"`
	Wire    string `json:"wire"`
	Home    string `json:"home"`
	// Generation is another for each tenancy: a service that keeps it finds out
	// that its agent has ended.
	Generation string `json:"generation"`
	// Starts counts how often it was made anew.
	Starts int `json:"starts"`
	// StartMS is how long its last start took, in milliseconds.
	StartMS float64 `json:"start_ms"`
	// Memory is what its processes take, in bytes, where the machine counts it.
	Memory int64 `json:"memory,omitempty"`
}

// Status is how the box stands.
type Status struct {
	Version string `json:"version"`
	PID     int    `json:"pid"`
	// Slots counts slots by their state.
	Slots map[string]int `json:"slots"`
	// Binder is the uid that may bind; negative: nobody.
	Binder int `json:"binder"`
}

// Add is a request for more slots.
type Add struct {
	Add int `json:"add"`
}

// Failure is an answer that is an error.
type Failure struct {
	Error string `json:"error"`
}

// Client speaks to the supervisor.
type Client struct {
	http *http.Client
	path string
}

// NewClient returns a client for the socket at path.
func NewClient(path string) *Client {
	return &Client{path: path, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", path)
		},
	}}}
}

// maxAnswer bounds an answer: 10,000 slots are some 5 MB.
const maxAnswer = 64 << 20

// Do sends a request, and reads its answer into answer; nil: it is not wanted.
func (c *Client) Do(ctx context.Context, method, path string, body, answer any) error {
	var send io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		send = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://supervisor"+path, send)
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			return fmt.Errorf("the supervisor can't be reached at %s: %w: is it running (systemctl status lnk-supervisor)?", c.path, op.Err)
		}
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return err
	}
	if response.StatusCode >= 400 {
		var failed Failure
		if json.Unmarshal(data, &failed) != nil || failed.Error == "" {
			failed.Error = response.Status
		}
		return errors.New(failed.Error)
	}
	switch into := answer.(type) {
	case nil:
		return nil
	case *string:
		*into = string(data)
		return nil
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("the supervisor's answer: %w", err)
	}
	return nil
}

// Slots are all of them, by number.
func (c *Client) Slots(ctx context.Context) (slots []Slot, err error) {
	return slots, c.Do(ctx, http.MethodGet, "/v1/slots", nil, &slots)
}

// InState are those in one state, by number.
func (c *Client) InState(ctx context.Context, state string) (slots []Slot, err error) {
	return slots, c.Do(ctx, http.MethodGet, "/v1/slots?state="+url.QueryEscape(state), nil, &slots)
}
