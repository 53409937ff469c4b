"""Monitoring endpoints: `/metrics` in Prometheus' text format, `/healthz` and `/readyz`.

Health checks need no authentication; metrics need an administrator, like the operator API.
`fairlead_full_reconcile_corrections_total` must stay 0 after the start: it counts owners that a full comparison
corrected.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client import Counter as EventCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fairlead import __version__
from fairlead.api.agents.metrics import render_agent_counters
from fairlead.api.agents.nodes import NodeRegistry
from fairlead.api.http.access_control import Answered
from fairlead.api.http.front_end import Services, identity
from fairlead.api.keystone.counters import CacheHit, ValidationResult
from fairlead.api.keystone.tokens import KeystoneTokens
from fairlead.changes.proxy_limits import large_proxies
from fairlead.model.documents.health import Health
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.status import OperatingStatus, ProvisioningStatus, derive_provisioning_status
from fairlead.model.queries.balancer_state import derive_balancer_status
from fairlead.model.queries.replica_probes import replicas_health
from fairlead.model.registry.kinds import has_rows
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.dataplanes import Central, Dataplanes
from fairlead.reconciler.owner_states import ApplyRecord
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.loop_lag import LoopLag
from fairlead.runtime.steps import Steps
from fairlead.store.read_barrier import ReadBarrier

SOUTHBOUND_TIMEOUT = 30.0
"""Seconds without updates of required probes or ports after which a server is not ready: members that have failed
since then are still served, and statuses of ports are stale."""
STANDBY_TIMEOUT = 30.0
"""Seconds that a server without the lock waits for the leader to write pending changes."""
STORE_TIMEOUT = 10.0
"""Seconds for which the store may be away: an election of etcd, and a member that stands still, take some."""
LAG_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
"""Seconds; the target is at most 0.05."""
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
"""Seconds."""
ROOT = "root"
"""Value of the label `api` for paths of no API front end."""
OTHER = "other"
"""Value of the labels `api` and `method` for unknown ones."""
REFUSED, DELAYED = "refused", "delayed"
"""Values of the label `outcome` of paced requests."""
MEMBER_STATUSES = (
    OperatingStatus.ONLINE,
    OperatingStatus.OFFLINE,
    OperatingStatus.ERROR,
    OperatingStatus.DRAINING,
    OperatingStatus.NO_MONITOR,
)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


disable_created_metrics()  # type: ignore[no-untyped-call]  # creation times would be series of their own


class Metrics:
    """Metrics of one application, in a registry of its own, so that two applications in one process do not conflict."""

    def __init__(
        self,
        services: Services,
        dataplanes: Dataplanes,
        loop_lag: LoopLag,
        doors: frozenset[str] = frozenset(),
        tokens: KeystoneTokens | None = None,
    ) -> None:
        """`doors` are the first path segments of the API front ends, used as labels; `tokens` validates their
        callers."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        Info("fairlead_build", "Version of Fairlead.", registry=self._registry).info({"version": __version__})
        lag = Histogram(
            "fairlead_event_loop_lag_seconds",
            "Time for which one piece of work blocked the event loop.",
            buckets=LAG_BUCKETS,
            registry=self._registry,
        )
        loop_lag.set_observer(lag.observe)
        self._central = dataplanes.central
        self._looks = services.model.read_barrier
        self._nodes = services.nodes
        self._front_ends = frozenset({"", *doors})
        self._requests = Histogram(
            "fairlead_http_request_duration_seconds",
            "Duration of HTTP requests.",
            ["api", "method", "code"],
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._paced = EventCounter(
            "fairlead_api_paced_requests",
            "Requests above a rate limit, by outcome: refused (answered 429 with Retry-After, immediately or after"
            " waiting), or delayed (waited in the queue of their project or user, then processed).",
            ["api", "outcome"],
            registry=self._registry,
        )
        for api, outcome in product(sorted({ROOT, OTHER, *doors}), (REFUSED, DELAYED)):
            self._paced.labels(api, outcome)
        self._compiling = self._timing("fairlead_compile_duration_seconds", "Duration of compiling one owner.")
        self._applying = self._timing(
            "fairlead_apply_duration_seconds", "Duration of comparing one owner and writing the difference."
        )
        for central in self._central:
            central.reconciler.watch(self._observer(central.dataplane.name))
        self._state = _State(services, dataplanes)
        self._registry.register(self._state)
        if tokens is not None:
            self._registry.register(TokenCollector(tokens))

    def observe(self, answered: Answered) -> None:
        api, method, status = self._front_end_label(answered.path), answered.method, answered.status
        labels = (api, method if method in METHODS else OTHER, str(status))
        self._requests.labels(*labels).observe(answered.seconds)
        if status == 429:
            self._paced.labels(api, REFUSED).inc()
        elif answered.delayed:
            self._paced.labels(api, DELAYED).inc()

    def _front_end_label(self, path: str) -> str:
        """Return the label of a path. Only known names are used, because each label value is kept forever."""
        first = path.split("/", 2)[1] if path.count("/") > 1 else ""
        return (first or ROOT) if first in self._front_ends else OTHER

    def _timing(self, name: str, meaning: str) -> Histogram:
        return Histogram(
            name,
            meaning,
            ["dataplane", "kind"],
            buckets=(0.0001, 0.00025, 0.0005, *BUCKETS),
            registry=self._registry,
        )

    def _observer(self, dataplane: str) -> Callable[[ApplyRecord], None]:
        def observe(work: ApplyRecord) -> None:
            self._compiling.labels(dataplane, work.owner.kind.value).observe(work.compiling)
            self._applying.labels(dataplane, work.owner.kind.value).observe(work.applying)

        return observe

    def routes(self) -> list[Route]:
        return [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics),
        ]

    async def _healthz(self, _: Request) -> Response:
        """Liveness: succeeds while the process responds."""
        return PlainTextResponse("well\n")

    async def _readyz(self, _: Request) -> Response:
        """Readiness: succeeds if changes can reach every dataplane, through this server or through another that is
        the leader."""
        if (away := self._looks.unavailable_seconds) > STORE_TIMEOUT:
            return PlainTextResponse(f"not ready: the store is unavailable for {away:.0f} s\n", 503)
        conditions = [(each, each.condition()) for each in self._central]
        for each, now in conditions:
            if not now.connected:
                return PlainTextResponse(f"not ready: {each.dataplane.title} is not reachable\n", 503)
        for now in (condition for _, condition in conditions):
            if now.facts_missing_seconds > SOUTHBOUND_TIMEOUT:
                words = f"not ready: no {now.missing_facts} received for {now.facts_missing_seconds:.0f} s\n"
                return PlainTextResponse(words, 503)
        others = [each for each, now in conditions if not now.is_leader]
        if not others:
            return PlainTextResponse("ready\n")
        waits = max(each.reconciler.unsettled() for each in others)
        if waits > STANDBY_TIMEOUT:
            return PlainTextResponse(
                f"not ready: another server is the leader; a change waits for {waits:.0f} s\n", 503
            )
        return PlainTextResponse("ready: another server is the leader\n")

    async def _metrics(self, request: Request) -> Response:
        if not identity(request).is_admin:
            return PlainTextResponse("metrics require role admin\n", 403)
        await run_in_steps(self._state.count())
        of_agents = await run_in_steps(render_agent_counters(self._nodes.agents.counted()))
        text = generate_latest(self._registry) + of_agents.encode()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


