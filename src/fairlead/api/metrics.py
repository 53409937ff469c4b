"""What monitoring sees: `/metrics` in Prometheus' text format, `/healthz` and `/readyz`.

The two that say "well" or "not well" are for everybody; figures are for administrators, like all of the operator's.
`fairlead_resync_changes_total` must stay 0 after the start: it counts what a look at everything found different.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as EventCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fairlead.api.agent_metrics import render_agent_counters
from fairlead.api.door import Services, identity
from fairlead.api.keystone.figures import Asked, Known
from fairlead.api.keystone.tokens import KeystoneTokens
from fairlead.api.loop_lag import LoopLag
from fairlead.api.nodes import Nodes
from fairlead.changes.proxy_limits import large_proxies
from fairlead.model.health import Health
from fairlead.model.kinds import has_rows
from fairlead.model.owner import Kind, Owner
from fairlead.model.replica_probes import replicas_health
from fairlead.model.snapshot import Snapshot
from fairlead.model.standing import balancer_status
from fairlead.model.status import OperatingStatus, derive_provisioning_status
from fairlead.model.steps import Steps
from fairlead.reconciler.dataplanes import Central, Dataplanes
from fairlead.reconciler.memory import Work
from fairlead.resting import in_steps
from fairlead.store.looks import Looks

SOUTHBOUND_PATIENCE = 30.0
"""Seconds without news of probes or ports, while somebody waits for them, after which a server is not ready: a member
that died since then is still served, and the statuses of ports are old."""
STANDBY_PATIENCE = 30.0
"""Seconds for which a server without the lock waits for what the one that has it should have written."""
STORE_PATIENCE = 10.0
"""Seconds for which the store may be away: an election of etcd, and a member that stands still, take some."""
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
"""Seconds."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """One registry for one application, so that two in one process do not meet."""

    def __init__(
        self,
        services: Services,
        dataplanes: Dataplanes,
        loop_lag: LoopLag,
        doors: frozenset[str] = frozenset(),
        tokens: KeystoneTokens | None = None,
    ) -> None:
        """`doors` are the first parts of paths by which requests are told apart; `tokens` is who checks them."""
        self._registry = CollectorRegistry()
        self._central = dataplanes.central
        self._looks = services.model.looks
        self._nodes = services.nodes
        self._doors = frozenset({"", *doors})
        self._requests = Histogram(
            "fairlead_api_request_seconds",
            "Time from request to answer.",
            ["door", "method", "code"],
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._paced = EventCounter(
            "fairlead_api_paced_requests",
            "Requests that were paced: refused (429, with Retry-After), or delayed until others of their project end.",
            ["api", "outcome"],
            registry=self._registry,
        )
        self._compiling = self._timing("fairlead_compile_seconds", "Time to compile one owner.")
        self._applying = self._timing(
            "fairlead_apply_seconds", "Time to compare one owner, and to write what differed."
        )
        for central in self._central:
            central.reconciler.watch(self._observer(central.dataplane.name))
        self._state = _State(services, dataplanes, loop_lag)
        self._registry.register(self._state)
        if tokens is not None:
            self._registry.register(TokenCollector(tokens))

    def observe(self, path: str, method: str, code: int, seconds: float) -> None:
        door = self._door(path)
        self._requests.labels(door, method if method in METHODS else "other", str(code)).observe(seconds)
        if code == 429:
            self._paced.labels(door, "refused").inc()

    def delayed(self, path: str) -> None:
        """A request has to wait until others of its project end."""
        self._paced.labels(self._door(path), "delayed").inc()

    def _door(self, path: str) -> str:
        """Under names of ours only: each that a stranger could invent would be kept for ever."""
        first = path.split("/", 2)[1] if path.count("/") > 1 else ""
        return first if first in self._doors else "other"

    def _timing(self, name: str, meaning: str) -> Histogram:
        return Histogram(
            name,
            meaning,
            ["dataplane", "kind"],
            buckets=(0.0001, 0.00025, 0.0005, *BUCKETS),
            registry=self._registry,
        )

    def _observer(self, dataplane: str) -> Callable[[Work], None]:
        def observe(work: Work) -> None:
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
        """The process answers: that is all that it says."""
        return PlainTextResponse("well\n")

    async def _readyz(self, _: Request) -> Response:
        """Whether what is asked for now can reach every dataplane, through this server or through one that writes."""
        if (away := self._looks.away) > STORE_PATIENCE:
            return PlainTextResponse(f"not ready: the store was not read for {away:.0f} s\n", 503)
        conditions = [(each, each.condition()) for each in self._central]
        for each, now in conditions:
            if not now.connected:
                return PlainTextResponse(f"not ready: {each.dataplane.title} is not reachable\n", 503)
        for now in (condition for _, condition in conditions):
            if now.unheard > SOUTHBOUND_PATIENCE:
                words = f"not ready: {now.unheard_of} was not heard for {now.unheard:.0f} s\n"
                return PlainTextResponse(words, 503)
        others = [each for each, now in conditions if not now.writes]
        if not others:
            return PlainTextResponse("ready\n")
        waits = max(each.reconciler.unsettled() for each in others)
        if waits > STANDBY_PATIENCE:
            return PlainTextResponse(f"not ready: another server has the lock; a change waits for {waits:.0f} s\n", 503)
        return PlainTextResponse("ready: another server writes\n")

    async def _metrics(self, request: Request) -> Response:
        if not identity(request).is_admin:
            return PlainTextResponse("this is for administrators\n", 403)
        await in_steps(self._state.count())
        of_agents = await in_steps(render_agent_counters(self._nodes.agents.counted()))
        text = generate_latest(self._registry) + of_agents.encode()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


class _State(Collector):
    """Read when it is asked for: there is no second place in which a figure is kept. What has to be counted among ten
    thousand load balancers is counted in steps just before."""

    def __init__(self, services: Services, dataplanes: Dataplanes, loop_lag: LoopLag) -> None:
        self._lag = loop_lag
        self._services = services
        self._central = dataplanes.central
        self._owners: Mapping[tuple[str, ...], int] = {}
        """How many there are by kind and status."""
        self._members: Mapping[tuple[str, ...], int] = {}
        """By status."""
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
        yield from _followed(self._central)
        yield GaugeMetricFamily(
            "fairlead_counting_nodes", "Compute nodes that tell statistics now.", self._services.node_counts.nodes
        )
        yield from _told_to_nodes(self._services.nodes)
        yield from _store(self._services.model.looks)
        yield GaugeMetricFamily(
            "fairlead_loop_longest_hold_seconds", "For which nobody was served, since the start.", self._lag.longest
        )
        yield CounterMetricFamily(
            "fairlead_loop_long_holds_total", "Times that nobody was served for 50 ms.", self._lag.long
        )
        yield GaugeMetricFamily(
            "fairlead_unreadable_keys",
            "Keys, certificates and lists that nodes ask for and that cannot be read any more; the log says which.",
            self._services.keys.unreadable(self._services.model.snapshot),
        )
        yield GaugeMetricFamily(
            "fairlead_weak_keys",
            "Certificates in use that no new load balancer may use: HAProxy or clients refuse them; see the log.",
            self._services.keys.weak(self._services.model.snapshot),
        )
        yield GaugeMetricFamily(
            "fairlead_proxies_above_limit",
            "HAProxies with more servers than providers.max_proxy_servers; the log names them at the start.",
            len(large_proxies(self._services.proxy_servers, self._services.model.snapshot)),
        )
        yield _counted("fairlead_owners", "Documents that have rows, by kind and status.", self._owners, "kind")
        yield _counted("fairlead_members", "Members that a health monitor watches.", self._members)
        yield _counted("fairlead_replicas", "Replicas of Local IPs that a health monitor watches.", self._replicas)

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
        """In the words that members have."""
        counts: Counter[tuple[str, ...]] = Counter()
        for local_ip in (snapshot.local_ips[each] for each in snapshot.monitored_local_ips):
            counts.update((_status(health).value,) for _, health in replicas_health(snapshot, local_ip))
            yield
        return counts

    def _count_members(self, snapshot: Snapshot) -> Steps[Mapping[tuple[str, ...], int]]:
        counts: Counter[tuple[str, ...]] = Counter()
        for balancer in (snapshot.load_balancers[each] for each in set(snapshot.monitor_owner.values())):
            where = balancer_status(snapshot, balancer, self._services.applied(Owner(Kind.LOAD_BALANCER, balancer.id)))
            for pool in balancer.pools:
                if pool.health_monitor:
                    counts.update((where.of_member(pool, member).value,) for member in pool.members)
                    yield
        return counts


class TokenCollector(Collector):
    """Of callers that Keystone knows."""

    def __init__(self, tokens: KeystoneTokens) -> None:
        self._tokens = tokens

    def collect(self) -> Iterator[Metric]:
        figures = self._tokens.figures
        asked = CounterMetricFamily("fairlead_keystone_questions_total", "About tokens.", labels=["outcome"])
        for outcome in Asked:
            asked.add_metric([outcome.value], figures.asked[outcome])
        known = CounterMetricFamily(
            "fairlead_keystone_unasked_total", "Tokens about which Keystone was not asked, by why.", labels=["why"]
        )
        for why in Known:
            known.add_metric([why.value], figures.known[why])
        yield from (asked, known)
        yield CounterMetricFamily("fairlead_keystone_seconds_total", "That questions took.", figures.seconds)
        yield GaugeMetricFamily("fairlead_keystone_tokens", "That are remembered as good.", len(self._tokens.memory))
        yield GaugeMetricFamily("fairlead_keystone_answers", "0 while it does not.", int(self._tokens.keystone.answers))


def _told_to_nodes(nodes: Nodes) -> Iterator[Metric]:
    yield GaugeMetricFamily("fairlead_listening_nodes", "Whose agents hear their slice.", nodes.channel.listening)
    yield GaugeMetricFamily(
        "fairlead_announcing_nodes", "Whose agents wait for MACs to announce.", nodes.neighbours.waiting
    )
    yield CounterMetricFamily(
        "fairlead_announcements_total", "News of MACs that nodes were told to announce.", nodes.neighbours.told
    )


def _store(looks: Looks) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "fairlead_store_away_seconds", "Since which the store cannot be read; 0 while it can.", looks.away
    )
    yield CounterMetricFamily(
        "fairlead_store_looks_total", "Questions whether another server has stored something.", looks.made
    )
    yield CounterMetricFamily("fairlead_store_reads_total", "Requests for which that was asked.", looks.shared)


def _status(health: Health) -> OperatingStatus:
    if not health.is_known:
        return OperatingStatus.OFFLINE
    return OperatingStatus.ERROR if health.is_down else OperatingStatus.ONLINE


def _counted(name: str, meaning: str, counts: Mapping[tuple[str, ...], int], *labels: str) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=[*labels, "status"])
    for values, number in sorted(counts.items()):
        family.add_metric(values, number)
    return family


Read = Callable[[Central], float]
_COUNTED: Mapping[str, tuple[str, Read]] = {
    "compiled": ("Owners compiled.", lambda each: each.reconciler.statistics.compiled),
    "applied": ("Transactions that changed the dataplane.", lambda each: each.reconciler.statistics.applied),
    "failed": ("Applies that failed; each is tried again.", lambda each: each.reconciler.statistics.failed),
    "refused": ("Owners that their provider cannot have.", lambda each: each.reconciler.statistics.refused),
    "resyncs": ("Looks at everything.", lambda each: each.reconciler.statistics.resyncs),
    "resync_changes": (
        "Owners that a look at everything found different.",
        lambda each: each.reconciler.statistics.resync_changes,
    ),
    "meddled": (
        "Times that somebody else changed rows of an owner.",
        lambda each: each.reconciler.statistics.meddled,
    ),
}
_GAUGES: Mapping[str, tuple[str, Read]] = {
    "queue_owners": ("Owners that wait to be applied.", lambda each: len(each.reconciler)),
    "queue_age_seconds": ("Of the one that waits longest.", lambda each: each.reconciler.age()),
    "unsettled_seconds": (
        "Since the oldest change that is not applied.",
        lambda each: each.reconciler.unsettled(),
    ),
    "contended_owners": (
        "Owners that somebody else changes again and again: their repairs wait.",
        lambda each: each.reconciler.contended(),
    ),
}


def _work(central: Iterable[Central]) -> Iterator[Metric]:
    """What the reconcilers do and have done."""
    for name, (meaning, read) in _COUNTED.items():
        counter = CounterMetricFamily(f"fairlead_{name}_total", meaning, labels=["dataplane"])
        for each in central:
            counter.add_metric([each.dataplane.name], read(each))
        yield counter
    for name, (meaning, read) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"fairlead_{name}", meaning, labels=["dataplane"])
        for each in central:
            gauge.add_metric([each.dataplane.name], read(each))
        yield gauge


def _conditions(central: Iterable[Central]) -> Iterator[Metric]:
    takeovers = CounterMetricFamily(
        "fairlead_takeovers_total",
        "Times that this server took the place of one that held the lock.",
        labels=["dataplane"],
    )
    for each in central:
        name, title, now = each.dataplane.name, each.dataplane.title, each.condition()
        yield GaugeMetricFamily(f"fairlead_{name}_connected", f"1 while {title} can be read.", int(now.connected))
        yield GaugeMetricFamily(
            f"fairlead_{name}_writer", "1 while this server is the one that writes.", int(now.writes)
        )
        takeovers.add_metric([name], now.takeovers)
    yield takeovers
    yield _foreign(central)


def _observed(central: Iterable[Central]) -> Iterator[Metric]:
    """What is heard of nodes, by whichever dataplane."""
    conditions = [each.condition() for each in central]
    probing = Counter[str]()
    for now in conditions:
        probing.update(now.probing)
    yield GaugeMetricFamily(
        "fairlead_southbound_connected",
        "1 while it is heard what health monitors see.",
        int(any(now.southbound for now in conditions)),
    )
    yield GaugeMetricFamily("fairlead_southbound_unreadable_rows", "Probes that are left out.", probing["unreadable"])
    chassis = GaugeMetricFamily("fairlead_chassis", "Compute nodes that are known.", labels=["status"])
    for status in ("alive", "dead"):
        chassis.add_metric([status], probing[status])
    yield chassis


def _followed(central: Iterable[Central]) -> Iterator[Metric]:
    """What is known of networks that others wrote."""
    documents = GaugeMetricFamily(
        "fairlead_followed", "Documents of others that are followed.", labels=["dataplane", "writer", "kind"]
    )
    unreadable = GaugeMetricFamily(
        "fairlead_followed_unreadable_rows", "Rows of others that are left out.", labels=["dataplane"]
    )
    following = GaugeMetricFamily("fairlead_following", "1 while it is heard what others write.", labels=["dataplane"])
    hindrances = GaugeMetricFamily(
        "fairlead_hindrances",
        "What others have set that keeps load balancers from being reached; the log says what.",
        labels=["dataplane"],
    )
    for each in central:
        name, now = each.dataplane.name, each.condition()
        hindrances.add_metric([name], len(now.hindrances))
        following.add_metric([name], int(now.follows))
        unreadable.add_metric([name], now.unreadable)
        for (writer, kind), count in sorted(now.followed.items()):
            documents.add_metric([name, writer, kind], count)
    yield from (following, documents, unreadable, hindrances)


def _foreign(central: Iterable[Central]) -> Metric:
    """As many labels as the columns that we write: they do not grow with what somebody else does."""
    family = CounterMetricFamily(
        "fairlead_foreign_changes_total",
        "Changes of our rows that were not ours, by table and column; `row` for one that came or went.",
        labels=["dataplane", "table", "column"],
    )
    for each in central:
        for (table, column), count in sorted(each.condition().foreign.items()):
            family.add_metric([each.dataplane.name, table, column], count)
    return family
