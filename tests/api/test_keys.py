"""Keys and certificates: checked before a change that references them is written, and sent only to nodes that need
them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from fairlead.api.agents import routes
from fairlead.api.agents.keys import MAX_SECRETS, read_keys, render_keys_request
from fairlead.api.http.front_end import Services
from fairlead.api.keys import CALLER_CREDENTIALS, Keys, SecretsNotChecked, digest_of
from fairlead.api.octavia.refusals import error_of
from fairlead.changes.identity import Identity
from fairlead.changes.refusal import Refused
from fairlead.changes.secrets import SecretUnavailable
from fairlead.compilers.unsupported import Unsupported
from fairlead.keystores.interface import Content, KeyStoreUnresponsive, Requester, Unreadable
from fairlead.keystores.material import lockout_of, normalize
from fairlead.model.documents.loadbalancer import (
    ClientAuthentication,
    ListenerProtocol,
    ListenerTls,
    LoadBalancer,
    PoolTls,
)
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.secrets import Role, Secret, SecretRequest, needed_secrets
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from harness.api import ADMIN, in_process_server
from harness.certificates import Authority
from harness.proxied import listener, pool, view
from harness.unusual_certificates import REJECTED

CA = Authority()
WEB, OTHER = (CA.issue("web.example") for _ in range(2))
PROJECT = "p1"
AGENT = Identity(user="agent", project_id="", roles=frozenset({"service"}), chassis=frozenset({"node", "other"}))


@dataclass
class Store:
    """Key store of one project."""

    has: dict[str, bytes] = field(
        default_factory=lambda: {"web": WEB.certificate_and_key.encode(), "ca": CA.pem.encode()}
    )

    async def read(self, project_id: str, reference: str, asker: Requester | None) -> Content:
        if project_id != PROJECT or reference not in self.has:
            raise Unreadable("the project has no file of this name")
        return Content(material=self.has[reference])


@dataclass
class KeysSite:
    services: Services
    store: Store
    client: httpx.AsyncClient
    caller: Identity = AGENT
    scheme: str = "https"

    async def write(self, *documents: object) -> None:
        await self.services.write(lambda _: Changes(puts=documents))  # type: ignore[arg-type]

    async def ask(self, chassis: str, *wanted: SecretRequest) -> Any:
        method, path, body = render_keys_request(chassis, wanted)
        answer = await self.client.request(method, f"{self.scheme}://door{path.removeprefix('/agent')}", json=body)
        if answer.status_code != 200:
            return answer.status_code, answer.json()["error"]
        return [each.pem or each.error for each in read_keys(answer.json(), len(wanted))]


def balancer(reference: str = "web", **known: Any) -> LoadBalancer:
    its = pool("p", tls=PoolTls(enabled=True, ca_container_ref="ca"))
    tls = ListenerTls(container_ref=reference)
    one = listener("l", 2000, its, protocol=ListenerProtocol.TERMINATED_HTTPS, tls=tls)
    snapshot = view([one], [its], **{"project_id": PROJECT, **known})
    return snapshot.load_balancers["web"]


def wanted(reference: str = "web", role: Role = Role.CERTIFICATE, digest: str = "", of: str = "web") -> SecretRequest:
    return SecretRequest(balancer_id=of, secret=Secret(role=role, reference=reference), digest=digest)


@asynccontextmanager
async def entered(folder: Path, *, has_store: bool = True) -> AsyncIterator[KeysSite]:
    async with in_process_server(routes.make_front_end, folder, "/agent", lambda snapshot, owner: {}) as other:
        store = Store()
        services = replace(other.services, keys=Keys(store if has_store else None))
        door = routes.make_front_end(services)

        async def identified(scope: Scope, receive: Receive, send: Send) -> None:
            await door({**scope, "identity": place.caller, "door_path": "/agent"}, receive, send)

        transport = httpx.ASGITransport(app=identified, client=("192.0.2.1", 1))
        async with httpx.AsyncClient(transport=transport) as client:
            place = KeysSite(services, store, client)
            known = view([], [])
            await place.write(
                *(replace(each, project_id=PROJECT) for each in (*known.networks.values(), *known.ports.values()))
            )
            yield place


def test_only_load_balancers_with_proxied_listeners_need_secrets():
    assert {("certificate", "web"), ("authority", "ca")} == {
        (each.role.value, each.reference) for each in needed_secrets(balancer())
    }
    led_by_the_switch = replace(balancer(), listeners=(replace(balancer().listeners[0], proxy_port=0),))
    assert () == needed_secrets(led_by_the_switch)


async def test_certificate_unusable_by_haproxy_is_rejected_unless_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """A certificate that HAProxy does not load is refused, and kept if an earlier version accepted it."""
    make, why = REJECTED["secp256k1"]
    odd = make(tmp_path)
    async with entered(tmp_path / "place") as place:
        await place.write(balancer())
        place.store.has["web"] = odd.encode()
        assert await place.ask("node", wanted()) == [normalize(Role.CERTIFICATE, odd.encode())]
        keys, snapshot = place.services.keys, place.services.model.snapshot
        said = [each for each in caplog.messages if why in each]
        assert said == [f"load balancer web: 'web': {why}; it stays in use, but new load balancers cannot use it"]
        assert (keys.outdated_count(snapshot), keys.unreadable_count(snapshot)) == (1, 0)
        with pytest.raises(Refused) as refused:
            await place.write(replace(balancer(), id="another"))
        assert refused.value.why == SecretUnavailable(references=("web",), why=(why,))
        place.store.has["web"] = OTHER.certificate_and_key.encode()
        assert await place.ask("node", wanted()) == [OTHER.certificate_and_key]
        assert keys.outdated_count(snapshot) == 0


def with_lists(of: str, revocations: str) -> LoadBalancer:
    """They are for the certificates of clients, or of members."""
    if of == "members":
        its = pool("p", tls=PoolTls(enabled=True, ca_container_ref="ca", crl_container_ref=revocations))
        tls = ListenerTls(container_ref="web")
    else:
        its = pool("p")
        tls = ListenerTls(
            container_ref="web",
            client_authentication=ClientAuthentication.MANDATORY,
            client_ca_container_ref="ca",
            client_crl_container_ref=revocations,
        )
    one = listener("l", 2000, its, protocol=ListenerProtocol.TERMINATED_HTTPS, tls=tls)
    return view([one], [its], project_id=PROJECT).load_balancers["web"]


@pytest.mark.parametrize("of", ["clients", "members"])
async def test_crl_that_rejects_every_certificate_is_refused(tmp_path: Path, of: str):
    async with entered(tmp_path) as place:
        place.store.has |= {"good": CA.revoke().encode(), "others": Authority("others").revoke().encode()}
        with pytest.raises(Refused) as refused:
            await place.write(with_lists(of, "others"))
        why = "CN=authority has no valid certificate revocation list, so every certificate is rejected"
        assert isinstance(refused.value.why, SecretUnavailable)
        told = error_of(refused.value.why)
        assert (told.status, told.message) == (400, f"Could not retrieve certificate: ['others']: {why}; add that list")
        await place.write(with_lists(of, "good"))
        with pytest.raises(Refused):
            await place.write(with_lists(of, "others"))
        del place.store.has["ca"]  # it was in use before, and what cannot be read keeps nobody from changing the rest
        await place.write(replace(with_lists(of, "good"), name="renamed"))


@pytest.mark.parametrize("of", ["clients", "members"])
async def test_crl_in_use_that_rejects_every_certificate_stays_and_is_counted(
    tmp_path: Path, of: str, caplog: pytest.LogCaptureFixture
):
    async with entered(tmp_path) as place:
        place.store.has["lists"] = good = CA.revoke().encode()
        await place.write(with_lists(of, "lists"))
        asked = wanted("lists", Role.REVOCATIONS)
        keys, snapshot = place.services.keys, place.services.model.snapshot
        assert await place.ask("node", asked) == [good.decode()]
        assert keys.outdated_count(snapshot) == 0
        place.store.has["lists"] = other = Authority("others").revoke().encode()
        for _ in range(2):
            assert await place.ask("node", asked) == [other.decode()]
        assert keys.outdated_count(snapshot) == 1
        assert (
            len(
                [
                    each
                    for each in caplog.messages
                    if "'lists': CN=authority has no valid certificate revocation list" in each
                ]
            )
            == 1
        )
        place.store.has["lists"] = good
        assert await place.ask("node", asked) == [good.decode()]
        assert keys.outdated_count(snapshot) == 0


LIST_ASKED = wanted("lists", Role.REVOCATIONS)


@asynccontextmanager
async def with_lists_in_use(folder: Path, lists: str) -> AsyncIterator[KeysSite]:
    """A listener whose list was good when it was named, and is this one now."""
    async with entered(folder) as place:
        place.store.has["lists"] = CA.revoke().encode()
        await place.write(with_lists("clients", "lists"))
        place.store.has["lists"] = lists.encode()
        yield place


async def weak(place: KeysSite) -> int:
    """Let a node ask for the list, and count what is weak then."""
    (answer,) = await place.ask("node", LIST_ASKED)
    assert "BEGIN X509 CRL" in answer
    return place.services.keys.outdated_count(place.services.model.snapshot)


async def test_crl_is_rechecked_when_the_ca_certificate_changes(tmp_path: Path):
    async with with_lists_in_use(tmp_path, CA.revoke()) as place:
        assert await weak(place) == 0
        place.store.has["ca"] = Authority("others").pem.encode()
        assert await weak(place) == 1
        place.store.has["ca"] = CA.pem.encode()
        assert await weak(place) == 0


async def test_crl_that_becomes_valid_is_no_longer_counted_as_weak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with with_lists_in_use(tmp_path, CA.revoke(begins=60)) as place:
        assert await weak(place) == 1
        monkeypatch.setattr("fairlead.api.keys.datetime", clock_ahead(timedelta(hours=2)))
        assert await weak(place) == 0


async def test_unresponsive_key_store_does_not_change_the_weak_crl_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Nothing is concluded or forgotten until the authority can be read; the node asks again."""
    async with with_lists_in_use(tmp_path, CA.revoke()) as place:
        keys, snapshot, read = place.services.keys, place.services.model.snapshot, place.store.read

        async def without_authorities(project_id: str, reference: str, asker: Requester | None) -> Content:
            if reference == "ca":
                raise KeyStoreUnresponsive("the key store does not respond")
            return await read(project_id, reference, asker)

        async def weak_while_silent() -> int:
            place.store.read = without_authorities  # type: ignore[method-assign]
            status, said = await place.ask("node", LIST_ASKED)
            place.store.read = read  # type: ignore[method-assign]
            assert (status, "does not respond" in said) == (503, True)
            return keys.outdated_count(snapshot)

        assert await weak_while_silent() == 0
        assert await weak(place) == 0
        place.store.has["lists"] = Authority("others").revoke().encode()
        assert await weak_while_silent() == 0
        assert await weak(place) == 1
        assert await weak_while_silent() == 1
        place.store.has["lists"] = CA.revoke().encode()
        assert await weak(place) == 0
        assert not [each for each in caplog.messages if "does not respond; it stays in use" in each]


