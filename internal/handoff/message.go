// Package handoff is local.sock, both ends: how listening sockets that the
// relay makes inside a sandbox come into the hands of the proxy outside, which
// then accepts the program's connections itself.
//
//	relay                              proxy
//	  ── {"hello":1,"plain":…} ────────▶
//	  ◀─ {"listen":[{id,network,address},…]}   at any time, as often as needed;
//	                                           with "more":true, another follows at once
//	  ── {"listening":id} + one descriptor ─▶
//	  ── {"failed":id,"error":"…"} ────▶        instead, where it can't be made
//
// A listener is closed by the proxy alone: the relay keeps no copy of it.
//
// The socket is of type SOCK_SEQPACKET, one JSON object a message, at most
// MaxMessage bytes.
//
// The relay may have been taken over by the program, so the proxy trusts
// nothing of what it is handed: see Receive. The relay trusts the proxy.
package handoff

import (
	"encoding/json"
	"fmt"
)

// MaxMessage is the longest message in bytes.
const MaxMessage = 16 << 10

// MaxListeners bounds the listeners that are asked for and not yet answered.
const MaxListeners = 4096

// Listener is a socket that the proxy asks for.
type Listener struct {
	ID int `json:"id"`
	// Network is "tcp" or "udp".
	Network string `json:"network"`
	// Address is an IPv4 or IPv6 address and a port: "127.0.0.1:40781".
	Address string `json:"address"`
}

// toProxy is a message from the relay: a hello, or how it went with a listener.
type toProxy struct {
	Hello int `json:"hello,omitempty"`
	// Plain says that no port under 1024 can be had.
	Plain     bool   `json:"plain,omitempty"`
	Listening int    `json:"listening,omitempty"`
	Failed    int    `json:"failed,omitempty"`
	Error     string `json:"error,omitempty"`

	lost bool // a descriptor came with it that couldn't be received
}

// toRelay is a message from the proxy.
type toRelay struct {
	Listen []Listener `json:"listen,omitempty"`
	// More says that the next message belongs to this one.
	More bool `json:"more,omitempty"`
}

func decode(message []byte, into any) error {
	if err := json.Unmarshal(message, into); err != nil {
		return fmt.Errorf("local.sock: %w", err)
	}
	return nil
}
