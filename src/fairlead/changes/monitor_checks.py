"""What must be true of a health monitor, by itself and as its pool's."""

from dataclasses import dataclass

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.loadbalancer import DATAGRAMS, HealthMonitor, MonitorType, PoolProtocol
from fairlead.model.sizes import UDP_CONNECT_DELAY

OF_DATAGRAMS = (MonitorType.UDP_CONNECT, MonitorType.SCTP, MonitorType.TCP, MonitorType.HTTP)
"""What a pool of datagrams may be monitored by."""
OF_STREAMS = tuple(each for each in MonitorType if each not in (MonitorType.UDP_CONNECT, MonitorType.SCTP))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongMonitorType(Refusal):
    """A pool of this protocol is not monitored so."""

    type: MonitorType
    protocol: PoolProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbesTooOften(Refusal):
    """The seconds between two probes are to be `least` at least."""

    type: MonitorType
    delay: int
    least: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoHttpVersion(Refusal):
    """Whoever says a domain name says in which version of HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpWithoutHost(Refusal):
    """HTTP 1.0 has no header for a domain name."""


def check_monitor(old: HealthMonitor | None, monitor: HealthMonitor, protocol: PoolProtocol) -> None:
    """A new or changed one; `protocol` is its pool's. Raises Refused."""
    if monitor.type not in (OF_DATAGRAMS if protocol in DATAGRAMS else OF_STREAMS):
        raise Refused(WrongMonitorType(type=monitor.type, protocol=protocol))
    if monitor.type is MonitorType.UDP_CONNECT and min(monitor.delay, monitor.seconds_between) < UDP_CONNECT_DELAY:
        raise Refused(ProbesTooOften(type=monitor.type, delay=monitor.delay, least=UDP_CONNECT_DELAY))
    is_new = old is None or monitor.domain_name != old.domain_name
    if is_new and monitor.domain_name and not monitor.http_version:
        raise Refused(NoHttpVersion())
    if monitor.domain_name and monitor.http_version == "1.0":
        raise Refused(HttpWithoutHost())
