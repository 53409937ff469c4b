"""The owner: the id of one aggregate, and with it the unit of lock, generation, compile, diff, apply and status."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """In the order in which rows refer to each other: what is created later may refer to what is created before."""

    NETWORK = "network"
    ROUTER = "router"
    PORT = "port"
    HOST = "host"
    """A plain Linux host that serves announced VIPs: rows of load balancers lead to it by its number."""
    VIP_NETWORK = "vip-network"
    """What the VIPs of one network share; it exists while the network has a VIP and has no document of its own. What
    those of a project share that is only a guest on the network is an owner beside it: `VipNetwork`."""
    VIP_GATEWAY = "vip-gateway"
    """What the VIPs on the gateway of one router share, by the router's id: while there are any."""
    NEAR_NETWORK = "near-network"
    """What the load balancers of a `VIP_NETWORK` share that lead clients to members near them: while there are any."""
    NEAR_GATEWAY = "near-gateway"
    """The same of a `VIP_GATEWAY`, by the router's id."""
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
    TRUST_TOKEN = "trust-token"  # noqa: S105 - no secret
    NODE = "node"
    NODE_TOKEN = "node-token"  # noqa: S105 - no secret
    SILENT_NODE = "silent-node"


WITHOUT_DOCUMENTS = frozenset({Kind.VIP_NETWORK, Kind.VIP_GATEWAY, Kind.NEAR_NETWORK, Kind.NEAR_GATEWAY})
"""They follow from load balancers and have no documents."""
_ORDER = {kind: place for place, kind in enumerate(Kind)}


@dataclass(frozen=True, slots=True)
class Owner:
    kind: Kind
    id: str

    def __hash__(self) -> int:
        """A text remembers its own, and few owners of several kinds have one id: a look at all asks often."""
        return hash(self.id)

    def __str__(self) -> str:
        return f"{self.kind.value}/{self.id}"

    @classmethod
    def parse(cls, text: str) -> "Owner":
        """The inverse of `str`. Raises ValueError."""
        kind, slash, identity = text.partition("/")
        if not slash or not identity:
            raise ValueError(f"'{text}' is not an owner; one looks like loadbalancer/<id>")
        return cls(Kind(kind), identity)


@dataclass(frozen=True, slots=True)
class VipNetwork:
    """What an owner of that kind is about: a network, and the guest there whose VIPs these are, if they are one's."""

    network_id: str
    guest: str | None = None
    """A project that is not the network's."""

    @property
    def owner(self) -> Owner:
        guest = "" if self.guest is None else f"/{self.guest}"
        return Owner(Kind.VIP_NETWORK, f"{self.network_id}{guest}")

    @property
    def near(self) -> Owner:
        return Owner(Kind.NEAR_NETWORK, self.owner.id)

    @classmethod
    def of(cls, owner: Owner) -> "VipNetwork":
        """The inverse of `owner` and `near`. No network's id has a slash: it is a UUID."""
        network_id, slash, guest = owner.id.partition("/")
        return cls(network_id, guest if slash else None)


def creation_order(owner: Owner) -> tuple[int, str]:
    """Sort key: an owner comes after those that its rows refer to. Deletion goes the other way round."""
    return _ORDER[owner.kind], owner.id
