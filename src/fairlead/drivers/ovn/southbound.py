"""Facts that the OVN Southbound database has: what ovn-controller's probes say, the chassis, and which node has a port.
It knows too which logical datapath a node means.

* Nothing is written and no lock is needed: every server follows by itself.
* While the database is away, what was known last holds: that nobody can be asked says nothing about the members.
* Where no chassis has the port, or one that is dead, nobody probes it and nobody answers: the endpoint is down.
* A row that is made "offline" (OVN after 26.03 makes them so) says nothing until somebody has had the time for a probe.
* Rows that cannot be read are others' (OVN probes with ICMP for them, say). They are left out, and counted.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import Any

from fairlead.drivers.interface import Unreachable
from fairlead.drivers.ovn import chassis as ovn_chassis
from fairlead.drivers.ovn.chassis import Bindings, Nodes
from fairlead.drivers.ovsdb.client import Changes, Client, Contents, Disconnected, Event, Settings, Timing, Tls
from fairlead.drivers.ovsdb.protocol import TableMonitor, in_parts
from fairlead.drivers.ovsdb.remotes import Remote
from fairlead.drivers.ovsdb.values import Json, decode_map, decode_optional
from fairlead.model.addresses import parse_address
from fairlead.model.facts import CHASSIS, HEALTH, PLUGGED, Fact, HealthNews
from fairlead.model.health import Endpoint, Health
from fairlead.model.liveness import why_silent
from fairlead.model.loadbalancer import Transport
from fairlead.model.statistics import CountingPlace, Datapath
from fairlead.model.steps import Steps
from fairlead.model.texts import shorten

DATABASE = "OVN_Southbound"
LOG = logging.getLogger(__name__)
TABLES = {
    "Service_Monitor": TableMonitor(columns=("ip", "logical_port", "options", "port", "protocol", "status")),
    **ovn_chassis.TABLES,
    "Datapath_Binding": TableMonitor(columns=("external_ids", "tunnel_key")),
}
_HEALTH = {"online": Health.ONLINE, "offline": Health.ERROR, "error": Health.ERROR}
"""ovn-sb(5) Service_Monitor:status; empty is unknown."""
_ROUND = {"interval": 5, "timeout": 3}
"""Seconds, where the row does not say (ovn-sb(5) Service_Monitor:options)."""
LONGEST_ROUND = 3600.0
PART, SOME = 200, 500
"""Rows that are taken, and ports or chassis that are told of, at once."""
JUDGE_PAUSE = 0.1
"""Seconds."""
_DONE = object()
MOST_COMPLAINTS = 100
"""Reasons that are told: they bear what somebody else has written."""
Observe = Callable[[Fact[Any], Any], Steps[None] | None]
"""Takes the news of a fact. It may answer with work in steps, which is done before anything else is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SouthboundSettings:
    remotes: tuple[Remote, ...]
    tls: Tls | None = None
    timing: Timing = field(default_factory=Timing)
    patience: float = 0.0
    """Seconds by which a chassis may lag behind the others before it counts as dead; 0 is for ever."""


