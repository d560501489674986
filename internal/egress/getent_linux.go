package egress

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"strings"
)

// getentPath is libc's resolver as a program: it knows what nsswitch.conf
// names, multicast DNS among it, which Go's resolver doesn't.
const getentPath = "/usr/bin/getent"

// getent looks up a canonical name, which holds nothing that a command line
// could take for a flag.
func getent(ctx context.Context, name string) ([]netip.Addr, error) {
	cmd := exec.CommandContext(ctx, getentPath, "ahosts", name)
	cmd.Env = []string{}
	out, err := cmd.Output()
	if err != nil {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	var addrs []netip.Addr
	seen := make(map[netip.Addr]bool)
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if addr, err := netip.ParseAddr(fields[0]); err == nil && addr.Zone() == "" && !seen[addr] {
			seen[addr] = true
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
}
