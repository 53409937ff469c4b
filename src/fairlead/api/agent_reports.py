"""What an agent tells of itself and of what it probes: how it is written, and how it is read.

An endpoint is a list of its fields in their order, what was seen of it an object: both ends have the same classes, in
which new fields come last and have defaults.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec

from fairlead.api.agent_messages import LARGEST_SUM, LONGEST_NAME, MOST_UNKNOWN, Message, object_of
from fairlead.api.fields import Field, Parser, address, boolean, integer, list_of, reads, text
from fairlead.model.addresses import IPAddress
from fairlead.model.agent import LONGEST_HEARTBEAT, MOST_UNAPPLIED, SHORTEST_HEARTBEAT, Agent, Unapplied
from fairlead.model.agent_counters import AGENT_COUNTERS, Counts
from fairlead.model.health import Endpoint, Health
from fairlead.model.hosts import MOST_OWN
from fairlead.model.sighting import LONGEST_ERROR, Sighting
from fairlead.store.codec import encode_value, read_value

MOST_SIGHTINGS = 2_000
"""In one report; the rest is told in the next."""
LARGEST_REPORT = 2**21
"""Bytes."""
SEEN = frozenset({Health.ONLINE, Health.ERROR, Health.UNPROBED})
"""What can be seen of an endpoint, or why nothing can be; all else follows from other things."""
MOST_PROXIES = 1_000
MOST_SERVED = 32_768
"""Ports of all of them together: they are told with each heartbeat."""
LONGEST_VERSION = 64
LONGEST_LATENCY = 3600.0
Sightings: TypeAlias = Mapping[Endpoint, Sighting | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    agent: Agent
    sightings: Sightings
    """None: it is not probed any more."""
    whole: bool
    """Whether it begins anew: what was told before, and is not told again, is forgotten."""
    serving: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """All proxies that run on the node, by their ports, and where they take connections."""
    addresses: frozenset[IPAddress] | None = None
    """Of a plain host: its own among those that are behind it. None: it has not looked yet, or is no host."""
    looks_since: datetime | None = None
    """What is older the agent remembers, and somebody else may have seen something since; None: it is all its own."""
    more: bool = False
    """Whether the agent has more to tell at once."""
    counted: Counts = field(default_factory=dict)
    """Of its own work; an agent of a release before that says nothing of it."""


@reads({"type": "string", "format": "date-time"})
def _time(value: object) -> datetime:
    found = datetime.fromisoformat(text(LONGEST_VERSION)(value))
    if found.tzinfo is None:
        raise ValueError("Value should have a time zone: 2026-01-01T12:00:00+00:00.")
    return found


def read_endpoint(values: list[object]) -> Endpoint:
    """Of somebody who is older too, and does not know the last fields, or newer and has more. Raises ValueError."""
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
    """As a server takes it, whatever a program has said: a report of which it refuses a word it refuses as a whole."""
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
    """They are counted before any is looked at."""
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
"""`heartbeat`: after how many milliseconds it will say at the latest that it lives. `looks_since`: since when it has
looked without a break, and `since` if it does not say so; `more`: whether it has more to tell at once."""


def read_report(chassis: str, told: Mapping[str, Any]) -> Report:
    """Of a message that `REPORT` has read. Whatever it says of that: it is this chassis that has seen it."""
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
    """As many as a server hears: of a proxy that it is not told of nobody is led there, and of a report that is too
    large it would believe nothing."""
    left = MOST_SERVED
    for port, served in sorted(serving.items())[:MOST_PROXIES]:
        yield {"port": port, "serving": sorted(served)[:left]}
        left -= min(left, len(served))


def _plain(value: object) -> Any:
    return msgspec.json.decode(encode_value(value))
