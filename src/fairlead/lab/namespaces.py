"""Network namespaces and the links between them.

A link is created with both ends directly in their namespaces, so no device of the lab ever appears in the machine's own
namespace. Offloads are off at both ends of every link: Open vSwitch in user space forwards packets as the kernel
delivers them, so a packet whose checksum or segmentation was left to a nonexistent NIC would be lost silently.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.lab.processes import LabCommand, run

DIRECTORY = Path("/run/netns")
OFFLOADS = ("tx", "tso", "gso", "gro")
ADDRESS_AUTOCONFIGURATION = ("accept_dad", "accept_ra", "autoconf")
EPHEMERAL_PORTS = range(10_000, 20_000)
"""Ephemeral ports of clients that name none (ip(7), ip_local_port_range). The range is disjoint from named ports, so a
named port never belongs to a connection that has just ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEnd:
    """One end of a veth pair; `address` is its MAC, "" lets the kernel choose."""

    namespace: str
    device: str
    address: str = ""


def existing(prefix: str) -> tuple[str, ...]:
    if not DIRECTORY.is_dir():
        return ()
    return tuple(sorted(path.name for path in DIRECTORY.iterdir() if path.name.startswith(prefix)))


def add(name: str) -> None:
    """Create a namespace with only explicit IPv6 addresses, which are usable immediately."""
    run(LabCommand(argv=("ip", "netns", "add", name)))
    settings = [f"/proc/sys/net/ipv6/conf/{of}/{key}" for of in ("all", "default") for key in ADDRESS_AUTOCONFIGURATION]
    run(LabCommand(argv=inside(name, ("tee", *settings))), stdin="0")
    chosen = f"{EPHEMERAL_PORTS.start} {EPHEMERAL_PORTS.stop - 1}"
    run(LabCommand(argv=inside(name, ("tee", "/proc/sys/net/ipv4/ip_local_port_range"))), stdin=chosen)
    configure(name, ["link set lo up"])


def delete(name: str) -> None:
    """Delete a namespace; its devices go with it, after its last process has ended."""
    run(LabCommand(argv=("ip", "netns", "delete", name)))


def inside(name: str, argv: Sequence[str]) -> tuple[str, ...]:
    return ("ip", "netns", "exec", name, *argv)


def configure(name: str, lines: Iterable[str]) -> None:
    """Run lines of `ip` in the namespace, in one process."""
    run(LabCommand(argv=("ip", "-n", name, "-batch", "-")), stdin="\n".join(lines) + "\n")


def write_settings(name: str, settings: Mapping[str, str]) -> None:
    """Write settings below /proc/sys/net, in one process."""
    lines = "".join(f"echo {value} >/proc/sys/net/{setting}\n" for setting, value in settings.items())
    run(LabCommand(argv=inside(name, ("sh", "-e"))), stdin=lines)


def link(near: LinkEnd, far: LinkEnd, mtu: int) -> None:
    """Join two namespaces by a link that is up; `near` is the end for a switch, without an address of its own."""
    join(near, far, mtu)
    for end in (near, far):
        disable_offloads(end)
    _set_up(near.namespace, near.device)
    configure(far.namespace, [f"link set {far.device} up"])


def join(near: LinkEnd, far: LinkEnd, mtu: int) -> None:
    """Join two namespaces by a link that is down, with the kernel's default offloads."""
    run(LabCommand(argv=("ip", "link", "add", *_end(near, mtu), "type", "veth", "peer", *_end(far, mtu))))


def _set_up(namespace: str, device: str) -> None:
    """Set a device up as an end for a switch."""
    configure(namespace, [f"link set {device} addrgenmode none up"])


def _end(end: LinkEnd, mtu: int) -> tuple[str, ...]:
    address = ("address", end.address) if end.address else ()
    return ("name", end.device, "mtu", str(mtu), *address, "netns", end.namespace)


def remove_device(namespace: str, device: str) -> None:
    """Remove a device immediately, with its other end; with its namespace it would disappear at an unspecified time."""
    names = json.loads(run(LabCommand(argv=("ip", "-n", namespace, "-json", "link", "show"))))
    if device in (link["ifname"] for link in names):
        configure(namespace, [f"link delete {device}"])


def move_device(old: str, new: str, device: str) -> None:
    """Move a device to another namespace. The other end of its link stays, and loses its carrier for a moment."""
    configure(old, [f"link set {device} netns {new}"])
    _set_up(new, device)


def disable_offloads(end: LinkEnd) -> None:
    switches = [word for offload in OFFLOADS for word in (offload, "off")]
    run(LabCommand(argv=inside(end.namespace, ("ethtool", "-K", end.device, *switches))))


def processes(names: Iterable[str]) -> Iterator[int]:
    """Yield the processes of several namespaces, as `ip netns pids` does for one, in one pass over /proc."""
    wanted = {_namespace_id(DIRECTORY / name) for name in names} - {_namespace_id(Path("/proc/1/ns/net")), None}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and _namespace_id(Path(f"/proc/{entry}/ns/net")) in wanted:
            yield int(entry)


def _namespace_id(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return status.st_dev, status.st_ino
