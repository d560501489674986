// Command lnk-supervisor keeps the slots of a box.
package main

import (
	"os"

	"link.internal/lnk/internal/supervisor"
)

func main() { os.Exit(supervisor.Main(os.Args[1:], os.Stderr)) }
