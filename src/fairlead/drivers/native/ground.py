"""What our rows stand on: devices, rules of routing, a table of nftables. Made where it is missing, and removed whole.

What the host had is remembered in what is ours: the rule that took the place of its first one, and a device's alias.
So a host that was begun by one agent is left as it was by another.
"""

import os
import socket
from collections.abc import Callable, Mapping, Set
from functools import partial

from fairlead.drivers.interface import DriverError
from fairlead.drivers.native.connections import Staying, forget_asked, forget_translated
from fairlead.drivers.native.elements import Changes, read_elements
from fairlead.drivers.native.netlink import NETFILTER, ROUTE, Netlink, steadily
from fairlead.drivers.native.renewal import handle, remove, renew, said_about
from fairlead.drivers.native.routing import Device, Routing, read_sysctl, write_sysctl
from fairlead.drivers.native.ruleset import CLOSED, MOST_COUNTED, TUNNELS, Family, about, layout_of

OLDEST = 5, 18
"""The first Linux on which an address says who made it."""
_ACCEPT_LOCAL = "net/ipv4/conf/all/accept_local"
"""Whether this host takes answers that come from a VIP, which is its own address too, to clients behind it."""


class Ground:
    def __init__(self, table: str, link: Callable[[int], Netlink] = Netlink) -> None:
        """`link` makes a socket of a protocol (netlink(7)). Raises DriverError where the kernel is too old."""
        if tuple(int(each) for each in os.uname().release.split("-")[0].split(".")[:2]) < OLDEST:
            raise DriverError(
                f"Linux {OLDEST[0]}.{OLDEST[1]} is the oldest that will do, and here is {os.uname().release}"
            )
        self.table = table
        self.routing = Routing(link(ROUTE))
        self.netlink = link(NETFILTER)
        self._said = ""
        """By devices that somebody may have removed since: what the host had."""

    def close(self) -> None:
        self.routing.close()
        self.netlink.close()

    def install(self) -> None:
        """Raises DriverError, Interrupted, and OSError."""
        self._install_devices()
        if read_sysctl(_ACCEPT_LOCAL) != "1":
            write_sysctl(_ACCEPT_LOCAL, "1")
        self.routing.install_rules()
        renew(self.netlink, self.table)

    def _install_devices(self) -> None:
        devices = self.routing.devices()
        said = [each.alias for each in devices.values() if self._is_ours(each) and each.alias]
        self._said = (
            said[0] if said else self._said or f"{self.table}: {_ACCEPT_LOCAL} was {read_sysctl(_ACCEPT_LOCAL)}"
        )
        for name in TUNNELS:
            device = devices.get(name)
            if device is not None and not self._is_ours(device):
                raise DriverError(f"there is a device {name} that is somebody else's")
            if device is not None and device.is_half_made:
                self.routing.remove_device(name)
            if device is None or device.is_half_made:
                self.routing.add_device(name, self._said)
            elif not self.routing.is_finished(device):
                self.routing.finish_device(device.index, device.alias)

    def _is_ours(self, device: Device) -> bool:
        return device.is_half_made or device.alias.startswith(f"{self.table}: ")

    def stands(self) -> bool:
        """Whether all but our table is there as it was installed. Raises Unavailable, OSError."""
        devices = self.routing.devices()
        are_there = devices.keys() == set(TUNNELS) and read_sysctl(_ACCEPT_LOCAL) == "1"
        return are_there and all(map(self.routing.is_finished, devices.values())) and self.routing.stands()

    def can_be_read(self) -> bool:
        """Whether there is a table of which this release knows what its elements mean. Raises Interrupted, OSError."""
        said = said_about(self.netlink, self.table)
        return said is not None and layout_of(said) == layout_of(about())

    def handle(self) -> bytes:
        """Which table it is: one that was made anew has another. None at all: b""."""
        return handle(self.netlink, self.table)

    def transact(self, changes: Changes) -> None:
        """Raises OSError."""
        if changes:
            self.netlink.transact(changes.messages())

    def open_tunnels(self) -> None:
        """Take what other hosts lead here (`CLOSED`). Raises Interrupted, OSError."""
        changes = Changes(self.table)
        changes.remove(CLOSED, read_elements(self.netlink, self.table, CLOSED))
        self.transact(changes)

    def forget_asked(self, family: Family, ending: Mapping[bytes, Staying]) -> None:
        """Connections to these services that others were asked about, so that this host translates them if they are its
        own now. Where nobody was asked nothing is looked at. Raises DriverError, OSError."""
        noted = steadily(partial(read_elements, self.netlink, self.table, family.asked)).keys()
        due = ending if len(noted) >= MOST_COUNTED else {key: ending[key] for key in ending.keys() & noted}
        if not due:
            return
        kept = forget_asked(self.netlink, socket.AF_INET if family.version == 4 else socket.AF_INET6, due)
        changes = Changes(self.table)
        changes.remove(family.asked, (due.keys() & noted) - kept)
        self.transact(changes)

    def forget_translated(self, version: int, ending: Mapping[bytes, Set[tuple[bytes, int]]]) -> int:
        """Connections to these services that are translated here to one of these members. How many there were. Raises
        OSError."""
        return forget_translated(self.netlink, socket.AF_INET if version == 4 else socket.AF_INET6, ending)

    def remove(self) -> None:
        """All that is ours: the host is as it was. Raises Unavailable, OSError."""
        taken = list(self.routing.taken())
        self.routing.leave([*self.routing.held(), *taken])
        self.routing.release(taken)
        remove(self.netlink, self.table)
        self.routing.remove_rules()
        self.routing.remove_routes()
        devices = self.routing.devices()
        for name in reversed(TUNNELS):
            device = devices.get(name)
            if device is not None and self._is_ours(device):
                if device.alias:
                    write_sysctl(_ACCEPT_LOCAL, device.alias.rpartition(" ")[2])
                self.routing.remove_device(name)
