"""Reports of an agent about itself and its probes: encoding and decoding.

An endpoint is a list of its fields in order, a probe result is an object. Both ends have the same classes, in which
new fields come last and have defaults.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec

from fairlead.agent_protocol.messages import MAX_COUNTER, MAX_NAME_LENGTH, MAX_UNKNOWN_ATTRIBUTES, Message, object_of
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.agent import (
    MAX_HEARTBEAT_MS,
    MAX_REPORTED_FAILURES,
    MIN_HEARTBEAT_MS,
    Agent,
    ApplyFailure,
)
from fairlead.model.documents.agent_counters import AGENT_COUNTERS, Counts
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.hosts import MAX_OWN_ADDRESSES
from fairlead.model.documents.probe_result import MAX_ERROR_LENGTH, ProbeResult
from fairlead.schema import Field, Parser, address, boolean, integer, list_of, reads, text
from fairlead.store.codec import encode_value, read_value

MAX_PROBE_RESULTS = 2_000
"""Maximum probe results in one report; the rest is sent in the next one."""
MAX_REPORT_BYTES = 2**21
"""Maximum bytes of a report."""
PROBE_RESULT_VALUES = frozenset({Health.ONLINE, Health.ERROR, Health.UNPROBED})
"""Health values that a probe can have as its result. All others are derived."""
MAX_PROXIES = 1_000
MAX_PROXY_PORTS = 32_768
"""Maximum ports of all proxies together. They are sent with each heartbeat."""
MAX_VERSION_LENGTH = 64
MAX_LATENCY_SECONDS = 3600.0
ProbeResults: TypeAlias = Mapping[Endpoint, ProbeResult | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    agent: Agent
    probe_results: ProbeResults
    """Probe results; None for an endpoint that is no longer probed."""
    is_complete: bool
    """Whether the report replaces all earlier probe results of the agent."""
    serving: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """All proxies that run on the node, by port id, with the ports on which they accept connections."""
    addresses: frozenset[IPAddress] | None = None
    """Plain host: its own addresses within the prefixes that it routes. None if it has not looked yet, or is no
    host."""
    probing_since: datetime | None = None
    """Start of the agent's continuous probing. Older results are remembered, and another agent may have newer ones.
    None: all results are its own."""
    more: bool = False
    """Whether the agent has another report to send immediately."""
    counted: Counts = field(default_factory=dict)
    """Counters of the agent's own work; empty from an agent of an earlier release."""


@reads({"type": "string", "format": "date-time"})
def _time(value: object) -> datetime:
    found = datetime.fromisoformat(text(MAX_VERSION_LENGTH)(value))
    if found.tzinfo is None:
        raise ValueError("Value should have a time zone: 2026-01-01T12:00:00+00:00.")
    return found


def read_endpoint(values: list[object]) -> Endpoint:
    """Decode an endpoint. An older sender may omit the last fields, a newer one may add fields. Raises ValueError."""
    known, missing = values[: len(Endpoint._fields)], Endpoint._fields[len(values) :]
    if not Endpoint._field_defaults.keys() >= set(missing):
        raise ValueError(f"invalid endpoint: {missing[0]} is missing")
    if len(values) > len(Endpoint._fields) + MAX_UNKNOWN_ATTRIBUTES:
        raise ValueError(f"invalid endpoint: more than {MAX_UNKNOWN_ATTRIBUTES} unknown values")
    return read_value([*known, *(_plain(Endpoint._field_defaults[each]) for each in missing)], Endpoint)


@reads({"type": "array", "minItems": 2, "maxItems": 2})
def _sighting(value: object) -> tuple[Endpoint, ProbeResult | None]:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], list):
        raise ValueError("Value should be an endpoint and its probe result or null.")
    endpoint = read_endpoint(value[0])
    if value[1] is None:
        return endpoint, None
    seen = read_value(value[1], ProbeResult)
    if seen.health not in PROBE_RESULT_VALUES:
        raise ValueError(f"'{seen.health.name}' is not a possible probe result.")
    if seen.since.tzinfo is None or not (seen.latency is None or 0 <= seen.latency <= MAX_LATENCY_SECONDS):
        raise ValueError(f"since should have a time zone, and latency should be 0 to {MAX_LATENCY_SECONDS} seconds.")
    return endpoint, replace(seen, error=_printable(seen.error))


def _printable(error: str) -> str:
    """Remove characters that a server rejects, because an invalid text makes it reject the whole report."""
    return "".join(filter(str.isprintable, error))[:MAX_ERROR_LENGTH]


_SERVING = object_of(
    {
        "port": Field(text(MAX_NAME_LENGTH), required=True),
        "serving": Field(list_of(integer(1, 65535), MAX_PROXY_PORTS), required=True),
    }
)
_ALL_SERVING = list_of(_SERVING, MAX_PROXIES)


