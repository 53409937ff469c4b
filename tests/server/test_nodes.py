"""Enrolment of nodes: token, certificate, renewal, and removal."""

import asyncio
import logging
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from fairlead.agent_protocol.enrolment import MAX_TOKEN_LENGTH, read_token
from fairlead.changes.nodes import CHASSIS_NAME
from fairlead.http.server_client import ApiClient, ServerError
from fairlead.node import identity as identity_module
from fairlead.node.channel import NodeSlice, SliceReceiver
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
from fairlead.server.authority import OWN_FILE, NodeAuthority
from harness.agents import running
from harness.nodes import NodesDeployment, play
from harness.reports import REPORT
from harness.waiting import eventually


def test_token_enrols_an_agent_with_a_certificate_and_leaks_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)

    async def story(stage: NodesDeployment) -> None:
        token = await stage.token("one")
        identity = await enrol(read_token(token), tmp_path / "one.pem")
        assert (identity.chassis, identity.path.stat().st_mode & 0o777) == ("one", 0o600)
        assert (tmp_path / OWN_FILE).stat().st_mode & 0o777 == 0o600
        connection = stage.connection(identity)
        told = await connection.request("POST", "/agent/chassis/one/report", REPORT)
        assert told == {"epoch": f"{stage.services.nodes.channel.epoch}.0", "refused": []}
        assert stage.snapshot.agents["one"].version == "1"
        connection.close()
        secret = read_token(token).secret
        assert secret not in caplog.text
        assert secret not in str(stage.snapshot.node_tokens)
        assert secret.encode() not in (tmp_path / "store.db").read_bytes()
        assert "PRIVATE KEY" not in (tmp_path / "store.db").read_bytes().decode("latin-1")

    play(tmp_path, story)


def test_enrolled_agent_receives_its_slice(tmp_path: Path):
    async def story(stage: NodesDeployment) -> None:
        identity = await stage.enrol("one")
        slice_ = NodeSlice("one", tmp_path / "slice")
        async with running(SliceReceiver(slice_, lambda: [stage.remote(identity)]).run):
            await eventually(lambda: "web" in slice_.snapshot.load_balancers)

    play(tmp_path, story)


def test_statistics_command_authenticates_with_the_node_certificate(tmp_path: Path):
    async def story(stage: NodesDeployment) -> None:
        identity = await stage.enrol("one")
        server = ApiClient(url=stage.url, identity=str(identity.path), authority=identity.authority)
        with pytest.raises(ServerError, match="chassis one does not exist in OVN"):
            await asyncio.to_thread(server.request, "PUT", "/agent/chassis/one", {"interval": 10, "listeners": {}})

    play(tmp_path, story)


def test_only_the_newest_enrolment_token_is_valid_and_only_once(tmp_path: Path):
    async def story(stage: NodesDeployment) -> None:
        token = read_token(await stage.token("one"))
        await enrol(token, tmp_path / "one.pem")
        with pytest.raises(NoIdentity, match="the token is invalid"):
            await enrol(token, tmp_path / "again.pem")
        assert not (tmp_path / "again.pem").exists()
        older, newer = read_token(await stage.token("two")), read_token(await stage.token("two"))
        with pytest.raises(NoIdentity, match="the token is invalid"):
            await enrol(older, tmp_path / "two.pem")
        await enrol(newer, tmp_path / "two.pem")

    play(tmp_path, story)


def test_token_secret_is_not_sent_to_another_deployment(tmp_path: Path):
    async def story(stage: NodesDeployment) -> None:
        token = replace(read_token(await stage.token("one")), authority="0" * 64)
        with pytest.raises(NoIdentity, match="does not match the enrolment token"):
            await enrol(token, tmp_path / "one.pem")
        assert set(stage.snapshot.node_tokens) == {"one"}, "its secret was not told"

    play(tmp_path, story)


