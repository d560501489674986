//go:build !linux

// Command lnk runs programs in a sandbox.
package main

import (
	"fmt"
	"os"
	"runtime"
)

func main() {
	fmt.Fprintf(os.Stderr, "lnk: its sandbox is made of Linux's namespaces, and %s has none: run it on a Linux machine\n", runtime.GOOS)
	os.Exit(125)
}
