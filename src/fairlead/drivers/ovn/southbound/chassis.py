"""Chassis in the Southbound database: bound ports, zones, and liveness.

* `Port_Binding:chassis` is the chassis of a port, and `up` whether it works. After `ovn-sbctl chassis-del`, OVN 23.03
  clears the first and keeps the second, so a port without a chassis counts as down.

* A chassis that loses power clears nothing, but stops confirming `SB_Global:nb_cfg` in its `Chassis_Private`
  (ovn-sb(5)), which the others do.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from immutables import Map

from fairlead.drivers.ovsdb.protocol import TableMonitor
from fairlead.drivers.ovsdb.values import Json, decode_map, decode_optional, decode_uuids, patch_map
from fairlead.model.documents.chassis import Chassis, PortBindings
from fairlead.model.queries.liveness import Heartbeat, find_dead

_NOTHING: Json = ["set", []]
TABLES = {
    "Chassis": TableMonitor(columns=("hostname", "name", "other_config")),
    "Port_Binding": TableMonitor(
        columns=("chassis", "logical_port", "up"), where=(["type", "==", ""], ["chassis", "!=", _NOTHING])
    ),
    "Chassis_Private": TableMonitor(columns=("chassis", "name", "nb_cfg", "nb_cfg_timestamp")),
}
_NO_PAIRS: Json = ["map", []]
CMS_OPTIONS = "ovn-cms-options"
"""Operator's options for the CMS (ovn-controller(8)), which ovn-controller copies into Chassis:other_config."""
ZONES = "availability-zones="
GATEWAY = "cr-lrp-"
"""Name prefix of the binding of a router's gateway port (ovn-northd(8))."""
MILLISECONDS = 1000


def read_zones(options: str) -> frozenset[str]:
    """Parse the availability zones of ovn-cms-options in Neutron's format: a comma-separated list of options, of which
    the first `availability-zones=` counts, with colons between zones."""
    words = (word.strip() for word in options.split(","))
    said = next((word.removeprefix(ZONES) for word in words if word.startswith(ZONES)), "")
    return frozenset(zone.strip() for zone in said.split(":")) - {""}


def _patch_options(old: Mapping[str, str], difference: Json) -> Mapping[str, str]:
    pairs = [pair for pair in decode_map(difference).items() if pair[0] == CMS_OPTIONS]
    return patch_map(old, ["map", pairs]) if pairs else old


@dataclass(frozen=True, slots=True)
class Binding:
    port: str
    """Port name. A gateway binding has the name of its router port."""
    chassis: str
    """UUID; "" for none."""
    up: bool | None
    """None for kinds of ports without this column."""

    @property
    def is_installed(self) -> bool:
        """Whether the chassis has the port and its flows, by the same rule as OVN's own (ovn-northd)."""
        return bool(self.chassis) and self.up is not False


@dataclass(frozen=True, slots=True)
class _Chassis:
    name: str
    host: str
    options: Mapping[str, str]
    """Keys of Chassis:other_config that are used here."""


class Bindings:
    """All chassis, and the ports bound to each: VM ports and gateway ports.

    A port without a row is unknown, because it may be of another kind.
    """

    def __init__(self) -> None:
        self._chassis: dict[str, _Chassis] = {}
        """Chassis by UUID."""
        self._uuids: dict[str, str] = {}
        """Name -> UUID."""
        self._rows: dict[str, Binding] = {}
        """Bindings by UUID of the Port_Binding."""
        self._of_port: dict[str, Binding] = {}
        self._on: dict[str, PortBindings] = {}
        """Ports by UUID of the chassis."""
        self.changed: set[str] = set()
        """Names of chassis with unreported changes."""

    def find(self, port: str) -> Binding | None:
        return self._of_port.get(port)

    def ports(self) -> Collection[str]:
        return self._of_port.keys()

    def names(self) -> Collection[str]:
        """Return the names of all chassis."""
        return self._uuids.keys()

    def note(self, uuids: Iterable[str]) -> None:
        """Mark chassis as changed. An unknown one is reported when it appears."""
        self.changed.update(self._chassis[uuid].name for uuid in uuids if uuid in self._chassis)

    def describe(self, name: str, dead: Collection[str]) -> Chassis | None:
        """Return the chassis with this name; None if it does not exist. `dead` has the UUIDs of dead chassis."""
        uuid = self._uuids.get(name)
        if uuid is None:
            return None
        return Chassis(
            name=name,
            host=self._chassis[uuid].host,
            zones=read_zones(self._chassis[uuid].options.get(CMS_OPTIONS, "")),
            alive=uuid not in dead,
            ports=self._on.get(uuid, Map()),
        )

    def host_of(self, port: str) -> str | None:
        """Return the host on which the port works; the chassis name if it has no hostname."""
        binding = self._of_port.get(port)
        node = self._chassis.get(binding.chassis) if binding is not None and binding.is_installed else None
        return None if node is None else node.host or node.name

    def take_chassis(self, uuid: str, change: Mapping[str, Json]) -> Iterable[str]:
        """Apply a change of a chassis, and return the affected ports."""
        match change:
            case {"initial": columns} | {"insert": columns}:
                options = _patch_options({}, columns.get("other_config", _NO_PAIRS))
                node = _Chassis(columns.get("name", ""), columns.get("hostname", ""), options)
                self._chassis[uuid], self._uuids[node.name] = node, uuid
                self.note([uuid])
            case {"modify": columns} if uuid in self._chassis:
                old = self._chassis[uuid]
                options = _patch_options(old.options, columns.get("other_config", _NO_PAIRS))
                new = self._chassis[uuid] = replace(old, host=columns.get("hostname", old.host), options=options)
                if new != old:
                    self.note([uuid])
                return self._on.get(uuid, Map()).keys() if new.host != old.host else ()
            case {"delete": _} if uuid in self._chassis:
                self.note([uuid])
                name = self._chassis.pop(uuid).name
                if self._uuids.get(name) == uuid:
                    del self._uuids[name]
            case _:
                pass
        return ()

    def take(self, uuid: str, change: Mapping[str, Json]) -> Iterator[str]:
        """Apply a change of a binding, and yield the affected port."""
        match change:
            case {"initial": columns} | {"insert": columns}:
                port = columns.get("logical_port", "").removeprefix(GATEWAY)
                self._put(uuid, Binding(port, "", None), columns)
            case {"modify": columns} if uuid in self._rows:
                self._put(uuid, self._rows[uuid], columns)
            case {"delete": _} if uuid in self._rows:
                gone = self._rows.pop(uuid)
                self._leave(gone)
                if self._of_port.get(gone.port) is gone:
                    del self._of_port[gone.port]
                yield gone.port
                return
            case _:
                return
        yield self._rows[uuid].port

    def _put(self, uuid: str, old: Binding, columns: Mapping[str, Json]) -> None:
        new = old
        if "chassis" in columns:
            new = replace(new, chassis=next(iter(decode_uuids(columns["chassis"])), ""))
        if "up" in columns:
            new = replace(new, up=decode_optional(columns["up"]))
        if old.chassis != new.chassis:
            self._leave(old)
        if new.chassis:
            self._on[new.chassis] = self._on.get(new.chassis, Map()).set(new.port, new.is_installed)
            self.note([new.chassis])
        self._rows[uuid] = self._of_port[new.port] = new

    def _leave(self, binding: Binding) -> None:
        ports = self._on.get(binding.chassis)
        if ports is None or binding.port not in ports:
            return
        self.note([binding.chassis])
        left = ports.delete(binding.port)
        if left:
            self._on[binding.chassis] = left
        else:
            del self._on[binding.chassis]


