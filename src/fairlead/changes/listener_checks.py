"""Checks of a listener, alone and against the other listeners of its load balancer."""

from dataclasses import dataclass

from fairlead.changes.l7_checks import check_policy
from fairlead.changes.lookup import NoSuch
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.tls_checks import complete_listener_tls
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.addresses import IPAddress, IPNetwork
from fairlead.model.documents.port_ranges import PortRange, expand
from fairlead.model.documents.quota import QuotaResource


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerPortInUse(Refusal):
    """Another listener already has the port."""

    protocol: lb.ListenerProtocol
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadPorts(Refusal):
    """The range is not within 1 to 65535. Without a range:
    the listener has no ports, or has ports with the protocol ANY."""

    ports: PortRange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongPoolProtocol(Refusal):
    """The listener's protocol does not allow a pool with this protocol."""

    listener: lb.ListenerProtocol
    pool: lb.PoolProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsNotSupported(Refusal):
    """A listener of this protocol serves its own responses: it has no pools and no policies."""

    protocol: lb.ListenerProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class RawMatchNotSupported(Refusal):
    """Matching of first bytes is only possible for TCP listeners."""

    protocol: lb.ListenerProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class CidrIpVersionMismatch(Refusal):
    """No VIP has the IP version of the allowed CIDR."""

    cidr: IPNetwork
    vips: tuple[IPAddress, ...]


def complete_listener(known: lb.Listener | None, listener: lb.Listener) -> lb.Listener:
    """Return the new or changed listener with TLS defaults. Raises Refused."""
    old_policies = {policy.id: policy for policy in known.l7policies} if known else {}
    for policy in listener.l7policies:
        old = old_policies.get(policy.id)
        if policy is not old:
            check_policy(old, policy)
    return complete_listener_tls(known, listener)


def check_listener(
    balancer: lb.LoadBalancer, listener: lb.Listener, ports: dict[tuple[lb.Transport, int], lb.Listener]
) -> None:
    """Raise Refused for a listener that is not valid. `ports` maps the ports of the listeners checked before to these
    listeners; the ports of this one are added.

    Pools are checked before ports, as in Octavia, so a listener with both faults gets the error of its pool.
    """
    _check_ports(listener)
    check_pools_of(balancer, listener)
    transport = lb.transport(listener.protocol)
    numbers = tuple(expand(listener.ports)) if listener.ports else (0,)
    for port in numbers:
        other = ports.get((transport, port))
        if other is not None:
            raise Refused(ListenerPortInUse(protocol=other.protocol, port=port))
        ports[transport, port] = listener
    if listener.raw is not None and listener.protocol is not lb.ListenerProtocol.TCP:
        raise Refused(RawMatchNotSupported(protocol=listener.protocol))
    for cidr in listener.allowed_cidrs:
        if cidr.version not in balancer.ip_versions:
            raise Refused(CidrIpVersionMismatch(cidr=cidr, vips=tuple(vip.address for vip in balancer.vips)))


def _check_ports(listener: lb.Listener) -> None:
    bad = next((each for each in listener.ports if not each.is_valid), None)
    if bad is not None or bool(listener.ports) == (listener.protocol is lb.ListenerProtocol.ANY):
        raise Refused(BadPorts(ports=bad))


def check_pool_protocol(listener: lb.Listener, protocol: lb.PoolProtocol) -> None:
    """Check that the listener can use pools with this protocol. Raises Refused."""
    if listener.protocol is lb.ListenerProtocol.PROMETHEUS:
        raise Refused(PoolsNotSupported(protocol=listener.protocol))
    if protocol not in lb.POOL_PROTOCOLS[listener.protocol]:
        raise Refused(WrongPoolProtocol(listener=listener.protocol, pool=protocol))


def check_pools_of(balancer: lb.LoadBalancer, listener: lb.Listener) -> None:
    """Whether the listener may lead to the pools that it and its policies name. Raises Refused."""
    redirects = [policy.redirect_pool_id for policy in listener.l7policies]
    if listener.protocol is lb.ListenerProtocol.PROMETHEUS and (listener.default_pool_id or redirects):
        raise Refused(PoolsNotSupported(protocol=listener.protocol))
    for pool_id in (listener.default_pool_id, *redirects):
        if pool_id is None:
            continue
        pool = lb.find_pool(balancer, pool_id)
        if pool is None:
            raise Refused(NoSuch(what=QuotaResource.POOL, id=pool_id))
        check_pool_protocol(listener, pool.protocol)
