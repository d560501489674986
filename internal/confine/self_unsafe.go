//go:build linux

package confine

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Self puts the list of refused system calls on every thread of this process,
// for good, and those that make what outlives a process in the machine's own
// IPC namespace. The process must have no_new_privs.
func Self() error {
	rules := Rules()
	for _, nr := range []uintptr{unix.SYS_SHMGET, unix.SYS_SEMGET, unix.SYS_MSGGET, unix.SYS_MQ_OPEN} {
		rules = append(rules, Rule{Nr: nr, Errno: unix.EPERM, Why: "what it makes outlives the process"})
	}
	return refuse(rules)
}

// StayInGroup keeps this process, and all that it starts, in its process group
// for good, by which they can be ended together. It must have no_new_privs.
func StayInGroup() error {
	return refuse([]Rule{
		{Nr: unix.SYS_SETSID, Errno: unix.EPERM, Why: "a session is a group of its own"},
		{Nr: unix.SYS_SETPGID, Errno: unix.EPERM, Why: "it leaves the group"},
	})
}

func refuse(rules []Rule) error {
	filter, err := Filter(rules)
	if err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}
