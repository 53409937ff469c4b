"""Keys from a real Barbican with a real Keystone: valid references, access per user, and later changes."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from fairlead.api.keystone.client import Keystone, ServiceUser
from fairlead.http.client import HttpEndpoint as Where
from fairlead.keystores import barbican as keystore
from fairlead.keystores.barbican import IDENTITY_REQUIRED_MESSAGE, NO_URL, NOT_FOUND_MESSAGE
from fairlead.keystores.interface import MAX_CONTENT_BYTES, Content, KeyStoreUnresponsive, Requester, Unreadable
from harness.barbican import cloud as barbican_cloud
from harness.barbican.cloud import Barbican, barbican
from harness.certificates import Authority, key_pem, new_key
from harness.fuzz.machine import SCHEMA, SERVER, FuzzedServer, fuzzed_server
from harness.keystone.cloud import INSTALLED, KeystoneServer, keystone, options, password_of

pytestmark = pytest.mark.client

CA = Authority()
WEB = CA.issue("web.example")
BUNDLE = WEB.bundle
SHOP = "shop"
LISTENERS = "/load-balancer/v2.0/lbaas/listeners"
WITH_PROXIES = {"FAIRLEAD_HEALTH_PROBER": "agents", "FAIRLEAD_PROVIDERS_NAMES": "fairlead=fairlead"}
REFUSED = "Could not retrieve certificate"
LOCKED = WEB.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")).decode()


@dataclass
class BarbicanSite:
    cloud: KeystoneServer
    barbican: Barbican
    server: FuzzedServer
    tokens: dict[str, str]

    @property
    def alice(self) -> str:
        return self.tokens["alice"]

    def whole(self, who: str = "alice") -> str:
        """Store a PKCS#12 bundle, the current format, and return its reference."""
        return self.barbican.binary(self.tokens[who], BUNDLE)

    def container(self, **more: str) -> str:
        """Store a certificate container, the older format: each part is a secret of its own."""
        parts = {"certificate": WEB.pem, "private_key": key_pem(WEB.key), **more}
        return self.barbican.container(
            self.alice, **{name: self.barbican.text(self.alice, content) for name, content in parts.items()}
        )

    async def read(self, reference: str, who: str | None = "alice") -> Content:
        """Read a key as this user's request does, or (None) as the server does later for nodes."""
        return await self.store().read(SHOP, reference, Requester(token=self.tokens[who]) if who else None)

    def store(self) -> keystore.Barbican:
        """Return a new Barbican client with Fairlead's service user."""
        user = ServiceUser(
            name="fairlead",
            password=password_of("fairlead"),
            project="service",
            user_domain="Default",
            project_domain="Default",
        )
        own = Keystone(Where(url=self.cloud.url), user).own_token
        return keystore.Barbican(Where(url=self.barbican.url), own, _at_once)  # type: ignore[arg-type]

    async def refused(self, reference: str, who: str | None = "alice") -> str:
        with pytest.raises(Unreadable) as refused:
            await self.read(reference, who)
        assert refused.value.__cause__ is None
        return str(refused.value)

    def call(self, who: str, method: str, path: str, body: object = None) -> httpx.Response:
        return self.server.client.request(method, path, json=body, headers={"X-Auth-Token": self.tokens[who]})

    def good(self, who: str, method: str, path: str, body: object = None) -> Any:
        answer = self.call(who, method, path, body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def listener(self, who: str, port: int, balancer: str, **more: object) -> httpx.Response:
        said = {"protocol": "TERMINATED_HTTPS", "protocol_port": port, "loadbalancer_id": balancer, **more}
        return self.call(who, "POST", LISTENERS, {"listener": said})


@asynccontextmanager
async def _at_once(project_id: str):
    yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BarbicanSite]:
    if not (INSTALLED.exists() and barbican_cloud.INSTALLED.exists() and SERVER.exists() and SCHEMA.exists()):
        reason = f"needs .venv-keystone, .venv-barbican (scripts/keystone, scripts/barbican), {SERVER} and {SCHEMA}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    folder = tmp_path_factory.mktemp("cloud")
    with keystone(folder) as cloud, barbican(folder, cloud) as secrets:
        said = {**options(cloud, folder), "FAIRLEAD_KEYS_BARBICAN": secrets.url, **WITH_PROXIES}
        with fuzzed_server(folder, said) as server:
            tokens = {who: cloud.token(who) for who in ("alice", "bob", "rita", "fairlead")}
            yield BarbicanSite(cloud, secrets, server, tokens)
            assert server.bug_reports() == []
            written = server.log.read_text() + repr((folder / "fairlead.db").read_bytes())
            for secret in ("PRIVATE KEY", "gAAAAA", password_of("fairlead"), key_pem(WEB.key).splitlines()[1]):
                assert secret not in written


