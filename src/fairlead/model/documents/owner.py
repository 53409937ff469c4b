"""Owner: the id of one aggregate, and the unit of lock, generation, compile, diff, apply and status."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Kind of an owner, in the order of references: rows of later kinds may refer to rows of earlier ones."""

    NETWORK = "network"
    ROUTER = "router"
    PORT = "port"
    HOST = "host"
    """Plain Linux host that serves announced VIPs; rows of load balancers refer to it by its number."""
    VIP_NETWORK = "vip-network"
    """Rows shared by the VIPs of one network; exists while the network has a VIP, and has no document. Each project
    that is a guest on the network has an owner of its own (`VipNetwork`)."""
    VIP_GATEWAY = "vip-gateway"
    """Rows shared by the VIPs on the gateway of one router, identified by the router; exists while there are any."""
    PER_CHASSIS_NETWORK = "near-network"
    """Rows shared by the load balancers of a `VIP_NETWORK` that decide per chassis. They have a locality or proxies;
    the owner exists while there are any."""
    PER_CHASSIS_GATEWAY = "near-gateway"
    """Rows shared by such load balancers of a `VIP_GATEWAY`, identified by the router."""
    LOAD_BALANCER = "loadbalancer"
    FLOATING_IP = "floatingip"
    LOCAL_IP = "local-ip"
    FLAVOR = "flavor"
    FLAVOR_PROFILE = "flavor-profile"
    AVAILABILITY_ZONE = "availability-zone"
    AVAILABILITY_ZONE_PROFILE = "availability-zone-profile"
    QUOTA = "quota"
    PROJECT = "project"
    CERTIFICATE = "certificate"
    TRUST_TOKEN = "trust-token"  # noqa: S105 - kind of document, not a secret
    NODE = "node"
    NODE_TOKEN = "node-token"  # noqa: S105 - kind of document, not a secret
    UNRESPONSIVE_NODE = "silent-node"


WITHOUT_DOCUMENTS = frozenset({Kind.VIP_NETWORK, Kind.VIP_GATEWAY, Kind.PER_CHASSIS_NETWORK, Kind.PER_CHASSIS_GATEWAY})
"""Kinds that are derived from load balancers and have no documents."""
_ORDER = {kind: place for place, kind in enumerate(Kind)}


@dataclass(frozen=True, slots=True)
class Owner:
    kind: Kind
    id: str

    def __hash__(self) -> int:
        """Use the cached hash of the id; owners of different kinds rarely share an id.
        A resync computes many hashes."""
        return hash(self.id)

    def __str__(self) -> str:
        return f"{self.kind.value}/{self.id}"

    @classmethod
    def parse(cls, text: str) -> "Owner":
        """Parse the result of `str`. Raises ValueError."""
        kind, slash, identity = text.partition("/")
        if not slash or not identity:
            raise ValueError(f"'{text}' is not an owner; the format is loadbalancer/<id>")
        return cls(Kind(kind), identity)


@dataclass(frozen=True, slots=True)
class VipNetwork:
    """Subject of a `VIP_NETWORK` or `PER_CHASSIS_NETWORK` owner: a network, and a guest project for the VIPs of a
    guest."""

    network_id: str
    guest: str | None = None
    """Project that does not own the network; None for VIPs of the owner."""

    @property
    def owner(self) -> Owner:
        guest = "" if self.guest is None else f"/{self.guest}"
        return Owner(Kind.VIP_NETWORK, f"{self.network_id}{guest}")

    @property
    def per_chassis_owner(self) -> Owner:
        return Owner(Kind.PER_CHASSIS_NETWORK, self.owner.id)

    @classmethod
    def of(cls, owner: Owner) -> "VipNetwork":
        """Return the subject of an owner; the inverse of `owner` and `near`.
        Network ids are UUIDs and contain no slash."""
        network_id, slash, guest = owner.id.partition("/")
        return cls(network_id, guest if slash else None)


def creation_order(owner: Owner) -> tuple[int, str]:
    """Sort key that puts an owner after those that its rows refer to. Deletion uses the reverse order."""
    return _ORDER[owner.kind], owner.id
