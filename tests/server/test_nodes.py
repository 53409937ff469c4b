"""Enrolment of nodes: token, certificate, renewal, and removal."""

import asyncio
import logging
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from fairlead.agent_protocol.enrolment import LONGEST_TOKEN, read_token
from fairlead.changes.nodes import NAME
from fairlead.http.server_client import Server, ServerError
from fairlead.node import identity as identity_module
from fairlead.node.channel import Channel, Slice
from fairlead.node.identity import (
    NodeIdentity,
    NoIdentity,
    _request,
    _write,
    enrol,
    keep_renewed,
    read_identity,
    renew,
)
from fairlead.server.authority import OWN_FILE, Authority
from harness.agents import running
from harness.nodes import Deployed, play
from harness.reports import REPORT
from harness.waiting import eventually


def test_a_token_brings_a_certificate_by_which_an_agent_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)

    async def story(stage: Deployed) -> None:
        token = await stage.token("one")
        identity = await enrol(read_token(token), tmp_path / "one.pem")
        assert (identity.chassis, identity.path.stat().st_mode & 0o777) == ("one", 0o600)
        assert (tmp_path / OWN_FILE).stat().st_mode & 0o777 == 0o600
        connection = stage.connection(identity)
        told = await connection.ask("POST", "/agent/chassis/one/report", REPORT)
        assert told == {"epoch": f"{stage.services.nodes.channel.epoch}.0", "refused": []}
        assert stage.snapshot.agents["one"].version == "1"
        connection.close()
        secret = read_token(token).secret
        assert secret not in caplog.text
        assert secret not in str(stage.snapshot.node_tokens)
        assert secret.encode() not in (tmp_path / "store.db").read_bytes()
        assert "PRIVATE KEY" not in (tmp_path / "store.db").read_bytes().decode("latin-1")

    play(tmp_path, story)


def test_an_agent_listens_by_its_certificate(tmp_path: Path):
    async def story(stage: Deployed) -> None:
        identity = await stage.enrol("one")
        slice_ = Slice("one", tmp_path / "slice")
        async with running(Channel(slice_, lambda: [stage.remote(identity)]).run):
            await eventually(lambda: "web" in slice_.snapshot.load_balancers)

    play(tmp_path, story)


def test_the_command_of_statistics_comes_by_it_too(tmp_path: Path):
    async def story(stage: Deployed) -> None:
        identity = await stage.enrol("one")
        server = Server(url=stage.url, identity=str(identity.path), authority=identity.authority)
        with pytest.raises(ServerError, match="OVN has no chassis one"):
            await asyncio.to_thread(server.ask, "PUT", "/agent/chassis/one", {"interval": 10, "listeners": {}})

    play(tmp_path, story)


def test_a_token_is_good_once(tmp_path: Path):
    async def story(stage: Deployed) -> None:
        token = read_token(await stage.token("one"))
        await enrol(token, tmp_path / "one.pem")
        with pytest.raises(NoIdentity, match="the token is not good"):
            await enrol(token, tmp_path / "again.pem")
        assert not (tmp_path / "again.pem").exists()
        older, newer = read_token(await stage.token("two")), read_token(await stage.token("two"))
        with pytest.raises(NoIdentity, match="the token is not good"):
            await enrol(older, tmp_path / "two.pem")
        await enrol(newer, tmp_path / "two.pem")

    play(tmp_path, story)


def test_another_deployment_cannot_take_its_place(tmp_path: Path):
    async def story(stage: Deployed) -> None:
        token = replace(read_token(await stage.token("one")), authority="0" * 64)
        with pytest.raises(NoIdentity, match="is not the deployment that the token is of"):
            await enrol(token, tmp_path / "one.pem")
        assert set(stage.snapshot.node_tokens) == {"one"}, "its secret was not told"

    play(tmp_path, story)


def test_no_node_can_pass_for_a_server(tmp_path: Path):
    """A node's certificate does not authenticate a server: it has the same CA, but another purpose."""

    async def story(stage: Deployed) -> None:
        one, two = await stage.enrol("one"), await stage.enrol("two")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(one.path)
        ended = asyncio.Event()

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ended.set()

        false = await asyncio.start_server(take, "127.0.0.1", 0, ssl=context)
        port = false.sockets[0].getsockname()[1]
        with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
            await asyncio.open_connection("127.0.0.1", port, ssl=two.tls())
        false.close()
        await false.wait_closed()
        assert not ended.is_set()

    play(tmp_path, story)


