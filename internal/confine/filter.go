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
	// Unless lets a call through that When would refuse.
	Unless *When
	// Errno is the answer; 0: whoever listens is asked (seccomp_unotify(2)).
	Errno unix.Errno
	// Why is the reason, for whoever reads the list.
	Why string
}

// Notices are the calls that are asked about where there is a list of
// programs.
func Notices() []Rule {
	return []Rule{
		{Nr: unix.SYS_EXECVE, When: nil, Errno: 0, Why: "a program that isn't listed is named, and refused"},
		{Nr: unix.SYS_EXECVEAT, When: nil, Errno: 0, Why: "as execve"},
		{
			Nr: unix.SYS_MMAP, When: &When{Arg: 2, AnyBit: unix.PROT_EXEC}, Unless: &When{Arg: 3, AnyBit: unix.MAP_ANONYMOUS},
			Why: "every loader maps the code of what it loads, from its file, before it runs: what does so is looked at",
		},
		{Nr: unix.SYS_MEMFD_CREATE, When: nil, Errno: 0, Why: "memory that is a file is given without the right to be executed"},
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
		{Nr: unix.SYS_SOCKET, When: &When{Arg: 0, NotIn: []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}}, Errno: unix.EAFNOSUPPORT,
			Why: "AF_VSOCK and others are not held by a network namespace"},
		{Nr: unix.SYS_SOCKETPAIR, When: &When{Arg: 0, NotIn: []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6}}, Errno: unix.EAFNOSUPPORT, Why: "as socket: AF_TIPC makes pairs"},
		{Nr: unix.SYS_CLONE3, When: nil, Errno: unix.ENOSYS, Why: "its flags lie behind a pointer"},
		{Nr: unix.SYS_CLONE, When: &When{Arg: 0, AnyBit: newNamespaces}, Errno: unix.EPERM, Why: "a new namespace is new kernel surface"},
		{Nr: unix.SYS_UNSHARE, When: &When{Arg: 0, AnyBit: newNamespaces | unix.CLONE_NEWTIME}, Errno: unix.EPERM, Why: "a new namespace is new kernel surface"},
		{Nr: unix.SYS_SETNS, When: nil, Errno: unix.EPERM, Why: "there is no namespace to join"},

		{Nr: unix.SYS_IO_URING_SETUP, When: nil, Errno: unix.ENOSYS, Why: "it opens sockets past this filter"},
		{Nr: unix.SYS_IO_URING_ENTER, When: nil, Errno: unix.ENOSYS, Why: "as io_uring_setup"},
		{Nr: unix.SYS_IO_URING_REGISTER, When: nil, Errno: unix.ENOSYS, Why: "as io_uring_setup"},

		{Nr: unix.SYS_KEYCTL, When: nil, Errno: unix.EPERM, Why: "keyrings are not namespaced by user"},
		{Nr: unix.SYS_ADD_KEY, When: nil, Errno: unix.EPERM, Why: "as keyctl"},
		{Nr: unix.SYS_REQUEST_KEY, When: nil, Errno: unix.EPERM, Why: "as keyctl"},

		{Nr: unix.SYS_BPF, When: nil, Errno: unix.EPERM, Why: "kernel code"},
		{Nr: unix.SYS_PERF_EVENT_OPEN, When: nil, Errno: unix.EPERM, Why: "sees beyond the sandbox"},
		{Nr: unix.SYS_USERFAULTFD, When: nil, Errno: unix.EPERM, Why: "stalls the kernel in copies"},

		{Nr: unix.SYS_MOUNT, When: nil, Errno: unix.EPERM, Why: "the mounts are the wall"},
		{Nr: unix.SYS_UMOUNT2, When: nil, Errno: unix.EPERM, Why: "the mounts are the wall"},
		{Nr: unix.SYS_PIVOT_ROOT, When: nil, Errno: unix.EPERM, Why: "the mounts are the wall"},
		{Nr: unix.SYS_CHROOT, When: nil, Errno: unix.EPERM, Why: "the mounts are the wall"},
		{Nr: unix.SYS_MOVE_MOUNT, When: nil, Errno: unix.EPERM, Why: "the mounts are the wall"},
		{Nr: unix.SYS_OPEN_TREE, When: nil, Errno: unix.EPERM, Why: "the mounts are the wall"},
		{Nr: sysOpenTreeAttr, When: nil, Errno: unix.EPERM, Why: "the mounts are the wall"},
		{Nr: unix.SYS_FSOPEN, When: nil, Errno: unix.EPERM, Why: "the mounts are the wall"},
		{Nr: unix.SYS_FSCONFIG, When: nil, Errno: unix.EPERM, Why: "the mounts are the wall"},
		{Nr: unix.SYS_FSMOUNT, When: nil, Errno: unix.EPERM, Why: "the mounts are the wall"},
		{Nr: unix.SYS_FSPICK, When: nil, Errno: unix.EPERM, Why: "the mounts are the wall"},
		{Nr: unix.SYS_MOUNT_SETATTR, When: nil, Errno: unix.EPERM, Why: "the mounts are the wall"},

		{Nr: unix.SYS_OPEN_BY_HANDLE_AT, When: nil, Errno: unix.EPERM, Why: "reaches files past the mounts"},
		{Nr: unix.SYS_QUOTACTL, When: nil, Errno: unix.EPERM, Why: "the whole machine's"},
		{Nr: unix.SYS_QUOTACTL_FD, When: nil, Errno: unix.EPERM, Why: "the whole machine's"},
		{Nr: unix.SYS_SWAPON, When: nil, Errno: unix.EPERM, Why: "the whole machine's"},
		{Nr: unix.SYS_SWAPOFF, When: nil, Errno: unix.EPERM, Why: "the whole machine's"},
		{Nr: unix.SYS_INIT_MODULE, When: nil, Errno: unix.EPERM, Why: "kernel code"},
		{Nr: unix.SYS_FINIT_MODULE, When: nil, Errno: unix.EPERM, Why: "kernel code"},
		{Nr: unix.SYS_DELETE_MODULE, When: nil, Errno: unix.EPERM, Why: "kernel code"},
		{Nr: unix.SYS_KEXEC_LOAD, When: nil, Errno: unix.EPERM, Why: "kernel code"},
		{Nr: unix.SYS_KEXEC_FILE_LOAD, When: nil, Errno: unix.EPERM, Why: "kernel code"},
		{Nr: unix.SYS_REBOOT, When: nil, Errno: unix.EPERM, Why: "the whole machine's"},
		{Nr: unix.SYS_SYSLOG, When: nil, Errno: unix.EPERM, Why: "the whole machine's"},
		{Nr: unix.SYS_ACCT, When: nil, Errno: unix.EPERM, Why: "the whole machine's"},
		{Nr: unix.SYS_SETTIMEOFDAY, When: nil, Errno: unix.EPERM, Why: "the whole machine's clock"},
		{Nr: unix.SYS_CLOCK_SETTIME, When: nil, Errno: unix.EPERM, Why: "the whole machine's clock"},
		// adjtimex and clock_adjtime also read, which programs do; setting
		// needs a capability that nothing here has.
		{Nr: unix.SYS_FANOTIFY_INIT, When: nil, Errno: unix.EPERM, Why: "watches whole filesystems"},
		{Nr: unix.SYS_MOVE_PAGES, When: nil, Errno: unix.EPERM, Why: "tells and changes where memory lies"},

		{Nr: unix.SYS_IOCTL, When: &When{Arg: 1, In: []uint32{ioctlTIOCSTI, ioctlTIOCLINUX}}, Errno: unix.EPERM, Why: "types into the terminal"},
		{Nr: unix.SYS_IOCTL, When: &When{Arg: 1, In: []uint32{ioctlTIOCSETD}}, Errno: unix.EPERM, Why: "loads line disciplines"},
		// 0 Linux, 8 Linux with 32-bit addresses (PER_LINUX32), 0x40000 no
		// address randomisation (gdb), 0xffffffff a question.
		{Nr: unix.SYS_PERSONALITY, When: &When{Arg: 0, NotIn: []uint32{0, 8, 0x40000, 0xffffffff}}, Errno: unix.EPERM, Why: "turns protections off"},
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
		{Nr: unix.SYS_SETPRIORITY, When: &When{Arg: 0, In: []uint32{unix.PRIO_USER}}, Errno: unix.EPERM, Why: "the relay is this user's too"},
		{Nr: unix.SYS_SETPRIORITY, When: &When{Arg: 1, NotIn: []uint32{0}}, Errno: unix.EPERM, Why: "the relay's priority"},
		{Nr: unix.SYS_SCHED_SETSCHEDULER, When: &When{Arg: 0, NotIn: []uint32{0}}, Errno: unix.EPERM, Why: "the relay's policy"},
		{Nr: unix.SYS_SCHED_SETPARAM, When: &When{Arg: 0, NotIn: []uint32{0}}, Errno: unix.EPERM, Why: "the relay's policy"},
		{Nr: unix.SYS_SCHED_SETATTR, When: &When{Arg: 0, NotIn: []uint32{0}}, Errno: unix.EPERM, Why: "the relay's policy"},
		{Nr: unix.SYS_SCHED_SETAFFINITY, When: &When{Arg: 0, In: append([]uint32{1}, threads...)}, Errno: unix.EPERM, Why: "the relay's processors; a program's threads set their own"},
		{Nr: unix.SYS_PRLIMIT64, When: &When{Arg: 0, In: []uint32{1}}, Errno: unix.EPERM, Why: "the relay's limits"},
	}
}

// NoTerminal is one rule more for a program that was not given the terminal
// at its start: a process that ignores SIGTTOU takes it by TIOCSPGRP from
// whoever has it, and reads what is typed.
func NoTerminal() Rule {
	return Rule{Nr: unix.SYS_IOCTL, When: &When{Arg: 1, In: []uint32{unix.TIOCSPGRP}}, Errno: unix.EPERM, Why: "takes the terminal"}
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
	inner := assembler{}
	block := &inner
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
	if u := r.Unless; u != nil {
		if u.AnyBit == 0 {
			return fmt.Errorf("bug: a seccomp rule for call %d with an empty exception", r.Nr)
		}
		outer := assembler{}
		outer.loadArg(u.Arg)
		outer.emit(bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: u.AnyBit, SkipTrue: uint8(len(inner.program))})
		outer.emit(inner.program...)
		block = &outer
	}
	if len(block.program) > 200 {
		return fmt.Errorf("bug: a seccomp rule for call %d that is too long", r.Nr)
	}
	a.forCall(r.Nr, block.program)
	return nil
}
