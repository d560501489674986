package testnet

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// wallVariable is set to "plain" for a machine on which what bwrap starts has
// no capability.
const wallVariable = "LNK_WALL"

// Plain reports whether this machine's wall is the plain one.
func Plain() bool { return os.Getenv(wallVariable) == "plain" }

// PowerlessBwrap stands in for bwrap and does as AppArmor's profile for it
// does: what it starts has no capability, whatever was asked for.
const PowerlessBwrap = `#!/bin/bash
args=()
while [ $# -gt 0 ]; do
  case $1 in
    --cap-add) shift ;;
    --) args+=("$@"); break ;;
    *) args+=("$1") ;;
  esac
  shift
done
exec -a /usr/bin/bwrap ` + powers + ` "${args[@]}"
`

// powers is where the real bwrap is then, for the stand-in, in sandboxes too.
const powers = BinDir + "/bwrap"

// takePowers puts the stand-in in bwrap's place.
func takePowers() error {
	real, err := os.ReadFile("/usr/bin/bwrap")
	if err != nil {
		return err
	}
	if err := os.WriteFile(powers, real, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile("/srv/powerless", []byte(PowerlessBwrap), 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/srv/powerless", "/usr/bin/bwrap", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("covering bwrap: %w", err)
	}
	return nil
}