@reads(_ALL_SERVING.schema)
def _proxies(value: object) -> tuple[Mapping[str, object], ...]:
    """Validate the list of proxies. The total number of ports is checked before any port is parsed."""
    found = value if isinstance(value, list) else []
    lists = [each["serving"] for each in found if isinstance(each, dict) and isinstance(each.get("serving"), list)]
    if sum(map(len, lists)) > MAX_PROXY_PORTS:
        raise ValueError(f"Value should have at most {MAX_PROXY_PORTS} proxy ports.")
    return _ALL_SERVING(value)


_UNAPPLIED = object_of(
    {
        "dataplane": Field(text(MAX_NAME_LENGTH), required=True),
        "owner": Field(text(MAX_NAME_LENGTH), required=True),
        "error": Field(text(MAX_ERROR_LENGTH), required=True),
    }
)
_COUNTED = object_of({each.name: Field(integer(0, MAX_COUNTER)) for each in AGENT_COUNTERS})
REPORT: Parser[Mapping[str, object]] = object_of(
    {
        "version": Field(text(MAX_VERSION_LENGTH), required=True),
        "host": Field(text(MAX_NAME_LENGTH), required=True),
        "since": Field(_time, required=True),
        "heartbeat": Field(integer(MIN_HEARTBEAT_MS, MAX_HEARTBEAT_MS), required=True),
        "unapplied": Field(list_of(_UNAPPLIED, MAX_REPORTED_FAILURES), required=True),
        "sightings": Field(list_of(_sighting, MAX_PROBE_RESULTS), required=True),
        "whole": Field(boolean, required=True),
        "proxies": Field(_proxies),
        "addresses": Field(list_of(address, MAX_OWN_ADDRESSES)),
        "looks_since": Field(_time),
        "more": Field(boolean),
        "counted": Field(_COUNTED),
    }
)
"""`heartbeat`: maximum milliseconds until the next heartbeat. `probing_since`: start of continuous probing, by default
`since`. `more`: whether another report follows immediately."""


def read_report(chassis: str, told: Mapping[str, Any]) -> AgentReport:
    """Decode a message that `COUNTER_REPORT` has parsed. Probe results always get this chassis as their source."""
    agent = Agent(
        name=chassis,
        version=told["version"],
        host=told["host"],
        since=told["since"],
        heartbeat=told["heartbeat"] / 1000,
        apply_failures=tuple(ApplyFailure(**each) for each in told["unapplied"]),
    )
    seen = {endpoint: sighting and replace(sighting, chassis=chassis) for endpoint, sighting in told["sightings"]}
    serving = {each["port"]: frozenset(each["serving"]) for each in told.get("proxies") or ()}
    own, counted = told.get("addresses"), told.get("counted") or {}
    return AgentReport(
        agent=agent,
        probe_results=seen,
        is_complete=told["whole"],
        serving=serving,
        addresses=None if own is None else frozenset(own),
        probing_since=told.get("looks_since"),
        more=bool(told.get("more")),
        counted={each: counted[each.name] for each in AGENT_COUNTERS if each.name in counted},
    )


def render_report(report: AgentReport) -> Message:
    agent = report.agent
    body = {
        "version": agent.version,
        "host": agent.host,
        "since": agent.since.isoformat(),
        "heartbeat": round(agent.heartbeat * 1000),
        "unapplied": [
            {"dataplane": each.dataplane, "owner": each.owner, "error": _printable(each.error)}
            for each in agent.apply_failures[:MAX_REPORTED_FAILURES]
        ],
        "sightings": [
            [_plain(endpoint), None if sighting is None else _plain(sighting)]
            for endpoint, sighting in report.probe_results.items()
        ],
        "whole": report.is_complete,
        "proxies": list(_rendered_proxies(report.serving)),
        "more": report.more,
    }
    if report.counted:
        body["counted"] = {each.name: min(number, MAX_COUNTER) for each, number in report.counted.items()}
    if report.addresses is not None:
        body["addresses"] = sorted(map(str, report.addresses))[:MAX_OWN_ADDRESSES]
    if report.probing_since is not None:
        body["looks_since"] = report.probing_since.isoformat()
    return "POST", f"/agent/chassis/{quote(agent.name, safe='')}/report", body


def _rendered_proxies(serving: Mapping[str, frozenset[int]]) -> Iterator[Mapping[str, object]]:
    """Yield the proxies up to the limits of a server, which rejects a larger report. A server sends no traffic to a
    proxy that it has no report of."""
    left = MAX_PROXY_PORTS
    for port, served in sorted(serving.items())[:MAX_PROXIES]:
        yield {"port": port, "serving": sorted(served)[:left]}
        left -= min(left, len(served))


def _plain(value: object) -> Any:
    return msgspec.json.decode(encode_value(value))
