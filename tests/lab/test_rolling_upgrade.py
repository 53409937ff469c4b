"""Rolling upgrade of two servers with one store, under traffic and writes, and a downgrade of one.

The older release is the current program, the newer one the same with one more format (`harness.newer_release`). The
test shows how servers of two releases work together, not the differences between two real releases.
"""

from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from fairlead.lab import Protocol
from fairlead.lab.load import Load, LoadTarget, sum_results
from fairlead.lab.server import ServerProcess
from harness.lab.labs import lab_of
from harness.lab.rolling import (
    HELD,
    MEMBERS,
    NEWER,
    OLDER,
    RATE,
    SECONDS,
    ReleaseServers,
    Writer,
    await_more_writes,
    writing,
)
from harness.lab.servers import NETWORKS, FairleadProcess
from harness.lab.site import PORT, LabSite, connect
from harness.ports import free_port
from harness.waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.extended]

TESTS = Path(__file__).parents[1]


def reads(server: FairleadProcess) -> str:
    """Response of /readyz, or empty while no process listens between two listeners."""
    try:
        return server.client.get("/readyz").text
    except httpx.TransportError:
        return ""


def test_servers_are_upgraded_and_downgraded_without_broken_connections(machine: None, tmp_path: Path):
    with ExitStack() as stack:
        lab = stack.enter_context(lab_of("rolling", chassis=2))
        places = [ReleaseServers(lab, tmp_path, free_port()) for _ in range(2)]
        for place in places:
            stack.callback(place.stack.close)
        one, other = (place.start(OLDER) for place in places)
        site = LabSite(
            lab=lab, service=ServerProcess(url=one.url, folder=tmp_path), cloud=connect(one.url), url=one.url
        )
        stack.callback(site.cloud.close)
        site.network("rolling", "10.0.0.0/24", "fd00:a::/64")
        site.machines("rolling", MEMBERS, serve=[PORT])
        site.machines("rolling", {"client": "chassis1"})
        balancers = [
            stack.enter_context(site.balancer(f"rolling-v{version}", list(MEMBERS), protocol=each, version=version))
            for version in (4, 6)
            for each in ("TCP", "UDP")
        ]
        rows = site.our_rows()
        targets = tuple(
            LoadTarget(to=each.vip, port=80, protocol=kind)
            for each, kind in zip(balancers, [Protocol.TCP, Protocol.UDP] * 2, strict=True)
        )
        writer = Writer(urls=[one.url, other.url], balancer=balancers[0].id)
        load = Load(
            targets=targets, rate=RATE, count=RATE * SECONDS, held=HELD, seconds=SECONDS, period=0.5, timeout=30
        )
        with lab.load("client", load) as running, writing(writer):
            await_more_writes(writer)
            other = places[1].replace(other, NEWER)
            await_more_writes(writer)
            one = places[0].replace(one, NEWER)
            await_more_writes(writer)
            one = places[0].replace(one, OLDER)  # no document written so far needs the newer format
            await_more_writes(writer)
            new = other.create(NETWORKS, "network", name="new-feature")["id"]
            wait_until(lambda: "on standby" in reads(one))
            wait_until(other.is_holder)
            assert one.client.get(NETWORKS).status_code == 503
            await_more_writes(writer)
            assert other.client.delete(f"{NETWORKS}/{new}").status_code == 204
            wait_until(lambda: reads(one).startswith("ready"))
            await_more_writes(writer)
            result = running.stop()
        for server in (one, other):
            assert server.balancer(balancers[0].id)["name"] == writer.acknowledged
        assert writer.wrong == []
        wait_until(other.is_idle)
        assert site.our_rows() == rows
        assert result.failed == []
        print(writer.written, "writes", dict(sum_results([result])), result.retransmissions)
        assert sum_results([result])["held"] == HELD
