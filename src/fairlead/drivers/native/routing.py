"""Routing rules, routes, addresses and devices (rtnetlink(7)).

Managed routes and addresses have a routing protocol number of their own. Managed rules have the kernel's, because
systemd-networkd deletes all others when it starts, and without the rule for local addresses the host would be
unreachable. They are identified by their preferences.

A packet with the mark of another host is routed by a table of its own: a route through one of three devices that puts
it into a tunnel (VXLAN with the generic protocol extension, which carries plain IP of both versions: no MAC addresses,
and one device for all hosts).
"""

import errno
import os
import socket
import struct
from collections.abc import Container, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

from fairlead.dataplane.native import TUNNEL_PORTS
from fairlead.drivers.native.netlink import (
    CREATE,
    EXCLUSIVE,
    REPLACE,
    Message,
    Netlink,
    attribute,
    attributes,
    nested,
    text,
    u8,
    u16,
    u32,
)
from fairlead.drivers.native.nftables.ruleset import (
    BACK_MARK,
    FORWARDED_MASK,
    MARK_BITS,
    OWNER_MARK,
    SECOND_MARK,
    TUNNELS,
)
from fairlead.model.documents.addresses import IPAddress

MANAGED_PROTOCOL = 250
"""Protocol number of managed routes and addresses (rtnetlink(7), rtm_protocol), which no other program uses."""
PORTS = TUNNEL_PORTS
MTU = 1464
"""MTU in bytes of tunnels over IPv4 on a fabric with 1500: 20 bytes IP, 8 UDP and 8 VXLAN."""
MTU_OVER_6 = MTU - 20
_TABLES = 0xFA1E0000
"""Base of routing table numbers: base plus mark; the base itself is the table of the host's own packets to VIPs."""
_ANYWHERE: dict[int, IPAddress] = {socket.AF_INET: ip_address("192.0.2.1"), socket.AF_INET6: ip_address("2001:db8::1")}
"""Documentation addresses (RFC 5737, RFC 3849), to query the default route."""
_DUMMY = ip_address("192.0.0.8")
"""IPv4 dummy address (RFC 7600), because a device without any address drops packets (rp_filter)."""
_NEWLINK, _DELLINK, _GETLINK = 16, 17, 18
_NEWADDR, _DELADDR, _GETADDR = 20, 21, 22
_NEWROUTE, _DELROUTE, _GETROUTE = 24, 25, 26
_NEWRULE, _DELRULE, _GETRULE = 32, 33, 34
_UP = 1
_NOT_YET = 0x40 | 0x08
"""IFA_F_TENTATIVE and IFA_F_DADFAILED (linux/if_addr.h)."""
_LOCAL, _KERNEL, _HOST_SCOPE, _LINK_SCOPE, _NOWHERE, _UNICAST, _LOCAL_ROUTE = 255, 2, 254, 253, 255, 1, 2
_UDP = 17
_LOOPBACK = 1
_IFNAME, _MTU, _LINKINFO, _ALIAS = 3, 4, 18, 20
_TO_TABLE, _GOTO, _NOP = 1, 2, 3
_ROUTE = struct.Struct("=BBBBBBBBI")
_ADDRESS = struct.Struct("=BBBBI")
_LINK = struct.Struct("=BxHiII")
FIRST_PREFERENCE, OWN_PREFERENCE, MARKED_ONLY_PREFERENCE, HOSTS_PREFERENCE, LAST_PREFERENCE = 1, 2, 3, 4, 5
"""Preferences of managed rules. Tunnel packets, and packets without a managed mark, continue at the last one. The
host's own packets to a VIP that it holds get an address of the host as source, not the VIP."""


