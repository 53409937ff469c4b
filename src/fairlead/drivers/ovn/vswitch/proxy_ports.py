"""Network places of proxies: one network namespace per network, with one interface attached to a port of the switch.

Existing places are read, and differences are applied without replacing the interface, unless it belongs to another
port. An agent's namespaces have a common name prefix; others are not touched. A proxy sees only its network: no
interface of the node or of another network.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from fairlead.dataplane.haproxy import Process
from fairlead.drivers.interface import DriverError
from fairlead.drivers.ovn.vswitch.database import OvsTools, SwitchError
from fairlead.drivers.ovn.vswitch.offloads import disable_checksums_in

MARK = "fairlead-proxy"
SETTINGS = (
    *(f"net.ipv6.conf.{of}.{name}=0" for of in ("all", "default") for name in ("accept_ra", "autoconf", "accept_dad")),
    "net.ipv6.conf.all.forwarding=0",
    "net.ipv4.ip_forward=0",
    "net.ipv4.ip_local_port_range=32768 60999",
)
"""sysctls of the namespace (ip-sysctl in the kernel's documentation). Listeners use ports below the ephemeral ones."""


class ProxyNamespaces:
    """Places for the HAProxy driver (`drivers/haproxy/namespaces.py`)."""

    def __init__(self, bridge: str, prefix: str, tools: OvsTools) -> None:
        """`prefix` is the name prefix of the namespaces."""
        self._bridge = bridge
        self._prefix = prefix
        self._tools = tools

    async def make(self, process: Process) -> Sequence[str]:
        """Create or update a place, and return the command prefix that enters it. Raises DriverError."""
        try:
            namespace, name = self._namespace(process.network), device_name(process.network)
            if not _exists(namespace):
                await self._tools.run("ip", "netns", "add", namespace)
            device = await self._find_device(namespace, name, process)
            if device is None:
                await self._remove_device(name)
                await self._make_device(namespace, name, process)
            else:
                await self._change_device(namespace, name, device, process)
            return "nsenter", f"--net=/run/netns/{namespace}"
        except (SwitchError, OSError, ValueError, KeyError) as error:
            raise DriverError(f"proxy port of network {process.network}: {error}") from None

    async def remove(self, network_id: str) -> None:
        """Remove a place. Raises DriverError."""
        namespace = self._namespace(network_id)
        try:
            await self._remove_device(device_name(network_id))
            if _exists(namespace):
                await self._tools.run("ip", "netns", "delete", namespace)
        except SwitchError as error:
            raise DriverError(f"proxy port of network {network_id}: {error}") from None

    def _namespace(self, network_id: str) -> str:
        return f"{self._prefix}-{_digest(network_id)}"

    async def _find_device(self, namespace: str, name: str, process: Process) -> Mapping[str, Any] | None:
        """Return the interface as ip-address(8) prints it; None if it does not exist or belongs to another port."""
        columns = "--columns=external_ids"
        answer = await self._tools.run(
            "ovs-vsctl", "--no-wait", "-f", "json", columns, "find", "Interface", f"name={name}"
        )
        found = json.loads(answer)["data"]
        if not found or dict(found[0][0][1]) != {"iface-id": process.port, MARK: process.network}:
            return None
        devices = json.loads(await self._run_in_namespace(namespace, "ip", "-json", "address", "show"))
        return next((each for each in devices if (each["ifname"], each["address"]) == (name, process.mac)), None)

    async def _change_device(self, namespace: str, name: str, device: Mapping[str, Any], process: Process) -> None:
        """Update the interface. Connections continue, except those of removed addresses."""
        if device["mtu"] != process.mtu:
            words = ("ip", "link", "set", name, "mtu", str(process.mtu))
            await self._tools.run_in_switch_namespace(self._bridge, *words)
            # The peer is last: if the agent ends before it, the next one repeats both.
            await self._run_in_namespace(namespace, *words)
        addresses = {f"{one['local']}/{one['prefixlen']}" for one in device["addr_info"]}
        lines = "".join(f"{each}\n" for each in _changes(name, addresses, await self._read_routes(namespace), process))
        if lines:
            await self._run_in_namespace(namespace, "ip", "-batch", "-", said=lines)

    async def _read_routes(self, namespace: str) -> Set[tuple[str, str]]:
        """Return the routes as (destination, next hop)."""
        found = set[tuple[str, str]]()
        for version, everything in (("-4", "0.0.0.0/0"), ("-6", "::/0")):
            routes = json.loads(await self._run_in_namespace(namespace, "ip", version, "-json", "route", "show"))
            ways = ((route["dst"], route["gateway"]) for route in routes if "gateway" in route)
            found |= {(everything if to == "default" else str(ip_network(to)), by) for to, by in ways}
        return found

    async def _make_device(self, namespace: str, name: str, process: Process) -> None:
        """Create the interface. The switch's end is created in the switch's namespace, with the same name."""
        mtu, mac = process.mtu, process.mac
        settings = "".join(f"{each}\n" for each in SETTINGS)
        await self._run_in_namespace(namespace, "sysctl", "-q", "-p", "-", said=settings)
        peer = f"peer name {name} mtu {mtu} address {mac} netns {namespace}"
        links = f"link add {name} mtu {mtu} type veth {peer}\nlink set {name} addrgenmode none up\n"
        await self._tools.run_in_switch_namespace(self._bridge, "ip", "-batch", "-", said=links)
        await asyncio.to_thread(disable_checksums_in, Path(f"/run/netns/{namespace}"), name)
        await self._run_in_namespace(
            namespace, "ip", "-batch", "-", said="".join(f"{each}\n" for each in _plug_arguments(name, process))
        )
        ids = (f"external_ids:iface-id={process.port}", f"external_ids:{MARK}={process.network}")
        added = ("--", "--may-exist", "add-port", self._bridge, name, "--", "set", "Interface", name, *ids)
        await self._tools.run("ovs-vsctl", "--no-wait", *added)

    async def _remove_device(self, name: str) -> None:
        await self._tools.run("ovs-vsctl", "--no-wait", "--if-exists", "del-port", self._bridge, name)
        devices = json.loads(await self._tools.run_in_switch_namespace(self._bridge, "ip", "-json", "link", "show"))
        if any(each["ifname"] == name for each in devices):
            await self._tools.run_in_switch_namespace(self._bridge, "ip", "link", "delete", name)

    async def _run_in_namespace(self, namespace: str, *words: str, said: str = "") -> str:
        return await self._tools.run("nsenter", f"--net=/run/netns/{namespace}", *words, said=said)


def _exists(namespace: str) -> bool:
    return Path(f"/run/netns/{namespace}").exists()


def _digest(network_id: str) -> str:
    return hashlib.sha256(network_id.encode()).hexdigest()[:12]


def device_name(network_id: str) -> str:
    """Interface name, within the length limit (netdevice(7), IFNAMSIZ)."""
    return f"fp{_digest(network_id)}"


def _changes(name: str, addresses: Set[str], ways: Set[tuple[str, str]], process: Process) -> Iterator[str]:
    """Yield the changes of addresses and routes. All wanted ones are set again, because the kernel removes others of a
    subnet with an address, and all routes with the last one."""
    wanted = {route.destination: route.nexthop for route in process.routes}
    if (addresses, ways) == (set(process.addresses), set(wanted.items())):
        return
    for to, by in sorted(ways):
        if to not in wanted:
            yield f"route delete {to} via {by} dev {name}"
    for address in sorted(addresses - {*process.addresses}):
        yield f"address delete {address} dev {name}"
    for address in process.addresses:
        yield f"address replace {address} dev {name}" + _nodad_option(address)
    for route in process.routes:
        yield f"route replace {route.destination} via {route.nexthop} dev {name}"


def _nodad_option(address: str) -> str:
    """Return the option that skips duplicate address detection."""
    return " nodad" if ":" in address else ""


def _plug_arguments(name: str, process: Process) -> Iterator[str]:
    yield "link set lo up"
    yield f"link set {name} addrgenmode none up"
    for address in process.addresses:
        yield f"address add {address} dev {name}" + _nodad_option(address)
    for route in process.routes:
        yield f"route add {route.destination} via {route.nexthop} dev {name}"
