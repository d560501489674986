package confine

import "golang.org/x/sys/unix"

const (
	auditArch       = unix.AUDIT_ARCH_AARCH64
	bigEndian       = false
	sysOpenTreeAttr = 467 // Linux 6.15
)

// archRules are the calls that only this architecture has.
var archRules = []Rule{
	{Nr: unix.SYS_LOOKUP_DCOOKIE, When: nil, Errno: unix.EPERM, Why: "the whole machine's"},
}
