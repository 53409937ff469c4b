"""Members of load balancers whose VIPs hosts announce are behind hosts: each where its project may have some."""

from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.addresses import IPAddress
from fairlead.model.behind import declared_behind, may_be_behind
from fairlead.model.loadbalancer import LoadBalancer, Member
from fairlead.model.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot, member_network
from fairlead.model.steps import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class BehindNoHost(Refusal):
    """Hosts announce the VIPs of this provider, and the member is behind none of them, or where its project may have
    none: which of the two it is tells nobody what other projects have. The same of where it is probed: a host's agent
    asks nobody else's machines."""

    address: IPAddress
    provider: str
    is_probed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IsAHost(Refusal):
    """The address is the host's own, and no operator has said that members run there. Only who may have members around
    it is told so."""

    address: IPAddress
    provider: str
    is_probed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OnASubnet(Refusal):
    """Members behind hosts are found by their addresses. This one is said to be on a subnet of another network than the
    VIP's, where the same address is another machine."""

    subnet_id: str
    provider: str


def hosts_of_members(snapshot: Snapshot, old: LoadBalancer | None, wanted: LoadBalancer) -> Steps[tuple[Owner, ...]]:
    """The hosts that new members, and those with another address, are behind: these must not change meanwhile.

    Raises Refused.
    """
    known = {member.id: member for pool in old.pools for member in pool.members} if old is not None else {}
    hosts = dict[str, Owner]()
    for pool in wanted.pools:
        for member in pool.members:
            _check_subnet(snapshot, wanted, known.get(member.id), member)
            for address, is_probed in _new_addresses(known.get(member.id), member):
                host = may_be_behind(snapshot, wanted, address)
                if host is None:
                    is_own = declared_behind(snapshot, wanted, address) is not None
                    why = IsAHost if is_own else BehindNoHost
                    raise Refused(why(address=address, provider=wanted.provider, is_probed=is_probed))
                hosts[host.name] = Owner(Kind.HOST, host.name)
        yield
    return tuple(hosts.values())


def _check_subnet(snapshot: Snapshot, wanted: LoadBalancer, old: Member | None, member: Member) -> None:
    if member.subnet_id is None or (old is not None and old.subnet_id == member.subnet_id):
        return
    if member_network(snapshot, wanted, member) != wanted.vip.network_id:
        raise Refused(OnASubnet(subnet_id=member.subnet_id, provider=wanted.provider))


def _new_addresses(old: Member | None, member: Member) -> Iterator[tuple[IPAddress, bool]]:
    """Those that it had not before, each with whether it is where the member is probed."""
    if old is None or old.address != member.address:
        yield member.address, False
    probed = member.monitor_address
    if probed is not None and (old is None or old.monitor_address != probed):
        yield probed, True
