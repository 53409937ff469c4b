"""A compute node: a switch with its database and ovn-controller, in a namespace, on the fabric that joins all nodes.

Where the kernel has no Open vSwitch, the switch forwards in user space. Tunnels then end on a second bridge that owns
the tunnel address, and the switch itself must know the MAC of each peer: it is told at start, because it drops the
packet for which it has to ask.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from fairlead.lab import namespaces
from fairlead.lab.central import detach_options
from fairlead.lab.errors import LabCommandFailed
from fairlead.lab.layout import (
    EXTERNAL_BRIDGE,
    FABRIC,
    INTEGRATION_BRIDGE,
    OUTSIDE,
    OUTSIDE_ADDRESSES,
    PHYSICAL_NETWORK,
    UNDERLAY_BRIDGE,
    UNDERLAY_MTU,
    LabChassis,
    Layout,
)
from fairlead.lab.processes import LabCommand, run
from fairlead.lab.timeouts import scale_timeout

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
PROGRAMS = ("ovsdb-server", "ovs-vswitchd", "ovn-controller")
UPLINK = "underlay"
FABRIC_BRIDGE = "fabric"
EXTERNAL_UPLINK = "external"
OUTSIDE_DEVICE = "eth0"
VSCTL_TIMEOUT_OPTION = f"--timeout={scale_timeout(15):.0f}"  # without a switch or its database it would wait for ever
REVALIDATOR_OPTION = (
    "max-revalidator=100"  # milliseconds: who waits for the switch's look at what it has cached waits for a round
)
INACTIVITY_PROBE_SECONDS = 60  # a busy machine must not look like a dead connection


class DatapathType(StrEnum):
    SYSTEM = "system"
    NETDEV = "netdev"


def detect_datapath() -> DatapathType:
    """The kernel's switch where there is one: it is the one that production has."""
    if Path("/sys/module/openvswitch").exists():
        return DatapathType.SYSTEM
    try:
        run(LabCommand(argv=("modprobe", "openvswitch")))
    except LabCommandFailed:
        return DatapathType.NETDEV
    return DatapathType.SYSTEM


def start_fabric(layout: Layout, nodes: Sequence[LabChassis]) -> None:
    """One Linux bridge, and a link from it to each chassis."""
    _attach_chassis(layout, nodes, TapBridge(namespace_owner=FABRIC, bridge=FABRIC_BRIDGE, uplink=UPLINK))


def start_outside(layout: Layout, nodes: Sequence[LabChassis]) -> None:
    """A host on a wire to the external bridge of every chassis: what is not in OVN, and its gateway."""
    _attach_chassis(layout, nodes, TapBridge(namespace_owner=OUTSIDE, bridge=OUTSIDE_DEVICE, uplink=EXTERNAL_UPLINK))
    addresses = [f"address add {address} dev {OUTSIDE_DEVICE}" for address in OUTSIDE_ADDRESSES]
    namespaces.configure(layout.namespace(OUTSIDE), addresses)


@dataclass(frozen=True, slots=True, kw_only=True)
class TapBridge:
    """A Linux bridge in a place of its own, and the device by which each chassis is on it."""

    namespace_owner: str
    bridge: str
    uplink: str


def _attach_chassis(layout: Layout, nodes: Sequence[LabChassis], wire: TapBridge) -> None:
    place = layout.namespace(wire.namespace_owner)
    bridge = f"link add {wire.bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
    namespaces.configure(place, [bridge, f"link set {wire.bridge} addrgenmode none up"])
    for node in nodes:
        far = namespaces.LinkEnd(namespace=layout.namespace(node.name), device=wire.uplink)
        namespaces.link(namespaces.LinkEnd(namespace=place, device=node.name), far, UNDERLAY_MTU)
    namespaces.configure(place, [f"link set {node.name} master {wire.bridge}" for node in nodes])


def start_switch(layout: Layout, node: LabChassis, datapath: DatapathType) -> None:
    """Returns when the bridges exist as configured."""
    directory = layout.node_directory(node.name)
    directory.mkdir(parents=True)
    database = directory / "conf.db"
    execute(layout, node, "ovsdb-tool", "create", str(database), str(SCHEMA))
    socket = f"--remote=punix:{directory / 'db.sock'}"
    execute(layout, node, "ovsdb-server", str(database), socket, *detach_options(directory / "ovsdb-server"))
    execute(
        layout,
        node,
        "ovs-vsctl",
        "--no-wait",
        "init",
        *_bridges(node, datapath),
        *_chassis_options(layout, node, datapath),
    )
    execute(layout, node, "ovs-vswitchd", *detach_options(directory / "ovs-vswitchd"))
    if datapath is DatapathType.NETDEV:
        _hide_zero_snat(layout, node)
    address = f"address add {node.tunnel_address}/24 dev {UNDERLAY_BRIDGE}"
    namespaces.configure(layout.namespace(node.name), [address, f"link set {UNDERLAY_BRIDGE} up"])


