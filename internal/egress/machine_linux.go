package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"link.internal/lnk/internal/reach"
)

// Interfaces knows this machine's own addresses and subnets, as of now: it
// reads them once, and again whenever the kernel says that one changed. A
// look costs one system call.
type Interfaces struct {
	mu      sync.Mutex
	changes int // a netlink socket subscribed to address changes; 0 before the first look
	current reach.Machine
}

// Machine returns what the address rules need to know. An error means that
// this can't be known, so nothing may be dialled.
func (i *Interfaces) Machine() (reach.Machine, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.changes == 0 {
		fd, err := subscribe()
		if err != nil {
			return reach.Machine{}, fmt.Errorf("watching this machine's addresses: %w", err)
		}
		i.changes = fd
	} else if !changed(i.changes) {
		return i.current, nil
	}
	// The subscription is older than the reading, so no change falls between.
	m, err := readInterfaces()
	if err != nil {
		unix.Close(i.changes)
		i.changes = 0
		return reach.Machine{}, fmt.Errorf("reading this machine's addresses: %w", err)
	}
	i.current = m
	return m, nil
}

// subscribe opens a socket that hears of every address that comes or goes
// (rtnetlink(7)).
func subscribe() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	groups := uint32(unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

// changed drains the socket and reports whether anything was there. An error
// such as ENOBUFS means that some was lost, which is a change as well.
func changed(fd int) bool {
	// What of a message has no room is dropped (recv(2)).
	var buf [1]byte
	seen := false
	for {
		_, _, err := unix.Recvfrom(fd, buf[:], unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return seen
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOBUFS), err == nil:
			seen = true
		default:
			return true
		}
	}
}

func readInterfaces() (reach.Machine, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return reach.Machine{}, err
	}
	var m reach.Machine
	for _, a := range addrs {
		network, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		addr, ok := netip.AddrFromSlice(network.IP)
		if !ok {
			continue
		}
		addr = addr.Unmap()
		ones, bits := network.Mask.Size()
		if bits == 128 && addr.Is4() {
			ones -= 96
		}
		m.Addrs = append(m.Addrs, addr)
		if prefix, err := addr.Prefix(ones); err == nil {
			m.Subnets = append(m.Subnets, prefix)
		}
	}
	return m, nil
}
