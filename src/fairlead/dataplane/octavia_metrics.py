"""HAProxy's metrics of one process, as the metrics of a load balancer by Octavia's names.

Whoever watches an amphora finds the same names, units and labels here: listener for frontend, pool for backend, member
for server, loadbalancer for process. Of a process only what is of one load balancer is shown; what HAProxy counts for
the process alone (of TLS, of memory) is that of all load balancers of its project on this network.

Counters only grow, also over processes: what an earlier one had counted is added.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isnan

from fairlead.dataplane.octavia_metric_names import FROM_LISTENERS, NAMES, Sum

MOST_SAMPLES = 100_000
"""Of one process that are remembered: of 2,000 members, say. Whoever has more gets no metrics."""
_SAMPLE = re.compile(r"haproxy_([a-z]+)_(\w+?)(?:\{(.*)\})? (\S+)")
_WORDS = {"process": "loadbalancer", "frontend": "listener", "backend": "pool", "server": "member"}
_LABELS = {"process": (), "frontend": ("listener",), "backend": ("pool",), "server": ("pool", "member")}
_HEAD = re.compile(r"# (HELP|TYPE) haproxy_([a-z]+)_(\w+) (.*)")


class TooMany(Exception):
    """Samples of one process."""


@dataclass(frozen=True, slots=True)
class Key:
    family: str
    section: str
    """The frontend or backend; empty for the process."""
    labels: str


@dataclass(slots=True)
class Reading:
    """What one process has said, line by line."""

    samples: dict[Key, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    helps: dict[str, str] = field(default_factory=dict)
    idle: float = 100.0
    """Percent of the time in which the process had nothing to do."""

    def take(self, line: str, sections: frozenset[str]) -> None:
        """Those of other sections are passed over. Raises TooMany."""
        if line.startswith("#"):
            self._take_head(line)
        elif (found := _SAMPLE.fullmatch(line)) is not None:
            sort, name, labels, value = found.groups(default="")
            if (sort, name) == ("process", "idle_time_percent"):
                self.idle = float(value)
            family, section = family_of(sort, name), _section(labels)
            if family and (not section or section in sections):
                if len(self.samples) >= MOST_SAMPLES:
                    raise TooMany(f"more than {MOST_SAMPLES} metrics")
                self.samples[Key(family, section, _renamed(sort, labels))] = value

    def _take_head(self, line: str) -> None:
        found = _HEAD.fullmatch(line)
        family = family_of(found[2], found[3]) if found is not None else ""
        if found is not None and family:
            (self.helps if found[1] == "HELP" else self.kinds)[family] = _reworded(found[4])

    def counters(self) -> Iterator[tuple[Key, float]]:
        for key, value in self.samples.items():
            if self.kinds.get(key.family) == "counter":
                yield key, float(value)


def family_of(sort: str, name: str) -> str:
    """By Octavia's name; empty for what Octavia does not show."""
    known = NAMES.get(sort, {})
    return known[name] or f"octavia_{_WORDS[sort]}_{name}" if name in known else ""


def _section(labels: str) -> str:
    return labels.split('"', 2)[1] if labels else ""


def _renamed(sort: str, labels: str) -> str:
    """The first labels are `proxy`, and of a server `server`."""
    for before, after in zip(("proxy", "server"), _LABELS[sort], strict=False):
        labels = labels.replace(f'{before}="', f'{after}="', 1)
    return labels


def _reworded(text: str) -> str:
    for before, after in (("server", "member"), ("backend", "pool"), ("frontend", "listener")):
        text = re.sub(rf"\b{before}(s?)\b", rf"{after}\1", text)
    return text


@dataclass(slots=True)
class Meter:
    """One proxy's metrics over its processes."""

    process: str = ""
    reading: Reading = field(default_factory=Reading)
    carried: dict[Key, float] = field(default_factory=dict)
    """What processes before this one had counted."""

    def take(self, process: str, reading: Reading) -> None:
        """All that this process has counted. What is not there any more is forgotten."""
        if self.process and process != self.process:
            for key, value in self.reading.counters():
                self.carried[key] = self.carried.get(key, 0.0) + value
        self.carried = {key: value for key, value in self.carried.items() if key in reading.samples}
        self.process, self.reading = process, reading

    def of(self, key: Key) -> float:
        return float(self.reading.samples[key]) + self.carried.get(key, 0.0)


def rendered(meter: Meter, listeners: frozenset[str], backends: frozenset[str], memory: int) -> str:
    """Of one load balancer, in Prometheus' text format; `memory` is that of the node, in bytes."""
    values = dict[str, list[tuple[str, str]]]()
    for key in meter.reading.samples:
        if not key.section or key.section in listeners or key.section in backends:
            values.setdefault(key.family, []).append((key.labels, _text(meter.of(key))))
    for family, one in _sums(meter, listeners).items():
        values[family] = [("", one)]
    allocated = sum(
        meter.of(key) for key in meter.reading.samples if key.family == "octavia_memory_pool_allocated_bytes"
    )
    own = {
        "octavia_loadbalancer_cpu": (
            "Time in which its proxy on this node was at work (percentage).",
            100.0 - meter.reading.idle,
        ),
        "octavia_loadbalancer_memory": (
            "Memory of the node that its proxy has (percentage).",
            100 * allocated / memory,
        ),
    }
    lines = [line for name, (words, one) in own.items() for line in _family(name, words, "gauge", [("", f"{one:.1f}")])]
    for family, found in values.items():
        words, kind = meter.reading.helps.get(family, family), meter.reading.kinds.get(family, "gauge")
        lines.extend(_family(family, words, kind, found))
    return "\n".join(lines) + "\n"


def _family(name: str, words: str, kind: str, samples: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        yield f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"


def _sums(meter: Meter, listeners: frozenset[str]) -> Mapping[str, str]:
    """What a process has of the load balancer alone: its listeners together."""
    found = dict[str, dict[str, float]]()
    for key in meter.reading.samples:
        if key.section in listeners:
            found.setdefault(key.family, {})[key.section] = meter.of(key)
    sums = {name: _sum(how, found) for name, how in FROM_LISTENERS.items()}
    return {
        **{name: _text(value) for name, value in sums.items()},
        "octavia_loadbalancer_listeners": f"{len(listeners)}",
    }


def _sum(how: Sum, found: Mapping[str, Mapping[str, float]]) -> float:
    """Where a listener has not the first of these figures, it has the second."""
    values = dict[str, float]()
    for family in reversed(how.families):
        values.update(found.get(family, {}))
    return max(values.values(), default=0.0) if how.is_greatest else sum(values.values(), 0.0)


def _text(value: float) -> str:
    return str(int(value)) if value.is_integer() else "NaN" if isnan(value) else repr(value)