async def test_unreadable_ca_certificate_keeps_the_last_crl_result(tmp_path: Path):
    async with with_lists_in_use(tmp_path, Authority("others").revoke()) as place:
        assert await weak(place) == 1
        authority = place.store.has.pop("ca")
        assert await weak(place) == 1
        place.store.has["lists"] = Authority("third").revoke().encode()  # of this one nothing is known
        assert await weak(place) == 0
        place.store.has["ca"] = authority
        assert await weak(place) == 1


async def test_crl_is_verified_only_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Signatures are verified only if something has changed, because the event loop does nothing else meanwhile."""
    verified = list[str]()

    def note(authorities: str, lists: str, now: datetime) -> str:
        verified.append(authorities)
        return lockout_of(authorities, lists, now)

    async with with_lists_in_use(tmp_path, CA.revoke(begins=60)) as place:
        monkeypatch.setattr("fairlead.api.keys.lockout_of", note)
        for _ in range(3):
            assert await weak(place) == 1
        assert verified == [CA.pem]
        place.store.has["lists"] = CA.revoke().encode()
        for _ in range(3):
            assert await weak(place) == 0
        assert verified == [CA.pem] * 2


def clock_ahead(by: timedelta) -> type[datetime]:
    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + by

    return Later


async def test_crl_that_expires_in_use_is_counted_as_weak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nodes that have it are told nothing of it, as of everything that is the same."""
    async with entered(tmp_path) as place:
        place.store.has["lists"] = CA.revoke().encode()
        await place.write(with_lists("clients", "lists"))
        (pem,) = await place.ask("node", wanted("lists", Role.REVOCATIONS))
        asked = wanted("lists", Role.REVOCATIONS, digest_of(pem))
        keys, snapshot = place.services.keys, place.services.model.snapshot
        assert (await place.ask("node", asked), keys.outdated_count(snapshot)) == ([""], 0)
        monkeypatch.setattr("fairlead.api.keys.datetime", clock_ahead(timedelta(days=2)))
        assert (await place.ask("node", asked), keys.outdated_count(snapshot)) == ([""], 1)


