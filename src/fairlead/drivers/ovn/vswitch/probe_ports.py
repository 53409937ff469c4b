"""Interfaces from which a node probes: one per network, and one more for delegated probing, in one network namespace,
each attached to a port of the switch.

Existing interfaces are read, different ones re-created, and unneeded ones removed, so a new agent process continues
with those of the previous one. Other interfaces are not touched: managed ones have `fairlead-probe` in `external_ids`.

Networks may have overlapping addresses. So the kernel uses only the given interface: no reverse path filter, no ARP for
addresses of other interfaces, and each interface has its own routes with a unique metric.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.drivers.ovn.vswitch.database import OvsTools
from fairlead.model.documents.addresses import IPAddress, parse_address
from fairlead.model.queries.probe_devices import ProbeDevice

MARK = "fairlead-probe"
NAMESPACES = Path("/run/netns")
"""Directory of named network namespaces (ip-netns(8))."""
SETTINGS: Mapping[str, str] = {
    **{
        f"net/ipv4/conf/{of}/{name}": value
        for of in ("all", "default")
        for name, value in (("rp_filter", "0"), ("accept_local", "1"), ("arp_ignore", "1"), ("arp_announce", "2"))
    },
    **{
        f"net/ipv6/conf/{of}/{name}": "0"
        for of in ("all", "default")
        for name in ("accept_ra", "autoconf", "accept_dad", "forwarding")
    },
    "net/ipv4/ip_forward": "0",
    "net/ipv4/ip_unprivileged_port_start": "0",
    "net/ipv4/ping_group_range": "0 2147483647",
}
"""sysctls of the namespace (ip-sysctl in the kernel's documentation)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExistingInterface:
    mac: str
    mtu: int
    addresses: frozenset[IPAddress]


class OvsProbePorts:
    def __init__(self, bridge: str, namespace: str, tools: OvsTools) -> None:
        """`namespace` is the network namespace (ip-netns(8)) of the interfaces; it is created if missing."""
        self._bridge = bridge
        self._namespace = namespace
        self._tools = tools

    async def apply(self, wanted: Collection[ProbeDevice]) -> frozenset[str]:
        """Create and remove interfaces as wanted, and return the names of created ones. Raises SwitchError."""
        if not wanted and not self._exists():
            return frozenset()
        await self._make_namespace()
        plugged, devices = await self._plugged(), await self._devices()
        there = frozenset(plugged.values()) | devices.keys()
        wrong = [each for each in wanted if not _is_right(each, plugged, devices)]
        made = frozenset(device_name(each.key) for each in wrong)
        gone = sorted((there - {device_name(each.key) for each in wanted}) | (there & made))
        if gone:
            await self._remove(gone, devices)
        if wrong:
            await self._make(wrong)
        return made

    async def installed(self) -> frozenset[str]:
        """Return the interfaces with flows installed by OVN (ovn-controller(8), `ovn-installed`).

        Only ordinary ports report it, and no localports. Raises SwitchError.
        """
        ports = await self._interfaces()
        return frozenset(name for name, ids in ports.items() if MARK in ids and ids.get("ovn-installed") == "true")

    def _exists(self) -> bool:
        return (NAMESPACES / self._namespace).exists()

    async def _make_namespace(self) -> None:
        if not self._exists():
            await self._tools.run("ip", "netns", "add", self._namespace)
        settings = (f"{key.replace('/', '.')}={value}" for key, value in SETTINGS.items())
        await self._run_in_namespace("sysctl", "-q", "-p", "-", said=_lines(settings))
        await self._run_in_namespace("ip", "link", "set", "lo", "up")

    async def _plugged(self) -> Mapping[str, str]:
        """Return device key -> switch port name."""
        return {ids[MARK]: name for name, ids in (await self._interfaces()).items() if MARK in ids}

    async def _interfaces(self) -> Mapping[str, Mapping[str, str]]:
        """Return interface name -> external_ids."""
        columns = "--columns=name,external_ids"
        found = json.loads(await self._tools.run("ovs-vsctl", "--no-wait", "-f", "json", columns, "list", "Interface"))
        return {name: dict(pairs) for name, (_, pairs) in found["data"]}

    async def _devices(self) -> Mapping[str, _ExistingInterface]:
        found = json.loads(await self._run_in_namespace("ip", "-json", "address", "show"))
        return {
            each["ifname"]: _ExistingInterface(
                mac=each["address"],
                mtu=each["mtu"],
                addresses=frozenset(parse_address(one["local"]) for one in each["addr_info"]),
            )
            for each in found
            if each["ifname"] != "lo"
        }

    async def _remove(self, names: Iterable[str], devices: Mapping[str, _ExistingInterface]) -> None:
        """Remove interfaces, returning after the switch has released them.

        If an interface is removed and re-created with the same name in one step, the switch may keep the old one, which
        no longer exists.
        """
        words = [word for name in names for word in ("--", "--if-exists", "del-port", self._bridge, name)]
        await self._tools.run("ovs-vsctl", *words)
        lines = (f"link delete {name}" for name in names if name in devices)
        await self._run_in_namespace("ip", "-batch", "-", said=_lines(lines))

    async def _make(self, wanted: Collection[ProbeDevice]) -> None:
        """Create interfaces. The switch's end is created in the switch's namespace, with the same name."""
        await self._tools.run_in_switch_namespace(
            self._bridge, "ip", "-batch", "-", said=_lines(_links(wanted, self._namespace))
        )
        await self._run_in_namespace("ip", "-batch", "-", said=_lines(_addressing(wanted)))
        words = [word for each in wanted for word in self._plugging(each)]
        await self._tools.run("ovs-vsctl", "--no-wait", *words)

    def _plugging(self, device: ProbeDevice) -> Iterator[str]:
        name = device_name(device.key)
        yield from ("--", "--may-exist", "add-port", self._bridge, name)
        ids = (f"external_ids:iface-id={device.port_name}", f"external_ids:{MARK}={device.key}")
        yield from ("--", "set", "Interface", name, *ids)

    async def _run_in_namespace(self, *words: str, said: str = "") -> str:
        """Run a command in the namespace, without `ip netns exec`, which mounts and needs more privileges."""
        return await self._tools.run("nsenter", f"--net={NAMESPACES}/{self._namespace}", *words, said=said)


def device_name(key: str) -> str:
    """Interface name, within the length limit (netdevice(7), IFNAMSIZ)."""
    return f"fl{hashlib.sha256(key.encode()).hexdigest()[:13]}"


def _metric(key: str) -> int:
    return 1 + int.from_bytes(hashlib.sha256(key.encode()).digest()[-4:], "big") % (2**31)


def _is_right(wanted: ProbeDevice, plugged: Mapping[str, str], devices: Mapping[str, _ExistingInterface]) -> bool:
    name = device_name(wanted.key)
    expected = _ExistingInterface(mac=wanted.mac, mtu=wanted.mtu, addresses=frozenset(wanted.addresses))
    return plugged.get(wanted.key) == name and devices.get(name) == expected


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def _links(wanted: Iterable[ProbeDevice], namespace: str) -> Iterator[str]:
    for each in wanted:
        name, mtu = device_name(each.key), each.mtu
        peer = f"peer name {name} mtu {mtu} address {each.mac} netns {namespace}"
        yield f"link add {name} mtu {mtu} type veth {peer}"
        yield f"link set {name} addrgenmode none up"


def _addressing(wanted: Iterable[ProbeDevice]) -> Iterator[str]:
    for each in wanted:
        name, metric = device_name(each.key), _metric(each.key)
        yield f"link set {name} addrgenmode none up"
        for address in each.addresses:
            prefix = f"{address}/64" if address.is_link_local else str(address)
            yield f"address add {prefix} dev {name}" + (" nodad" if address.version == 6 else "")
        for subnet in each.subnets:
            sources = [address for address in each.addresses if address.version == 4 and address in subnet]
            if subnet.version == 6:
                yield f"route add {subnet} dev {name} metric {metric}"
            elif sources:
                yield f"route append {subnet} dev {name} src {sources[0]} metric {metric}"
        for gateway in each.gateways:
            everything = "0.0.0.0/0" if gateway.version == 4 else "::/0"
            yield f"route append {everything} via {gateway} dev {name} metric {metric} onlink"
