// Command link-sandbox-proxy is the filtering proxy that is a sandbox's one
// way out.
package main

import (
	"os"

	"link.internal/lnk/internal/proxy"
)

func main() { os.Exit(proxy.Main(os.Args[1:], os.Stderr)) }
