"""What ovn-controller's probes say, and which logical datapath a node means, read from the OVN Southbound database.

* Nothing is written and no lock is needed: every server follows by itself.
* While the database is away, what was known last holds: that nobody can be asked says nothing about the members.
* Where no chassis has the port there is nobody to probe it, and nobody to answer: the endpoint is down.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.drivers.interface import Unreachable
from fairlead.drivers.ovsdb import Changes, Client, Contents, Event, Settings, Timing, Tls
from fairlead.drivers.ovsdb_protocol import Json, Remote, TableMonitor, decode_map, decode_optional
from fairlead.model.addresses import parse_address
from fairlead.model.health import Endpoint, Health
from fairlead.model.loadbalancer import Transport

DATABASE = "OVN_Southbound"
TABLES = {
    "Service_Monitor": TableMonitor(columns=("ip", "logical_port", "port", "protocol", "status")),
    "Port_Binding": TableMonitor(
        columns=("chassis", "logical_port", "up"), where=(["up", "==", False], ["chassis", "!=", ["set", []]])
    ),
    "Datapath_Binding": TableMonitor(columns=("external_ids", "tunnel_key")),
    "Chassis": TableMonitor(columns=("name",)),
}
GATEWAY = "cr-lrp-"
"""Before the name of a router's port: the binding that says which chassis has the gateway (ovn-northd(8))."""
_NOBODY: Json = ["set", []]
_HEALTH = {"online": Health.ONLINE, "offline": Health.ERROR, "error": Health.ERROR}
"""ovn-sb(5) Service_Monitor:status; empty is unknown."""
News = Mapping[Endpoint, Health | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SouthboundSettings:
    remotes: tuple[Remote, ...]
    tls: Tls | None = None
    timing: Timing = field(default_factory=Timing)


class SouthboundReader:
    """`start` and `close`. `on_news` gets what differs from what it was told before; None is unknown again."""

    def __init__(self, settings: SouthboundSettings, on_news: Callable[[News], None]) -> None:
        self._on_news = on_news
        self._view = _View()
        self._told: dict[Endpoint, Health] = {}
        self._client = Client(
            Settings(
                remotes=settings.remotes, database=DATABASE, tables=TABLES, tls=settings.tls, timing=settings.timing
            ),
            self._see,
        )

    @property
    def connected(self) -> bool:
        return self._client.connected

    def locate(self, place: str) -> str | None:
        """The name in the Northbound database of what a node calls `datapath:KEY` or `zone:NAME`, if there is one.

        A zone is called after a port, or after a datapath: by its UUID in OVN 23.03,
        by its name in later ones. Raises Unreachable while the database was not read.
        """
        if not self.connected:
            raise Unreachable("the Southbound database is not connected")
        kind, _, name = place.partition(":")
        if kind == "datapath":
            return self._view.datapaths.by_key.get(int(name))
        name = name.removesuffix("_dnat").removesuffix("_snat")
        return self._view.datapaths.by_uuid.get(name, name)

    def ports_on(self, chassis: str) -> frozenset[str] | None:
        """The ports that this chassis has, a router's gateway by the port that it is; None for no such chassis.

        Raises Unreachable while the database was not read.
        """
        if not self.connected:
            raise Unreachable("the Southbound database is not connected")
        return self._view.chassis.ports_on(chassis)

    def start(self) -> None:
        """Connect, and stay connected, in a task of the running loop."""
        self._client.start()

    async def close(self) -> None:
        await self._client.close()

    async def wait_connected(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # what callers expect
        """Until all is told; TimeoutError after `timeout` seconds."""
        await self._client.wait_connected(timeout)

    def _see(self, event: Event) -> None:
        match event:
            case Contents(tables=tables):
                self._view = _View()
                self._tell({*self._view.change(tables), *self._told})
            case Changes(tables=tables):
                self._tell(self._view.change(tables))
            case _:
                pass

    def _tell(self, touched: set[Endpoint]) -> None:
        found = {endpoint: self._view.health(endpoint) for endpoint in touched}
        news = {endpoint: health for endpoint, health in found.items() if health is not self._told.get(endpoint)}
        if news:
            self._on_news(news)
        for endpoint, health in news.items():
            if health is None:
                del self._told[endpoint]
            else:
                self._told[endpoint] = health


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


class _Chassis:
    """The chassis that there are, and the ports that each has."""

    def __init__(self) -> None:
        self._uuids: dict[str, str] = {}
        """Name -> UUID."""
        self._bound: dict[str, tuple[str, str]] = {}
        """UUID of a Port_Binding -> UUID of the chassis, and the port."""
        self._ports: dict[str, set[str]] = {}
        """UUID of a chassis -> its ports."""

    def ports_on(self, name: str) -> frozenset[str] | None:
        uuid = self._uuids.get(name)
        return None if uuid is None else frozenset(self._ports.get(uuid, ()))

    def take(self, uuid: str, change: Mapping[str, Json]) -> None:
        match change:
            case {"initial": columns} | {"insert": columns}:
                self._uuids[columns.get("name", "")] = uuid
            case {"delete": _}:
                self._uuids = {name: other for name, other in self._uuids.items() if other != uuid}
            case _:
                pass

    def take_binding(self, uuid: str, change: Mapping[str, Json]) -> None:
        match change:
            case {"initial": columns} | {"insert": columns}:
                port = columns.get("logical_port", "").removeprefix(GATEWAY)
                self._bind(uuid, port, columns.get("chassis", _NOBODY))
            case {"modify": {"chassis": chassis}} if uuid in self._bound:
                self._bind(uuid, self._bound[uuid][1], chassis)
            case {"delete": _} if uuid in self._bound:
                self._bind(uuid, "", _NOBODY)
                del self._bound[uuid]
            case _:
                pass

    def _bind(self, uuid: str, port: str, chassis: Json) -> None:
        if uuid in self._bound:
            old, name = self._bound[uuid]
            self._ports.get(old, set()).discard(name)
            if not self._ports.get(old):
                self._ports.pop(old, None)
        found = decode_optional(chassis)
        where = found[1] if found else ""  # ["uuid", ...]
        self._bound[uuid] = where, port
        if where:
            self._ports.setdefault(where, set()).add(port)


class _View:
    """The tables, as far as they matter; a change costs what it changes."""

    def __init__(self) -> None:
        self.datapaths = _Datapaths()
        self.chassis = _Chassis()
        self._endpoints: dict[str, Endpoint] = {}
        """UUID of a Service_Monitor -> what it probes."""
        self._statuses: dict[Endpoint, str] = {}
        self._of_port: dict[str, set[Endpoint]] = {}
        self._bindings: dict[str, str] = {}
        """UUID of a Port_Binding -> its port."""
        self._unbound: set[str] = set()

    def health(self, endpoint: Endpoint) -> Health | None:
        if endpoint not in self._statuses:
            return None
        return Health.ERROR if endpoint.port_id in self._unbound else _HEALTH.get(self._statuses[endpoint])

    def change(self, tables: Mapping[str, Mapping[str, Mapping[str, Json]]]) -> set[Endpoint]:
        """Take what the database says. Answers the endpoints of which it says something."""
        touched: set[Endpoint] = set()
        for table, learn in (
            ("Datapath_Binding", self.datapaths.take),
            ("Chassis", self.chassis.take),
            ("Port_Binding", self.chassis.take_binding),
        ):
            for uuid, change in _gone_first(tables.get(table, {})):
                learn(uuid, change)
        for table, take in (("Service_Monitor", self._take_monitor), ("Port_Binding", self._take_binding)):
            for uuid, change in _gone_first(tables.get(table, {})):
                touched.update(take(uuid, change))
        return touched

    def _take_monitor(self, uuid: str, change: Mapping[str, Json]) -> Iterator[Endpoint]:
        match change:
            case {"initial": columns} | {"insert": columns}:
                yield from self._enter(uuid, columns)
            case {"modify": {"status": status}} if uuid in self._endpoints:
                self._statuses[self._endpoints[uuid]] = decode_optional(status) or ""
                yield self._endpoints[uuid]
            case {"delete": _} if uuid in self._endpoints:
                endpoint = self._endpoints.pop(uuid)
                del self._statuses[endpoint]
                self._of_port[endpoint.port_id].discard(endpoint)
                if not self._of_port[endpoint.port_id]:
                    del self._of_port[endpoint.port_id]
                yield endpoint
            case _:
                pass

    def _enter(self, uuid: str, columns: Mapping[str, Json]) -> Iterator[Endpoint]:
        """An address that is none is no member's."""
        try:
            address = parse_address(columns.get("ip", ""))
        except ValueError:
            return
        transport = Transport(decode_optional(columns.get("protocol", ["set", []])) or "tcp")
        endpoint = Endpoint(columns.get("logical_port", ""), address, columns.get("port", 0), transport)
        self._endpoints[uuid] = endpoint
        self._statuses[endpoint] = decode_optional(columns.get("status", ["set", []])) or ""
        self._of_port.setdefault(endpoint.port_id, set()).add(endpoint)
        yield endpoint

    def _take_binding(self, uuid: str, change: Mapping[str, Json]) -> Iterator[Endpoint]:
        """Only ports that are down, and those that a chassis has, are sent: any other is as good as deleted."""
        match change:
            case {"initial": columns} | {"insert": columns}:
                port = self._bindings[uuid] = columns.get("logical_port", "")
                up = columns.get("up", _NOBODY)
            case {"modify": {"up": up}} if uuid in self._bindings:
                port = self._bindings[uuid]
            case {"delete": _} if uuid in self._bindings:
                port, up = self._bindings.pop(uuid), _NOBODY
            case _:
                return
        (self._unbound.add if up is False else self._unbound.discard)(port)
        yield from self._of_port.get(port, ())


def _gone_first(changes: Mapping[str, Mapping[str, Json]]) -> list[tuple[str, Mapping[str, Json]]]:
    """A row that is made anew has another UUID, and may have the key of the one that goes."""
    return sorted(changes.items(), key=lambda item: "delete" not in item[1])
