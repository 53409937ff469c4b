"""A compute node: a switch with its database and ovn-controller, in a namespace, on the fabric that joins all nodes.

Where the kernel has no Open vSwitch, the switch forwards in user space. Tunnels then end on a second bridge that owns
the tunnel address, and the switch itself must know the MAC of each peer: it is told at start, because it drops the
packet for which it has to ask.
"""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from fairlead.lab import namespaces
from fairlead.lab.central import detached
from fairlead.lab.errors import CommandFailed
from fairlead.lab.layout import FABRIC, INTEGRATION_BRIDGE, UNDERLAY_BRIDGE, UNDERLAY_MTU, Chassis, Layout
from fairlead.lab.processes import Command, run

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
PROGRAMS = ("ovsdb-server", "ovs-vswitchd", "ovn-controller")
UPLINK = "underlay"
FABRIC_BRIDGE = "fabric"
VSCTL_PATIENCE = "--timeout=15"  # without a switch or its database it would wait for ever
PROBE_SECONDS = 60  # a busy machine must not look like a dead connection


class DatapathType(StrEnum):
    SYSTEM = "system"
    NETDEV = "netdev"


def detect_datapath() -> DatapathType:
    """The kernel's switch where there is one: it is the one that production has."""
    if Path("/sys/module/openvswitch").exists():
        return DatapathType.SYSTEM
    try:
        run(Command(argv=("modprobe", "openvswitch")))
    except CommandFailed:
        return DatapathType.NETDEV
    return DatapathType.SYSTEM


def start_fabric(layout: Layout, nodes: Sequence[Chassis]) -> None:
    """One Linux bridge, and a link from it to each chassis."""
    fabric = layout.namespace(FABRIC)
    bridge = f"link add {FABRIC_BRIDGE} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
    namespaces.configure(fabric, [bridge, f"link set {FABRIC_BRIDGE} addrgenmode none up"])
    for node in nodes:
        far = namespaces.LinkEnd(namespace=layout.namespace(node.name), device=UPLINK)
        namespaces.link(namespaces.LinkEnd(namespace=fabric, device=node.name), far, UNDERLAY_MTU)
    namespaces.configure(fabric, [f"link set {node.name} master {FABRIC_BRIDGE}" for node in nodes])


def start_switch(layout: Layout, node: Chassis, datapath: DatapathType) -> None:
    """Returns when the bridges exist as configured."""
    directory = layout.node_directory(node.name)
    directory.mkdir(parents=True)
    database = directory / "conf.db"
    execute(layout, node, "ovsdb-tool", "create", str(database), str(SCHEMA))
    socket = f"--remote=punix:{directory / 'db.sock'}"
    execute(layout, node, "ovsdb-server", str(database), socket, *detached(directory / "ovsdb-server"))
    execute(
        layout, node, "ovs-vsctl", "--no-wait", "init", *_bridges(node, datapath), *_identity(layout, node, datapath)
    )
    execute(layout, node, "ovs-vswitchd", *detached(directory / "ovs-vswitchd"))
    if datapath is DatapathType.NETDEV:
        _hide_zero_snat(layout, node)
    address = f"address add {node.tunnel_address}/24 dev {UNDERLAY_BRIDGE}"
    namespaces.configure(layout.namespace(node.name), [address, f"link set {UNDERLAY_BRIDGE} up"])


def _hide_zero_snat(layout: Layout, node: Chassis) -> None:
    """OVN then commits plain connections without `nat(src=0.0.0.0)`, which it uses where the datapath offers it.

    In user space Open vSwitch 3.1 makes a second entry for each of them, finds the wrong one of the two when the table
    has grown, and ends itself (assertion in conn_update_state). What a datapath offers is a column that is filled once.
    """
    made = execute(
        layout,
        node,
        *("ovs-vsctl", VSCTL_PATIENCE, "--", "--id=@dp", "create", "Datapath", "datapath_version=0"),
        *("--", "set", "Open_vSwitch", ".", f"datapaths:{DatapathType.NETDEV}=@dp"),
    ).split()[0]
    column = ("Datapath", made)
    execute(layout, node, "ovs-vsctl", VSCTL_PATIENCE, "wait-until", *column, "capabilities:ct_zero_snat=true")
    execute(layout, node, "ovs-vsctl", VSCTL_PATIENCE, "set", *column, "capabilities:ct_zero_snat=false")


def start_controller(layout: Layout, node: Chassis) -> None:
    execute(layout, node, "ovn-controller", *detached(layout.node_directory(node.name) / "ovn-controller"))


def teach_peers(layout: Layout, node: Chassis, nodes: Sequence[Chassis]) -> None:
    """Only a switch in user space resolves the peers of its tunnels by itself."""
    for peer in nodes:
        if peer != node:
            neighbour = (UNDERLAY_BRIDGE, peer.tunnel_address, peer.tunnel_mac)
            execute(layout, node, "ovs-appctl", "-t", "ovs-vswitchd", "tnl/neigh/set", *neighbour)


def execute(layout: Layout, node: Chassis, *argv: str) -> str:
    command = namespaces.inside(layout.namespace(node.name), argv)
    return run(Command(argv=command, environment=layout.environment(node.name)))


def _bridges(node: Chassis, datapath: DatapathType) -> tuple[str, ...]:
    kind = f"datapath_type={datapath}"
    integration = ("add-br", INTEGRATION_BRIDGE, "--", "set", "Bridge", INTEGRATION_BRIDGE, kind, "fail_mode=secure")
    hwaddr = f'other-config:hwaddr="{node.tunnel_mac}"'
    underlay = ("add-br", UNDERLAY_BRIDGE, "--", "set", "Bridge", UNDERLAY_BRIDGE, kind, hwaddr)
    return ("--", *integration, "--", *underlay, "--", "add-port", UNDERLAY_BRIDGE, UPLINK)


def _identity(layout: Layout, node: Chassis, datapath: DatapathType) -> tuple[str, ...]:
    """The keys are those of ovn-controller(8)."""
    keys = {
        "system-id": node.name,
        "hostname": node.name,
        "ovn-remote": layout.southbound,
        "ovn-encap-type": "geneve",
        "ovn-encap-ip": node.tunnel_address,
        "ovn-bridge-datapath-type": str(datapath),
        "ovn-remote-probe-interval": str(PROBE_SECONDS * 1000),
        "ovn-openflow-probe-interval": str(PROBE_SECONDS),
    }
    return ("--", "set", "Open_vSwitch", ".", *(f'external_ids:{key}="{value}"' for key, value in keys.items()))