@dataclass(frozen=True, slots=True)
class RoutingRule:
    family: int
    preference: int
    action: int = _TO_TABLE
    table: int = 0
    mark: int | None = None
    mask: int = 0
    protocol: int = _KERNEL

    @property
    def is_managed(self) -> bool:
        """Whether the rule is managed, by preference and action; in older releases by protocol number."""
        if self.preference == LAST_PREFERENCE:
            is_such = self.action == _NOP or self.table == _LOCAL
        elif self.preference in (FIRST_PREFERENCE, MARKED_ONLY_PREFERENCE):
            is_such = self.action == _GOTO
        else:
            is_such = self.preference in (OWN_PREFERENCE, HOSTS_PREFERENCE) and self.table & 0xFFFF0000 == _TABLES
        return self.protocol == MANAGED_PROTOCOL or (self.protocol == _KERNEL and is_such)

    @property
    def renewed(self) -> "RoutingRule":
        """The rule as this release creates it."""
        mask = 0 if self.mark is None else MARK_BITS if self.mark else FORWARDED_MASK
        return replace(self, protocol=_KERNEL, mask=mask)

    @property
    def body(self) -> bytes:
        small = self.table if self.table < 256 else 0
        values = [
            _ROUTE.pack(self.family, 0, 0, 0, small, 0, 0, self.action, 0),
            u32(6, self.preference),
            u8(21, self.protocol),
        ]
        if self.action == _TO_TABLE:
            values.append(u32(15, self.table))
        if self.action == _GOTO:
            values.append(u32(4, LAST_PREFERENCE))
        if self.preference in (FIRST_PREFERENCE, OWN_PREFERENCE):
            values.append(text(3, "lo"))
        if self.preference == FIRST_PREFERENCE:
            values += [u8(22, _UDP), attribute(24, struct.pack("=HH", min(PORTS), max(PORTS)))]
        if self.mark is not None:
            values += [u32(10, self.mark), u32(16, self.mask)]
        return b"".join(values)


@dataclass(frozen=True, slots=True)
class Device:
    index: int
    alias: str
    is_up: bool
    is_tunnel: bool
    """Whether it is a tunnel with the managed port."""

    @property
    def is_incomplete(self) -> bool:
        """Whether its creation was interrupted."""
        return self.is_tunnel and not self.alias and not self.is_up