class _State(Collector):
    """Collector that reads current values at each scrape. Values that need a scan of all objects are counted in
    steps just before (`count`)."""

    def __init__(self, services: Services, dataplanes: Dataplanes) -> None:
        self._services = services
        self._central = dataplanes.central
        self._owners: Mapping[tuple[str, ...], int] = {}
        """Number of documents, by kind and status."""
        self._members: Mapping[tuple[str, ...], int] = {}
        """Number of members, by status."""
        self._replicas: Mapping[tuple[str, ...], int] = {}

    def count(self) -> Steps[None]:
        snapshot = self._services.model.snapshot
        self._owners = yield from self._count_owners(snapshot)
        self._members = yield from self._count_members(snapshot)
        self._replicas = yield from self._count_replicas(snapshot)

    def collect(self) -> Iterator[Metric]:
        yield from _work(self._central)
        yield from _conditions(self._central)
        yield from _observed(self._central)
        yield from _unmanaged(self._central)
        yield GaugeMetricFamily(
            "fairlead_counting_agents", "Agents that report counters.", self._services.node_counts.nodes
        )
        yield from _agents(self._services.nodes)
        yield from _store(self._services.model.read_barrier)
        yield GaugeMetricFamily(
            "fairlead_unreadable_keys",
            "Unreadable keys, certificates and revocation lists in use; the log names them.",
            self._services.keys.unreadable_count(self._services.model.snapshot),
        )
        yield GaugeMetricFamily(
            "fairlead_weak_keys",
            "Certificates in use that HAProxy or clients reject; new load balancers cannot use them. See the log.",
            self._services.keys.outdated_count(self._services.model.snapshot),
        )
        yield GaugeMetricFamily(
            "fairlead_proxies_above_limit",
            "HAProxies with more servers than providers.max_proxy_servers; the log names them at the start.",
            len(large_proxies(self._services.proxy_servers, self._services.model.snapshot)),
        )
        yield _counted(
            "fairlead_owners",
            "Objects with rows in a dataplane, by provisioning status.",
            self._owners,
            ("kind", "status"),
            product([kind.value for kind in Kind if has_rows(kind)], [each.value for each in ProvisioningStatus]),
        )
        statuses = [(each.value,) for each in MEMBER_STATUSES]
        yield _counted(
            "fairlead_members",
            "Members with a health monitor, by operating status.",
            self._members,
            ("status",),
            statuses,
        )
        yield _counted(
            "fairlead_local_ip_replicas",
            "Replicas of Local IPs with a health monitor, by operating status.",
            self._replicas,
            ("status",),
            statuses,
        )

    def _count_owners(self, snapshot: Snapshot) -> Steps[Mapping[tuple[str, ...], int]]:
        counts: Counter[tuple[str, ...]] = Counter()
        for owner, generation in snapshot.generations.items():
            if has_rows(owner.kind):
                counts[
                    owner.kind.value, derive_provisioning_status(generation, self._services.applied(owner)).value
                ] += 1
            yield
        return counts

    def _count_replicas(self, snapshot: Snapshot) -> Steps[Mapping[tuple[str, ...], int]]:
        """Count replicas, by the operating statuses of members."""
        counts: Counter[tuple[str, ...]] = Counter()
        for local_ip in (snapshot.local_ips[each] for each in snapshot.monitored_local_ips):
            counts.update((_status(health).value,) for _, health in replicas_health(snapshot, local_ip))
            yield
        return counts

    def _count_members(self, snapshot: Snapshot) -> Steps[Mapping[tuple[str, ...], int]]:
        counts: Counter[tuple[str, ...]] = Counter()
        for balancer in (snapshot.load_balancers[each] for each in set(snapshot.monitor_owner.values())):
            where = derive_balancer_status(
                snapshot, balancer, self._services.applied(Owner(Kind.LOAD_BALANCER, balancer.id))
            )
            for pool in balancer.pools:
                if pool.health_monitor:
                    counts.update((where.of_member(pool, member).value,) for member in pool.members)
                    yield
        return counts


