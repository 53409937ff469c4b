"""Relevant contents of the Southbound database: probes, chassis, ports, datapaths.

A new row with status "offline" (OVN after 26.03) is ignored until a probe had time to complete. Rows that cannot be
parsed belong to other writers (for example, ICMP probes) and are skipped and counted.
"""

import logging
import time
from collections.abc import Iterator, Mapping

from fairlead.drivers.ovn.southbound import chassis as ovn_chassis
from fairlead.drivers.ovn.southbound.chassis import Bindings, ChassisLiveness
from fairlead.drivers.ovsdb.protocol import TableMonitor
from fairlead.drivers.ovsdb.values import Json, decode_map, decode_optional
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.sanitize import shorten
from fairlead.model.queries.liveness import explain_unavailability

LOG = logging.getLogger(__name__)
TABLES = {
    "Service_Monitor": TableMonitor(columns=("ip", "logical_port", "options", "port", "protocol", "status")),
    **ovn_chassis.TABLES,
    "Datapath_Binding": TableMonitor(columns=("external_ids", "tunnel_key")),
}
_HEALTH = {"online": Health.ONLINE, "offline": Health.ERROR, "error": Health.ERROR}
"""ovn-sb(5) Service_Monitor:status; empty is unknown."""
_DEFAULT_OPTIONS = {"interval": 5, "timeout": 3}
"""Defaults in seconds (ovn-sb(5) Service_Monitor:options)."""
MAX_PROBE_SECONDS = 3600.0
MAX_REASON_LENGTH = 100


class Datapaths:
    """Logical switches and routers by the keys that nodes use."""

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


class SouthboundTables:
    """Relevant tables; the cost of a change is proportional to its size."""

    def __init__(self, patience: float) -> None:
        self.datapaths = Datapaths()
        self.bindings = Bindings()
        self.moved_ports: set[str] = set()
        """Ports with unreported changes."""
        self.liveness = ChassisLiveness(time.monotonic, patience)
        self.unreadable: dict[str, str] = {}
        """UUID of a Service_Monitor -> why it cannot be parsed."""
        self.reasons: set[str] = set()
        """Unreported reasons."""
        self.new_rows: list[tuple[str, float]] = []
        """UUIDs of new Service_Monitors, and the seconds until their status counts."""
        self._endpoints: dict[str, Endpoint] = {}
        """UUID of a Service_Monitor -> its endpoint."""
        self._statuses: dict[Endpoint, str] = {}
        self._unprobed: dict[Endpoint, str] = {}
        """Endpoints with a new "offline" row that cannot have been probed yet -> UUID of the row."""
        self._of_port: dict[str, set[Endpoint]] = {}

    def health(self, endpoint: Endpoint, last: Health | None) -> Health | None:
        """Return an endpoint's health; None if it is unknown. `last` is the previously known one."""
        if endpoint not in self._statuses:
            return None
        binding = self.bindings.find(endpoint.port_id)
        silent = (
            explain_unavailability(works=binding.is_installed, alive=binding.chassis not in self.liveness.dead)
            if binding
            else None
        )
        if silent is not None:
            return silent
        if endpoint in self._unprobed:
            return last if last in _HEALTH.values() else None
        return _HEALTH.get(self._statuses[endpoint])

    def change(self, tables: Mapping[str, Mapping[str, Mapping[str, Json]]]) -> set[Endpoint]:
        """Apply changes of the database, and return the affected endpoints."""
        touched: set[Endpoint] = set()
        for uuid, change in _gone_first(tables.get("Datapath_Binding", {})):
            self.datapaths.take(uuid, change)
        for uuid, change in _gone_first(tables.get("Chassis", {})):
            self.moved_ports.update(self.bindings.take_chassis(uuid, change))
        for uuid, change in _gone_first(tables.get("Service_Monitor", {})):
            touched.update(self._take_monitor(uuid, change))
        for uuid, change in _gone_first(tables.get("Port_Binding", {})):
            for port in self.bindings.take(uuid, change):
                self.moved_ports.add(port)
                touched.update(self._of_port.get(port, ()))
        for uuid, change in tables.get("Chassis_Private", {}).items():
            self.liveness.take(uuid, change)
        return touched

    def evaluate_liveness(self) -> Iterator[Endpoint]:
        """Re-evaluate the liveness of nodes, and yield the endpoints on those that changed."""
        before = self.liveness.dead
        changed = self.liveness.evaluate()
        for words, some in (("dead", self.liveness.dead - before), ("alive again", before - self.liveness.dead)):
            if some:
                LOG.warning("OVN Southbound: chassis %s: %s", words, ", ".join(self.liveness.names(some)))
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
                        self.new_rows.append((uuid, _read_probe_seconds(columns)))
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
            self._reject_row(uuid, shorten(str(error), MAX_REASON_LENGTH))
            return
        if endpoint in self._statuses:  # another writer's, in another form; which of the two counts is undefined
            self._reject_row(uuid, "a second row for one endpoint")
            return
        self._endpoints[uuid] = endpoint
        self._statuses[endpoint] = decode_optional(columns.get("status", ["set", []])) or ""
        self._of_port.setdefault(endpoint.port_id, set()).add(endpoint)
        yield endpoint

    def _reject_row(self, uuid: str, reason: str) -> None:
        self.unreadable[uuid] = reason
        self.reasons.add(reason)


def _read_endpoint(columns: Mapping[str, Json]) -> Endpoint:
    """Parse the endpoint. Raises ValueError for a malformed or unmanaged one."""
    transport = Transport(decode_optional(columns.get("protocol", ["set", []])) or "tcp")
    address = parse_address(columns.get("ip", ""))
    return Endpoint(columns.get("logical_port", ""), address, columns.get("port", 0), transport)


def _read_probe_seconds(columns: Mapping[str, Json]) -> float:
    """Return the seconds until a probe has been sent and has completed."""
    options = decode_map(columns.get("options", ["map", []]))
    texts = [options.get(name, str(seconds)) for name, seconds in _DEFAULT_OPTIONS.items()]
    return min(sum(float(text) if text.isdecimal() else MAX_PROBE_SECONDS for text in texts), MAX_PROBE_SECONDS)


def _gone_first(changes: Mapping[str, Mapping[str, Json]]) -> list[tuple[str, Mapping[str, Json]]]:
    """Order deletes first, because a re-created row has another UUID and may have the key of the deleted one."""
    return sorted(changes.items(), key=lambda item: "delete" not in item[1])
