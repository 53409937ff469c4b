"""Prerequisites of rows: devices, routing rules, an nftables table. Created where missing, and removed as a whole.

The host's original settings are recorded in managed objects: the rule that replaces its first one, and a device's
alias. So one agent can restore a host that another one has set up.
"""

import os
import socket
from collections.abc import Callable, Mapping, Set
from functools import partial

from fairlead.drivers.interface import DriverError
from fairlead.drivers.native.netlink import NETFILTER, ROUTE, Netlink, retry_interrupted
from fairlead.drivers.native.nftables.connections import RetainedSlots, flush_queried, flush_translated
from fairlead.drivers.native.nftables.elements import ElementChanges, read_elements
from fairlead.drivers.native.nftables.ruleset import CLOSED, MAX_COUNTED, TUNNELS, NftFamily, compute_digests, layout_of
from fairlead.drivers.native.routing import Device, Routing, read_sysctl, write_sysctl
from fairlead.drivers.native.table_upgrade import handle, read_description, remove, renew

MIN_KERNEL_VERSION = 5, 18
"""Oldest supported Linux version: the first in which addresses have a protocol attribute."""
_ACCEPT_LOCAL = "net/ipv4/conf/all/accept_local"
"""Sysctl: accept packets with a source address of this host, needed for replies from a VIP to clients behind it."""


class Prerequisites:
    def __init__(self, table: str, link: Callable[[int], Netlink] = Netlink) -> None:
        """`link` opens a netlink socket for a protocol (netlink(7)). Raises DriverError for an older kernel."""
        if tuple(int(each) for each in os.uname().release.split("-")[0].split(".")[:2]) < MIN_KERNEL_VERSION:
            raise DriverError(
                f"kernel {os.uname().release} is too old: Linux {MIN_KERNEL_VERSION[0]}.{MIN_KERNEL_VERSION[1]}"
                " or later is required"
            )
        self.table = table
        self.routing = Routing(link(ROUTE))
        self.netlink = link(NETFILTER)
        self._alias = ""
        """Original settings from the device's alias, kept because another program may remove the device."""

    def close(self) -> None:
        self.routing.close()
        self.netlink.close()

    def install(self) -> None:
        """Create missing parts. Raises DriverError, Interrupted and OSError."""
        self._install_devices()
        if read_sysctl(_ACCEPT_LOCAL) != "1":
            write_sysctl(_ACCEPT_LOCAL, "1")
        self.routing.install_rules()
        renew(self.netlink, self.table)

    def _install_devices(self) -> None:
        devices = self.routing.devices()
        said = [each.alias for each in devices.values() if self._is_managed(each) and each.alias]
        self._alias = (
            said[0] if said else self._alias or f"{self.table}: {_ACCEPT_LOCAL} was {read_sysctl(_ACCEPT_LOCAL)}"
        )
        for name in TUNNELS:
            device = devices.get(name)
            if device is not None and not self._is_managed(device):
                raise DriverError(f"network device {name} exists and does not belong to Fairlead: rename or delete it")
            if device is not None and device.is_incomplete:
                self.routing.remove_device(name)
            if device is None or device.is_incomplete:
                self.routing.add_device(name, self._alias)
            elif not self.routing.is_finished(device):
                self.routing.finish_device(device.index, device.alias)

    def _is_managed(self, device: Device) -> bool:
        return device.is_incomplete or device.alias.startswith(f"{self.table}: ")

    def is_complete(self) -> bool:
        """Whether everything except the table is in place. Raises Unavailable and OSError."""
        devices = self.routing.devices()
        are_there = devices.keys() == set(TUNNELS) and read_sysctl(_ACCEPT_LOCAL) == "1"
        return are_there and all(map(self.routing.is_finished, devices.values())) and self.routing.has_all_rules()

    def can_be_read(self) -> bool:
        """Whether the table exists with a layout of this release. Raises Interrupted and OSError."""
        said = read_description(self.netlink, self.table)
        return said is not None and layout_of(said) == layout_of(compute_digests())

    def handle(self) -> bytes:
        """Handle of the table, which changes when it is re-created; b"" without a table."""
        return handle(self.netlink, self.table)

    def transact(self, changes: ElementChanges) -> None:
        """Apply changes of elements. Raises OSError."""
        if changes:
            self.netlink.transact(changes.messages())

    def open_tunnels(self) -> None:
        """Accept traffic from other hosts' tunnels (`CLOSED`). Raises Interrupted and OSError."""
        changes = ElementChanges(self.table)
        changes.remove(CLOSED, read_elements(self.netlink, self.table, CLOSED))
        self.transact(changes)

    def flush_queried(self, family: NftFamily, ending: Mapping[bytes, RetainedSlots]) -> None:
        """Delete connections to these services that other hosts were queried about.

        This host translates their next packets if it owns their slots now. Skips the scan if no host was queried.
        Raises DriverError and OSError.
        """
        noted = retry_interrupted(partial(read_elements, self.netlink, self.table, family.queried)).keys()
        due = ending if len(noted) >= MAX_COUNTED else {key: ending[key] for key in ending.keys() & noted}
        if not due:
            return
        kept = flush_queried(self.netlink, socket.AF_INET if family.version == 4 else socket.AF_INET6, due)
        changes = ElementChanges(self.table)
        changes.remove(family.queried, (due.keys() & noted) - kept)
        self.transact(changes)

    def flush_translated(self, version: int, ending: Mapping[bytes, Set[tuple[bytes, int]]]) -> int:
        """Delete connections to these services that are translated here to one of these members.

        Returns their number. Raises OSError.
        """
        return flush_translated(self.netlink, socket.AF_INET if version == 4 else socket.AF_INET6, ending)

    def remove(self) -> None:
        """Remove everything and restore the host's settings. Raises Unavailable and OSError."""
        taken = list(self.routing.received_vips())
        self.routing.remove_vips([*self.routing.added_vips(), *taken])
        self.routing.stop_receiving(taken)
        remove(self.netlink, self.table)
        self.routing.remove_rules()
        self.routing.remove_routes()
        devices = self.routing.devices()
        for name in reversed(TUNNELS):
            device = devices.get(name)
            if device is not None and self._is_managed(device):
                if device.alias:
                    write_sysctl(_ACCEPT_LOCAL, device.alias.rpartition(" ")[2])
                self.routing.remove_device(name)
