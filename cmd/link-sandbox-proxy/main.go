// Command link-sandbox-proxy is the filtering proxy that is a sandbox's one
// way out.
//
// The runtime need not read, and watch, what share of the processors a cgroup
// has: these processes wait nearly always, and the reading costs at each start.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"os"

	"link.internal/lnk/internal/proxy"
)

func main() { os.Exit(proxy.Main(os.Args[1:], os.Stderr)) }