async def test_unreadable_certificate_reference_rejects_the_change(tmp_path: Path):
    async with entered(tmp_path) as place:
        for reference in ("nothing", "ca"):  # a CA certificate has no key
            with pytest.raises(Refused) as refused:
                await place.write(balancer(reference))
            assert isinstance(refused.value.why, SecretUnavailable)
            assert f"Could not retrieve certificate: ['{reference}']: " in error_of(refused.value.why).message
            assert error_of(refused.value.why).status == 400
        with pytest.raises(Refused):
            await place.write(balancer(project_id="p2"))
        assert {} == dict(place.services.model.snapshot.load_balancers)
        await place.write(balancer())
        del place.store.has["web"]
        await place.write(replace(balancer(), name="other"))  # a reference in use may stay
        with pytest.raises(Refused):
            await place.write(balancer("other"))


async def test_tls_listener_without_a_key_store_is_unsupported(tmp_path: Path):
    async with entered(tmp_path, has_store=False) as place:
        with pytest.raises(Unsupported, match="keys and certificates"):
            await place.write(balancer())


async def test_nodes_receive_only_secrets_that_their_proxies_need(tmp_path: Path):
    async with entered(tmp_path) as place:
        await place.write(balancer())
        both = [wanted(), wanted("ca", Role.AUTHORITY)]
        assert [WEB.certificate_and_key, CA.pem] == await place.ask("node", *both)
        assert ["", CA.pem] == await place.ask("node", wanted(digest=digest_of(WEB.certificate_and_key)), both[1])
        refused = ["chassis other runs no proxy that uses this key"] * 2
        assert refused == await place.ask("other", *both)
        not_needed = [wanted("ca"), wanted("web", Role.AUTHORITY), wanted("secret"), wanted(of="another")]
        assert ["chassis node runs no proxy that uses this key"] * 4 == await place.ask("node", *not_needed)
        assert 0 == place.services.keys.unreadable_count(
            place.services.model.snapshot
        )  # a refusal does not count as unreadable