@pytest.fixture(scope="module")
def web(place: BarbicanSite) -> str:
    """Create a load balancer as alice, and return its id."""
    network = place.good("alice", "POST", "/network/v2.0/networks", {"network": {}})["network"]["id"]
    subnet = {"network_id": network, "ip_version": 4, "cidr": "10.0.0.0/24"}
    place.good("alice", "POST", "/network/v2.0/subnets", {"subnet": subnet})
    body = {"loadbalancer": {"vip_network_id": network}}
    made = place.good("alice", "POST", "/load-balancer/v2.0/lbaas/loadbalancers", body)
    return str(made["loadbalancer"]["id"])


async def test_references_to_secrets_and_containers_are_read(place: BarbicanSite):
    more = place.container(intermediates=CA.pem)
    locked = place.container(private_key=LOCKED, private_key_passphrase="secret")
    # stripped, as by Barbican
    pem, key, authority = (each.strip().encode() for each in (WEB.pem, key_pem(WEB.key), CA.pem))
    for reference, expected in {
        place.whole(): Content(material=BUNDLE),
        place.barbican.text(place.alice, WEB.certificate_and_key): Content(
            material=WEB.certificate_and_key.strip().encode()
        ),
        place.barbican.text(place.alice, CA.pem): Content(material=authority),
        place.container(): Content(material=pem + b"\n" + key),
        more: Content(material=b"\n".join((pem, authority, key))),
        locked: Content(material=f"{WEB.pem}{LOCKED}".strip().encode(), phrase=b"secret"),
    }.items():
        assert expected == await place.read(reference)
        assert expected == await place.read(reference, who=None)  # later reads without her token


@pytest.mark.parametrize(
    "reference",
    [
        *("web.pem", "../../etc/passwd", "file:///etc/passwd", "http://127.0.0.1:9311/v1/orders/{id}", "{id}"),
        *("http://x/v1/secrets/{id}/payload", "http://x/v1/secrets/{id}?a=b", "http://x/v1/secrets/{id}/../{id}"),
        *("http://x/v1/secrets/{id}\r\nX-Auth-Token: a", "http://x y/v1/secrets/{id}", "http://x/v1/secrets/1"),
    ],
)
async def test_invalid_reference_is_rejected(place: BarbicanSite, reference: str):
    asked = reference.format(id="11111111-1111-4111-8111-111111111111")
    assert NO_URL == await place.refused(asked)
    assert NO_URL == await place.refused(asked, who=None)


async def test_request_goes_to_the_configured_barbican_not_to_the_reference(place: BarbicanSite):
    made = httpx.URL(place.whole())
    assert BUNDLE == (await place.read(f"http://192.0.2.1:1/key-manager{made.path}")).material


async def test_secret_of_another_user_is_not_read_with_the_service_user(place: BarbicanSite):
    """The service user may read alice's secret, but bob references it."""
    hers, container = place.whole(), place.container()
    for reference in (hers, container):
        await place.read(reference)
        await place.read(reference, who=None)
        nothing = reference[:-12] + "0" * 12
        for who in ("bob", "rita"):
            assert NOT_FOUND_MESSAGE == await place.refused(reference, who) == await place.refused(nothing, who)
        with pytest.raises(Unreadable, match=IDENTITY_REQUIRED_MESSAGE):
            await place.store().read(SHOP, reference, Requester())
    assert BUNDLE == (await place.store().read(SHOP, hers, Requester(is_service=True))).material


async def test_granting_access_keeps_the_other_readers(place: BarbicanSite):
    reference = place.whole()
    acl, bob = f"{reference.partition('/v1')[2]}/acl", place.cloud.ids["bob"]
    place.barbican.call(place.alice, "PUT", acl, {"read": {"users": [bob], "project-access": False}})
    await place.read(reference)
    read = place.barbican.call(place.alice, "GET", acl)["read"]
    assert {bob, place.cloud.ids["fairlead"]} == set(read["users"])
    assert read["project-access"] is False


