package relay

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// addLoopbackAddress gives lo the address 127.0.0.2/8 beside 127.0.0.1.
// getaddrinfo(3) with AI_ADDRCONFIG, as most programs call it, finds no IPv4
// name where 127.0.0.1 is the only address; it tests for that one alone.
func addLoopbackAddress() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("adding a loopback address: %w", err)
	}
	defer unix.Close(fd)
	const lo = 1 // the first interface of every network namespace
	address := [4]byte{127, 0, 0, 2}
	// nlmsghdr, ifaddrmsg, IFA_LOCAL, IFA_ADDRESS (rtnetlink(7), netlink(7)).
	message := make([]byte, 0, 40)
	message = binary.NativeEndian.AppendUint32(message, 40)
	message = binary.NativeEndian.AppendUint16(message, unix.RTM_NEWADDR)
	message = binary.NativeEndian.AppendUint16(message, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE)
	message = binary.NativeEndian.AppendUint32(message, 1)
	message = binary.NativeEndian.AppendUint32(message, 0)
	message = append(message, unix.AF_INET, 8, 0, unix.RT_SCOPE_HOST)
	message = binary.NativeEndian.AppendUint32(message, lo)
	for _, attribute := range []uint16{unix.IFA_LOCAL, unix.IFA_ADDRESS} {
		message = binary.NativeEndian.AppendUint16(message, 8)
		message = binary.NativeEndian.AppendUint16(message, attribute)
		message = append(message, address[:]...)
	}
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("adding a loopback address: %w", err)
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return fmt.Errorf("adding a loopback address: %w", err)
	}
	if n < 20 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("adding a loopback address: an unexpected answer")
	}
	if errno := -int32(binary.NativeEndian.Uint32(answer[16:])); errno != 0 {
		return fmt.Errorf("adding a loopback address: %w", unix.Errno(errno))
	}
	return nil
}