async def test_unauthorized_oversized_or_plaintext_secret_request_is_rejected(tmp_path: Path):
    async with entered(tmp_path) as place:
        await place.write(balancer())
        assert 403 == (await place.ask("third", wanted()))[0]
        assert 400 == (await place.ask("node", *[wanted()] * (MAX_SECRETS + 1)))[0]
        place.scheme = "http"
        status, words = await place.ask("node", wanted())
        assert (403, True) == (status, "TLS" in words)
        place.caller = replace(ADMIN, roles=frozenset({"member"}))
        assert 403 == (await place.ask("node", wanted()))[0]


async def test_unreadable_secret_is_counted_until_readable_or_unneeded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with entered(tmp_path) as place:
        await place.write(balancer())
        keys, model = place.services.keys, place.services.model
        place.store.has["web"] = WEB.pem.encode()
        for _ in range(3):
            assert ["it has no private key"] == await place.ask("node", wanted())
        assert 1 == keys.unreadable_count(model.snapshot)
        assert 1 == caplog.text.count("it has no private key")
        place.store.has["web"] = WEB.certificate_and_key.encode()
        assert [WEB.certificate_and_key] == await place.ask("node", wanted())
        assert 0 == keys.unreadable_count(model.snapshot)
        del place.store.has["web"]
        await place.ask("node", wanted())
        await place.services.write(lambda _: Changes(deletes=(Owner(Kind.LOAD_BALANCER, "web"),)))
        assert {} == keys._unreadable  # the set shrinks even if its size is not read
        assert 0 == keys.unreadable_count(model.snapshot)
        assert "BEGIN" not in caplog.text


class UnavailableStore:
    """A key store that does not answer."""

    def __init__(self) -> None:
        self.asked = list[str]()
        self.was_asked = asyncio.Event()

    async def read(self, project_id: str, reference: str, asker: Requester | None) -> Content:
        self.asked.append(reference)
        self.was_asked.set()
        return await asyncio.get_running_loop().create_future()


async def test_unresponsive_key_store_is_read_once_per_node_request(tmp_path: Path):
    async with entered(tmp_path) as place:
        await place.write(balancer())
        away = UnavailableStore()
        place.store.read = away.read  # type: ignore[method-assign]
        place.services.keys._timeout = 0.01
        status, said = await place.ask("node", *[wanted()] * MAX_SECRETS)
        assert (503, True) == (status, "does not respond" in said)
        assert ["web"] == away.asked


