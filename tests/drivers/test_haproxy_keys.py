"""Keys and certificates of a node's proxies: asked for by the rows that name them, renewed, and gone with these."""

import asyncio
import os
import shutil
import signal
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from fairlead.compilers.haproxy import HAPROXY
from fairlead.dataplane.rows import Rows
from fairlead.drivers.haproxy import HAProxy
from fairlead.drivers.haproxy.secrets import is_in_memory
from fairlead.drivers.interface import DriverError, Unavailable
from fairlead.model.documents.loadbalancer import Listener, ListenerProtocol, ListenerTls
from fairlead.model.queries.secrets import SecretRequest, SecretResponse
from harness.certificates import Authority, SignedCertificate
from harness.haproxy_site import NET, NETWORK, HaproxySite, get, opened
from harness.ports import free_port
from harness.proxied import WEB, listener, member, needs_haproxy, pool, view
from harness.waiting import DEADLINE, eventually_equal

pytestmark = [needs_haproxy, pytest.mark.slow]
CA = Authority()
OLD, NEW = CA.issue("web.example", "127.0.0.1"), CA.issue("web.example", "127.0.0.1")
MEMORY = Path("/dev/shm")


@dataclass
class SecretSource:
    """A server: what it has, by reference, and what it was asked for."""

    has: dict[str, SignedCertificate] = field(default_factory=dict)
    away: bool = False
    asked: list[str] = field(default_factory=list)

    async def fetch(self, wanted: Sequence[SecretRequest]) -> Sequence[SecretResponse]:
        if self.away:
            raise Unavailable("no server sends keys")
        self.asked += [each.secret.reference for each in wanted]
        assert {each.balancer_id for each in wanted} == {WEB.id}
        return [self._found(each) for each in wanted]

    def _found(self, each: SecretRequest) -> SecretResponse:
        issued = self.has.get(each.secret.reference)
        return (
            SecretResponse(pem=issued.certificate_and_key)
            if issued
            else SecretResponse(error="the project has no file of this name")
        )


@pytest.fixture
def lender() -> SecretSource:
    return SecretSource({"old": OLD})


@pytest.fixture
async def site(lender: SecretSource) -> AsyncIterator[HaproxySite]:
    if not MEMORY.exists() or not is_in_memory(MEMORY):
        pytest.skip("there is no tmpfs at /dev/shm")
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    async with opened(HaproxySite(folder, fetch=lender.fetch)) as made:
        yield made
    shutil.rmtree(folder)


def secure(port: int, *references: str) -> Listener:
    first, *others = references
    tls = ListenerTls(container_ref=first, sni_container_refs=tuple(others))
    return listener("safe", port, pool("web"), protocol=ListenerProtocol.TERMINATED_HTTPS, tls=tls)


def rows(target: int, *listeners: Listener) -> Rows:
    return HAPROXY.compile(view(listeners, [pool("web", member("m1", target))]), WEB)


