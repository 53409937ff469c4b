"""Names of all namespaces, directories, devices and addresses of a lab.

Everything that a lab leaves on the machine is found by these names alone, without memory: namespaces by their prefix,
processes by their namespace, files by the run directory. Lab names have no dash, so no lab's prefix is a prefix of
another lab's.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2s
from pathlib import Path

from fairlead.lab.errors import LabError
from fairlead.lab.processes import LAB_VARIABLE

RUN_DIR = Path("/run/fairlead/lab")
CENTRAL = "central"
FABRIC = "fabric"
OUTSIDE = "outside"
INTEGRATION_BRIDGE = "br-int"
UNDERLAY_BRIDGE = "br-underlay"
UNDERLAY_MTU = 1500
EXTERNAL_BRIDGE = "br-ex"
PHYSICAL_NETWORK = "physnet"
"""Value of `provider:physical_network` for external networks."""
OUTSIDE_ADDRESSES = ("203.0.113.1/24", "2001:db8::1/64")
"""Addresses of the outside host, which is the gateway of external networks (RFC 5737, RFC 3849)."""
MAX_CHASSIS = 64

_LAB_NAME = re.compile(r"[a-z][a-z0-9]{0,14}")
_DEVICE_NAME_LENGTH = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class LabChassis:
    """One compute node: its name, and its tunnel endpoint."""

    name: str
    tunnel_address: str
    tunnel_mac: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Location of one lab on this machine."""

    name: str
    run_dir: Path = RUN_DIR

    def __post_init__(self) -> None:
        if not _LAB_NAME.fullmatch(self.name):
            raise LabError(
                f"invalid lab name {self.name!r}: expected a letter, then up to 14 letters and digits, lower case"
            )

    @property
    def directory(self) -> Path:
        return self.run_dir / self.name

    @property
    def lock(self) -> Path:
        return self.run_dir / f"{self.name}.lock"

    @property
    def prefix(self) -> str:
        return f"fl-{self.name}-"

    def namespace(self, node: str) -> str:
        return f"{self.prefix}{node}"

    def node_directory(self, node: str) -> Path:
        return self.directory / node

    @property
    def programs(self) -> Path:
        """Directory of wrapper scripts for programs of another root (see `programs`); missing if the machine's are
        used."""
        return self.directory / "bin"

    @property
    def search_path(self) -> str:
        return f"{self.programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

    @property
    def northbound(self) -> str:
        return f"unix:{self.node_directory(CENTRAL) / 'ovnnb_db.sock'}"

    @property
    def southbound(self) -> str:
        return f"unix:{self.node_directory(CENTRAL) / 'ovnsb_db.sock'}"

    def environment(self, node: str) -> Mapping[str, str]:
        """Return an environment in which `ovs-vsctl` uses the node's switch, and `ovn-nbctl` and `ovn-sbctl` the lab's
        databases."""
        own = str(self.node_directory(node))
        directories = {f"{project}_{kind}DIR": own for project in ("OVS", "OVN") for kind in ("RUN", "DB", "LOG")}
        databases = {"OVN_NB_DB": self.northbound, "OVN_SB_DB": self.southbound}
        return {
            "PATH": self.search_path,
            **directories,
            **databases,
            LAB_VARIABLE: str(self.directory),
            "FAIRLEAD_LAB": self.name,
        }


def plan_chassis(count: int) -> tuple[LabChassis, ...]:
    """Derive each chassis' addresses from its number; labs are isolated, so all of them may use the same addresses."""
    if not 1 <= count <= MAX_CHASSIS:
        raise LabError(f"number of chassis {count} is out of range (1-{MAX_CHASSIS})")
    return tuple(
        LabChassis(
            name=f"chassis{number}", tunnel_address=f"100.64.0.{number}", tunnel_mac=f"02:00:64:40:00:{number:02x}"
        )
        for number in range(1, count + 1)
    )


def is_node_name(name: str) -> bool:
    """Return whether the name is reserved for nodes of the lab."""
    return name in (CENTRAL, FABRIC, OUTSIDE) or re.fullmatch(r"chassis\d+", name) is not None


def workload_device(workload: str) -> str:
    """Name of a workload's device on its chassis; a long name is cut and made unique by a digest."""
    if len(workload) + 2 <= _DEVICE_NAME_LENGTH:
        return f"w-{workload}"
    return f"w-{workload[:6]}_{blake2s(workload.encode(), digest_size=3).hexdigest()}"