async def test_reader_without_acl_rights_needs_a_grant_by_the_owner(place: BarbicanSite):
    """Alice's ACL lets bob read the secret; only she can also allow the service user."""
    reference = place.whole()
    acl = f"{reference.partition('/v1')[2]}/acl"
    users = [place.cloud.ids["bob"]]
    place.barbican.call(place.alice, "PUT", acl, {"read": {"users": users}})
    assert NOT_FOUND_MESSAGE == await place.refused(reference, "bob")  # only the owner sees the ACL
    place.barbican.call(place.alice, "PUT", acl, {"read": {"users": [*users, place.cloud.ids["fairlead"]]}})
    assert BUNDLE == (await place.read(reference, "bob")).material


async def test_deleted_expired_or_wrong_type_secret_is_rejected(place: BarbicanSite):
    gone, later = place.whole(), datetime.now(UTC) + timedelta(hours=1)
    expires = place.barbican.text(place.alice, WEB.certificate_and_key, expiration=later.strftime("%Y-%m-%dT%H:%M:%S"))
    await place.read(gone)
    place.barbican.delete(place.alice, gone)
    assert NOT_FOUND_MESSAGE == await place.refused(gone) == await place.refused(gone, who=None)
    large = "x" * 19_000  # of Barbican's limit of 20,000
    parts = dict.fromkeys(("certificate", "intermediates", "private_key", "private_key_passphrase"), large)
    whole = await place.read(place.container(**parts))
    assert len(whole.material) < MAX_CONTENT_BYTES
    other = place.barbican.container(place.alice, "generic", one=place.whole())
    assert "must be of type certificate" in await place.refused(other)
    await place.read(expires)
    place.barbican.expire(expires)
    assert NOT_FOUND_MESSAGE == await place.refused(expires) == await place.refused(expires, who=None)


def test_listener_with_an_unreadable_reference_gets_the_octavia_error(place: BarbicanSite, web: str):
    place.tokens["sam"] = place.cloud.token("sam", {"system": {"all": True}})
    theirs = place.whole("bob")
    answer = place.listener("alice", 1000, web, default_tls_container_ref=theirs)
    assert answer.status_code == 400
    assert f"{REFUSED}: ['{theirs}']: {NOT_FOUND_MESSAGE}" == answer.json()["faultstring"]
    ours, authority = place.container(), place.barbican.text(place.alice, CA.pem)
    crl = place.barbican.text(place.alice, CA.revoke(CA.issue("gone")))
    made = place.listener(
        "alice",
        1001,
        web,
        default_tls_container_ref=ours,
        sni_container_refs=[place.whole(), ours],
        client_authentication="MANDATORY",
        client_ca_tls_container_ref=authority,
        client_crl_container_ref=crl,
    )
    assert made.status_code == 201, made.text
    broken = place.barbican.container(
        place.alice,
        certificate=place.barbican.text(place.alice, WEB.pem),
        private_key=place.barbican.text(place.alice, key_pem(new_key())),
    )
    assert "does not match" in place.listener("alice", 1002, web, default_tls_container_ref=broken).text
    place.barbican.delete(place.alice, authority)  # existing references may stay
    listener = made.json()["listener"]["id"]
    assert place.call("alice", "PUT", f"{LISTENERS}/{listener}", {"listener": {"name": "new"}}).status_code == 200


def test_hanging_barbican_delays_no_request_without_references(place: BarbicanSite, web: str):
    """A request with a reference waits for Barbican's timeout. Requests without references are answered in that time:
    at least two, because the first one may precede the request with the reference."""
    ours = place.whole()
    place.barbican.send(signal.SIGSTOP)
    try:
        meanwhile = 0
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(place.listener, "alice", 1003, web, default_tls_container_ref=ours)
            while meanwhile < 5 and not waiting.done():
                place.good("bob", "POST", "/network/v2.0/networks", {"network": {"name": f"n{meanwhile}"}})
                meanwhile += not waiting.done()
            refused = waiting.result()
        assert (refused.status_code, "does not respond" in refused.text) == (400, True)
        assert meanwhile > 1
    finally:
        place.barbican.send(signal.SIGCONT)
    made = place.listener("alice", 1003, web, default_tls_container_ref=ours)
    assert made.status_code == 201, made.text


async def test_service_token_is_renewed_after_a_rejection_by_barbican(place: BarbicanSite):
    reference = place.whole()
    await place.read(reference)
    store = place.store()
    spoilt = await store._own(None)
    object.__setattr__(spoilt, "text", "spoilt")
    assert BUNDLE == (await store.read(SHOP, reference, None)).material


async def test_unreachable_barbican_is_an_error(place: BarbicanSite):
    store = place.store()
    store._place = Where(url="http://127.0.0.1:1")
    with pytest.raises(KeyStoreUnresponsive, match="does not respond"):
        await store.read(SHOP, place.whole(), None)