class Routing:
    def __init__(self, netlink: Netlink) -> None:
        """`netlink` is a routing socket, closed together with this object."""
        self._netlink = netlink
        self.families: list[int] = [socket.AF_INET]
        if Path("/proc/sys/net/ipv6").exists():
            self.families.append(socket.AF_INET6)

    @property
    def port(self) -> int:
        """Port id, which identifies own changes in notifications."""
        return self._netlink.port

    def close(self) -> None:
        self._netlink.close()

    # Rules

    def install_rules(self) -> None:
        """Install the rules: managed ones first, then the rule for local addresses, which was first before."""
        for family in self.families:
            self._renew_rules(family)
            had = set(self.rules(family))
            local = [each for each in had if each.preference == 0 and each.table == _LOCAL]
            last = self._last(family, had)
            self._add_rule(last)
            for each in had:
                if each.preference == LAST_PREFERENCE and each.is_managed and each != last:
                    self._delete_rule(each)
            for each in sorted(self._expected_rules(family) - had, key=lambda each: each.preference):
                self._add_rule(each)
            for each in local:
                self._delete_rule(each)

    def _renew_rules(self, family: int) -> None:
        """Replace rules of an older release. Of two rules with one preference the first matching one applies."""
        had = set(self.rules(family))
        for each in had:
            if each.is_managed and each.renewed != each:
                if each.renewed not in had:
                    self._netlink.request(Message(_NEWRULE, each.renewed.body, CREATE))
                self._delete_rule(each)

    def has_all_rules(self) -> bool:
        """Whether all rules are in place, with local addresses not first. Raises Unavailable and OSError."""
        return all(self._has_rules(family, set(self.rules(family))) for family in self.families)

    def _has_rules(self, family: int, had: Set[RoutingRule]) -> bool:
        is_first = any(each.preference == 0 and each.table == _LOCAL for each in had)
        return not is_first and had >= {self._last(family, had), *self._expected_rules(family)}

    def _last(self, family: int, had: Set[RoutingRule]) -> RoutingRule:
        """Return the last rule: that of local addresses, unless it exists at another than the kernel's default
        preference.

        Without any rule for local addresses no packet reaches the host: a program that deleted all rules has deleted
        the managed ones too.
        """
        elsewhere = [each for each in had if each.table == _LOCAL and each.preference not in (0, LAST_PREFERENCE)]
        is_first = any(each.table == _LOCAL and each.preference == 0 for each in had)
        return (
            RoutingRule(family, LAST_PREFERENCE, _NOP)
            if elsewhere and not is_first
            else RoutingRule(family, LAST_PREFERENCE, table=_LOCAL)
        )

    def _expected_rules(self, family: int) -> Set[RoutingRule]:
        goto = (
            RoutingRule(family, FIRST_PREFERENCE, _GOTO),
            RoutingRule(family, MARKED_ONLY_PREFERENCE, _GOTO, mark=0, mask=FORWARDED_MASK),
        )
        return {*goto, RoutingRule(family, OWN_PREFERENCE, table=_TABLES, mark=0, mask=FORWARDED_MASK)}

    def remove_rules(self) -> None:
        for family in self.families:
            ours = sorted((each for each in self.rules(family) if each.is_managed), key=lambda each: each.preference)
            if any(each.preference == LAST_PREFERENCE and each.table == _LOCAL for each in ours):
                self._add_rule(RoutingRule(family, 0, table=_LOCAL, protocol=_KERNEL))
            for each in ours:
                self._delete_rule(each)

    def rules(self, family: int) -> Iterator[RoutingRule]:
        for _, body in self._netlink.read(Message(_GETRULE, _ROUTE.pack(family, *[0] * 8))):
            _, _, _, _, small, _, _, action, _ = _ROUTE.unpack_from(body)
            found = attributes(body[12:])
            yield RoutingRule(
                family,
                _number(found.get(6, b"")),
                action,
                table=_number(found.get(15, bytes((small,)))) if action == _TO_TABLE else 0,
                mark=_number(found[10]) if 10 in found else 0 if 16 in found else None,
                mask=_number(found.get(16, b"")),
                protocol=_number(found.get(21, b"")),
            )

    def _add_rule(self, rule: RoutingRule) -> None:
        with _ignore_errors(errno.EEXIST):
            self._netlink.request(Message(_NEWRULE, rule.body, CREATE | EXCLUSIVE))

    def _delete_rule(self, rule: RoutingRule) -> None:
        with _ignore_errors(errno.ENOENT):
            self._netlink.request(Message(_DELRULE, rule.body))

    # Routes to other hosts

    def add_tunnel(self, host: int, address: IPAddress) -> None:
        for family in self.families:
            for device, mark in _marks(host):
                self._netlink.request(Message(_NEWROUTE, self._route(family, device, mark, address), CREATE | REPLACE))
                self._add_rule(_tunnel_rule(family, mark))

    def remove_tunnel(self, host: int) -> None:
        for family in self.families:
            for _, mark in _marks(host):
                self._delete_rule(_tunnel_rule(family, mark))
                self._delete_route(family, _TABLES + mark)

    def tunnels(self) -> dict[int, IPAddress | None]:
        """Return host -> its address, for hosts with a rule or route; None if they are incomplete."""
        whole = {(family, mark) for family in self.families for mark in (OWNER_MARK, SECOND_MARK, BACK_MARK)}
        ruled: dict[int, set[tuple[int, int]]] = {}
        for family in self.families:
            for each in self.rules(family):
                if each.is_managed and each.preference == HOSTS_PREFERENCE and each.mark is not None:
                    ruled.setdefault(each.mark & 0xFFF, set()).add((family, each.mark & 0xF000))
        led: dict[int, dict[tuple[int, int], IPAddress]] = {}
        for family, mark, address in self._routes():
            led.setdefault(mark & 0xFFF, {})[family, mark & 0xF000] = address
        found: dict[int, IPAddress | None] = {}
        for host in ruled.keys() | led.keys():
            its = led.get(host, {})
            is_whole = ruled.get(host) == whole == its.keys() and len(set(its.values())) == 1
            found[host] = next(iter(its.values())) if is_whole else None
        return found

    def _route(self, family: int, device: str, mark: int, to: IPAddress) -> bytes:
        encapsulation, mtu = (2, MTU) if to.version == 4 else (4, MTU_OVER_6)
        flags = [] if to.version == 4 else [u16(6, 1)]  # with UDP checksum: the other side drops packets without one
        return b"".join(
            [
                _ROUTE.pack(
                    family, 0, 0, 0, 0, MANAGED_PROTOCOL, _LINK_SCOPE if family == socket.AF_INET else 0, _UNICAST, 0
                ),
                u32(15, _TABLES + mark),
                u32(4, socket.if_nametoindex(device)),
                nested(8, u32(2, mtu)),
                attribute(21, struct.pack("=H", encapsulation)),
                nested(22, attribute(1, struct.pack(">Q", 1)), attribute(2, to.packed), u8(4, 64), *flags),
            ]
        )

    def _routes(self) -> Iterator[tuple[int, int, IPAddress]]:
        """Yield (family, mark, destination)."""
        for family in self.families:
            asked = _ROUTE.pack(family, 0, 0, 0, 0, MANAGED_PROTOCOL, 0, 0, 0)
            for _, body in self._netlink.read(Message(_GETROUTE, asked)):
                if body[5] != MANAGED_PROTOCOL or body[7] == _LOCAL_ROUTE:
                    continue
                found = attributes(body[12:])
                if 22 in found:
                    to = ip_address(attributes(found[22])[2])
                    yield family, _number(found[15]) - _TABLES, to

    def _delete_route(self, family: int, table: int) -> None:
        body = _ROUTE.pack(family, 0, 0, 0, 0, MANAGED_PROTOCOL, _NOWHERE if family == socket.AF_INET else 0, 0, 0)
        with _ignore_errors(errno.ESRCH):
            self._netlink.request(Message(_DELROUTE, body + u32(15, table)))

    def remove_routes(self) -> None:
        for family, mark, _ in list(self._routes()):
            self._delete_route(family, _TABLES + mark)

    # Addresses that this host holds

    def added_vips(self) -> Iterator[IPAddress]:
        for family in self.families:
            for _, body in self._netlink.read(Message(_GETADDR, _ADDRESS.pack(family, 0, 0, 0, _LOOPBACK))):
                _, bits, _, _, index = _ADDRESS.unpack_from(body)
                found = attributes(body[8:])
                if index == _LOOPBACK and _number(found.get(11, b"")) == MANAGED_PROTOCOL and bits in (32, 128):
                    yield ip_address(found.get(2) or found[1])

    def add_vips(self, addresses: Sequence[IPAddress], vips: Container[IPAddress]) -> list[IPAddress]:
        """Add addresses, and return those that the host itself already has. `vips` are all VIPs, held or not."""
        wanted = [Message(_NEWADDR, _address(each, _LOOPBACK), CREATE | EXCLUSIVE) for each in addresses]
        there = self._request_all(wanted, addresses, errno.EEXIST)
        refused = there - set(self.added_vips()) if there else set()
        self.route_own([each for each in addresses if each not in refused], vips)
        return [each for each in addresses if each in refused]

    def route_own(self, held: Sequence[IPAddress], vips: Container[IPAddress]) -> None:
        """Route the host's own packets to VIPs that it holds, with a source address of its own, if it has one."""
        sources = {version: self._source(version, vips) for version in {each.version for each in held}}
        wanted = [(each, source) for each in held if (source := sources[each.version]) is not None]
        bodies = [
            self._own_route(vip, _HOST_SCOPE) + u32(4, _LOOPBACK) + attribute(7, its.packed) for vip, its in wanted
        ]
        self._request_all([Message(_NEWROUTE, body, CREATE | REPLACE) for body in bodies], [vip for vip, _ in wanted])

    def update_own_routes(self, held: Sequence[IPAddress], vips: Container[IPAddress]) -> None:
        """Update the routes that differ."""
        self.route_own(self.missing_own_routes(held, vips), vips)

    def missing_own_routes(self, held: Sequence[IPAddress], vips: Container[IPAddress]) -> list[IPAddress]:
        """Return the addresses with a missing or outdated route. Raises Unavailable and OSError."""
        known = dict(self._own_routes())
        sources = {version: self._source(version, vips) for version in {each.version for each in held}}
        return [each for each in held if known.get(each) != sources[each.version]]

    def _source(self, version: int, vips: Container[IPAddress]) -> IPAddress | None:
        """Return the source address of the default route, or any address of the host; None if it has only VIPs."""
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        anywhere = _ANYWHERE[family]
        asked = _ROUTE.pack(family, anywhere.max_prefixlen, 0, 0, 0, 0, 0, 0, 0) + attribute(1, anywhere.packed)
        with _ignore_errors(errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES):
            source = attributes(self._netlink.find(Message(_GETROUTE, asked))[12:]).get(7)
            if source is not None and (found := ip_address(source)) not in vips:
                return found
        return next((each for each in self._addresses(family) if each not in vips), None)

    def _addresses(self, family: int) -> Iterator[IPAddress]:
        """Yield the global addresses of the host, loopback first, because those do not depend on a link. Addresses in
        duplicate address detection (RFC 4862, 5.4) are left out."""
        found = list[tuple[bool, int, IPAddress]]()
        for _, body in self._netlink.read(Message(_GETADDR, _ADDRESS.pack(family, 0, 0, 0, 0))):
            _, _, flags, scope, index = _ADDRESS.unpack_from(body)
            its = attributes(body[8:])
            if scope == 0 and not flags & _NOT_YET and _number(its.get(11, b"")) != MANAGED_PROTOCOL:
                found.append((index != _LOOPBACK, index, ip_address(its.get(2) or its[1])))
        return (address for *_, address in sorted(found, key=lambda each: each[:2]))

    def _own_routes(self) -> Iterator[tuple[IPAddress, IPAddress]]:
        """Yield each VIP and the source address for it."""
        for family in self.families:
            asked = _ROUTE.pack(family, 0, 0, 0, 0, MANAGED_PROTOCOL, 0, _LOCAL_ROUTE, 0) + u32(15, _TABLES)
            with _ignore_errors(errno.ENOENT):
                for _, body in self._netlink.read(Message(_GETROUTE, asked)):
                    found = attributes(body[12:])
                    if body[5] == MANAGED_PROTOCOL and body[7] == _LOCAL_ROUTE and 1 in found and 7 in found:
                        yield ip_address(found[1]), ip_address(found[7])

    def _own_route(self, vip: IPAddress, scope: int) -> bytes:
        family, bits = _family(vip)
        head = _ROUTE.pack(family, bits, 0, 0, 0, MANAGED_PROTOCOL, scope if vip.version == 4 else 0, _LOCAL_ROUTE, 0)
        return head + u32(15, _TABLES) + attribute(1, vip.packed)

    def remove_vips(self, addresses: Sequence[IPAddress]) -> None:
        routes = [Message(_DELROUTE, self._own_route(each, _NOWHERE)) for each in addresses]
        self._request_all(routes, addresses, errno.ESRCH)
        self._request_all(
            [Message(_DELADDR, _address(each, _LOOPBACK)) for each in addresses], addresses, errno.EADDRNOTAVAIL
        )

    def _request_all(self, messages: Sequence[Message], addresses: Iterable[IPAddress], *is_so: int) -> set[IPAddress]:
        """Send one message per address. Returns the addresses with one of these errors: they are done already."""
        found = set()
        for address, number in zip(addresses, self._netlink.request_all(messages), strict=True):
            if number in is_so:
                found.add(address)
            elif number:
                raise OSError(number, os.strerror(number))
        return found

    # Addresses that the host receives without having them

    def received_vips(self) -> Iterator[IPAddress]:
        for family in self.families:
            asked = _ROUTE.pack(family, 0, 0, 0, 0, MANAGED_PROTOCOL, 0, 0, 0)
            for _, body in self._netlink.read(Message(_GETROUTE, asked)):
                found = attributes(body[12:])
                if (body[4], body[5], body[7]) == (_LOCAL, MANAGED_PROTOCOL, _LOCAL_ROUTE) and 1 in found:
                    yield ip_address(found[1])

    def receive(self, addresses: Sequence[IPAddress]) -> None:
        bodies = [self._receive_route(each, _HOST_SCOPE) + u32(4, _LOOPBACK) for each in addresses]
        self._request_all([Message(_NEWROUTE, body, CREATE | REPLACE) for body in bodies], addresses)

    def stop_receiving(self, addresses: Sequence[IPAddress]) -> None:
        self._request_all(
            [Message(_DELROUTE, self._receive_route(each, _NOWHERE)) for each in addresses], addresses, errno.ESRCH
        )

    def _receive_route(self, vip: IPAddress, scope: int) -> bytes:
        """Local route in the table for source checks, beside the kernel's own route of an address on `lo`."""
        family, bits = _family(vip)
        head = _ROUTE.pack(
            family, bits, 0, 0, _LOCAL, MANAGED_PROTOCOL, scope if vip.version == 4 else 0, _LOCAL_ROUTE, 0
        )
        return head + u32(6, MANAGED_PROTOCOL) + attribute(1, vip.packed)

    # Devices

    def devices(self) -> dict[str, Device]:
        """Return the devices with managed names."""
        found = {}
        for _, body in self._netlink.read(Message(_GETLINK, _LINK.pack(0, 0, 0, 0, 0))):
            its = attributes(body[_LINK.size :])
            name = its.get(_IFNAME, b"").rstrip(b"\0").decode()
            if name in TUNNELS:
                _, _, index, flags, _ = _LINK.unpack_from(body)
                alias = its.get(_ALIAS, b"").rstrip(b"\0").decode()
                is_tunnel = _tunnel(name) in its.get(_LINKINFO, b"")
                found[name] = Device(index, alias, bool(flags & _UP), is_tunnel)
        return found

    def add_device(self, name: str, alias: str) -> None:
        """Create a device. The kernel accepts no alias at creation, so it is unfinished in between."""
        data = nested(2, _tunnel(name), u8(7, 0), u8(25, 1), attribute(27, b""))
        body = _LINK.pack(0, 0, 0, 0, 0) + text(_IFNAME, name) + u32(_MTU, MTU)
        body += nested(_LINKINFO, text(1, "vxlan"), data)
        self._netlink.request(Message(_NEWLINK, body, CREATE | EXCLUSIVE))
        index = socket.if_nametoindex(name)
        write_sysctl(f"net/ipv4/conf/{name}/rp_filter", "0")
        write_sysctl(f"net/ipv6/conf/{name}/addr_gen_mode", "1")
        self.finish_device(index, alias)

    def finish_device(self, index: int, alias: str) -> None:
        self._netlink.request(Message(_NEWADDR, _address(_DUMMY, index, _HOST_SCOPE), CREATE | REPLACE))
        alias_and_up = _LINK.pack(0, 0, index, _UP, _UP) + attribute(_ALIAS, alias.encode())
        self._netlink.request(Message(_NEWLINK, alias_and_up))

    def is_finished(self, device: Device) -> bool:
        """Whether the device is up with its address. Raises Unavailable and OSError."""
        asked = Message(_GETADDR, _ADDRESS.pack(socket.AF_INET, 0, 0, 0, device.index))
        has = any(attributes(body[8:]).get(2) == _DUMMY.packed for _, body in self._netlink.read(asked))
        return device.is_up and has

    def remove_device(self, name: str) -> None:
        with _ignore_errors(errno.ENODEV):
            self._netlink.request(Message(_DELLINK, _LINK.pack(0, 0, 0, 0, 0) + text(_IFNAME, name)))


