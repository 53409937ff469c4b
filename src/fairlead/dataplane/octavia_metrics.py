"""Conversion of one HAProxy process's metrics to metrics of a load balancer with Octavia's names.

Names, units and labels are those of an amphora: listener for frontend, pool for backend, member for server,
loadbalancer for process. Metrics of sections are filtered by load balancer. Metrics that HAProxy has only per process
(TLS, memory) cover all load balancers of the project on this network.

Counters never decrease, also not after a restart: the counts of earlier processes are added.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isnan

from fairlead.dataplane.octavia_metric_names import FROM_LISTENERS, NAMES, Sum

MAX_SAMPLES = 100_000
"""Maximum samples kept of one process (about 2,000 members). A larger process exports no metrics."""
_SAMPLE = re.compile(r"haproxy_([a-z]+)_(\w+?)(?:\{(.*)\})? (\S+)")
_WORDS = {"process": "loadbalancer", "frontend": "listener", "backend": "pool", "server": "member"}
_LABELS = {"process": (), "frontend": ("listener",), "backend": ("pool",), "server": ("pool", "member")}
_HEAD = re.compile(r"# (HELP|TYPE) haproxy_([a-z]+)_(\w+) (.*)")


class TooManySamples(Exception):
    """The process has too many samples."""


@dataclass(frozen=True, slots=True)
class MetricKey:
    family: str
    section: str
    """Frontend or backend; empty for the process."""
    labels: str


@dataclass(slots=True)
class Scrape:
    """Samples of one scrape of a process."""

    samples: dict[MetricKey, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    helps: dict[str, str] = field(default_factory=dict)
    idle: float = 100.0
    """Percentage of time that the process was idle."""

    def parse_line(self, line: str, sections: frozenset[str]) -> None:
        """Parse one line; samples of other sections are ignored. Raises TooMany."""
        if line.startswith("#"):
            self._take_head(line)
        elif (found := _SAMPLE.fullmatch(line)) is not None:
            sort, name, labels, value = found.groups(default="")
            if (sort, name) == ("process", "idle_time_percent"):
                self.idle = float(value)
            family, section = family_of(sort, name), _section(labels)
            if family and (not section or section in sections):
                if len(self.samples) >= MAX_SAMPLES:
                    raise TooManySamples(f"more than {MAX_SAMPLES} metrics")
                self.samples[MetricKey(family, section, _renamed(sort, labels))] = value

    def _take_head(self, line: str) -> None:
        found = _HEAD.fullmatch(line)
        family = family_of(found[2], found[3]) if found is not None else ""
        if found is not None and family:
            (self.helps if found[1] == "HELP" else self.kinds)[family] = _reworded(found[4])

    def counters(self) -> Iterator[tuple[MetricKey, float]]:
        for key, value in self.samples.items():
            if self.kinds.get(key.family) == "counter":
                yield key, float(value)


def family_of(sort: str, name: str) -> str:
    """Return the metric's name in Octavia; empty for a metric that Octavia does not export."""
    known = NAMES.get(sort, {})
    return known[name] or f"octavia_{_WORDS[sort]}_{name}" if name in known else ""


def _section(labels: str) -> str:
    return labels.split('"', 2)[1] if labels else ""


def _renamed(sort: str, labels: str) -> str:
    """Rename the leading labels: `proxy`, and for a server also `server`."""
    for before, after in zip(("proxy", "server"), _LABELS[sort], strict=False):
        labels = labels.replace(f'{before}="', f'{after}="', 1)
    return labels


def _reworded(text: str) -> str:
    for before, after in (("server", "member"), ("backend", "pool"), ("frontend", "listener")):
        text = re.sub(rf"\b{before}(s?)\b", rf"{after}\1", text)
    return text


@dataclass(slots=True)
class AccumulatedMetrics:
    """Metrics of one proxy, accumulated over its processes."""

    process: str = ""
    scrape: Scrape = field(default_factory=Scrape)
    carried: dict[MetricKey, float] = field(default_factory=dict)
    """Final counters of earlier processes."""

    def record_scrape(self, process: str, reading: Scrape) -> None:
        """Record a complete scrape. Counters that no longer exist are dropped."""
        if self.process and process != self.process:
            for key, value in self.scrape.counters():
                self.carried[key] = self.carried.get(key, 0.0) + value
        self.carried = {key: value for key, value in self.carried.items() if key in reading.samples}
        self.process, self.scrape = process, reading

    def value_of(self, key: MetricKey) -> float:
        return float(self.scrape.samples[key]) + self.carried.get(key, 0.0)


def render_metrics(meter: AccumulatedMetrics, listeners: frozenset[str], backends: frozenset[str], memory: int) -> str:
    """Render the metrics of one load balancer in the Prometheus text format. `memory` is the node's, in bytes."""
    values = dict[str, list[tuple[str, str]]]()
    for key in meter.scrape.samples:
        if not key.section or key.section in listeners or key.section in backends:
            values.setdefault(key.family, []).append((key.labels, _text(meter.value_of(key))))
    for family, one in _sums(meter, listeners).items():
        values[family] = [("", one)]
    allocated = sum(
        meter.value_of(key) for key in meter.scrape.samples if key.family == "octavia_memory_pool_allocated_bytes"
    )
    own = {
        "octavia_loadbalancer_cpu": (
            "CPU time of the HAProxy process on this node (percentage).",
            100.0 - meter.scrape.idle,
        ),
        "octavia_loadbalancer_memory": (
            "Memory of this node used by the HAProxy process (percentage).",
            100 * allocated / memory,
        ),
    }
    lines = [line for name, (words, one) in own.items() for line in _family(name, words, "gauge", [("", f"{one:.1f}")])]
    for family, found in values.items():
        words, kind = meter.scrape.helps.get(family, family), meter.scrape.kinds.get(family, "gauge")
        lines.extend(_family(family, words, kind, found))
    return "\n".join(lines) + "\n"


def _family(name: str, words: str, kind: str, samples: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        yield f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"


def _sums(meter: AccumulatedMetrics, listeners: frozenset[str]) -> Mapping[str, str]:
    """Return the load balancer's aggregates of its listeners."""
    found = dict[str, dict[str, float]]()
    for key in meter.scrape.samples:
        if key.section in listeners:
            found.setdefault(key.family, {})[key.section] = meter.value_of(key)
    sums = {name: _sum(how, found) for name, how in FROM_LISTENERS.items()}
    return {
        **{name: _text(value) for name, value in sums.items()},
        "octavia_loadbalancer_listeners": f"{len(listeners)}",
    }


def _sum(how: Sum, found: Mapping[str, Mapping[str, float]]) -> float:
    """Aggregate a metric; a listener without the first family counts with the second."""
    values = dict[str, float]()
    for family in reversed(how.families):
        values.update(found.get(family, {}))
    return max(values.values(), default=0.0) if how.is_greatest else sum(values.values(), 0.0)


def _text(value: float) -> str:
    return str(int(value)) if value.is_integer() else "NaN" if isnan(value) else repr(value)
