package confine

import "golang.org/x/sys/unix"

const (
	auditArch       = unix.AUDIT_ARCH_X86_64
	bigEndian       = false
	sysOpenTreeAttr = 467 // Linux 6.15
)

// archRules are the calls that only this architecture has.
var archRules = []Rule{
	{unix.SYS_IOPL, nil, unix.EPERM, "hardware"},
	{unix.SYS_IOPERM, nil, unix.EPERM, "hardware"},
	{unix.SYS_USELIB, nil, unix.ENOSYS, "obsolete"},
	{unix.SYS_CREATE_MODULE, nil, unix.ENOSYS, "obsolete"},
	{unix.SYS_LOOKUP_DCOOKIE, nil, unix.EPERM, "the whole machine's"},
}
