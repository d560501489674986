// Command lnk-relay is the first process inside a sandbox. lnk starts it.
package main

import (
	"os"

	"link.internal/lnk/internal/relay"
)

func main() { os.Exit(relay.Main()) }
