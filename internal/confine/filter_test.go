package confine

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// run gives a call to the filter as the kernel would (seccomp(2)).
func run(t *testing.T, arch, nr uint32, args ...uint64) uint32 {
	t.Helper()
	filter, err := Filter(Rules())
	if err != nil {
		t.Fatal(err)
	}
	program := make([]bpf.Instruction, len(filter))
	for i, in := range filter {
		program[i] = bpf.RawInstruction{Op: in.Code, Jt: in.Jt, Jf: in.Jf, K: in.K}.Disassemble()
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	// The machine loads in network order, the kernel in its own: so are the
	// words written here. The low half of an argument comes first.
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[offNr:], nr)
	binary.BigEndian.PutUint32(data[offArch:], arch)
	for i, arg := range args {
		binary.BigEndian.PutUint32(data[offArgs+8*i:], uint32(arg))
		binary.BigEndian.PutUint32(data[offArgs+8*i+4:], uint32(arg>>32))
	}
	got, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(got)
}

func TestFilter(t *testing.T) {
	refused := func(errno unix.Errno) uint32 { return retErrno | uint32(errno) }
	for _, test := range []struct {
		name string
		nr   uint32
		args []uint64
		want uint32
	}{
		{"read", unix.SYS_READ, nil, retAllow},
		{"x32", x32Bit | unix.SYS_READ, nil, refused(unix.ENOSYS)},
		{"a number that is not yet given", 900, nil, retAllow},
		{"a negative number", 0xffffffff, nil, refused(unix.ENOSYS)},
		{"clone of a thread", unix.SYS_CLONE, []uint64{unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND}, retAllow},
		{"fork", unix.SYS_CLONE, []uint64{uint64(unix.SIGCHLD)}, retAllow},
		{"clone with a user namespace", unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}, refused(unix.EPERM)},
		{"clone with junk above", unix.SYS_CLONE, []uint64{1<<40 | unix.CLONE_NEWNET}, refused(unix.EPERM)},
		{"unshare of files", unix.SYS_UNSHARE, []uint64{unix.CLONE_FILES | unix.CLONE_FS}, retAllow},
		{"unshare of time", unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWTIME}, refused(unix.EPERM)},
		{"clone with the signal that looks like a time namespace", unix.SYS_CLONE, []uint64{unix.CLONE_NEWTIME}, retAllow},
		{"TCP", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, retAllow},
		{"rtnetlink", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, 0}, retAllow},
		{"audit netlink", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}, refused(unix.EAFNOSUPPORT)},
		{"IPv4 in protocol 9", unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, 9}, retAllow},
		{"VSOCK", unix.SYS_SOCKET, []uint64{unix.AF_VSOCK, unix.SOCK_STREAM, 0}, refused(unix.EAFNOSUPPORT)},
		{"VSOCK with junk above", unix.SYS_SOCKET, []uint64{1<<32 | unix.AF_VSOCK, unix.SOCK_STREAM, 0}, refused(unix.EAFNOSUPPORT)},
		{"TIOCSTI", unix.SYS_IOCTL, []uint64{0, ioctlTIOCSTI}, refused(unix.EPERM)},
		{"TIOCSTI with junk above", unix.SYS_IOCTL, []uint64{0, 1<<32 | ioctlTIOCSTI}, refused(unix.EPERM)},
		{"TCGETS", unix.SYS_IOCTL, []uint64{0, unix.TCGETS}, retAllow},
		{"personality asked", unix.SYS_PERSONALITY, []uint64{0xffffffff}, retAllow},
		{"READ_IMPLIES_EXEC", unix.SYS_PERSONALITY, []uint64{0x0400000}, refused(unix.EPERM)},
		{"ptrace", unix.SYS_PTRACE, nil, retAllow},
		{"seccomp", unix.SYS_SECCOMP, nil, retAllow},
	} {
		if got := run(t, auditArch, test.nr, test.args...); got != test.want {
			t.Errorf("%s: %#x, want %#x", test.name, got, test.want)
		}
	}
	if got := run(t, unix.AUDIT_ARCH_I386, unix.SYS_READ); got != retKillProcess {
		t.Errorf("a foreign architecture: %#x", got)
	}
	// Every rule without a test refuses, and says why.
	for _, rule := range Rules() {
		if rule.Why == "" {
			t.Errorf("call %d: no reason", rule.Nr)
		}
		if rule.When == nil {
			if got := run(t, auditArch, uint32(rule.Nr)); got != refused(rule.Errno) {
				t.Errorf("call %d: %#x", rule.Nr, got)
			}
		}
	}
}
