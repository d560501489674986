// Package routes serves the proxy's own routes, /_link/PREFIX/…, by a table
// that names none of them: each is a prefix, and a Unix socket or a program
// that serves it.
//
// It promises that a call is led to a route only when it comes from the named
// caller, by its key, and that before that nothing is dialled or started; and
// that what a route's program is given is on no disk, in no argument and in no
// environment.
package routes

import "strings"

// Root is what all of the routes' paths begin with.
const Root = "/_link"

// table finds a route by its prefix.
type table map[string]*route

// find returns the route with the longest prefix of whole segments of a path
// in its normal form, and what of the path is behind it: "" or "/…".
func (t table) find(path string) (r *route, rest string) {
	for end := len(path); end > 0; end = strings.LastIndexByte(path[:end], '/') {
		if r, ok := t[path[:end]]; ok {
			return r, path[end:]
		}
	}
	return nil, ""
}