def test_a_certificate_is_renewed_before_its_time_is_over(tmp_path: Path):
    async def story(stage: Deployed) -> None:
        identity = await stage.enrol("one")
        assert not identity.is_due(datetime.now(UTC))
        assert identity.is_due(identity.not_before + (identity.not_after - identity.not_before) * 0.7)
        before = identity.path.read_bytes()
        renewed = await renew(identity, stage.url)
        assert renewed.path.read_bytes() != before
        assert len(stage.snapshot.nodes["one"].certificates) == 2
        again = await renew(renewed, stage.url)
        assert len(stage.snapshot.nodes["one"].certificates) == 2
        connection = stage.connection(again)
        await connection.ask("POST", "/agent/chassis/one/report", REPORT)
        connection.close()

    play(tmp_path, story)


def expired(stage: Deployed, chassis: str) -> NodeIdentity:
    """Return a node whose certificate expired ten days ago, without a renewal."""
    enrolment = stage.nodes.enrolment()
    assert enrolment is not None
    key, request = _request(chassis)
    signed = enrolment.authority.sign(request, chassis, datetime.now(UTC) - timedelta(days=100))
    path = stage.folder / f"{chassis}.expired.pem"
    _write(path, key, signed.pem, enrolment.authority.pem)
    found = read_identity(path)
    assert found is not None
    return found


def test_an_agent_whose_certificate_has_expired_is_told_so_and_the_server_says_which(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)

    async def story(stage: Deployed) -> None:
        one, two = expired(stage, "one"), expired(stage, "two")
        words = f"the certificate of chassis one expired on {one.not_after:%Y-%m-%d %H:%M} UTC"
        for _ in range(3):
            connection = stage.connection(one)
            with pytest.raises(ServerError, match=words) as refused:
                await connection.ask("POST", "/agent/chassis/one/report", REPORT)
            assert refused.value.status == 401
            connection.close()
        server = Server(url=stage.url, identity=str(one.path), authority=one.authority)
        with pytest.raises(ServerError, match=words):
            await asyncio.to_thread(server.ask, "PUT", "/agent/chassis/one", {"interval": 10, "listeners": {}})
        with pytest.raises(ServerError, match="the certificate of chassis two expired on"):
            await renew(two, stage.url)
        assert dict(stage.snapshot.agents) == {}
        logged = [each.message for each in caplog.records if each.name == "fairlead.api.agents.authentication"]
        assert [each.partition(" UTC")[0] for each in logged] == [
            f"the certificate of chassis {each.chassis} expired on {each.not_after:%Y-%m-%d %H:%M}"
            for each in (one, two)
        ]
        assert all("fairlead chassis enroll" in each for each in logged)
        connection = stage.connection(await stage.enrol("one"))  # a new token enrols it again
        await connection.ask("POST", "/agent/chassis/one/report", REPORT)
        connection.close()

    play(tmp_path, story)


def test_an_agent_says_that_its_own_certificate_has_expired_and_takes_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level(logging.INFO, "fairlead.node")

    async def story(stage: Deployed) -> None:
        old, taken = expired(stage, "one"), list[NodeIdentity]()
        monkeypatch.setattr(identity_module, "LOOK", 0.05)
        async with running(partial(keep_renewed, old, (stage.url,), taken.append)):
            await eventually(lambda: str(old.path) in caplog.text)
            assert caplog.text.count(str(old.path)) == 1
            assert f"expired on {old.not_after:%Y-%m-%d %H:%M} UTC" in caplog.text
            assert "fairlead chassis enroll one" in caplog.text
            await enrol(read_token(await stage.token("one")), old.path)  # the remedy that the log names
            await eventually(lambda: bool(taken))
        assert taken[0].not_after > datetime.now(UTC)

    play(tmp_path, story)


def test_a_certificate_of_another_time_is_none(tmp_path: Path):
    """Expired certificates are rejected after the handshake, so that the server can log their name."""

    async def story(stage: Deployed) -> None:
        enrolment = stage.nodes.enrolment()
        assert enrolment is not None
        key, request = _request("one")
        signed = enrolment.authority.sign(request, "one", datetime.now(UTC) + timedelta(days=10))
        _write(tmp_path / "early.pem", key, signed.pem, enrolment.authority.pem)
        early = read_identity(tmp_path / "early.pem")
        assert early is not None
        connection = stage.connection(early)
        with pytest.raises(ServerError, match="the certificate of chassis one is not valid before"):
            await connection.ask("POST", "/agent/chassis/one/report", REPORT)
        connection.close()

    play(tmp_path, story)