class TokenCollector(Collector):
    """Validations of tokens by Keystone."""

    def __init__(self, tokens: KeystoneTokens) -> None:
        self._tokens = tokens

    def collect(self) -> Iterator[Metric]:
        figures = self._tokens.counters
        asked = CounterMetricFamily(
            "fairlead_keystone_requests_total", "Requests to Keystone that validate a token.", labels=["outcome"]
        )
        for outcome in ValidationResult:
            asked.add_metric([outcome.value], figures.requests[outcome])
        known = CounterMetricFamily(
            "fairlead_keystone_cached_validations_total",
            "Tokens that were accepted or rejected without a request to Keystone.",
            labels=["reason"],
        )
        for why in CacheHit:
            known.add_metric([why.value], figures.cache_hits[why])
        yield from (asked, known)
        yield CounterMetricFamily(
            "fairlead_keystone_request_duration_seconds_total",
            "Total duration of requests to Keystone.",
            figures.seconds,
        )
        yield GaugeMetricFamily(
            "fairlead_keystone_cached_tokens", "Valid tokens in the cache.", len(self._tokens.cache)
        )
        yield GaugeMetricFamily(
            "fairlead_keystone_up", "1 if Keystone answered the last request.", int(self._tokens.keystone.is_available)
        )


def _agents(nodes: NodeRegistry) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "fairlead_connected_agents",
        "Agents that are connected for their node's configuration.",
        nodes.channel.connected_count,
    )
    yield GaugeMetricFamily(
        "fairlead_connected_announcers",
        "Agents that are connected for addresses to announce.",
        nodes.neighbours.waiting,
    )
    yield CounterMetricFamily(
        "fairlead_announcements_total", "MAC address changes sent to agents for announcement.", nodes.neighbours.changed
    )


