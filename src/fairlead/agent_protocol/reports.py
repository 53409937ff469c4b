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

from fairlead.agent_protocol.messages import LARGEST_SUM, LONGEST_NAME, MOST_UNKNOWN, Message, object_of
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.agent import LONGEST_HEARTBEAT, MOST_UNAPPLIED, SHORTEST_HEARTBEAT, Agent, Unapplied
from fairlead.model.documents.agent_counters import AGENT_COUNTERS, Counts
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.hosts import MOST_OWN
from fairlead.model.documents.probe_result import LONGEST_ERROR, Sighting
from fairlead.schema import Field, Parser, address, boolean, integer, list_of, reads, text
from fairlead.store.codec import encode_value, read_value

MOST_SIGHTINGS = 2_000
"""Maximum probe results in one report; the rest is sent in the next one."""
LARGEST_REPORT = 2**21
"""Maximum bytes of a report."""
SEEN = frozenset({Health.ONLINE, Health.ERROR, Health.UNPROBED})
"""Health values that a probe can have as its result. All others are derived."""
MOST_PROXIES = 1_000
MOST_SERVED = 32_768
"""Maximum ports of all proxies together. They are sent with each heartbeat."""
LONGEST_VERSION = 64
LONGEST_LATENCY = 3600.0
Sightings: TypeAlias = Mapping[Endpoint, Sighting | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    agent: Agent
    sightings: Sightings
    """Probe results; None for an endpoint that is no longer probed."""
    whole: bool
    """Whether the report replaces all earlier probe results of the agent."""
    serving: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """All proxies that run on the node, by port id, with the ports on which they accept connections."""
    addresses: frozenset[IPAddress] | None = None
    """Plain host: its own addresses within the prefixes that it routes. None if it has not looked yet, or is no
    host."""
    looks_since: datetime | None = None
    """Start of the agent's continuous probing. Older results are remembered, and another agent may have newer ones.
    None: all results are its own."""
    more: bool = False
    """Whether the agent has another report to send immediately."""
    counted: Counts = field(default_factory=dict)
    """Counters of the agent's own work; empty from an agent of an earlier release."""


@reads({"type": "string", "format": "date-time"})
def _time(value: object) -> datetime:
    found = datetime.fromisoformat(text(LONGEST_VERSION)(value))
    if found.tzinfo is None:
        raise ValueError("Value should have a time zone: 2026-01-01T12:00:00+00:00.")
    return found


def read_endpoint(values: list[object]) -> Endpoint:
    """Decode an endpoint. An older sender may omit the last fields, a newer one may add fields. Raises ValueError."""
    known, missing = values[: len(Endpoint._fields)], Endpoint._fields[len(values) :]
    if not Endpoint._field_defaults.keys() >= set(missing):
        raise ValueError(f"this is no Endpoint: {missing[0]} is missing")
    if len(values) > len(Endpoint._fields) + MOST_UNKNOWN:
        raise ValueError(f"this is no Endpoint: there are more than {MOST_UNKNOWN} values that are not known")
    return read_value([*known, *(_plain(Endpoint._field_defaults[each]) for each in missing)], Endpoint)


@reads({"type": "array", "minItems": 2, "maxItems": 2})
def _sighting(value: object) -> tuple[Endpoint, Sighting | None]:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], list):
        raise ValueError("Value should be an endpoint, and what was seen of it or null.")
    endpoint = read_endpoint(value[0])
    if value[1] is None:
        return endpoint, None
    seen = read_value(value[1], Sighting)
    if seen.health not in SEEN:
        raise ValueError(f"'{seen.health.name}' is nothing that can be seen.")
    if seen.since.tzinfo is None or not (seen.latency is None or 0 <= seen.latency <= LONGEST_LATENCY):
        raise ValueError("since should have a time zone, and latency be a number of seconds.")
    return endpoint, replace(seen, error=_printable(seen.error))


def _printable(error: str) -> str:
    """Remove characters that a server rejects, because an invalid text makes it reject the whole report."""
    return "".join(filter(str.isprintable, error))[:LONGEST_ERROR]


_SERVING = object_of(
    {
        "port": Field(text(LONGEST_NAME), required=True),
        "serving": Field(list_of(integer(1, 65535), MOST_SERVED), required=True),
    }
)
_ALL_SERVING = list_of(_SERVING, MOST_PROXIES)


