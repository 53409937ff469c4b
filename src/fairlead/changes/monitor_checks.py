"""Checks of a health monitor, alone and against its pool."""

from dataclasses import dataclass

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.loadbalancer import DATAGRAM_PROTOCOLS, HealthMonitor, MonitorType, PoolProtocol
from fairlead.model.documents.sizes import MIN_UDP_CONNECT_DELAY_SECONDS

DATAGRAM_MONITORS = (MonitorType.UDP_CONNECT, MonitorType.SCTP, MonitorType.TCP, MonitorType.HTTP)
"""Monitor types allowed for UDP and SCTP pools."""
STREAM_MONITORS = tuple(each for each in MonitorType if each not in (MonitorType.UDP_CONNECT, MonitorType.SCTP))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongMonitorType(Refusal):
    """The pool's protocol does not allow this type of monitor."""

    type: MonitorType
    protocol: PoolProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayTooShort(Refusal):
    """The delay is below the minimum of `least` seconds."""

    type: MonitorType
    delay: int
    least: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoHttpVersion(Refusal):
    """The monitor has a domain name but no HTTP version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpWithoutHost(Refusal):
    """HTTP 1.0 has no Host header for a domain name."""


def check_monitor(old: HealthMonitor | None, monitor: HealthMonitor, protocol: PoolProtocol) -> None:
    """Check a new or changed monitor; `protocol` is that of its pool. Raises Refused."""
    if monitor.type not in (DATAGRAM_MONITORS if protocol in DATAGRAM_PROTOCOLS else STREAM_MONITORS):
        raise Refused(WrongMonitorType(type=monitor.type, protocol=protocol))
    if (
        monitor.type is MonitorType.UDP_CONNECT
        and min(monitor.delay, monitor.interval_seconds) < MIN_UDP_CONNECT_DELAY_SECONDS
    ):
        raise Refused(DelayTooShort(type=monitor.type, delay=monitor.delay, least=MIN_UDP_CONNECT_DELAY_SECONDS))
    is_new = old is None or monitor.domain_name != old.domain_name
    if is_new and monitor.domain_name and not monitor.http_version:
        raise Refused(NoHttpVersion())
    if monitor.domain_name and monitor.http_version == "1.0":
        raise Refused(HttpWithoutHost())
