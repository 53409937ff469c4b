"""Health check of one member: the probe that a node sends, its schedule and its thresholds.

At the member's own address and port a check uses the pool's protocol: PROXY header first, then TLS. At a separate
monitor address or port it uses the monitor's type only, as HAProxy does (configuration manual, `check-send-proxy` and
`check-ssl`).

Thresholds are Octavia's: `max_retries` consecutive successes make a member ONLINE, `max_retries_down` consecutive
failures make it ERROR (API reference, "Create Health Monitor").
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.health import PROBE_TRANSPORTS, Endpoint
from fairlead.model.documents.loadbalancer import HealthMonitor, HttpMonitor, MonitorType, Pool, PoolProtocol, Transport
from fairlead.model.documents.local_ip import ReplicaMonitor

TIMEOUT_MARGIN_SECONDS = 0.25
"""Margin between timeout and next probe, in seconds; a quarter of the delay if the delay is below one second."""


class Verdict(StrEnum):
    """State of a member derived from its probes."""

    PENDING = "PENDING"
    """State before the first threshold is reached."""
    UP = "UP"
    DOWN = "DOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSchedule:
    """Schedule and thresholds of a check. Times are in seconds."""

    delay: float
    """Interval between the starts of two probes."""
    timeout: float
    """Configured timeout of one probe."""
    max_retries: int
    max_retries_down: int

    @property
    def effective_timeout(self) -> float:
        """Effective timeout of a probe. Octavia wants the timeout below the delay but accepts other values, so a probe
        times out shortly before the next one starts."""
        return min(self.timeout, self.delay - min(TIMEOUT_MARGIN_SECONDS, self.delay / 4))


class ProxyHeader(StrEnum):
    """Version of the PROXY protocol."""

    V1 = "PROXY"
    V2 = "PROXYV2"


_HEADERS = {PoolProtocol.PROXY: ProxyHeader.V1, PoolProtocol.PROXYV2: ProxyHeader.V2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Bytes that start each connection to a member: PROXY header and TLS handshake."""

    header: ProxyHeader | None = None
    is_tls: bool = False


PLAIN = Opening()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCheck:
    """Probe that succeeds if the port answers."""

    type: MonitorType
    header: ProxyHeader | None = None
    """PROXY header to send first; None for no header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCheck:
    """HTTP probe: the request and the accepted status codes."""

    is_tls: bool
    """Whether the probe uses TLS. Certificates are not verified, as in Octavia."""
    method: str
    path: str
    version: str
    host: str
    """Value of the Host header."""
    codes: frozenset[int]
    header: ProxyHeader | None = None


Check: TypeAlias = PlainCheck | HttpCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One port of a member or replica that a node has to probe."""

    endpoint: Endpoint
    check: Check
    schedule: ProbeSchedule
    is_delegated: bool = False
    """Whether the target is on another node or on none, so it is probed from the network's ordinary probe port."""
    project_id: str = ""
    """Project of the load balancer. Probes are scheduled fairly between projects."""


def make_schedule(monitor: HealthMonitor | ReplicaMonitor) -> ProbeSchedule:
    """Return the schedule of a monitor. Octavia allows a delay and a timeout of 0; both count as one second."""
    return ProbeSchedule(
        delay=monitor.interval_seconds,
        timeout=float(max(1, monitor.timeout)),
        max_retries=monitor.max_retries,
        max_retries_down=monitor.max_retries_down,
    )


def opening_of(pool: Pool) -> Opening:
    """Return the opening of connections to the pool's members."""
    return Opening(header=_HEADERS.get(pool.protocol), is_tls=pool.tls is not None and pool.tls.enabled)


def check_of(monitor: HealthMonitor | ReplicaMonitor, address: IPAddress, opening: Opening = PLAIN) -> Check:
    """Return the check for an address. `opening` applies there, whatever the monitor's type."""
    if not isinstance(monitor, HttpMonitor):
        is_stream = PROBE_TRANSPORTS[monitor.type] is Transport.TCP
        kind = MonitorType.TLS_HELLO if opening.is_tls and monitor.type is MonitorType.TCP else monitor.type
        return PlainCheck(type=kind, header=opening.header if is_stream else None)
    return HttpCheck(
        is_tls=opening.is_tls or monitor.type is MonitorType.HTTPS,
        method=monitor.http_method,
        path=monitor.url_path,
        version=monitor.http_version or "1.0",  # default of HAProxy, and of Octavia
        host=monitor.domain_name or (f"[{address}]" if address.version == 6 else str(address)),
        codes=parse_expected_codes(monitor.expected_codes),
        header=opening.header,
    )


def parse_expected_codes(codes: str) -> frozenset[int]:
    """Parse accepted status codes: one code, a comma-separated list, or a range with a hyphen."""
    first, hyphen, last = codes.partition("-")
    if hyphen:
        return frozenset(range(int(first), int(last) + 1))
    return frozenset(int(code) for code in codes.split(","))
