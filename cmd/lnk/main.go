// Command lnk runs programs in a sandbox.
package main

import (
	"os"

	"link.internal/lnk/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
