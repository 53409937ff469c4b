"""Records when the rows of one load balancer change in OVN's databases, and its flows in the switches.

Databases and switches send updates by themselves, without polling, so watching costs them little. A flow counts only
when the buckets of its group equal the backends in the row.
"""

import asyncio
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Condition, Event, Thread
from time import perf_counter
from typing import Any

from fairlead.drivers.ovsdb.client import Client, ContentChanges, FullContents, Settings
from fairlead.drivers.ovsdb.protocol import TableMonitor
from fairlead.drivers.ovsdb.remotes import parse_remotes
from fairlead.drivers.ovsdb.values import Json
from fairlead.lab import Lab, LabError

UPDATE_TIMEOUT = 120.0
_GROUP = re.compile(r"group:(\d+)")
_BUCKET = re.compile(r"nat\(dst=([0-9.:]+)\)")


class ObservedValues:
    """Values from one database or switch, with their times."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._values: list[tuple[float, str]] = []
        self._changed = Condition()

    def record(self, value: str) -> None:
        now = perf_counter()
        with self._changed:
            self._values.append((now, value))
            self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self._values.clear()

    def wait(self, holds: Callable[[str], bool] = lambda _: True) -> tuple[float, str]:
        """First value since the last `forget` that satisfies the condition."""
        with self._changed:
            if not self._changed.wait_for(lambda: any(holds(value) for _, value in self._values), UPDATE_TIMEOUT):
                raise LabError(f"nothing came from {self._place} for {UPDATE_TIMEOUT:.0f} s")
            return next(each for each in self._values if holds(each[1]))


@contextmanager
def database(place: str, remote: str, name: str, row: str, vip: str) -> Iterator[ObservedValues]:
    """Backends of one VIP in the Load_Balancer with this name."""
    seen, ready, ended = ObservedValues(place), Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    def see(event: Any) -> None:
        if isinstance(event, FullContents | ContentChanges):
            for change in event.tables.get("Load_Balancer", {}).values():
                for backends in _backends(change, vip):
                    seen.record(backends)

    async def run() -> None:
        tables = {"Load_Balancer": TableMonitor(columns=("vips",), where=(["name", "==", row],))}
        async with Client(Settings(remotes=parse_remotes(remote), database=name, tables=tables), see) as client:
            await client.wait_connected(UPDATE_TIMEOUT)
            ready.set()
            await ended.wait()

    thread = Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    if not ready.wait(UPDATE_TIMEOUT):
        raise SystemExit(f"scale: cannot watch {place}")
    try:
        yield seen
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def _backends(change: dict[str, dict[str, Json]], vip: str) -> Iterator[str]:
    """Backends in an update. A "modify" of a map has the pairs that changed (ovsdb-server(7), section 4.1.14)."""
    for kind in ("initial", "insert", "modify"):
        for key, value in (change.get(kind) or {}).get("vips", ["map", []])[1]:
            if key == vip:
                yield value


@contextmanager
def switch(lab: Lab, chassis: str, vip: str) -> Iterator[ObservedValues]:
    """Backends of the group to which the flow of this VIP leads."""
    address, port = vip.split(":")
    words = f"nw_dst={address},", f"tp_dst={port} "
    seen, begun = ObservedValues(chassis), Event()
    command = lab.command(chassis, ["stdbuf", "-oL", "ovs-ofctl", "monitor", "br-int", "watch:!initial"])
    with subprocess.Popen(
        command.argv, env=command.full_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:

        def follow() -> None:
            assert process.stdout
            for line in process.stdout:
                begun.set()  # the reply to the request is a line
                found = _GROUP.search(line)
                if found and "event=DELETED" not in line and all(word in line for word in words):
                    seen.record(found[1])

        thread = Thread(target=follow, daemon=True)
        thread.start()
        try:
            if not begun.wait(UPDATE_TIMEOUT):
                raise SystemExit(f"scale: cannot watch {chassis}")
            yield seen
        finally:
            process.terminate()
            thread.join()


def buckets(lab: Lab, chassis: str, group: str) -> str:
    return ",".join(
        _BUCKET.findall(lab.exec(chassis, ["ovs-ofctl", "-O", "OpenFlow15", "dump-groups", "br-int", group]))
    )


class VipWatch:
    """Context that watches one VIP, from the Northbound database to the flows of both chassis."""

    def __init__(self, lab: Lab, row: str, vip: str) -> None:
        self._lab = lab
        self._row = row
        self._vip = vip
        self._stack = ExitStack()

    def __enter__(self) -> "VipWatch":
        enter, lab = self._stack.enter_context, self._lab
        self.northbound = enter(database("Northbound", lab.northbound, "OVN_Northbound", self._row, self._vip))
        self.southbound = enter(database("Southbound", lab.southbound, "OVN_Southbound", self._row, self._vip))
        self.chassis = {node.name: enter(switch(lab, node.name, self._vip)) for node in lab.record.chassis}
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def clear(self) -> None:
        for each in (self.northbound, self.southbound, *self.chassis.values()):
            each.clear()

    def installed(self, chassis: str, backends: str) -> float:
        """Time at which the switch had a flow to a group with exactly these buckets."""
        others: set[str] = set()
        while True:
            when, group = self.chassis[chassis].wait(lambda each: each not in others)
            if buckets(self._lab, chassis, group) == backends:
                return when
            others.add(group)
