// Package confine says what a sandboxed program may ask of the kernel, as
// data, and builds from it the seccomp filter and the Landlock rules that the
// relay puts on the program before its first instruction.
//
// The filter holds in every run, whatever else the wall has. It refuses: what
// leaves the sandbox's namespaces by another door (AF_VSOCK does), what makes
// new ones (each is new kernel surface), what reaches the whole machine, and
// the terminal requests that type into it. It leaves what debuggers, JITs and
// language runtimes need: ptrace, process_vm_readv, memfd_create, and the
// seccomp and Landlock calls by which a program confines itself further.
//
// It does not look behind pointers, which a program can change after the
// look; clone3, whose flags lie behind one, is absent (ENOSYS), and every
// libc then uses clone.
package confine

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Rule is one system call that is not simply allowed.
type Rule struct {
	// Nr is the call's number on this architecture.
	Nr uintptr
	// When narrows the rule to some arguments. Nil: the call is refused
	// whatever they are.
	When *When
	// Errno is the answer; 0: whoever listens is asked (seccomp_unotify(2)).
	Errno unix.Errno
	// Why is the reason, for whoever reads the list.
	Why string
}

// Notices are the calls that are asked about where there is a list of
// programs.
func Notices() []Rule {
	return []Rule{
		{unix.SYS_EXECVE, nil, 0, "a program that isn't listed is named, and refused"},
		{unix.SYS_EXECVEAT, nil, 0, "as execve"},
		{unix.SYS_SET_TID_ADDRESS, nil, 0, "every loader's first call, before any code of what it loaded: what runs now is looked at"},
		{unix.SYS_MEMFD_CREATE, nil, 0, "memory that is a file is given without the right to be executed"},
	}
}

// When is a test of the low 32 bits of one argument: flags, domains, request
// numbers and personalities are ints to the kernel, whatever the upper half
// holds.
type When struct {
	Arg int
	// AnyBit: refused when any of these bits is set.
	AnyBit uint32
	// In: refused when the argument is one of these.
	In []uint32
	// NotIn: refused when the argument is none of these.
	NotIn []uint32
}

// newNamespaces are the flags of clone and unshare that make a namespace
// (namespaces(7)). CLONE_NEWTIME shares its bit with clone's exit signal, so
// it is refused for unshare only; clone can't make one.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// Requests of ioctl that the headers here have no name for.
const (
	ioctlTIOCSTI   = 0x5412
	ioctlTIOCLINUX = 0x541C
	ioctlTIOCSETD  = 0x5423
)

