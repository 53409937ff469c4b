"""Files of the agent's counters and neighbour announcements, which survive restarts of the agent and of the machine."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import msgspec

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.counter_samples import CounterValue
from fairlead.model.queries.statistics import CountedService, parse_place
from fairlead.node.announcement_log import AnnouncedMac, AnnouncementLog, Key
from fairlead.node.listener_counters import CounterSums
from fairlead.runtime.atomic_file import write_atomic

LOG = logging.getLogger(__name__)


class _StateFile(msgspec.Struct):
    """Content of the counter file. `boot` identifies the machine's boot; the times are relative to it."""

    boot: str
    last: list[tuple[str, str, str, int, dict[str, tuple[int, int, float]]]]
    """Place, transport, address and port of each service, with value, cookie and creation time of each counter."""
    sums: dict[str, dict[str, int]]
    processes: dict[str, dict[str, dict[str, int]]] = {}
    """Process -> listener -> counters."""
    slack: float = 0.0
    """Maximum seconds that the switch took to answer."""


def read_state(path: Path, boot: str) -> CounterSums:
    """Read the counters of an earlier agent; empty if the file is missing or invalid."""
    try:
        state = msgspec.json.decode(path.read_bytes(), type=_StateFile)
        sums = _figures(state.sums)
        last = dict(_read_last(state))
        processes: dict[str, Mapping[str, TrafficCounters]] = {
            each: _figures(of) for each, of in state.processes.items()
        }
    except FileNotFoundError:
        return CounterSums()
    except (OSError, ValueError, TypeError) as error:
        LOG.warning("cannot read %s (%s); counters restart at zero", path, error)
        return CounterSums()
    if state.boot != boot:  # clocks and processes start again at boot
        return CounterSums(sums=sums)
    return CounterSums(last=last, sums=sums, processes=processes)


def _figures(found: Mapping[str, Mapping[str, int]]) -> dict[str, TrafficCounters]:
    """Convert counters by listener. Raises TypeError."""
    return {listener: TrafficCounters(**figures) for listener, figures in found.items()}


def _read_last(state: _StateFile) -> Iterator[tuple[CountedService, Mapping[str, CounterValue]]]:
    """Convert the last counters. Raises ValueError."""
    for place, transport, address, port, counts in state.last:
        service = CountedService(
            place=parse_place(place), transport=Transport(transport), address=parse_address(address), port=port
        )
        yield (
            service,
            {
                name: CounterValue(value=value, cookie=cookie, created=created, slack=state.slack)
                for name, (value, cookie, created) in counts.items()
            },
        )


def write_state(path: Path, boot: str, tally: CounterSums) -> None:
    """Write the counters atomically. Raises OSError."""
    last = [
        (
            str(service.place),
            service.transport.value,
            str(service.address),
            service.port,
            {name: (count.value, count.cookie, count.created) for name, count in counts.items()},
        )
        for service, counts in tally.last.items()
    ]
    slack = max((count.slack for counts in tally.last.values() for count in counts.values()), default=0.0)
    processes = {process: _plain(counted) for process, counted in tally.processes.items()}
    _write(path, _StateFile(boot=boot, last=last, slack=slack, sums=_plain(tally.sums), processes=processes))


def _plain(found: Mapping[str, TrafficCounters]) -> dict[str, dict[str, int]]:
    return {listener: asdict(figures) for listener, figures in found.items()}


def _write(path: Path, state: msgspec.Struct) -> None:
    write_atomic(path, msgspec.json.encode(state))


class _Neighbours(msgspec.Struct):
    said: dict[str, dict[str, str]]
    """Network -> address -> MAC."""


def neighbours_path(path: Path) -> Path:
    """Return the path of the announcements, beside the file of the counters."""
    return path.with_name(f"{path.stem}.neighbours.json")


def read_announcements(path: Path) -> AnnouncementLog:
    """Read the announcements of an earlier agent; empty if the file is missing or invalid. The recipients are unknown,
    so announcements may be repeated once."""
    try:
        state = msgspec.json.decode(path.read_bytes(), type=_Neighbours)
        said = {
            (network_id, parse_address(address)): AnnouncedMac(mac=mac)
            for network_id, macs in state.said.items()
            for address, mac in macs.items()
        }
    except FileNotFoundError:
        return AnnouncementLog()
    except (OSError, ValueError) as error:
        LOG.warning("cannot read %s (%s); discarding the log of neighbour announcements", path, error)
        return AnnouncementLog()
    return AnnouncementLog(announced=said)


def write_announcements(path: Path, macs: Mapping[Key, str]) -> None:
    """Write the announcements atomically. Raises OSError."""
    said: dict[str, dict[str, str]] = {}
    for (network_id, address), mac in macs.items():
        said.setdefault(network_id, {})[str(address)] = mac
    _write(path, _Neighbours(said=said))


def read_boot() -> str:
    """Return the id of this boot (random(4)), which scopes monotonic times."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
