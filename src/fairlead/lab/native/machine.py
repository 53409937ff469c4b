"""A machine: a namespace behind a host, or outside, with addresses that are routed to it.

Each machine has a link of its own to its host and shares no network with others, so all of its traffic passes the host.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address

from fairlead.lab import namespaces
from fairlead.lab.errors import InvalidWorkload
from fairlead.lab.layout import Layout, workload_device
from fairlead.lab.namespaces import LinkEnd
from fairlead.lab.native.plan import LINK_GATEWAY, MTU, Site, is_node_name
from fairlead.lab.workload import WORKLOAD_DEVICE, remove, start_server, validation_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The record of a machine, as stored on disk. `chassis` is the host that it is behind, or `outside`."""

    name: str
    chassis: str
    addresses: tuple[str, ...]
    serve: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Validate the record; raises InvalidWorkload, so that nothing is created from an invalid one."""
        if complaint := next(_validation_errors(self), ""):
            raise InvalidWorkload(f"machine {self.name!r}: {complaint}")


def _validation_errors(machine: Machine) -> Iterator[str]:
    yield from validation_errors(machine.name, machine.serve, is_node_name(machine.name))
    if not machine.addresses:
        yield "an address is required; use --number or --address"
    try:
        _ = [ip_address(address) for address in machine.addresses]
    except ValueError as error:
        yield str(error)


def plug(layout: Layout, site: Site, machine: Machine) -> None:
    """Create the machine; returns when its server listens, if it has one."""
    namespace, host = layout.namespace(machine.name), layout.namespace(site.name)
    device = workload_device(machine.name)
    namespaces.add(namespace)
    namespaces.join(LinkEnd(namespace=host, device=device), LinkEnd(namespace=namespace, device=WORKLOAD_DEVICE), MTU)
    namespaces.configure(host, _host_end(site, machine, device))
    namespaces.configure(namespace, _machine_end(site, machine))
    start_server(layout, machine.name, machine.serve)


def unplug(layout: Layout, site: Site, machine: Machine) -> None:
    """Undo any part of `plug`, also on a host that was powered off."""
    host = layout.namespace(site.name)
    if host in namespaces.existing(host):
        namespaces.remove_device(host, workload_device(machine.name))
    remove(layout, machine.name)


def _host_end(site: Site, machine: Machine, device: str) -> Iterator[str]:
    yield f"link set {device} addrgenmode none up"
    yield f"address add {site.gateway}/32 dev {device}"
    yield f"address add {LINK_GATEWAY}/64 dev {device}"
    for address in machine.addresses:
        yield f"route add {address} dev {device}"


def _machine_end(site: Site, machine: Machine) -> Iterator[str]:
    yield f"link set {WORKLOAD_DEVICE} up"
    for address in machine.addresses:
        yield f"address add {address} dev {WORKLOAD_DEVICE}"
    for version in sorted({ip_address(address).version for address in machine.addresses}):
        router = site.gateway if version == 4 else LINK_GATEWAY
        yield f"route add default via {router} dev {WORKLOAD_DEVICE} onlink"
