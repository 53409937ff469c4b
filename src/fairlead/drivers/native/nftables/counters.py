"""Counters of services in the kernel of a plain host (ADR 82). All functions block on the kernel.

Packets create the elements that count them, so an unused service has none, and a change of rows affects no counter.
Elements of deleted services are removed here.
"""

import contextlib
import errno
import secrets
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from fairlead.dataplane.flow_slot import PROTOCOLS
from fairlead.drivers.native.netlink import Interrupted, Message, Netlink, attribute, attributes, retry_interrupted
from fairlead.drivers.native.nftables.connections import DESTINATION_TRANSLATED, FIRST_PACKET, GET
from fairlead.drivers.native.nftables.elements import ElementChanges, Shape, flushed, read_counters, read_elements
from fairlead.drivers.native.nftables.encoding import address, word
from fairlead.drivers.native.nftables.ruleset import COUNTING_PERIOD, FAMILIES, NftFamily
from fairlead.drivers.native.prerequisites import Prerequisites
from fairlead.model.queries.counter_samples import CounterSample, CounterSamples, CounterValue
from fairlead.model.queries.statistics import AnnouncedPlace, CountedService

_TRANSPORTS = {number: transport for transport, number in PROTOCOLS.items()}
_TRACKED = Path("/proc/sys/net/netfilter/nf_conntrack_count")
_STATUS, _PROTOCOL, _STATUS_MASK = 3, 4, 26
_TCP, _STATE = 1, 1
OPEN_TCP_STATES = frozenset({3, 4, 5})
"""TCP states of established connections that are not closed by both ends: ESTABLISHED, FIN_WAIT, CLOSE_WAIT. Entries of
other protocols count until they expire."""
IsOurs: TypeAlias = Callable[[CountedService], bool]


class KernelCounters:
    """Counters of a host. It shares nothing with the driver's writes, so neither waits for the other."""

    def __init__(self, table: str, boot: str, most_connections: int) -> None:
        """`boot` is the id of this boot. Connections are not counted if more than `most_connections` are tracked."""
        self._table = table
        self._boot = boot
        self._max_connections = most_connections
        self._prerequisites: Prerequisites | None = None

    def close(self) -> None:
        ground, self._prerequisites = self._prerequisites, None
        if ground is not None:
            ground.close()

    def read(self, is_ours: IsOurs) -> CounterSamples:
        """Read the counters of services that are `ours`, and remove all others. Empty without a table.

        Raises DriverError and OSError.
        """
        ground = self._prerequisites = self._prerequisites or Prerequisites(self._table)
        try:
            return retry_interrupted(lambda: self._read(ground, is_ours))
        except OSError as error:
            if error.errno == errno.ENOENT:  # the table does not exist yet, or was just deleted
                return {}
            raise

    def _read(self, ground: Prerequisites, is_ours: IsOurs) -> CounterSamples:
        since = _counting_period(ground, self._boot)
        counts: dict[CountedService, dict[str, CounterValue]] = {}
        strays = ElementChanges(self._table)
        for family in FAMILIES.values():
            for shape in family.counter_sets:
                for key, figures in read_counters(ground.netlink, self._table, shape).items():
                    service, name = _meaning(family, shape, key)
                    if figures is not None and service is not None and is_ours(service):
                        value = figures[shape == family.counted]
                        counts.setdefault(service, {})[name] = CounterValue(value=value, cookie=since, created=0.0)
                    else:
                        strays.remove(shape, [key])
        with contextlib.suppress(OSError):  # the next read retries it
            ground.transact(strays)
        active = self._active(ground.netlink, is_ours)
        return {each: CounterSample(counts=counts.get(each, {}), active=active[each]) for each in {*counts, *active}}

    def _active(self, netlink: Netlink, is_ours: IsOurs) -> Counter[CountedService]:
        found: Counter[CountedService] = Counter()
        if int(_TRACKED.read_text()) > self._max_connections:
            return found
        keys = Counter(key for family in FIRST_PACKET for key in _open(netlink, family))
        for (to, number, port), count in keys.items():
            service = _service(to, number, port)
            if is_ours(service):
                found[service] += count
        return found


def _counting_period(ground: Prerequisites, boot: str) -> int:
    """Return an id of the period of counting.

    A table that was saved and restored, perhaps in another boot, has the counters of the time when it was saved, so
    they are reset.
    """
    said = read_elements(ground.netlink, ground.table, COUNTING_PERIOD)
    where, _, number = said.get(word(0), b"").decode().rpartition(" ")
    here = f"{boot} {ground.handle().hex()}"
    if where == here:
        return int(number, 16)
    begun, changes = secrets.randbits(63), ElementChanges(ground.table)
    changes.remove(COUNTING_PERIOD, said)
    changes.add(COUNTING_PERIOD, {word(0): f"{here} {begun:x}".encode()})
    olds = [shape for family in FAMILIES.values() for shape in family.counter_sets] if said else []
    ground.netlink.transact([*(flushed(ground.table, shape) for shape in olds), *changes.messages()])
    return begun


def _meaning(family: NftFamily, shape: Shape, key: bytes) -> tuple[CountedService | None, str]:
    """Return the service and the metric of a counter; None for an unknown protocol."""
    size = 4 if family.version == 4 else 16
    if shape == family.counted:
        name, key = "bytes_out" if key[0] else "bytes_in", key[4:]
    else:
        name = "connections" if shape == family.opened else "errors"
    is_known = key[size] in _TRANSPORTS
    return _service(key[:size], key[size], int.from_bytes(key[size + 4 : size + 6])) if is_known else None, name


def _service(to: bytes, number: int, port: int) -> CountedService:
    return CountedService(place=AnnouncedPlace(), transport=_TRANSPORTS[number], address=address(to), port=port)


def _open(netlink: Netlink, family: socket.AddressFamily) -> Iterator[tuple[bytes, int, int]]:
    """Yield the destination of each open connection that this host translates."""
    translated = struct.pack(">I", DESTINATION_TRANSLATED)
    asked = struct.pack(">BBH", family, 0, 0) + attribute(_STATUS, translated) + attribute(_STATUS_MASK, translated)
    with contextlib.suppress(Interrupted):  # connections change during the dump
        for _, body in netlink.dump(Message(GET, asked)):
            to, number, port = FIRST_PACKET[family].unpack_from(body)
            if number in _TRANSPORTS and (number != socket.IPPROTO_TCP or _state(body) in OPEN_TCP_STATES):
                yield to, number, port


def _state(body: bytes) -> int:
    said = attributes(attributes(body[4:]).get(_PROTOCOL, b""))
    return attributes(said.get(_TCP, b"")).get(_STATE, b"\0")[0]