def test_who_is_revoked_is_out_at_once_and_cannot_come_back(tmp_path: Path):
    async def story(stage: Deployed) -> None:
        identity = await stage.enrol("one")
        slice_, connection, operator = Slice("one", tmp_path / "slice"), stage.connection(identity), stage.operator()
        channel = Channel(slice_, lambda: [stage.remote(identity)])
        await connection.ask("POST", "/agent/chassis/one/report", REPORT)
        listening = asyncio.create_task(channel.listen(stage.remote(identity)))
        await eventually(slice_.ready.is_set)
        await operator.ask("DELETE", "/operator/chassis/one/identity")
        with pytest.raises(ServerError):
            await listening
        with pytest.raises(ServerError) as refused:
            await connection.ask("POST", "/agent/chassis/one/report", REPORT)
        assert refused.value.status == 401
        with pytest.raises(ServerError) as refused:
            await renew(identity, stage.url)
        assert refused.value.status == 401
        await eventually(lambda: not stage.snapshot.agents)
        connection.close()
        operator.close()

    play(tmp_path, story)


def test_nodes_are_visible(tmp_path: Path):
    async def story(stage: Deployed) -> None:
        operator, connection = stage.operator(), stage.connection(await stage.enrol("one"))
        await connection.ask("POST", "/agent/chassis/one/report", {**REPORT, "unapplied": [
            {"dataplane": "haproxy", "owner": "loadbalancer/web", "error": "no such file"}]})  # fmt: skip
        await operator.ask("POST", "/operator/chassis/three/token")
        rows = {each["name"]: each for each in (await operator.ask("GET", "/operator/chassis"))["chassis"]}
        assert list(rows) == ["one", "three", "two"]
        assert (rows["one"]["ports"], rows["one"]["alive"], rows["one"]["agent"]["heard"]) == (1, True, True)
        assert (rows["one"]["agent"]["version"], rows["one"]["agent"]["since"]) == ("1", "2026-01-01T12:00:00Z")
        assert rows["one"]["agent"]["unapplied"][0]["error"] == "no such file"
        assert rows["one"]["enrolled"]["until"] > "2026"
        assert (rows["two"]["agent"], rows["two"]["enrolled"], rows["three"]["in_ovn"]) == (None, None, False)
        assert rows["three"]["token_until"] is not None
        assert await operator.ask("GET", "/operator/chassis/one") == rows["one"]
        with pytest.raises(ServerError, match="there is no chassis four"):
            await operator.ask("GET", "/operator/chassis/four")
        for connection_ in (operator, connection):
            connection_.close()

    play(tmp_path, story)


def test_whoever_may_open_the_socket_speaks_for_its_chassis(tmp_path: Path):
    async def story(stage: Deployed) -> None:
        remote = replace(stage.remote(await stage.enrol("two")), url=f"unix:{tmp_path}/agent.socket", tls=None)
        connection = type(stage.operator())(remote, 5.0)
        await connection.ask("POST", "/agent/chassis/one/report", REPORT)
        with pytest.raises(ServerError, match="and not for two"):
            await connection.ask("POST", "/agent/chassis/two/report", REPORT)
        connection.close()

    play(tmp_path, story)


def test_a_token_that_cannot_be_read():
    for text in ("", "nonsense", "e30=", "x" * (LONGEST_TOKEN + 1)):
        with pytest.raises(ValueError, match="no token"):
            read_token(text)


def test_names_that_can_be_enrolled():
    good = ["one", "c0ffee00-0000-4000-8000-000000000001", "node1.example.org"]
    assert all(map(NAME.fullmatch, good))
    assert not any(map(NAME.fullmatch, ["", "two words", "../x", "x" * 65, "-x", "a/b"]))


def test_servers_with_one_file_are_one_authority(tmp_path: Path):
    first, second = (Authority(tmp_path / "ca.pem", timedelta(days=1)) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    with pytest.raises(OSError, match="No such file"):
        Authority(tmp_path / "none.pem", timedelta(days=1), make=False)
    (tmp_path / "bad.pem").write_text("nonsense")
    with pytest.raises(OSError, match="is not a certificate and its key"):
        Authority(tmp_path / "bad.pem", timedelta(days=1))


def test_a_node_without_a_file_is_not_known_and_a_bad_one_is_said(tmp_path: Path):
    assert read_identity(tmp_path / "none.pem") is None
    (tmp_path / "bad.pem").write_text("nonsense")
    with pytest.raises(NoIdentity, match=r"bad\.pem cannot be read"):
        read_identity(tmp_path / "bad.pem")
