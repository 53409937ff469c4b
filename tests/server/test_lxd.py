"""Listeners for LXD clients: TLS that accepts any client certificate, and the identity behind it.

The listener is a real one in this process; the client is Python's own ssl with a given certificate.
"""

import asyncio
import contextlib
import json
import os
import ssl
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from cryptography import x509

from fairlead.api.http.acceptor import HANDSHAKES
from fairlead.api.http.rate_limit import RateLimiter
from fairlead.config.options import Configuration, LxdOptions, StoreOptions
from fairlead.model.documents.trust import Project
from fairlead.model.registry.changeset import Changes
from fairlead.server.lxd import OWN_FILE, LxdServer
from harness.front_ends.lxd_keys import base64_of, make_certificate
from harness.loops import LOOPS, run_on
from harness.lxd_server import LxdListener, identity, served


@pytest.fixture(params=LOOPS)
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    def play(story: Callable[[LxdListener], Awaitable[None]], **options: str) -> None:
        async def told() -> None:
            async with served(tmp_path, **options) as place:
                await story(place)

        run_on(request.param, told())

    return play


def test_lxd_client_is_untrusted_until_its_certificate_is_known(play: Callable[..., None], tmp_path: Path):
    own, fingerprint = identity(tmp_path)

    async def story(place: LxdListener) -> None:
        assert await place.request("GET", "/", None, own) == (200, (await place.request_on_socket("GET", "/"))[1])
        for who in (None, own):
            assert (await place.request("GET", "/1.0", None, who))[1]["metadata"]["auth"] == "untrusted"
            status, told = await place.request("GET", "/1.0/projects", None, who)
            assert (status, told["error"]) == (403, "not authorized")
            status, told = await place.request("GET", "/network/v2.0/networks", None, who)
            assert (status, told["error"]) == (404, "not found"), "other doors are not here"

        status, made = await place.request_on_socket("POST", "/1.0/certificates", {"token": True, "type": "client"})
        assert status == 202
        token = made["metadata"]["metadata"]
        text = base64_of(json.dumps({"secret": token["secret"]}).encode())
        assert token["addresses"] == [f"127.0.0.1:{place.port}"]
        status, told = await place.request("POST", "/1.0/certificates", {"trust_token": text}, None)
        assert (status, told["error"]) == (400, "No client certificate provided")
        assert (await place.request("POST", "/1.0/certificates", {"trust_token": text}, own))[0] == 201
        assert list(place.server.model.snapshot.certificates) == [fingerprint]

        told = (await place.request("GET", "/1.0", None, own))[1]["metadata"]
        assert (told["auth"], told["auth_user_name"], told["auth_user_method"]) == ("trusted", fingerprint, "tls")
        assert (await place.request("GET", "/1.0", None, None))[1]["metadata"]["auth"] == "untrusted"
        assert (await place.request_on_socket("DELETE", f"/1.0/certificates/{fingerprint}"))[0] == 200
        assert (await place.request("GET", "/1.0", None, own))[1]["metadata"]["auth"] == "untrusted"

    play(story)


def test_unix_socket_client_is_administrator_with_a_name(play: Callable[..., None]):
    async def story(place: LxdListener) -> None:
        told = (await place.request_on_socket("GET", "/1.0"))[1]["metadata"]
        assert (told["auth"], told["auth_user_name"]) == ("trusted", f"uid {os.getuid()}")
        assert stat.S_IMODE(place.socket.stat().st_mode) == 0o600

    play(story, socket_mode="0600")


def test_tls_older_than_1_3_is_rejected(play: Callable[..., None]):
    async def story(place: LxdListener) -> None:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await place.connect(maximum_version=ssl.TLSVersion.TLSv1_2)

    play(story)