@reads(_ALL_SERVING.schema)
def _proxies(value: object) -> tuple[Mapping[str, object], ...]:
    """Validate the list of proxies. The total number of ports is checked before any port is parsed."""
    found = value if isinstance(value, list) else []
    lists = [each["serving"] for each in found if isinstance(each, dict) and isinstance(each.get("serving"), list)]
    if sum(map(len, lists)) > MOST_SERVED:
        raise ValueError(f"Value should have at most {MOST_SERVED} ports of proxies.")
    return _ALL_SERVING(value)


_UNAPPLIED = object_of(
    {
        "dataplane": Field(text(LONGEST_NAME), required=True),
        "owner": Field(text(LONGEST_NAME), required=True),
        "error": Field(text(LONGEST_ERROR), required=True),
    }
)
_COUNTED = object_of({each.name: Field(integer(0, LARGEST_SUM)) for each in AGENT_COUNTERS})
REPORT: Parser[Mapping[str, object]] = object_of(
    {
        "version": Field(text(LONGEST_VERSION), required=True),
        "host": Field(text(LONGEST_NAME), required=True),
        "since": Field(_time, required=True),
        "heartbeat": Field(integer(SHORTEST_HEARTBEAT, LONGEST_HEARTBEAT), required=True),
        "unapplied": Field(list_of(_UNAPPLIED, MOST_UNAPPLIED), required=True),
        "sightings": Field(list_of(_sighting, MOST_SIGHTINGS), required=True),
        "whole": Field(boolean, required=True),
        "proxies": Field(_proxies),
        "addresses": Field(list_of(address, MOST_OWN)),
        "looks_since": Field(_time),
        "more": Field(boolean),
        "counted": Field(_COUNTED),
    }
)
"""`heartbeat`: maximum milliseconds until the next heartbeat. `looks_since`: start of continuous probing, by default
`since`. `more`: whether another report follows immediately."""


def read_report(chassis: str, told: Mapping[str, Any]) -> Report:
    """Decode a message that `REPORT` has parsed. Probe results always get this chassis as their source."""
    agent = Agent(
        name=chassis,
        version=told["version"],
        host=told["host"],
        since=told["since"],
        heartbeat=told["heartbeat"] / 1000,
        unapplied=tuple(Unapplied(**each) for each in told["unapplied"]),
    )
    seen = {endpoint: sighting and replace(sighting, chassis=chassis) for endpoint, sighting in told["sightings"]}
    serving = {each["port"]: frozenset(each["serving"]) for each in told.get("proxies") or ()}
    own, counted = told.get("addresses"), told.get("counted") or {}
    return Report(
        agent=agent,
        sightings=seen,
        whole=told["whole"],
        serving=serving,
        addresses=None if own is None else frozenset(own),
        looks_since=told.get("looks_since"),
        more=bool(told.get("more")),
        counted={each: counted[each.name] for each in AGENT_COUNTERS if each.name in counted},
    )


def render_report(report: Report) -> Message:
    agent = report.agent
    body = {
        "version": agent.version,
        "host": agent.host,
        "since": agent.since.isoformat(),
        "heartbeat": round(agent.heartbeat * 1000),
        "unapplied": [
            {"dataplane": each.dataplane, "owner": each.owner, "error": _printable(each.error)}
            for each in agent.unapplied[:MOST_UNAPPLIED]
        ],
        "sightings": [
            [_plain(endpoint), None if sighting is None else _plain(sighting)]
            for endpoint, sighting in report.sightings.items()
        ],
        "whole": report.whole,
        "proxies": list(_told(report.serving)),
        "more": report.more,
    }
    if report.counted:
        body["counted"] = {each.name: min(number, LARGEST_SUM) for each, number in report.counted.items()}
    if report.addresses is not None:
        body["addresses"] = sorted(map(str, report.addresses))[:MOST_OWN]
    if report.looks_since is not None:
        body["looks_since"] = report.looks_since.isoformat()
    return "POST", f"/agent/chassis/{quote(agent.name, safe='')}/report", body


def _told(serving: Mapping[str, frozenset[int]]) -> Iterator[Mapping[str, object]]:
    """Yield the proxies up to the limits of a server, which rejects a larger report. A server sends no traffic to a
    proxy that it has no report of."""
    left = MOST_SERVED
    for port, served in sorted(serving.items())[:MOST_PROXIES]:
        yield {"port": port, "serving": sorted(served)[:left]}
        left -= min(left, len(served))


def _plain(value: object) -> Any:
    return msgspec.json.decode(encode_value(value))