class ChassisLiveness:
    """Liveness of chassis. `clock` is in seconds; `patience` is the maximum lag behind other chassis."""

    def __init__(self, clock: Callable[[], float], patience: float) -> None:
        self.dead: frozenset[str] = frozenset()
        """UUIDs of dead chassis."""
        self._clock = clock
        self._max_lag = patience
        self._heartbeats: dict[str, Heartbeat] = {}
        """Heartbeats by UUID of the Chassis_Private."""
        self._chassis: dict[str, str] = {}
        """UUID of the Chassis_Private -> UUID of the Chassis."""
        self.max_nb_cfg = 0
        """Highest nb_cfg confirmed by any chassis."""
        self.max_nb_cfg_time = -math.inf
        """Time of that confirmation, on the reader's clock."""

    def take(self, uuid: str, change: Mapping[str, Json]) -> None:
        match change:
            case {"initial": columns}:
                self._put(uuid, Heartbeat(name=columns.get("name", ""), nb_cfg=0, confirmed_at=0.0), columns, None)
            case {"insert": columns}:
                self._put(
                    uuid, Heartbeat(name=columns.get("name", ""), nb_cfg=0, confirmed_at=0.0), columns, self._clock()
                )
            case {"modify": columns} if uuid in self._heartbeats:
                seen = self._clock() if "nb_cfg" in columns else self._heartbeats[uuid].seen_at
                self._put(uuid, self._heartbeats[uuid], columns, seen)
            case {"delete": _}:
                self._heartbeats.pop(uuid, None)
                self._chassis.pop(uuid, None)
            case _:
                pass

    def evaluate(self) -> frozenset[str]:
        """Re-evaluate all chassis, and return the UUIDs of those with a changed state."""
        if self._max_lag <= 0:
            return frozenset()
        names = find_dead(self._heartbeats.values(), self._clock(), self._max_lag)
        dead = frozenset(self._chassis[uuid] for uuid, heartbeat in self._heartbeats.items() if heartbeat.name in names)
        changed, self.dead = dead ^ self.dead, dead
        return changed - {""}

    def names(self, chassis: Collection[str]) -> list[str]:
        return sorted(heartbeat.name for uuid, heartbeat in self._heartbeats.items() if self._chassis[uuid] in chassis)

    def __len__(self) -> int:
        return len(self._heartbeats)

    def _extend_deadlines(self) -> None:
        """Extend the deadlines when the first chassis confirms a new count.

        A chassis that confirmed the previous count was alive then. After a long time without new counts (no server was
        running), all chassis get time for this one.
        """
        lived = max(self.max_nb_cfg_time, self._clock() - self._max_lag / 2)
        for uuid, each in self._heartbeats.items():
            if each.nb_cfg == self.max_nb_cfg:
                self._heartbeats[uuid] = replace(
                    each, seen_at=lived if each.seen_at is None else max(each.seen_at, lived)
                )

    def _put(self, uuid: str, heartbeat: Heartbeat, columns: Mapping[str, Json], seen: float | None) -> None:
        confirmed = columns.get("nb_cfg_timestamp", heartbeat.confirmed_at * MILLISECONDS) / MILLISECONDS
        count = columns.get("nb_cfg", heartbeat.nb_cfg)
        if seen is not None and count > self.max_nb_cfg:
            self._extend_deadlines()
        self._heartbeats[uuid] = replace(heartbeat, nb_cfg=count, confirmed_at=confirmed, seen_at=seen)
        if count > self.max_nb_cfg:
            self.max_nb_cfg, self.max_nb_cfg_time = count, self._clock()
        if "chassis" in columns or uuid not in self._chassis:
            self._chassis[uuid] = next(iter(decode_uuids(columns.get("chassis", _NOTHING))), "")