def test_large_transfers_work_in_both_directions(play: Callable[..., None], tmp_path: Path):
    """Large transfers work in both directions, beyond a TLS record and one read of the loop, and several on one
    connection."""
    own, _ = identity(tmp_path)

    async def story(place: LxdListener) -> None:
        many = tuple(Project(name=f"project-{number:03}") for number in range(400))
        await place.server.model.write(lambda _: Changes(puts=many))
        body = {"certificate": base64_of(make_certificate("client")[0]), "type": "client"}
        assert (await place.request_on_socket("POST", "/1.0/certificates", body))[0] == 201
        status, told = await place.request("GET", "/1.0/projects?recursion=1", None, own)
        assert (status, len(told["metadata"])) == (200, 401)
        assert len(json.dumps(told)) > 2**15
        large = {"name": "large", "config": {f"user.{n:04}": "x" * 1000 for n in range(100)}}
        assert (await place.request("POST", "/1.0/projects", large, own))[0] == 201
        reader, writer = await place.connect(own)
        for _ in range(3):
            writer.write(b"GET /1.0 HTTP/1.1\r\nhost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            assert json.loads(await reader.readexactly(length))["metadata"]["auth"] == "trusted"
        writer.close()

    play(story)


def test_non_tls_bytes_do_not_stop_the_listener(play: Callable[..., None]):
    async def story(place: LxdListener) -> None:
        for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01" + b"\0" * 600, b"\0" * 20_000):
            reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
            writer.write(sent)
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
        assert (await place.request("GET", "/1.0"))[0] == 200

    play(story)


class StandingPace(RateLimiter):
    """Pace whose clock stands still, so its result does not depend on the duration of handshakes."""

    def __init__(self, at_once: int, seconds: float) -> None:
        super().__init__(at_once, seconds, lambda: 0.0)
        self.waits = list[float]()

    def wait(self, address: str) -> float:
        self.waits.append(super().wait(address))
        return self.waits[-1]


@pytest.fixture
def paces(monkeypatch: pytest.MonkeyPatch) -> list[StandingPace]:
    """Return the limits of listeners: three concurrent handshakes per address."""
    made = list[StandingPace]()

    def make(at_once: int, seconds: float) -> StandingPace:
        made.append(StandingPace(at_once, seconds))
        return made[-1]

    assert HANDSHAKES > 3
    monkeypatch.setattr("fairlead.api.http.acceptor.HANDSHAKES", 3)
    monkeypatch.setattr("fairlead.api.http.acceptor.RateLimiter", make)
    return made


def test_handshakes_of_one_address_are_paced(
    play: Callable[..., None], paces: list[StandingPace], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fairlead.api.http.acceptor.HANDSHAKE_SECONDS", 0.01)

    async def story(place: LxdListener) -> None:
        for _ in range(6):
            assert (await place.request("GET", "/1.0"))[0] == 200

    play(story)
    assert [each.waits for each in paces if each.waits] == [pytest.approx([0.0, 0.0, 0.0, 0.01, 0.02, 0.03])]


@pytest.mark.usefixtures("paces")
def test_delayed_handshake_does_not_delay_other_addresses(play: Callable[..., None], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.api.http.acceptor.HANDSHAKE_SECONDS", 3600.0)

    async def story(place: LxdListener) -> None:
        for _ in range(3):
            assert (await place.request("GET", "/1.0"))[0] == 200
        fourth = asyncio.create_task(place.request("GET", "/1.0"))
        for _ in range(3):
            assert (await place.request("GET", "/1.0", local_address="127.0.0.2"))[0] == 200
        assert not fourth.done()
        fourth.cancel()

    play(story)


def test_generated_certificate_is_created_once_and_is_private(tmp_path: Path):
    configuration = Configuration(
        store=StoreOptions(path=str(tmp_path / "store.db")), lxd=LxdOptions(listen="192.0.2.1:8443")
    )
    first = LxdServer(configuration).reachable()
    assert first is not None
    assert first == LxdServer(configuration).reachable()
    assert first.addresses == ("192.0.2.1:8443",)
    assert stat.S_IMODE((tmp_path / OWN_FILE).stat().st_mode) == 0o600
    assert "PRIVATE" not in first.certificate
    found = x509.load_pem_x509_certificate(first.certificate.encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "192.0.2.1" in map(str, names.get_values_for_type(x509.IPAddress))
    assert list(tmp_path.glob("*.pem")) == [tmp_path / OWN_FILE]


def test_lxd_listener_is_closed_without_a_listen_address(tmp_path: Path):
    closed = LxdServer(Configuration(store=StoreOptions(path=str(tmp_path / "store.db"))))
    assert (closed.reachable(), closed.context, list(tmp_path.iterdir())) == (None, None, [])


def test_invalid_lxd_certificate_files_are_an_error(tmp_path: Path):
    nothing = tmp_path / "x.pem"
    nothing.write_text("x")
    options = LxdOptions(listen="127.0.0.1:1", certificate=str(nothing), key=str(nothing))
    with pytest.raises(OSError, match="the files must contain a certificate and its private key"):
        LxdServer(Configuration(lxd=options))


def test_wildcard_listener_advertises_addresses_of_this_machine(tmp_path: Path):
    store = StoreOptions(path=str(tmp_path / "store.db"))
    found = LxdServer(Configuration(store=store, lxd=LxdOptions(listen="[::]:8443"))).reachable()
    assert found is not None
    assert found.addresses
    assert all(each.endswith(":8443") and not each.startswith(("[::]", "127.")) for each in found.addresses)
    named = LxdOptions(listen="[::]:8443", advertise_addresses=("lb.example:443", "[2001:db8::1]:8443"))
    found = LxdServer(Configuration(store=store, lxd=named)).reachable()
    assert found is not None
    assert found.addresses == ("lb.example:443", "[2001:db8::1]:8443")


def test_certificate_reload_keeps_the_old_one_on_error(tmp_path: Path):
    first, fingerprint = identity(tmp_path, "first")
    second, other = identity(tmp_path, "second")
    used = tmp_path / "used.pem"
    used.write_bytes(first.read_bytes())
    options = LxdOptions(listen="127.0.0.1:8443", certificate=str(used), key=str(used))
    server = LxdServer(Configuration(lxd=options))

    def shown() -> str:
        found = server.reachable()
        assert found is not None
        return found.fingerprint

    assert shown() == fingerprint
    used.write_text("x")
    with pytest.raises(OSError, match="the files must contain a certificate and its private key"):
        server.read_again()
    assert shown() == fingerprint
    used.write_bytes(second.read_bytes())
    server.read_again()
    assert shown() == other