// Rules is the list for this architecture.
func Rules() []Rule {
	rules := []Rule{
		// AF_UNIX, AF_INET and AF_INET6 are what programs speak. AF_NETLINK is
		// what getifaddrs(3) asks, in protocol 0 (NETLINK_ROUTE) only.
		{unix.SYS_SOCKET, &When{Arg: 0, NotIn: []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}}, unix.EAFNOSUPPORT,
			"AF_VSOCK and others are not held by a network namespace"},
		{unix.SYS_SOCKETPAIR, &When{Arg: 0, NotIn: []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6}}, unix.EAFNOSUPPORT, "as socket: AF_TIPC makes pairs"},
		{unix.SYS_CLONE3, nil, unix.ENOSYS, "its flags lie behind a pointer"},
		{unix.SYS_CLONE, &When{Arg: 0, AnyBit: newNamespaces}, unix.EPERM, "a new namespace is new kernel surface"},
		{unix.SYS_UNSHARE, &When{Arg: 0, AnyBit: newNamespaces | unix.CLONE_NEWTIME}, unix.EPERM, "a new namespace is new kernel surface"},
		{unix.SYS_SETNS, nil, unix.EPERM, "there is no namespace to join"},

		{unix.SYS_IO_URING_SETUP, nil, unix.ENOSYS, "it opens sockets past this filter"},
		{unix.SYS_IO_URING_ENTER, nil, unix.ENOSYS, "as io_uring_setup"},
		{unix.SYS_IO_URING_REGISTER, nil, unix.ENOSYS, "as io_uring_setup"},

		{unix.SYS_KEYCTL, nil, unix.EPERM, "keyrings are not namespaced by user"},
		{unix.SYS_ADD_KEY, nil, unix.EPERM, "as keyctl"},
		{unix.SYS_REQUEST_KEY, nil, unix.EPERM, "as keyctl"},

		{unix.SYS_BPF, nil, unix.EPERM, "kernel code"},
		{unix.SYS_PERF_EVENT_OPEN, nil, unix.EPERM, "sees beyond the sandbox"},
		{unix.SYS_USERFAULTFD, nil, unix.EPERM, "stalls the kernel in copies"},

		{unix.SYS_MOUNT, nil, unix.EPERM, "the mounts are the wall"},
		{unix.SYS_UMOUNT2, nil, unix.EPERM, "the mounts are the wall"},
		{unix.SYS_PIVOT_ROOT, nil, unix.EPERM, "the mounts are the wall"},
		{unix.SYS_CHROOT, nil, unix.EPERM, "the mounts are the wall"},
		{unix.SYS_MOVE_MOUNT, nil, unix.EPERM, "the mounts are the wall"},
		{unix.SYS_OPEN_TREE, nil, unix.EPERM, "the mounts are the wall"},
		{sysOpenTreeAttr, nil, unix.EPERM, "the mounts are the wall"},
		{unix.SYS_FSOPEN, nil, unix.EPERM, "the mounts are the wall"},
		{unix.SYS_FSCONFIG, nil, unix.EPERM, "the mounts are the wall"},
		{unix.SYS_FSMOUNT, nil, unix.EPERM, "the mounts are the wall"},
		{unix.SYS_FSPICK, nil, unix.EPERM, "the mounts are the wall"},
		{unix.SYS_MOUNT_SETATTR, nil, unix.EPERM, "the mounts are the wall"},

		{unix.SYS_OPEN_BY_HANDLE_AT, nil, unix.EPERM, "reaches files past the mounts"},
		{unix.SYS_QUOTACTL, nil, unix.EPERM, "the whole machine's"},
		{unix.SYS_QUOTACTL_FD, nil, unix.EPERM, "the whole machine's"},
		{unix.SYS_SWAPON, nil, unix.EPERM, "the whole machine's"},
		{unix.SYS_SWAPOFF, nil, unix.EPERM, "the whole machine's"},
		{unix.SYS_INIT_MODULE, nil, unix.EPERM, "kernel code"},
		{unix.SYS_FINIT_MODULE, nil, unix.EPERM, "kernel code"},
		{unix.SYS_DELETE_MODULE, nil, unix.EPERM, "kernel code"},
		{unix.SYS_KEXEC_LOAD, nil, unix.EPERM, "kernel code"},
		{unix.SYS_KEXEC_FILE_LOAD, nil, unix.EPERM, "kernel code"},
		{unix.SYS_REBOOT, nil, unix.EPERM, "the whole machine's"},
		{unix.SYS_SYSLOG, nil, unix.EPERM, "the whole machine's"},
		{unix.SYS_ACCT, nil, unix.EPERM, "the whole machine's"},
		{unix.SYS_SETTIMEOFDAY, nil, unix.EPERM, "the whole machine's clock"},
		{unix.SYS_CLOCK_SETTIME, nil, unix.EPERM, "the whole machine's clock"},
		// adjtimex and clock_adjtime also read, which programs do; setting
		// needs a capability that nothing here has.
		{unix.SYS_FANOTIFY_INIT, nil, unix.EPERM, "watches whole filesystems"},
		{unix.SYS_MOVE_PAGES, nil, unix.EPERM, "tells and changes where memory lies"},

		{unix.SYS_IOCTL, &When{Arg: 1, In: []uint32{ioctlTIOCSTI, ioctlTIOCLINUX}}, unix.EPERM, "types into the terminal"},
		{unix.SYS_IOCTL, &When{Arg: 1, In: []uint32{ioctlTIOCSETD}}, unix.EPERM, "loads line disciplines"},
		// 0 Linux, 8 Linux with 32-bit addresses (PER_LINUX32), 0x40000 no
		// address randomisation (gdb), 0xffffffff a question.
		{unix.SYS_PERSONALITY, &When{Arg: 0, NotIn: []uint32{0, 8, 0x40000, 0xffffffff}}, unix.EPERM, "turns protections off"},
	}
	return append(rules, archRules...)
}

// UserNamespaces takes out of the list what a browser's own sandbox is made of:
// namespaces of users, processes and network of its own, and chroot in them.
func UserNamespaces(rules []Rule) []Rule {
	const own = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	var kept []Rule
	for _, r := range rules {
		if r.Nr == unix.SYS_CHROOT {
			continue
		}
		if r.When != nil && r.When.AnyBit&own != 0 {
			when := *r.When
			when.AnyBit &^= own
			r.When = &when
		}
		kept = append(kept, r)
	}
	return kept
}

// NotTheRelay are the rules that keep a program from the scheduling of the
// relay, whose threads are given, where both have one uid and no capability: a
// relay that never runs could not end the sandbox.
func NotTheRelay(threads []uint32) []Rule {
	return []Rule{
		{unix.SYS_SETPRIORITY, &When{Arg: 0, In: []uint32{unix.PRIO_USER}}, unix.EPERM, "the relay is this user's too"},
		{unix.SYS_SETPRIORITY, &When{Arg: 1, NotIn: []uint32{0}}, unix.EPERM, "the relay's priority"},
		{unix.SYS_SCHED_SETSCHEDULER, &When{Arg: 0, NotIn: []uint32{0}}, unix.EPERM, "the relay's policy"},
		{unix.SYS_SCHED_SETPARAM, &When{Arg: 0, NotIn: []uint32{0}}, unix.EPERM, "the relay's policy"},
		{unix.SYS_SCHED_SETATTR, &When{Arg: 0, NotIn: []uint32{0}}, unix.EPERM, "the relay's policy"},
		{unix.SYS_SCHED_SETAFFINITY, &When{Arg: 0, In: append([]uint32{1}, threads...)}, unix.EPERM, "the relay's processors; a program's threads set their own"},
		{unix.SYS_PRLIMIT64, &When{Arg: 0, In: []uint32{1}}, unix.EPERM, "the relay's limits"},
	}
}

