"""A workload: a namespace that is plugged into the switch of one chassis as a virtual machine would be.

Its addresses are usable and its server listens when it has been plugged in. That OVN has bound its port is another
condition: the port may be made before or after.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address, ip_interface

from fairlead.lab import namespaces, processes, taps
from fairlead.lab.chassis import VSCTL_TIMEOUT_OPTION, execute
from fairlead.lab.errors import InvalidWorkload
from fairlead.lab.layout import INTEGRATION_BRIDGE, LabChassis, Layout, is_node_name, workload_device
from fairlead.lab.processes import LabCommand, run

GENEVE_MTU = 1442  # 1500 less IPv4 20, UDP 8, geneve 8 with OVN's option 8, inner Ethernet 14
WORKLOAD_DEVICE = "eth0"
SERVER_NAME = "answer"

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


class Link(StrEnum):
    """How a workload is plugged in: as a container, or as a virtual machine."""

    VETH = "veth"
    TAP = "tap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The record of a workload, as it is kept on disk; addresses are with their prefix length."""

    name: str
    chassis: str
    port_id: str
    mac: str
    addresses: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    mtu: int = GENEVE_MTU
    serve: tuple[int, ...] = ()
    link: Link = Link.VETH

    def __post_init__(self) -> None:
        """A record that exists can be plugged in: what is wrong with it is said here, before anything is made."""
        if complaint := next(_validation_errors(self), ""):
            raise InvalidWorkload(f"workload {self.name!r}: {complaint}")

    @property
    def interfaces(self) -> tuple[IPv4Interface | IPv6Interface, ...]:
        return tuple(ip_interface(address) for address in self.addresses)

    @property
    def routers(self) -> tuple[IPv4Address | IPv6Address, ...]:
        return tuple(ip_address(gateway) for gateway in self.gateways)


def _validation_errors(workload: Workload) -> Iterator[str]:
    yield from validation_errors(workload.name, workload.serve, is_node_name(workload.name))
    if not _MAC.fullmatch(workload.mac):
        yield f"{workload.mac!r} is not a MAC address, such as 02:00:00:00:00:11"
    try:
        _ = workload.interfaces, workload.routers
    except ValueError as error:
        yield str(error)


def validation_errors(name: str, ports: Sequence[int], is_taken: bool) -> Iterator[str]:
    """About what the machines of every lab have."""
    if not _NAME.fullmatch(name):
        yield "invalid name: expected at most 63 lower-case letters, digits and dashes"
    if is_taken:
        yield "the name is reserved for a node of the lab"
    if not all(0 < port < 65536 for port in ports):
        yield f"ports {tuple(ports)}: a port is out of range (1-65535)"


def plug(layout: Layout, node: LabChassis, workload: Workload) -> None:
    """Returns when the workload's server listens, if it has one."""
    namespace = layout.namespace(workload.name)
    namespaces.add(namespace)
    device = workload_device(workload.name)
    near = namespaces.LinkEnd(namespace=layout.namespace(node.name), device=device)
    far = namespaces.LinkEnd(namespace=namespace, device=WORKLOAD_DEVICE, address=workload.mac)
    if workload.link is Link.TAP:
        taps.create_tap_link(layout, workload.name, near, far, workload.mtu)
    else:
        namespaces.link(near, far, workload.mtu)
    namespaces.configure(namespace, _address_commands(workload))
    _add_port(layout, node, workload)
    start_server(layout, workload.name, workload.serve)


def _add_port(layout: Layout, node: LabChassis, workload: Workload) -> None:
    device, port = workload_device(workload.name), f'external_ids:iface-id="{workload.port_id}"'
    added = ("add-port", INTEGRATION_BRIDGE, device, "--", "set", "Interface", device, port)
    execute(layout, node, "ovs-vsctl", VSCTL_TIMEOUT_OPTION, *added)


def migrate(layout: Layout, old: LabChassis, new: LabChassis, workload: Workload) -> None:
    """Plug it in elsewhere as a live migration does: what runs in it goes on."""
    device = workload_device(workload.name)
    execute(layout, old, "ovs-vsctl", VSCTL_TIMEOUT_OPTION, "--no-wait", "del-port", INTEGRATION_BRIDGE, device)
    namespaces.move_device(layout.namespace(old.name), layout.namespace(new.name), device)
    _add_port(layout, new, workload)


def unplug(layout: Layout, node: LabChassis, workload: Workload) -> None:
    """Undoes whatever part of `plug` was done; the name can be plugged in again at once."""
    device = workload_device(workload.name)
    removed = ("--if-exists", "del-port", INTEGRATION_BRIDGE, device)
    execute(layout, node, "ovs-vsctl", VSCTL_TIMEOUT_OPTION, "--no-wait", *removed)
    taps.remove_tap_link(layout, workload.name)
    namespaces.remove_device(layout.namespace(node.name), device)
    remove(layout, workload.name)


def remove(layout: Layout, name: str) -> None:
    """Its namespace, if it is there, with all that runs in it."""
    namespace = layout.namespace(name)
    if namespace in namespaces.existing(namespace):
        processes.end(namespaces.processes([namespace]), lambda pid: pid in namespaces.processes([namespace]))
        namespaces.delete(namespace)


def _address_commands(workload: Workload) -> Iterator[str]:
    for interface in workload.interfaces:
        yield f"address add {interface} dev {WORKLOAD_DEVICE}"
    for router in workload.routers:
        yield f"route replace default via {router} dev {WORKLOAD_DEVICE} onlink"


def start_server(layout: Layout, name: str, serve: Sequence[int]) -> None:
    """The server of a machine that has ports to serve. Returns when it listens."""
    if not serve:
        return
    directory = layout.node_directory(name)
    directory.mkdir(parents=True, exist_ok=True)
    ports = [word for port in serve for word in ("--port", str(port))]
    files = ("--pidfile", str(directory / f"{SERVER_NAME}.pid"), "--log-file", str(directory / f"{SERVER_NAME}.log"))
    argv = (sys.executable, "-m", "fairlead.lab.echo_server", "--name", name, *ports, *files, "--detach")
    command = namespaces.inside(layout.namespace(name), argv)
    run(LabCommand(argv=command, environment=layout.environment(name)))