def _hide_zero_snat(layout: Layout, node: LabChassis) -> None:
    """OVN then commits plain connections without `nat(src=0.0.0.0)`, which it uses where the datapath offers it.

    In user space Open vSwitch 3.1 makes a second entry for each of them, finds the wrong one of the two when the table
    has grown, and ends itself (assertion in conn_update_state). What a datapath offers is a column that is filled once.
    """
    made = execute(
        layout,
        node,
        *("ovs-vsctl", VSCTL_TIMEOUT_OPTION, "--", "--id=@dp", "create", "Datapath", "datapath_version=0"),
        *("--", "set", "Open_vSwitch", ".", f"datapaths:{DatapathType.NETDEV}=@dp"),
    ).split()[0]
    column = ("Datapath", made)
    execute(layout, node, "ovs-vsctl", VSCTL_TIMEOUT_OPTION, "wait-until", *column, "capabilities:ct_zero_snat=true")
    execute(layout, node, "ovs-vsctl", VSCTL_TIMEOUT_OPTION, "set", *column, "capabilities:ct_zero_snat=false")


def start_controller(layout: Layout, node: LabChassis) -> None:
    execute(layout, node, "ovn-controller", *detach_options(layout.node_directory(node.name) / "ovn-controller"))


def set_zones(layout: Layout, node: LabChassis, zones: Sequence[str]) -> None:
    """As an operator of Neutron with OVN does: ovn-controller passes it on to the Southbound database."""
    options = f"availability-zones={':'.join(zones)}" if zones else ""
    words = ("set", "Open_vSwitch", ".", f'external_ids:ovn-cms-options="{options}"')
    execute(layout, node, "ovs-vsctl", VSCTL_TIMEOUT_OPTION, *words)


def add_peer_neighbours(layout: Layout, node: LabChassis, nodes: Sequence[LabChassis]) -> None:
    """Only a switch in user space resolves the peers of its tunnels by itself."""
    for peer in nodes:
        if peer != node:
            neighbour = (UNDERLAY_BRIDGE, peer.tunnel_address, peer.tunnel_mac)
            execute(layout, node, "ovs-appctl", "-t", "ovs-vswitchd", "tnl/neigh/set", *neighbour)


def await_revalidation(layout: Layout, node: LabChassis) -> None:
    """The switch has looked at all its cached flows again: what its tables say is what it does.

    It begins at once when a table changes, but each cached flow keeps its old actions until its turn. The command waits
    for the end of a look, which may have begun before (upcall_unixctl_dump_wait in OVS's ofproto-dpif-upcall.c): the
    second one has seen everything.
    """
    for _ in range(2):
        execute(layout, node, "ovs-appctl", "-t", "ovs-vswitchd", "revalidator/wait")


def execute(layout: Layout, node: LabChassis, *argv: str) -> str:
    command = namespaces.inside(layout.namespace(node.name), argv)
    return run(LabCommand(argv=command, environment=layout.environment(node.name)))


def _bridges(node: LabChassis, datapath: DatapathType) -> tuple[str, ...]:
    kind = f"datapath_type={datapath}"
    integration = ("add-br", INTEGRATION_BRIDGE, "--", "set", "Bridge", INTEGRATION_BRIDGE, kind, "fail_mode=secure")
    hwaddr = f'other-config:hwaddr="{node.tunnel_mac}"'
    underlay = ("add-br", UNDERLAY_BRIDGE, "--", "set", "Bridge", UNDERLAY_BRIDGE, kind, hwaddr)
    external = ("add-br", EXTERNAL_BRIDGE, "--", "set", "Bridge", EXTERNAL_BRIDGE, kind)
    uplinks = ("add-port", UNDERLAY_BRIDGE, UPLINK, "--", "add-port", EXTERNAL_BRIDGE, EXTERNAL_UPLINK)
    return ("--", *integration, "--", *underlay, "--", *external, "--", *uplinks)


def _chassis_options(layout: Layout, node: LabChassis, datapath: DatapathType) -> tuple[str, ...]:
    """The keys are those of ovn-controller(8)."""
    keys = {
        "system-id": node.name,
        "hostname": node.name,
        "ovn-remote": layout.southbound,
        "ovn-encap-type": "geneve",
        "ovn-encap-ip": node.tunnel_address,
        "ovn-bridge-datapath-type": str(datapath),
        "ovn-bridge-mappings": f"{PHYSICAL_NETWORK}:{EXTERNAL_BRIDGE}",
        "ovn-remote-probe-interval": str(INACTIVITY_PROBE_SECONDS * 1000),
        "ovn-openflow-probe-interval": str(INACTIVITY_PROBE_SECONDS),
    }
    words = (*(f'external_ids:{key}="{value}"' for key, value in keys.items()), f"other_config:{REVALIDATOR_OPTION}")
    return ("--", "set", "Open_vSwitch", ".", *words)
