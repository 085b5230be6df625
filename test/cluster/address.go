// Copyright The csi-transfer Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ReserveAddress returns a TCP address, as host:port on the loopback interface,
// for one server of the cluster to listen on. Until the cluster stops the port
// is given to nobody else, however often that server restarts.
func (c *Cluster) ReserveAddress() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return "", errStopped
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("reserving an address: %w", err)
	}
	c.cleanups = append(c.cleanups, func() { unix.Close(fd) })
	address, err := bind(fd)
	if err != nil {
		return "", fmt.Errorf("reserving an address: %w", err)
	}
	return address.String(), nil
}

// bind takes a free port without listening on it. With SO_REUSEADDR, which Go
// sets on what it listens on, Linux lets another socket have a port that is
// asked for by number and that nobody listens on; it gives no such port to
// those who ask for any.
func bind(fd int) (netip.AddrPort, error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return netip.AddrPort{}, err
	}
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: loopback.As4()}); err != nil {
		return netip.AddrPort{}, err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(loopback, uint16(name.(*unix.SockaddrInet4).Port)), nil
}
