// Command lnk-relay is the first process inside a sandbox. lnk starts it.
//
// The runtime need not read, and watch, what share of the processors a cgroup
// has: these processes wait nearly always, and the reading costs at each start.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"os"

	"link.internal/lnk/internal/relay"
)

func main() { os.Exit(relay.Main(os.Args[1:])) }