def read_sysctl(name: str) -> str:
    return Path("/proc/sys", name).read_text().strip()


def write_sysctl(name: str, value: str) -> None:
    """Write a sysctl; ignored if it does not exist, because a host may have no IPv6."""
    with _ignore_errors(errno.ENOENT):
        Path("/proc/sys", name).write_text(value)


def _tunnel(name: str) -> bytes:
    """The port attribute, which identifies a managed device."""
    return u16(15, PORTS[TUNNELS.index(name)])


def _marks(host: int) -> Iterable[tuple[str, int]]:
    return zip(TUNNELS, (OWNER_MARK + host, SECOND_MARK + host, BACK_MARK + host), strict=True)


def _tunnel_rule(family: int, mark: int) -> RoutingRule:
    return RoutingRule(family, HOSTS_PREFERENCE, table=_TABLES + mark, mark=mark, mask=MARK_BITS)


def _address(address: IPAddress, index: int, scope: int = 0) -> bytes:
    family, bits = _family(address)
    head = _ADDRESS.pack(family, bits, 0, scope, index)
    return head + attribute(2, address.packed) + attribute(1, address.packed) + u8(11, MANAGED_PROTOCOL)


def _family(address: IPAddress) -> tuple[int, int]:
    """Return the family and the address length in bits."""
    return (socket.AF_INET, 32) if address.version == 4 else (socket.AF_INET6, 128)


def _number(value: bytes) -> int:
    return int.from_bytes(value, "little")


@contextmanager
def _ignore_errors(*numbers: int) -> Iterator[None]:
    """Ignore errors that mean the desired state already holds."""
    try:
        yield
    except OSError as error:
        if error.errno not in numbers:
            raise