// NoTerminal is one rule more for a program that was not given the terminal
// at its start: a process that ignores SIGTTOU takes it by TIOCSPGRP from
// whoever has it, and reads what is typed.
func NoTerminal() Rule {
	return Rule{unix.SYS_IOCTL, &When{Arg: 1, In: []uint32{unix.TIOCSPGRP}}, unix.EPERM, "takes the terminal"}
}

// Offsets in struct seccomp_data (seccomp(2)).
const (
	offNr   = 0
	offArch = 4
	offArgs = 16
)

// Results of a filter (seccomp(2)), the errno in the low half.
const (
	retKillProcess = 0x80000000
	retErrno       = 0x00050000
	retNotify      = 0x7fc00000
	retAllow       = 0x7fff0000
)

// x32Bit marks a call of the x32 ABI on amd64, and nothing elsewhere.
const x32Bit = 0x40000000

// Filter assembles the list. A call of another architecture than this one
// ends the process: its numbers mean other things.
func Filter(rules []Rule) ([]unix.SockFilter, error) {
	a := assembler{}
	a.load(offArch)
	a.unless(bpf.JumpEqual, auditArch, bpf.RetConstant{Val: retKillProcess})
	a.load(offNr)
	a.when(bpf.JumpGreaterOrEqual, x32Bit, errnoResult(unix.ENOSYS))
	// AF_NETLINK in another protocol than 0 is the one rule of two arguments.
	a.netlink()
	for _, rule := range rules {
		if err := a.rule(rule); err != nil {
			return nil, err
		}
	}
	a.emit(bpf.RetConstant{Val: retAllow})
	raw, err := bpf.Assemble(a.program)
	if err != nil {
		return nil, fmt.Errorf("bug: assembling the seccomp filter: %w", err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return filter, nil
}

func errnoResult(errno unix.Errno) bpf.Instruction {
	return bpf.RetConstant{Val: retErrno | uint32(errno)}
}

// assembler emits blocks that each either return or fall through with the
// call's number in the accumulator.
type assembler struct {
	program []bpf.Instruction
}

func (a *assembler) emit(in ...bpf.Instruction) { a.program = append(a.program, in...) }

func (a *assembler) load(offset uint32) { a.emit(bpf.LoadAbsolute{Off: offset, Size: 4}) }

func (a *assembler) loadArg(arg int) {
	low := uint32(offArgs + 8*arg)
	if bigEndian {
		low += 4
	}
	a.load(low)
}

// when returns result if the test holds; unless, if it doesn't.
func (a *assembler) when(cond bpf.JumpTest, value uint32, result bpf.Instruction) {
	a.emit(bpf.JumpIf{Cond: cond, Val: value, SkipFalse: 1}, result)
}

func (a *assembler) unless(cond bpf.JumpTest, value uint32, result bpf.Instruction) {
	a.emit(bpf.JumpIf{Cond: cond, Val: value, SkipTrue: 1}, result)
}

func (a *assembler) netlink() {
	block := assembler{}
	block.loadArg(0)
	inner := assembler{}
	inner.loadArg(2)
	inner.when(bpf.JumpNotEqual, 0, errnoResult(unix.EAFNOSUPPORT))
	block.emit(bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.AF_NETLINK, SkipTrue: uint8(len(inner.program))})
	block.emit(inner.program...)
	a.forCall(unix.SYS_SOCKET, block.program)
}

// forCall emits block for one call only, and the call's number again after it.
func (a *assembler) forCall(nr uintptr, block []bpf.Instruction) {
	a.emit(bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(nr), SkipTrue: uint8(len(block) + 1)})
	a.emit(block...)
	a.load(offNr)
}

func (a *assembler) rule(r Rule) error {
	result := errnoResult(r.Errno)
	if r.Errno == 0 {
		result = bpf.RetConstant{Val: retNotify}
	}
	if r.When == nil {
		a.when(bpf.JumpEqual, uint32(r.Nr), result)
		return nil
	}
	block := assembler{}
	block.loadArg(r.When.Arg)
	switch w := r.When; {
	case w.AnyBit != 0:
		block.when(bpf.JumpBitsSet, w.AnyBit, result)
	case len(w.In) > 0:
		for _, value := range w.In {
			block.when(bpf.JumpEqual, value, result)
		}
	case len(w.NotIn) > 0:
		for i, value := range w.NotIn {
			// Past the rest of the list and the refusal.
			block.emit(bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipTrue: uint8(len(w.NotIn) - i)})
		}
		block.emit(result)
	default:
		return fmt.Errorf("bug: a seccomp rule for call %d with an empty test", r.Nr)
	}
	if len(block.program) > 200 {
		return fmt.Errorf("bug: a seccomp rule for call %d that is too long", r.Nr)
	}
	a.forCall(r.Nr, block.program)
	return nil
}