def secured(*references: str) -> LoadBalancer:
    tls = ListenerTls(container_ref=references[0], sni_container_refs=references[1:])
    return replace(balancer(), listeners=(listener("l1", 2000, protocol=ListenerProtocol.TERMINATED_HTTPS, tls=tls),))


async def check(keys: Keys, document: LoadBalancer) -> None:
    """Check a document's keys, as a request does."""
    trial, changes = keys.trial(), Changes(puts=(document,))
    with pytest.raises(SecretsNotChecked) as missing:
        trial.check(Snapshot(), changes)
    await trial.read(missing.value.secrets)
    trial.check(Snapshot(), changes)


@pytest.mark.virtual_clock
async def test_unresponsive_key_store_is_read_once_per_change():
    store, document = UnavailableStore(), secured("one", "two", "three")
    keys, loop = Keys(store, patience=0.01), asyncio.get_running_loop()
    with pytest.raises(Refused) as refused:
        await check(keys, document)
    assert loop.time() == pytest.approx(0.01)
    with pytest.raises(Unreadable, match="does not respond"):
        await keys.deliver(document, Secret(role=Role.CERTIFICATE, reference="one"))
    assert loop.time() == pytest.approx(0.02)
    assert isinstance(refused.value.why, SecretUnavailable)
    assert refused.value.why.references == ("one", "two", "three", "ca")
    assert set(refused.value.why.why) == {"the key store does not respond"}
    assert store.asked == ["one", "one"]


async def test_other_writes_proceed_while_the_key_store_is_unresponsive(tmp_path: Path):
    """Key stores are not read while the write lock is held."""

    async with entered(tmp_path) as place:
        away = UnavailableStore()
        place.store.read = away.read  # type: ignore[method-assign]
        waiting = asyncio.create_task(place.write(balancer()))
        await away.was_asked.wait()
        network = next(iter(place.services.model.snapshot.networks.values()))
        await place.write(replace(network, name="renamed"))
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert {} == dict(place.services.model.snapshot.load_balancers)
        assert "renamed" == place.services.model.snapshot.networks[network.id].name


async def test_change_reads_the_key_store_with_the_token_of_the_caller(tmp_path: Path):
    async with entered(tmp_path) as place:
        seen = list[Requester | None]()
        read = place.store.read

        async def noting(project_id: str, reference: str, asker: Requester | None) -> Content:
            seen.append(asker)
            return await read(project_id, reference, asker)

        place.store.read = noting  # type: ignore[method-assign]
        CALLER_CREDENTIALS.set(Requester(token="alice"))
        await place.write(balancer())
        await place.ask("node", wanted())
        assert [Requester(token="alice")] * 2 + [None] == seen
        assert "alice" not in repr(seen)


async def test_unchanged_key_bundle_is_opened_once(tmp_path: Path):
    async with entered(tmp_path) as place:
        place.store.has["web"] = WEB.bundle
        await place.write(balancer())
        assert [WEB.certificate_and_key] == await place.ask("node", wanted())
        await place.services.keys.close()
        assert [""] == await place.ask("node", wanted(digest=digest_of(WEB.certificate_and_key)))
        assert place.services.keys._opener._process is None
        place.store.has["web"] = OTHER.bundle
        assert [OTHER.certificate_and_key] == await place.ask("node", wanted(digest=digest_of(WEB.certificate_and_key)))
        await place.services.keys.close()


@pytest.mark.virtual_clock
async def test_key_store_timeout_covers_all_references_of_a_change():
    """The timeout covers all references of a change together: each alone is answered in time, but not all of them."""

    @dataclass
    class Slow:
        asked: int = 0

        async def read(self, project_id: str, reference: str, asker: Requester | None) -> Content:
            self.asked += 1
            await asyncio.sleep(0.04)
            return Content(material=WEB.certificate_and_key.encode())

    store = Slow()
    document = secured("one", *(f"more{number}" for number in range(50)))
    with pytest.raises(Refused) as refused:
        await check(Keys(store, patience=0.1), document)
    assert isinstance(refused.value.why, SecretUnavailable)
    assert set(refused.value.why.why) == {"the key store does not respond"}
    assert store.asked == 3
    assert asyncio.get_running_loop().time() == pytest.approx(0.1)
