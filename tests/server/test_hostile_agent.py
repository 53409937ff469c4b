"""A compromised agent: no request of it affects other chassis."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.agent_protocol.enrolment import read_token
from fairlead.agent_protocol.reports import MAX_PROBE_RESULTS, MAX_REPORT_BYTES
from fairlead.api.agents.slice_stream import RECONNECT_BURST
from fairlead.http.server_client import ServerError
from fairlead.model.registry.slices import slice_of
from fairlead.node.channel import NodeSlice, SliceReceiver
from fairlead.node.connection import Connection, Remote
from fairlead.node.identity import NoIdentity, _request, enrol
from harness.agents import running
from harness.front_ends.lxd_keys import make_certificate
from harness.nodes import NodesDeployment, play
from harness.reports import REPORT
from harness.waiting import eventually

pytestmark = pytest.mark.slow

SEEN = {"health": "refuses connections or does not answer", "chassis": "two", "since": "2026-01-01T12:00:00+00:00"}
THEIRS = [["vm2", "10.0.0.12", 80, "tcp", ""], SEEN]
OWN = [["vm1", "10.0.0.11", 80, "tcp", ""], SEEN]


def report(*sightings: Any, **more: Any) -> dict[str, Any]:
    return {**REPORT, "sightings": [*sightings], **more}


async def refused(connection: Connection, method: str, path: str, body: Any = None) -> tuple[int | None, str]:
    with pytest.raises(ServerError) as error:
        await connection.request(method, path, body)
    return error.value.status, str(error.value)


def attack(folder: Path, story: Callable[[NodesDeployment, Connection], Any]) -> None:
    """Run the story with the certificate of chassis `one`; `two` is another node."""

    async def told(stage: NodesDeployment) -> None:
        connection = stage.connection(await stage.enrol("one"))
        await stage.enrol("two")
        try:
            await story(stage, connection)
        finally:
            connection.close()

    play(folder, told)


def test_probe_result_for_a_member_of_another_node_is_rejected(tmp_path: Path):
    async def story(stage: NodesDeployment, connection: Connection) -> None:
        told = await connection.request("POST", "/agent/chassis/one/report", report(THEIRS))
        ((endpoint, why),) = told["refused"]
        assert (endpoint[:4], why) == (THEIRS[0][:4], "this chassis does not probe this endpoint")
        assert not stage.snapshot.sightings
        assert not stage.snapshot.down

    attack(tmp_path, story)


def test_probe_result_is_stored_under_the_reporting_node(tmp_path: Path):
    async def story(stage: NodesDeployment, connection: Connection) -> None:
        await connection.request("POST", "/agent/chassis/one/report", report(OWN))
        (sighting,) = stage.snapshot.sightings.values()
        assert sighting.chassis == "one"

    attack(tmp_path, story)


def test_agent_cannot_act_for_another_node(tmp_path: Path):
    async def story(stage: NodesDeployment, connection: Connection) -> None:
        before = stage.snapshot
        for method, path, body in (
            ("POST", "/agent/chassis/two/report", report(THEIRS)),
            ("GET", "/agent/chassis/two/slice", None),
            ("GET", "/agent/chassis/two/slice?after=x", None),
            ("PUT", "/agent/chassis/two", {"interval": 10, "listeners": {}}),
            ("POST", "/agent/chassis/two/neighbours", {"remembered": {}}),
            ("POST", "/agent/chassis/two/certificate", {"request": _request("two")[1]}),
        ):
            status, text = await refused(connection, method, path, body)
            assert status == 403, (path, text)
        assert stage.snapshot is before

    attack(tmp_path, story)


def test_certificate_request_for_another_node_yields_the_own_name(tmp_path: Path):
    async def story(stage: NodesDeployment, connection: Connection) -> None:
        told = await connection.request("POST", "/agent/chassis/one/certificate", {"request": _request("two")[1]})
        assert told["chassis"] == "one"
        assert len(stage.snapshot.nodes["two"].certificates) == 1

    attack(tmp_path, story)


def test_agent_listener_serves_no_other_api(tmp_path: Path):
    async def story(stage: NodesDeployment, connection: Connection) -> None:
        for path in ("/network/v2.0/networks", "/load-balancer/v2.0/lbaas/loadbalancers", "/operator/chassis", "/1.0"):
            assert (await refused(connection, "GET", path))[0] == 404
        assert (await refused(connection, "POST", "/operator/chassis/two/token"))[0] == 404

    attack(tmp_path, story)


def test_slice_contains_only_the_own_node_and_no_secret(tmp_path: Path):
    async def story(stage: NodesDeployment, connection: Connection) -> None:
        await stage.token("three")
        texts: list[bytes] = []
        with contextlib.suppress(ServerError):
            async for line in connection.lines("/agent/chassis/one/slice", 0.3):
                texts += [line]
        told = b"\n".join(texts).decode()
        kinds = {json.loads(each).get("put", "").partition("/")[0] for each in texts if each} - {""}
        assert kinds == {"network", "port", "loadbalancer"}
        assert [json.loads(each)["chassis"]["name"] for each in texts if b'"chassis":{' in each] == ["one"]
        for secret in ("node-token", "certificates", "digest", "fingerprint", '"two"'):
            assert secret not in told

    attack(tmp_path, story)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (report(*[OWN] * (MAX_PROBE_RESULTS + 1)), 400, "at most 2000"),
        (report([["vm1"], SEEN]), 400, "invalid endpoint"),
        (report([OWN[0], {**SEEN, "health": "its node is dead: it confirms nothing any more"}]), 400, "STRANDED"),
        (report([OWN[0], {**SEEN, "latency": -1}]), 400, "latency"),
        (report(version="x" * 65), 400, "version"),
        (report(heartbeat=10**9), 400, "heartbeat"),
        (report(since="2026-01-01T12:00:00"), 400, "time zone"),
        ({**REPORT, **dict.fromkeys(map(str, range(30)), 1)}, 400, "More than 16 unknown attributes"),
        ({**REPORT, "host": "x" * MAX_REPORT_BYTES}, 413, "larger than"),
    ],
    ids=str.split("many endpoint health latency version heartbeat since unknown large"),
)
def test_invalid_report_is_rejected_with_a_reason(tmp_path: Path, body: Any, status: int, text: str):
    async def story(stage: NodesDeployment, connection: Connection) -> None:
        before = stage.snapshot
        found = await refused(connection, "POST", "/agent/chassis/one/report", body)
        assert (found[0], text in found[1]) == (status, True), found
        assert stage.snapshot is before

    attack(tmp_path, story)


def test_watch_flood_disconnects_only_the_flooding_agent(tmp_path: Path):
    async def story(stage: NodesDeployment, connection: Connection) -> None:
        honest, identity = NodeSlice("two", tmp_path / "slice"), await stage.enrol("two")
        own = stage.remote(await stage.enrol("one"))
        async with running(SliceReceiver(honest, lambda: [stage.remote(identity)]).run):
            await eventually(honest.ready.is_set)
            outcomes: list[int | None] = []

            async def watch() -> None:
                connection = Connection(own, 5.0)
                try:
                    async for _ in connection.lines("/agent/chassis/one/slice", 5.0):
                        pass
                except ServerError as error:
                    outcomes.append(error.status)
                finally:
                    connection.close()

            tasks = [asyncio.create_task(watch()) for _ in range(3 * RECONNECT_BURST)]
            await eventually(lambda: len(outcomes) >= 3 * RECONNECT_BURST - 3)
            assert 429 in outcomes
            assert stage.services.nodes.channel.connected_count <= 2
            documents = slice_of(stage.snapshot, "two")
            assert honest.snapshot.generations == documents.generations
            assert stage.services.nodes.channel.is_connected("two")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    attack(tmp_path, story)


@pytest.mark.slow
def test_report_flood_is_rate_limited_per_node(tmp_path: Path):
    async def story(stage: NodesDeployment, connection: Connection) -> None:
        statuses = set[int | None]()
        remote = stage.remote(await stage.enrol("one"))

        async def flood(connection: Connection) -> None:
            while not statuses:
                try:
                    await connection.request("POST", "/agent/chassis/one/report", report())
                except ServerError as error:
                    statuses.add(error.status)
            connection.close()

        await asyncio.gather(*(flood(Connection(remote, 5.0)) for _ in range(6)))
        assert statuses == {429}
        other = stage.connection(await stage.enrol("two"))
        await other.request("POST", "/agent/chassis/two/report", report())
        other.close()

    attack(tmp_path, story)


def test_enrolment_token_guesses_are_rate_limited(tmp_path: Path):
    async def story(stage: NodesDeployment, connection: Connection) -> None:
        token = read_token(await stage.token("three"))
        statuses = []
        for _ in range(10):
            body = {"token": "guess", "request": _request("three")[1]}
            statuses.append((await refused(connection, "POST", "/agent/enrol", body))[0])
        assert statuses == [403] * 5 + [429] * 5
        assert set(stage.snapshot.node_tokens) == {token.chassis}

    attack(tmp_path, story)


def test_invalid_certificate_request_does_not_consume_the_token(tmp_path: Path):
    async def story(stage: NodesDeployment, connection: Connection) -> None:
        token = read_token(await stage.token("three"))
        for text in ("", "nonsense", _request("three")[1].replace("A", "B", 5)):
            status, _ = await refused(connection, "POST", "/agent/enrol", {"token": token.secret, "request": text})
            assert status == 400
        await enrol(token, tmp_path / "three.pem")
        with pytest.raises(NoIdentity):
            await enrol(token, tmp_path / "three.pem")

    attack(tmp_path, story)


def test_client_without_a_known_certificate_is_rejected(tmp_path: Path):
    async def story(stage: NodesDeployment, connection: Connection) -> None:
        anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
        stranger = Connection(Remote(url=stage.url, tls=anyone), 5.0)
        for path in ("/agent/chassis/one/slice", "/agent/openapi.json", "/agent/chassis/one", "/"):
            assert (await refused(stranger, "GET", path))[0] in (401, 404)
        assert (await refused(stranger, "POST", "/agent/chassis/one/report", report()))[0] == 401
        stranger.close()
        der, key = make_certificate("one")
        (tmp_path / "own.pem").write_text(ssl.DER_cert_to_PEM_cert(der) + key.decode())
        anyone.load_cert_chain(tmp_path / "own.pem")
        with pytest.raises(
            ServerError, match=r"request to .* failed|closed the connection"
        ):  # TLS 1.3 reports it with the first response
            await Connection(Remote(url=stage.url, tls=anyone), 5.0).request("GET", "/agent/authority")

    attack(tmp_path, story)
