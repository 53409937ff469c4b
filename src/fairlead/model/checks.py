"""What a node probes of one member, how often, and when the answers make it up or down.

A check speaks what the pool speaks where members take connections: the PROXY protocol's header, then TLS. At a port or
an address that is the monitor's own it speaks what the monitor's type says, as HAProxy's checks do (configuration
manual, `check-send-proxy` and `check-ssl`).

Octavia's words: `max_retries` successes in a row make a member ONLINE, `max_retries_down` failures in a row ERROR (API
reference, "Create Health Monitor").
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from fairlead.model.addresses import IPAddress
from fairlead.model.health import ASKED_OVER, Endpoint
from fairlead.model.loadbalancer import HealthMonitor, HttpMonitor, MonitorType, Pool, PoolProtocol, Transport
from fairlead.model.local_ip import ReplicaMonitor

SHORTLY = 0.25
"""Seconds, or a quarter of a delay that is shorter than a second."""


class Verdict(StrEnum):
    """What the probes of a member have come to."""

    PENDING = "PENDING"
    """Not enough of them yet."""
    UP = "UP"
    DOWN = "DOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """Times in seconds."""

    delay: float
    """From the beginning of one probe to the beginning of the next one."""
    timeout: float
    """For which an answer is waited for."""
    max_retries: int
    max_retries_down: int

    @property
    def patience(self) -> float:
        """For which an answer is waited for. Octavia wants the timeout to be less than the delay, and lets others pass:
        who has not answered shortly before the next probe has not answered."""
        return min(self.timeout, self.delay - min(SHORTLY, self.delay / 4))


class ProxyHeader(StrEnum):
    """Versions of the PROXY protocol."""

    V1 = "PROXY"
    V2 = "PROXYV2"


_HEADERS = {PoolProtocol.PROXY: ProxyHeader.V1, PoolProtocol.PROXYV2: ProxyHeader.V2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How each connection begins."""

    header: ProxyHeader | None = None
    is_tls: bool = False


PLAIN = Opening()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCheck:
    """Whether anything answers at all."""

    type: MonitorType
    header: ProxyHeader | None = None
    """What is sent first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCheck:
    """What is asked of a web server, and which answers are right."""

    is_tls: bool
    """Whether it is asked by HTTPS. Certificates are not looked at, as Octavia does not."""
    method: str
    path: str
    version: str
    host: str
    """What the request says that it is for."""
    codes: frozenset[int]
    header: ProxyHeader | None = None


Check: TypeAlias = PlainCheck | HttpCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One member or replica at one of its ports, as a node has to probe it."""

    endpoint: Endpoint
    check: Check
    rhythm: Rhythm
    covers: bool = False
    """Whether it is on another node, or on none, and is reached by the network's ordinary port."""
    project_id: str = ""
    """Who has it probed: what one project has probed keeps no other one waiting."""


def rhythm_of(monitor: HealthMonitor | ReplicaMonitor) -> Rhythm:
    """Octavia allows a delay and a timeout of 0: they count as a second."""
    return Rhythm(
        delay=monitor.seconds_between,
        timeout=float(max(1, monitor.timeout)),
        max_retries=monitor.max_retries,
        max_retries_down=monitor.max_retries_down,
    )


def opening_of(pool: Pool) -> Opening:
    """Of a connection that the pool's members take."""
    return Opening(header=_HEADERS.get(pool.protocol), is_tls=pool.tls is not None and pool.tls.enabled)


def check_of(monitor: HealthMonitor | ReplicaMonitor, address: IPAddress, opening: Opening = PLAIN) -> Check:
    """`opening` is what is spoken there, whatever the monitor asks."""
    if not isinstance(monitor, HttpMonitor):
        is_stream = ASKED_OVER[monitor.type] is Transport.TCP
        kind = MonitorType.TLS_HELLO if opening.is_tls and monitor.type is MonitorType.TCP else monitor.type
        return PlainCheck(type=kind, header=opening.header if is_stream else None)
    return HttpCheck(
        is_tls=opening.is_tls or monitor.type is MonitorType.HTTPS,
        method=monitor.http_method,
        path=monitor.url_path,
        version=monitor.http_version or "1.0",  # what HAProxy says if it is told none, and so Octavia
        host=monitor.domain_name or (f"[{address}]" if address.version == 6 else str(address)),
        codes=expected(monitor.expected_codes),
        header=opening.header,
    )


def expected(codes: str) -> frozenset[int]:
    """One code, several with commas, or a range with a hyphen."""
    first, hyphen, last = codes.partition("-")
    if hyphen:
        return frozenset(range(int(first), int(last) + 1))
    return frozenset(int(code) for code in codes.split(","))
