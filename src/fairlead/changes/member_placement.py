"""Checks that members of announced load balancers are routed by hosts, in prefixes that their project may use."""

from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import LoadBalancer, Member
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.placement import find_declared_host, find_member_host
from fairlead.model.snapshot import Snapshot, member_network
from fairlead.runtime.steps import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberNotRouted(Refusal):
    """No host routes the member, or its prefix belongs to another project. The two cases are not distinguished, so
    tenants cannot discover other projects' prefixes. The same check applies to the monitor address, because agents must
    not probe other projects' machines."""

    address: IPAddress
    provider: str
    is_probed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIsHostAddress(Refusal):
    """The address is the host's own, and no operator has declared it for members.
    Only projects that may use the prefix get this refusal."""

    address: IPAddress
    provider: str
    is_probed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSubnetNotSupported(Refusal):
    """Members behind hosts are identified by their address alone. This one has a subnet of another network than the
    VIP's, where the address may be another machine."""

    subnet_id: str
    provider: str


def find_routing_hosts(snapshot: Snapshot, old: LoadBalancer | None, wanted: LoadBalancer) -> Steps[tuple[Owner, ...]]:
    """Return the hosts that route new members and changed addresses: these must not change before the commit.
    Raises Refused."""
    known = {member.id: member for pool in old.pools for member in pool.members} if old is not None else {}
    hosts = dict[str, Owner]()
    for pool in wanted.pools:
        for member in pool.members:
            _check_subnet(snapshot, wanted, known.get(member.id), member)
            for address, is_probed in _new_addresses(known.get(member.id), member):
                host = find_member_host(snapshot, wanted, address)
                if host is None:
                    is_own = find_declared_host(snapshot, wanted, address) is not None
                    why = MemberIsHostAddress if is_own else MemberNotRouted
                    raise Refused(why(address=address, provider=wanted.provider, is_probed=is_probed))
                hosts[host.name] = Owner(Kind.HOST, host.name)
        yield
    return tuple(hosts.values())


def _check_subnet(snapshot: Snapshot, wanted: LoadBalancer, old: Member | None, member: Member) -> None:
    if member.subnet_id is None or (old is not None and old.subnet_id == member.subnet_id):
        return
    if member_network(snapshot, wanted, member) != wanted.vip.network_id:
        raise Refused(MemberSubnetNotSupported(subnet_id=member.subnet_id, provider=wanted.provider))


def _new_addresses(old: Member | None, member: Member) -> Iterator[tuple[IPAddress, bool]]:
    """Yield the member's new addresses, each with whether it is the monitor address."""
    if old is None or old.address != member.address:
        yield member.address, False
    probed = member.monitor_address
    if probed is not None and (old is None or old.monitor_address != probed):
        yield probed, True