def shown(port: int) -> str:
    """The certificate, PEM."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=DEADLINE)


def lists(site: HaproxySite) -> list[str]:
    """Of certificates, one for each listener, and those that were tried."""
    [folder] = site.folder.glob("*/")
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("lists/*"))


def files(site: HaproxySite) -> list[Path]:
    return sorted(site.folder.glob("*/secrets/*"))


async def test_listener_without_its_key_is_not_reported_as_serving(
    site: HaproxySite, lender: SecretSource, machines: tuple[int, int]
):
    safe, port, (one, _) = free_port(), free_port(), machines
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(one, secure(safe, "new"), listener("one", port, pool("web"))))
    assert site.reported_ports[-1] == {port}
    assert site.driver.has_missing_secrets
    assert await asyncio.to_thread(get, port) == "m1"
    lender.has["new"] = NEW
    await site.driver.refresh_secrets()
    assert site.reported_ports[-1] == {port, safe}
    assert not site.driver.has_missing_secrets
    assert NEW.pem == await asyncio.to_thread(shown, safe)


async def test_renewed_certificate_is_loaded_into_the_running_process(
    site: HaproxySite, lender: SecretSource, machines: tuple[int, int]
):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(machines[0], secure(port, "old")))
    first = site.pid
    lender.has["old"] = NEW
    await site.driver.refresh_secrets()
    assert NEW.pem == await asyncio.to_thread(shown, port)
    del lender.has["old"]
    await site.driver.refresh_secrets()
    lender.away = True
    with pytest.raises(DriverError, match="no server"):
        await site.driver.refresh_secrets()
    assert NEW.pem == await asyncio.to_thread(shown, port)  # what cannot be had again is served on
    assert site.pid == first
    [file] = files(site)
    assert (file.stat().st_mode & 0o777, file.read_text()) == (0o600, NEW.certificate_and_key)


async def test_listener_keeps_its_old_key_while_the_new_key_is_unavailable(
    site: HaproxySite, lender: SecretSource, machines: tuple[int, int]
):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    before = rows(machines[0], secure(port, "old"))
    await site.apply_until_done(WEB, before)
    for lender.away in (False, True):
        with pytest.raises(
            DriverError, match="listener safe would no longer be served, because secrets are missing: 'new'"
        ):
            await site.apply_until_done(WEB, rows(machines[0], secure(port, "new")))
        assert (await site.driver.read(WEB), site.reported_ports[-1]) == (before, {port})
        assert OLD.pem == await asyncio.to_thread(shown, port)
    lender.away, lender.has["new"] = False, NEW
    await site.apply_until_done(WEB, rows(machines[0], secure(port, "new")))
    assert NEW.pem == await asyncio.to_thread(shown, port)
    assert len(files(site)) == 1  # that of the other one is gone


async def test_new_default_key_replaces_the_process_and_an_added_key_does_not(
    site: HaproxySite, lender: SecretSource, machines: tuple[int, int]
):
    """So it is with Barbican, where a renewed certificate is another reference."""
    port = free_port()
    lender.has["new"] = NEW
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(machines[0], secure(port, "old")))
    first = site.pid
    await site.apply_until_done(WEB, rows(machines[0], secure(port, "old", "new")))
    assert site.pid == first
    with closing(connected(port)) as client:
        assert "m1" == await asyncio.to_thread(asked, client)
        site.allow_replacement()
        await site.apply_until_done(WEB, rows(machines[0], secure(port, "new")))
        assert NEW.pem == await asyncio.to_thread(shown, port)
        assert site.pid != first
        assert "m1" == await asyncio.to_thread(asked, client)
    assert None not in site.reported_ports


def connected(port: int) -> HTTPSConnection:
    client = HTTPSConnection("127.0.0.1", port, timeout=DEADLINE, context=ssl._create_unverified_context())
    client.connect()
    client.auto_open = 0  # it is the connection that is asked about
    return client


def asked(client: HTTPSConnection) -> str:
    client.request("GET", "/")
    return client.getresponse().read().decode()


async def test_key_obtained_with_a_failed_change_is_still_served(
    site: HaproxySite, lender: SecretSource, machines: tuple[int, int]
):
    port, other = free_port(), free_port()
    await site.apply_until_done(NET, NETWORK)
    waiting = replace(secure(other, "new"), id="waiting")
    await site.apply_until_done(WEB, rows(machines[0], secure(port, "old"), waiting))
    assert site.reported_ports[-1] == {port}
    lender.has["new"] = NEW
    with pytest.raises(DriverError, match="'third'"):
        await site.apply_until_done(WEB, rows(machines[0], secure(port, "third"), waiting))
    await site.driver.refresh_secrets()
    assert site.reported_ports[-1] == {port, other}
    assert (OLD.pem, NEW.pem) == (await asyncio.to_thread(shown, port), await asyncio.to_thread(shown, other))


async def test_restarted_agent_completes_an_unfinished_renewal(
    site: HaproxySite, lender: SecretSource, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(machines[0], secure(port, "old")))
    lender.has["old"] = NEW
    with monkeypatch.context() as killed:
        killed.setattr(HAProxy, "_load_renewed", _ends_here)
        with pytest.raises(asyncio.CancelledError):
            await site.driver.refresh_secrets()
    await site.driver.close()
    site.driver = site.new()
    await site.driver.open()
    await eventually_equal(lambda: asyncio.to_thread(shown, port), NEW.pem)


async def _ends_here(*_: object) -> bool:
    raise asyncio.CancelledError


async def test_keys_survive_the_agent_and_are_deleted_with_the_listener(
    site: HaproxySite, lender: SecretSource, machines: tuple[int, int]
):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(machines[0], secure(port, "old", "new")))
    lender.has["new"] = NEW
    await site.driver.refresh_secrets()
    first = site.pid
    await site.driver.close()
    lender.away = True
    site.driver = site.new()
    await site.driver.open()
    assert (site.pid, site.reported_ports[-1], len(files(site))) == (first, {port}, 2)
    await site.apply_until_done(WEB, rows(machines[0]))
    assert files(site) == []


async def test_rejected_certificate_changes_nothing(site: HaproxySite, lender: SecretSource, machines: tuple[int, int]):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(machines[0], secure(port, "old")))
    first, [file] = site.pid, files(site)
    lender.has["old"] = SignedCertificate(OLD.certificate, NEW.key)
    with pytest.raises(DriverError):
        await site.driver.refresh_secrets()
    assert (site.pid, file.read_text()) == (first, OLD.certificate_and_key)
    assert OLD.pem == await asyncio.to_thread(shown, port)


async def test_certificate_list_of_a_removed_listener_is_deleted(site: HaproxySite, machines: tuple[int, int]):
    """Or a tenant who makes them and deletes them fills the node's memory."""
    port, one, two = free_port(), free_port(), free_port()
    await site.apply_until_done(NET, NETWORK)
    for number in range(3):
        site.allow_replacement()
        await site.apply_until_done(
            WEB, rows(machines[0], secure(port, "old"), replace(secure(one, "old"), id=f"n{number}"))
        )
    assert lists(site) == ["draft/lists/n2", "draft/lists/safe", "lists/n2", "lists/safe"]
    with pytest.raises(DriverError):
        await site.apply_until_done(
            WEB, rows(machines[0], secure(port, "third"), replace(secure(two, "old"), id="other"))
        )
    os.kill(site.pid, signal.SIGKILL)
    await eventually_equal(lambda: site.reported_ports[-2:], [None, {port, one}])
    assert OLD.pem == await asyncio.to_thread(shown, port)
    assert [each for each in lists(site) if not each.startswith("draft")] == ["lists/n2", "lists/safe"]
    await site.apply_until_done(WEB, {})
    assert lists(site) == []


@pytest.fixture
def disk() -> Iterator[Path]:
    """/var/tmp outlives a reboot (hier(7)), so it is on a disk."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        if is_in_memory(Path(folder)):
            pytest.skip("/var/tmp is in memory")
        yield Path(folder)


async def test_keys_are_written_to_tmpfs_only(disk: Path, lender: SecretSource):
    site = HaproxySite(disk, fetch=lender.fetch)
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(9, secure(free_port(), "old")))
    with pytest.raises(DriverError, match="not on a tmpfs"):
        await site.driver.refresh_secrets()
    assert (files(site), lender.asked) == ([], [])
    await site.apply_until_done(WEB, {})
    await site.apply_until_done(NET, {})