def test_node_certificate_cannot_authenticate_a_server(tmp_path: Path):
    """A node's certificate does not authenticate a server: it has the same CA, but another purpose."""

    async def story(stage: NodesDeployment) -> None:
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


def test_node_certificate_is_renewed_before_expiry(tmp_path: Path):
    async def story(stage: NodesDeployment) -> None:
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
        await connection.request("POST", "/agent/chassis/one/report", REPORT)
        connection.close()

    play(tmp_path, story)


def expired(stage: NodesDeployment, chassis: str) -> NodeIdentity:
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


def test_expired_node_certificate_is_rejected_and_logged_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)

    async def story(stage: NodesDeployment) -> None:
        one, two = expired(stage, "one"), expired(stage, "two")
        words = f"the certificate of chassis one expired on {one.not_after:%Y-%m-%d %H:%M} UTC"
        for _ in range(3):
            connection = stage.connection(one)
            with pytest.raises(ServerError, match=words) as refused:
                await connection.request("POST", "/agent/chassis/one/report", REPORT)
            assert refused.value.status == 401
            connection.close()
        server = ApiClient(url=stage.url, identity=str(one.path), authority=one.authority)
        with pytest.raises(ServerError, match=words):
            await asyncio.to_thread(server.request, "PUT", "/agent/chassis/one", {"interval": 10, "listeners": {}})
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
        await connection.request("POST", "/agent/chassis/one/report", REPORT)
        connection.close()

    play(tmp_path, story)


def test_agent_logs_its_expired_certificate_and_uses_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level(logging.INFO, "fairlead.node")

    async def story(stage: NodesDeployment) -> None:
        old, taken = expired(stage, "one"), list[NodeIdentity]()
        monkeypatch.setattr(identity_module, "RENEWAL_CHECK_INTERVAL", 0.05)
        async with running(partial(keep_renewed, old, (stage.url,), taken.append)):
            await eventually(lambda: str(old.path) in caplog.text)
            assert caplog.text.count(str(old.path)) == 1
            assert f"expired on {old.not_after:%Y-%m-%d %H:%M} UTC" in caplog.text
            assert "fairlead chassis enroll one" in caplog.text
            await enrol(read_token(await stage.token("one")), old.path)  # the remedy that the log names
            await eventually(lambda: bool(taken))
        assert taken[0].not_after > datetime.now(UTC)

    play(tmp_path, story)


def test_node_certificate_that_is_not_yet_valid_is_rejected(tmp_path: Path):
    """Expired certificates are rejected after the handshake, so that the server can log their name."""

    async def story(stage: NodesDeployment) -> None:
        enrolment = stage.nodes.enrolment()
        assert enrolment is not None
        key, request = _request("one")
        signed = enrolment.authority.sign(request, "one", datetime.now(UTC) + timedelta(days=10))
        _write(tmp_path / "early.pem", key, signed.pem, enrolment.authority.pem)
        early = read_identity(tmp_path / "early.pem")
        assert early is not None
        connection = stage.connection(early)
        with pytest.raises(ServerError, match="the certificate of chassis one is not valid before"):
            await connection.request("POST", "/agent/chassis/one/report", REPORT)
        connection.close()

    play(tmp_path, story)


def test_revoked_node_is_disconnected_and_cannot_renew(tmp_path: Path):
    async def story(stage: NodesDeployment) -> None:
        identity = await stage.enrol("one")
        slice_, connection, operator = (
            NodeSlice("one", tmp_path / "slice"),
            stage.connection(identity),
            stage.operator(),
        )
        channel = SliceReceiver(slice_, lambda: [stage.remote(identity)])
        await connection.request("POST", "/agent/chassis/one/report", REPORT)
        listening = asyncio.create_task(channel.receive(stage.remote(identity)))
        await eventually(slice_.ready.is_set)
        await operator.request("DELETE", "/operator/chassis/one/identity")
        with pytest.raises(ServerError):
            await listening
        with pytest.raises(ServerError) as refused:
            await connection.request("POST", "/agent/chassis/one/report", REPORT)
        assert refused.value.status == 401
        with pytest.raises(ServerError) as refused:
            await renew(identity, stage.url)
        assert refused.value.status == 401
        await eventually(lambda: not stage.snapshot.agents)
        connection.close()
        operator.close()

    play(tmp_path, story)