class SouthboundReader:
    """`start` and `close`. `observe` gets news of the facts `HEALTH`, `CHASSIS` and `PLUGGED`.

    Of health it gets what differs from what it was told before. Of chassis and ports it gets all of which OVN has said
    something: it may be what OVN said before.
    """

    def __init__(self, settings: SouthboundSettings, observe: Observe) -> None:
        self._observe = observe
        self._patience = settings.patience
        self._tables = _Tables(settings.patience)
        self._told: dict[Endpoint, Health] = {}
        self._untold: dict[Endpoint, Health | None] = {}
        """What was found and not told yet: it is told when all endpoints of one work were looked at."""
        self._half_told: set[Endpoint] = set()
        """Whose news the observer is taking in, or had taken in by half when the connection ended: told again then."""
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._numbers = count()
        self._judging: asyncio.TimerHandle | None = None
        self._judged = -JUDGE_PAUSE
        self._complaints: set[str] = set()
        self._lost = time.monotonic()
        self._client = Client(
            Settings(
                remotes=settings.remotes, database=DATABASE, tables=TABLES, tls=settings.tls, timing=settings.timing
            ),
            self._see,
        )

    @property
    def connected(self) -> bool:
        return self._client.connected

    @property
    def silence(self) -> float:
        """Seconds for which nothing could be heard; 0.0 while it can be."""
        return 0.0 if self.connected else time.monotonic() - self._lost

    @property
    def counted(self) -> int:
        """The newest count (NB_Global:nb_cfg) that any chassis has confirmed."""
        return self._tables.nodes.counted

    @property
    def counted_at(self) -> float:
        """When a newer count was confirmed last, on the clock of `time.monotonic`."""
        return self._tables.nodes.counted_at

    def figures(self) -> Mapping[str, int]:
        """How many chassis live and are dead, and how many probes cannot be read."""
        nodes = self._tables.nodes
        dead = len(nodes.dead)
        return {"alive": len(nodes) - dead, "dead": dead, "unreadable": len(self._tables.unreadable)}

    def locate(self, place: CountingPlace) -> str | None:
        """The name in the Northbound database of this place of a node, if there is one.

        A zone is called after a port, or after a datapath: by its UUID in OVN 23.03,
        by its name in later ones. Raises Unreachable while the database was not read.
        """
        self.check_connected()
        if isinstance(place, Datapath):
            return self._tables.datapaths.by_key.get(place.key)
        name = place.name.removesuffix("_dnat").removesuffix("_snat")
        return self._tables.datapaths.by_uuid.get(name, name)

    def check_connected(self) -> None:
        """Raises Unreachable while the database was not read: what is known may be old."""
        if not self.connected:
            raise Unreachable("the Southbound database is not connected")

    def start(self) -> None:
        """Connect, and stay connected, in a task of the running loop."""
        self._client.start()

    async def close(self) -> None:
        await self._client.close()
        self._cancel_timers()

    async def wait_connected(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # what callers expect
        """Until all is told; TimeoutError after `timeout` seconds."""
        await self._client.wait_connected(timeout)

    def _see(self, event: Event) -> Steps[None] | None:
        match event:
            case Contents(tables=tables):
                self._cancel_timers()  # each holds the tables that it was made for
                before = self._tables
                self._tables = _Tables(self._patience)
                self._tables.moved.update(before.moved, before.bindings.ports())
                self._tables.bindings.changed.update(before.bindings.changed, before.bindings.names())
                self._untold.clear()
                return self._take(tables, {*self._told, *self._half_told})
            case Changes(tables=tables):
                return self._take(tables, ())
            case Disconnected():
                self._lost = time.monotonic()
            case _:
                pass
        return None

    def _take(self, tables: Mapping[str, Mapping[str, Mapping[str, Json]]], told: Iterable[Endpoint]) -> Steps[None]:
        """What is true after a transaction is told, and nothing that is true in the middle of it."""
        touched = set(told)
        for part in in_parts(tables, PART):
            touched.update(self._tables.change(part))
            yield
        if "Chassis_Private" in tables:
            touched.update(self._judge())
        yield from self._tell_all(touched)
        yield from self._tell_of_chassis()
        yield from self._tell_of_ports()
        self._wait_for_first_probes()
        self._complain()

    def _judge(self) -> Iterable[Endpoint]:
        """A thousand nodes confirm a count one by one, and each look is at all of them: looks have a pause between."""
        loop = asyncio.get_running_loop()
        if self._judging is not None:
            return ()
        if loop.time() >= self._judged + JUDGE_PAUSE:
            self._judged = loop.time()
            return self._tables.judge()
        self._judging = loop.call_at(self._judged + JUDGE_PAUSE, self._judge_late)
        return ()

    def _judge_late(self) -> None:
        self._judging, self._judged = None, asyncio.get_running_loop().time()
        self._tell_by_and_by(chain(self._tell_all(self._tables.judge()), self._tell_of_chassis()))

    def _tell_by_and_by(self, work: Iterator[None]) -> None:
        """What no message of the database has brought about."""
        self._go_on(self._tables, work)

    def _go_on(self, tables: "_Tables", work: Iterator[None]) -> None:
        if tables is self._tables and next(work, _DONE) is not _DONE:
            asyncio.get_running_loop().call_soon(self._go_on, tables, work)

    def _tell_all(self, touched: Iterable[Endpoint]) -> Steps[None]:
        """All news at once, so that the observer looks at each load balancer once. What was known last holds of an
        endpoint that nobody can have probed yet.

        While one such work rests another may look at the same endpoint: the later look is believed.
        """
        for endpoint in touched:
            told = self._told.get(endpoint)
            health = self._tables.health(endpoint, told)
            if health is told and endpoint not in self._half_told:
                self._untold.pop(endpoint, None)
            else:
                self._untold[endpoint] = health
            yield
        news, self._untold = self._untold, {}
        for endpoint, health in news.items():
            if health is None:
                self._told.pop(endpoint, None)
            else:
                self._told[endpoint] = health
        if news:
            yield from self._tell(news)

    def _tell(self, news: HealthNews) -> Steps[None]:
        self._half_told.update(news)  # whoever lets go of this work in the middle does not say so before it looks again
        yield from self._observe(HEALTH, news) or ()
        self._half_told.difference_update(news)

    def _tell_of_ports(self) -> Steps[None]:
        tables = self._tables
        while tables.moved:
            some = list(islice(tables.moved, SOME))
            tables.moved.difference_update(some)
            yield from self._observe(PLUGGED, {port: tables.bindings.node_of(port) for port in some}) or ()
            yield

    def _tell_of_chassis(self) -> Steps[None]:
        tables = self._tables
        while tables.bindings.changed:
            some = list(islice(tables.bindings.changed, SOME))
            news = {name: tables.bindings.describe(name, tables.nodes.dead) for name in some}
            tables.bindings.changed.difference_update(some)
            yield from self._observe(CHASSIS, news) or ()
            yield

    def _wait_for_first_probes(self) -> None:
        """One timer for all rows that came together: ten thousand timers at once would keep everybody waiting."""
        loop, tables = asyncio.get_running_loop(), self._tables
        due: dict[float, list[str]] = {}
        for uuid, seconds in tables.new_rows:
            due.setdefault(seconds, []).append(uuid)
        tables.new_rows.clear()
        for seconds, uuids in due.items():
            number = next(self._numbers)
            self._timers[number] = loop.call_later(seconds, self._end_first_probes, number, uuids)

    def _end_first_probes(self, number: int, uuids: Iterable[str]) -> None:
        """Somebody has had the time to probe them: their status counts from now on."""
        del self._timers[number]
        self._tell_by_and_by(self._tell_all(chain.from_iterable(map(self._tables.end_first_probe, uuids))))

    def _cancel_timers(self) -> None:
        for timer in (*self._timers.values(), *([self._judging] if self._judging else [])):
            timer.cancel()
        self._timers.clear()
        self._judging = None

    def _complain(self) -> None:
        """Each reason is worth one line, however many rows have it."""
        for complaint in set(self._tables.unreadable.values()) - self._complaints:
            if len(self._complaints) >= MOST_COMPLAINTS:
                return
            self._complaints.add(complaint)
            LOG.warning("OVN Southbound: rows of Service_Monitor that cannot be read are left out: %s", complaint)


class _Datapaths:
    """Logical switches and routers by what nodes call them."""

    def __init__(self) -> None:
        self.by_key: dict[int, str] = {}
        self.by_uuid: dict[str, str] = {}
        self._keys: dict[str, int] = {}

    def take(self, uuid: str, change: Mapping[str, Json]) -> None:
        match change:
            case {"initial": columns} | {"insert": columns}:
                name = decode_map(columns.get("external_ids", ["map", []])).get("name", "")
                self._keys[uuid] = columns["tunnel_key"]
                self.by_key[columns["tunnel_key"]] = self.by_uuid[uuid] = name
            case {"delete": _} if uuid in self._keys:
                del self.by_key[self._keys.pop(uuid)], self.by_uuid[uuid]
            case _:
                pass


class _Tables:
    """The tables, as far as they matter; a change costs what it changes."""

    def __init__(self, patience: float) -> None:
        self.datapaths = _Datapaths()
        self.bindings = Bindings()
        self.moved: set[str] = set()
        """Ports of which something was said that nobody was told yet."""
        self.nodes = Nodes(time.monotonic, patience)
        self.unreadable: dict[str, str] = {}
        """UUID of a Service_Monitor -> why it cannot be read."""
        self.new_rows: list[tuple[str, float]] = []
        """UUIDs of Service_Monitors that have just been made, and the seconds until their status counts."""
        self._endpoints: dict[str, Endpoint] = {}
        """UUID of a Service_Monitor -> what it probes."""
        self._statuses: dict[Endpoint, str] = {}
        self._unprobed: dict[Endpoint, str] = {}
        """Endpoints whose row was made "offline" and that nobody can have probed yet -> the UUID of the row."""
        self._of_port: dict[str, set[Endpoint]] = {}

    def health(self, endpoint: Endpoint, last: Health | None) -> Health | None:
        """None if nobody has said anything of it, or says it no more. `last` is what was known of it before."""
        if endpoint not in self._statuses:
            return None
        binding = self.bindings.find(endpoint.port_id)
        silent = why_silent(works=binding.works, alive=binding.chassis not in self.nodes.dead) if binding else None
        if silent is not None:
            return silent
        if endpoint in self._unprobed:
            return last if last in _HEALTH.values() else None
        return _HEALTH.get(self._statuses[endpoint])

    def change(self, tables: Mapping[str, Mapping[str, Mapping[str, Json]]]) -> set[Endpoint]:
        """Take what the database says. Answers the endpoints of which it says something."""
        touched: set[Endpoint] = set()
        for uuid, change in _gone_first(tables.get("Datapath_Binding", {})):
            self.datapaths.take(uuid, change)
        for uuid, change in _gone_first(tables.get("Chassis", {})):
            self.moved.update(self.bindings.take_chassis(uuid, change))
        for uuid, change in _gone_first(tables.get("Service_Monitor", {})):
            touched.update(self._take_monitor(uuid, change))
        for uuid, change in _gone_first(tables.get("Port_Binding", {})):
            for port in self.bindings.take(uuid, change):
                self.moved.add(port)
                touched.update(self._of_port.get(port, ()))
        for uuid, change in tables.get("Chassis_Private", {}).items():
            self.nodes.take(uuid, change)
        return touched

    def judge(self) -> Iterator[Endpoint]:
        """Which nodes live. Answers the endpoints of those of which the opposite is true now."""
        before = self.nodes.dead
        changed = self.nodes.judge()
        for words, some in (("are dead", self.nodes.dead - before), ("live again", before - self.nodes.dead)):
            if some:
                LOG.warning("OVN Southbound: chassis that %s: %s", words, ", ".join(self.nodes.names(some)))
        self.bindings.note(changed)
        if changed:
            for port, endpoints in self._of_port.items():
                binding = self.bindings.find(port)
                if binding is not None and binding.chassis in changed:
                    yield from endpoints

    def end_first_probe(self, uuid: str) -> Iterator[Endpoint]:
        endpoint = self._endpoints.get(uuid)
        if endpoint is not None and self._unprobed.get(endpoint) == uuid:
            del self._unprobed[endpoint]
            yield endpoint

    def _take_monitor(self, uuid: str, change: Mapping[str, Json]) -> Iterator[Endpoint]:
        match change:
            case {"initial": columns}:
                yield from self._enter(uuid, columns)
            case {"insert": columns}:
                for endpoint in self._enter(uuid, columns):
                    if self._statuses[endpoint] == "offline":
                        self._unprobed[endpoint] = uuid
                        self.new_rows.append((uuid, _read_round(columns)))
                    yield endpoint
            case {"modify": {"status": status}} if uuid in self._endpoints:
                endpoint = self._endpoints[uuid]
                self._statuses[endpoint] = decode_optional(status) or ""
                self._unprobed.pop(endpoint, None)
                yield endpoint
            case {"delete": _} if uuid in self._endpoints:
                endpoint = self._endpoints.pop(uuid)
                del self._statuses[endpoint]
                self._unprobed.pop(endpoint, None)
                self._of_port[endpoint.port_id].discard(endpoint)
                if not self._of_port[endpoint.port_id]:
                    del self._of_port[endpoint.port_id]
                yield endpoint
            case {"delete": _}:
                self.unreadable.pop(uuid, None)
            case _:
                pass

    def _enter(self, uuid: str, columns: Mapping[str, Json]) -> Iterator[Endpoint]:
        try:
            endpoint = _read_endpoint(columns)
        except ValueError as error:
            self.unreadable[uuid] = shorten(str(error), 100)
            return
        if endpoint in self._statuses:  # somebody else's, written in another form: which of the two counts is not ours
            self.unreadable[uuid] = "a second row for one endpoint"
            return
        self._endpoints[uuid] = endpoint
        self._statuses[endpoint] = decode_optional(columns.get("status", ["set", []])) or ""
        self._of_port.setdefault(endpoint.port_id, set()).add(endpoint)
        yield endpoint


def _read_endpoint(columns: Mapping[str, Json]) -> Endpoint:
    """Raises ValueError: what is none of ours, or cannot be one."""
    transport = Transport(decode_optional(columns.get("protocol", ["set", []])) or "tcp")
    address = parse_address(columns.get("ip", ""))
    return Endpoint(columns.get("logical_port", ""), address, columns.get("port", 0), transport)


def _read_round(columns: Mapping[str, Json]) -> float:
    """Seconds until a probe was sent, and answered or not."""
    options = decode_map(columns.get("options", ["map", []]))
    texts = [options.get(name, str(seconds)) for name, seconds in _ROUND.items()]
    return min(sum(float(text) if text.isdecimal() else LONGEST_ROUND for text in texts), LONGEST_ROUND)


def _gone_first(changes: Mapping[str, Mapping[str, Json]]) -> list[tuple[str, Mapping[str, Json]]]:
    """A row that is made anew has another UUID, and may have the key of the one that goes."""
    return sorted(changes.items(), key=lambda item: "delete" not in item[1])