def _store(looks: ReadBarrier) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "fairlead_store_unavailable_since_timestamp_seconds",
        "Time since which the store is unavailable; 0 while it is available.",
        _timestamp(looks.unavailable_seconds),
    )
    yield CounterMetricFamily("fairlead_store_polls_total", "Polls of the store's revision.", looks.polls)
    yield CounterMetricFamily(
        "fairlead_store_read_barriers_total", "Requests that needed a poll of the store's revision.", looks.shared
    )


def _timestamp(age: float) -> float:
    """Unix time of a moment `age` seconds ago; 0 for an age of 0, which stands for never."""
    return time.time() - age if age else 0.0


def _status(health: Health) -> OperatingStatus:
    if not health.is_known:
        return OperatingStatus.OFFLINE
    return OperatingStatus.ERROR if health.is_down else OperatingStatus.ONLINE


def _counted(
    name: str,
    text: str,
    counts: Mapping[tuple[str, ...], int],
    labels: Sequence[str],
    expected: Iterable[tuple[str, ...]],
) -> Metric:
    """Gauges of counts; expected label values without a count are 0, so that a series never disappears."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values in sorted({*counts, *expected}):
        family.add_metric(values, counts.get(values, 0))
    return family


Read = Callable[[Central], float]
_COUNTED: Mapping[str, tuple[str, Read]] = {
    "compiles": ("Owners compiled.", lambda each: each.reconciler.statistics.compiled),
    "full_reconciles": (
        "Comparisons of all owners with the dataplane.",
        lambda each: each.reconciler.statistics.resyncs,
    ),
    "full_reconcile_corrections": (
        "Owners that a comparison of all owners found different.",
        lambda each: each.reconciler.statistics.resync_changes,
    ),
    "drifted_owners": (
        "Owners with drift: another program changed their rows.",
        lambda each: each.reconciler.statistics.meddled,
    ),
}
_APPLIES: Mapping[str, Read] = {
    "changed": lambda each: each.reconciler.statistics.applied,
    "failed": lambda each: each.reconciler.statistics.failed,
    "unsupported": lambda each: each.reconciler.statistics.refused,
}
"""Outcome -> number of applies."""
_GAUGES: Mapping[str, tuple[str, Read]] = {
    "queue_length": ("Owners that wait to be applied.", lambda each: len(each.reconciler)),
    "queue_oldest_timestamp_seconds": (
        "Time since which the oldest owner waits in the queue; 0 if the queue is empty.",
        lambda each: _timestamp(each.reconciler.age()),
    ),
    "oldest_unapplied_change_timestamp_seconds": (
        "Time of the oldest change that is not applied; 0 if all changes are applied.",
        lambda each: _timestamp(each.reconciler.unsettled()),
    ),
    "contended_owners": (
        "Owners that another program changes repeatedly; their repairs are delayed.",
        lambda each: each.reconciler.contended(),
    ),
}


def _work(central: Sequence[Central]) -> Iterator[Metric]:
    """Work of the reconcilers."""
    for name, (text, read) in _COUNTED.items():
        counter = CounterMetricFamily(f"fairlead_{name}_total", text, labels=["dataplane"])
        for each in central:
            counter.add_metric([each.dataplane.name], read(each))
        yield counter
    applies = CounterMetricFamily(
        "fairlead_applies_total",
        "Applies of owners: the dataplane was changed, the apply failed and is retried, or the provider cannot do it.",
        labels=["dataplane", "outcome"],
    )
    for each in central:
        for outcome, read in _APPLIES.items():
            applies.add_metric([each.dataplane.name, outcome], read(each))
    yield applies
    for name, (text, read) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"fairlead_{name}", text, labels=["dataplane"])
        for each in central:
            gauge.add_metric([each.dataplane.name], read(each))
        yield gauge


def _conditions(central: Iterable[Central]) -> Iterator[Metric]:
    connected = GaugeMetricFamily(
        "fairlead_dataplane_connected", "1 if the dataplane can be read.", labels=["dataplane"]
    )
    leader = GaugeMetricFamily(
        "fairlead_dataplane_leader", "1 if this server is the leader, which writes the dataplane.", labels=["dataplane"]
    )
    failovers = CounterMetricFamily(
        "fairlead_failovers_total",
        "Times that this server took the lock from an unresponsive leader.",
        labels=["dataplane"],
    )
    for each in central:
        name, now = each.dataplane.name, each.condition()
        connected.add_metric([name], int(now.connected))
        leader.add_metric([name], int(now.is_leader))
        failovers.add_metric([name], now.takeovers)
    yield from (connected, leader, failovers)
    yield _drift(central)


def _observed(central: Iterable[Central]) -> Iterator[Metric]:
    """State of the Southbound database, and of chassis."""
    conditions = [each.condition() for each in central]
    probing = Counter[str]()
    for now in conditions:
        probing.update(now.probe_counts)
    yield GaugeMetricFamily(
        "fairlead_southbound_connected",
        "1 if results of OVN's health monitors are received.",
        int(any(now.receives_probe_results for now in conditions)),
    )
    yield GaugeMetricFamily(
        "fairlead_southbound_unreadable_rows", "Service_Monitor rows that are ignored.", probing["unreadable"]
    )
    chassis = GaugeMetricFamily("fairlead_chassis", "Chassis in OVN's Southbound database.", labels=["status"])
    for status in ("alive", "dead"):
        chassis.add_metric([status], probing[status])
    yield chassis


def _unmanaged(central: Iterable[Central]) -> Iterator[Metric]:
    """Networks that other systems write into OVN."""
    documents = GaugeMetricFamily(
        "fairlead_imported_objects",
        "Networks, subnets, routers and ports imported from another writer.",
        labels=["dataplane", "writer", "kind"],
    )
    unreadable = GaugeMetricFamily(
        "fairlead_import_unreadable_rows", "Rows of other writers that cannot be imported.", labels=["dataplane"]
    )
    importing = GaugeMetricFamily(
        "fairlead_import_connected", "1 if changes of other writers are received.", labels=["dataplane"]
    )
    blockers = GaugeMetricFamily(
        "fairlead_apply_blockers",
        "Settings of other writers that make load balancers unreachable; the log names them.",
        labels=["dataplane"],
    )
    for each in central:
        name, now = each.dataplane.name, each.condition()
        blockers.add_metric([name], len(now.blockers))
        importing.add_metric([name], int(now.imports_networks))
        unreadable.add_metric([name], now.unreadable)
        for (writer, kind), count in sorted(now.imported.items()):
            documents.add_metric([name, writer, kind], count)
    yield from (importing, documents, unreadable, blockers)


def _drift(central: Iterable[Central]) -> Metric:
    """One series for each column that Fairlead writes, whatever other programs do."""
    family = CounterMetricFamily(
        "fairlead_drift_total",
        "Changes of managed rows by other programs, by table and column; `row` for an added or removed row.",
        labels=["dataplane", "table", "column"],
    )
    for each in central:
        for (table, column), count in sorted(each.condition().drift.items()):
            family.add_metric([each.dataplane.name, table, column], count)
    return family