def test_nodes_are_listed_with_state_and_errors(tmp_path: Path):
    async def story(stage: NodesDeployment) -> None:
        operator, connection = stage.operator(), stage.connection(await stage.enrol("one"))
        await connection.request("POST", "/agent/chassis/one/report", {**REPORT, "unapplied": [
            {"dataplane": "haproxy", "owner": "loadbalancer/web", "error": "no such file"}]})  # fmt: skip
        await operator.request("POST", "/operator/chassis/three/token")
        rows = {each["name"]: each for each in (await operator.request("GET", "/operator/chassis"))["chassis"]}
        assert list(rows) == ["one", "three", "two"]
        assert (rows["one"]["ports"], rows["one"]["alive"], rows["one"]["agent"]["heard"]) == (1, True, True)
        assert (rows["one"]["agent"]["version"], rows["one"]["agent"]["since"]) == ("1", "2026-01-01T12:00:00Z")
        assert rows["one"]["agent"]["unapplied"][0]["error"] == "no such file"
        assert rows["one"]["enrolled"]["until"] > "2026"
        assert (rows["two"]["agent"], rows["two"]["enrolled"], rows["three"]["in_ovn"]) == (None, None, False)
        assert rows["three"]["token_until"] is not None
        assert await operator.request("GET", "/operator/chassis/one") == rows["one"]
        with pytest.raises(ServerError, match="chassis four does not exist"):
            await operator.request("GET", "/operator/chassis/four")
        for connection_ in (operator, connection):
            connection_.close()

    play(tmp_path, story)


def test_agent_socket_serves_its_configured_node_only(tmp_path: Path):
    async def story(stage: NodesDeployment) -> None:
        remote = replace(stage.remote(await stage.enrol("two")), url=f"unix:{tmp_path}/agent.socket", tls=None)
        connection = type(stage.operator())(remote, 5.0)
        await connection.request("POST", "/agent/chassis/one/report", REPORT)
        with pytest.raises(ServerError, match="not two"):
            await connection.request("POST", "/agent/chassis/two/report", REPORT)
        connection.close()

    play(tmp_path, story)


def test_malformed_token_is_rejected():
    for text in ("", "nonsense", "e30=", "x" * (MAX_TOKEN_LENGTH + 1)):
        with pytest.raises(ValueError, match="not a token of"):
            read_token(text)


def test_node_names_are_validated():
    good = ["one", "c0ffee00-0000-4000-8000-000000000001", "node1.example.org"]
    assert all(map(CHASSIS_NAME.fullmatch, good))
    assert not any(map(CHASSIS_NAME.fullmatch, ["", "two words", "../x", "x" * 65, "-x", "a/b"]))


def test_servers_with_the_same_ca_file_share_one_authority(tmp_path: Path):
    first, second = (NodeAuthority(tmp_path / "ca.pem", timedelta(days=1)) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    with pytest.raises(OSError, match="No such file"):
        NodeAuthority(tmp_path / "none.pem", timedelta(days=1), make=False)
    (tmp_path / "bad.pem").write_text("nonsense")
    with pytest.raises(OSError, match="the file must contain a certificate and its private key"):
        NodeAuthority(tmp_path / "bad.pem", timedelta(days=1))


def test_missing_identity_file_is_none_and_a_bad_one_is_an_error(tmp_path: Path):
    assert read_identity(tmp_path / "none.pem") is None
    (tmp_path / "bad.pem").write_text("nonsense")
    with pytest.raises(NoIdentity, match=r"cannot read .*bad\.pem"):
        read_identity(tmp_path / "bad.pem")
