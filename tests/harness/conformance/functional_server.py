"""A Fairlead server for Octavia's functional API tests: the real API over HTTP, and routes for what those tests do in
Octavia's database.

Each of those tests begins with an empty database, makes load balancers on networks that its network driver invents, and
sets statuses itself. So the server has one place (store, model, reconciler, dataplane) for each test, whose provider
refuses nothing and applies changes only when `PUT /control/rest` arrives, and takes networks, subnets and ports as
documents. The caller is the one in the token, a JSON object of project and roles.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.api.http.authentication import ROLES
from fairlead.api.keys import Keys
from fairlead.api.octavia import make_front_end
from fairlead.changes.identity import DEFAULT_PROJECT, Identity
from fairlead.compilers.providers import IMPLEMENTATIONS, ProviderNames
from fairlead.drivers.fake import Fault
from fairlead.keystores.interface import Content, Requester, Unreadable
from fairlead.model.documents.network import AllocationPool, FixedIP, Network, Port, Subnet
from fairlead.model.documents.quota import Limits
from fairlead.model.registry.changeset import Changes
from harness.api import PLAIN, Deployment, InProcessServer, compile_anything, in_process_server
from harness.conformance.cloud import serving
from harness.tls_files import certificate

PATH = "/load-balancer"
DRIVERS = {
    "amphora": "Amp driver.",
    "noop_driver": "NoOp driver.",
    "noop_driver-alt": "NoOp driver alt alisas.",
    "octavia": "Octavia driver.",
}
"""The providers of the tests' configuration, and their descriptions."""
FLAVOR_CAPABILITIES = {"amp_image_tag": "The glance image tag to use for this load balancer."}
ZONE_CAPABILITIES = {
    "compute_zone": "The compute availability zone to use for this loadbalancer.",
    "volume_zone": "The volume availability zone to use for this loadbalancer.",
}
"""Those of Octavia's driver that does nothing, in its words; its names are among those of amphorae."""
TEST_KEYS = frozenset({"hello", "image", "x", "allow_member_sriov", "sriov_vip"})
"""Keys of the profiles in the tests."""


class Capabilities(dict[str, str]):
    """The keys that are listed; profiles may also have those of the tests, which Octavia's driver does not validate."""

    def keys(self) -> Any:
        return super().keys() | TEST_KEYS


_PROVIDER = replace(
    IMPLEMENTATIONS["ovn"],
    flavor_capabilities=Capabilities(FLAVOR_CAPABILITIES),
    availability_zone_capabilities=Capabilities(ZONE_CAPABILITIES),
)
NAMES = ProviderNames(
    implementations={name: name for name in DRIVERS},
    default="noop_driver",
    providers={name: replace(_PROVIDER, description=description) for name, description in DRIVERS.items()},
)


@dataclass(frozen=True)
class AnyReference:
    """A key store in which each reference names the same certificate, with its key and an empty revocation list."""

    material: bytes = field(repr=False)
    unreadable: set[str] = field(default_factory=set)
    """But these."""

    async def read(self, project_id: str, reference: str, asker: Requester | None) -> Content:
        if reference in self.unreadable:
            raise Unreadable("the test says so")
        return Content(material=self.material)


def make_material(folder: Path) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    revoked = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "any")]))
        .last_update(now - timedelta(hours=1))
        .next_update(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return certificate(folder, "any").read_bytes() + revoked.public_bytes(Encoding.PEM)


def caller_of(headers: Headers) -> Identity:
    """The caller of the token. Without one it is the administrator, as in a deployment without authentication."""
    token = headers.get("x-auth-token")
    if token is None:
        return Identity(user="anybody", project_id=headers.get("x-project-id", DEFAULT_PROJECT), roles=ROLES)
    claims = json.loads(token)
    return Identity(user="somebody", project_id=claims["project"] or "", roles=frozenset(claims["roles"]))


class FunctionalTestSite:
    """The place of the test that runs, and its application."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._secrets = AnyReference(make_material(folder))
        self._keys = Keys(self._secrets)
        self._stack = AsyncExitStack()
        self._number = 0
        self._place: InProcessServer | None = None
        self._networks: dict[str, Network] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._place is not None
        assert self._place.app is not None
        self._place.caller = caller_of(Headers(scope=scope))
        await self._place.app(scope, receive, send)

    async def begin(self, request: Request) -> Response:
        """Open a place with an empty store. The body has the limits of projects that have no quota."""
        await self.close()
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir()
        deployment = Deployment(PLAIN.facts, NAMES, self._keys, Limits(**await request.json()))
        opened = in_process_server(make_front_end, folder, PATH, compile_anything, deployment)
        self._place = await self._stack.enter_async_context(opened)
        self._place.is_reconciling = False
        self._networks = {}
        return Response(status_code=204)

    async def close(self) -> None:
        await self._stack.aclose()
        self._stack = AsyncExitStack()

    async def rest(self, _: Request) -> Response:
        """Apply all changes."""
        assert self._place is not None
        self._place.driver._fault = lambda: None
        await self._place.reconcile()
        return Response(status_code=204)

    async def fail(self, _: Request) -> Response:
        """Let the dataplane refuse all changes until the next rest."""
        assert self._place is not None
        self._place.driver._fault = lambda: Fault.REJECTED
        await self._place.reconcile()
        return Response(status_code=204)

    async def unreadable(self, request: Request) -> Response:
        """Take the references that the next request names and no store has."""
        self._secrets.unreadable.clear()
        self._secrets.unreadable.update(await request.json())
        return Response(status_code=204)

    async def learn(self, request: Request) -> Response:
        """Write networks with their subnets, and ports."""
        assert self._place is not None
        body = await request.json()
        for each in body["networks"]:
            self._networks[each["id"]] = network = self._network(each)
            await self._write(network)
        for each in body["ports"]:
            await self._write(_port(each))
        return Response(status_code=204)

    def _network(self, body: Mapping[str, Any]) -> Network:
        known = self._networks.get(body["id"])
        subnets = {subnet.id: subnet for subnet in (known.subnets if known else ())}
        subnets |= {each["id"]: _subnet(each) for each in body["subnets"]}
        return Network(
            id=body["id"],
            project_id="any",
            created_at=datetime.now(UTC),
            mtu=1442,
            shared=True,
            subnets=tuple(subnets.values()),
        )

    async def _write(self, document: Network | Port) -> None:
        assert self._place is not None
        await self._place.model.write(lambda _: Changes(puts=(document,)))


def _subnet(body: Mapping[str, Any]) -> Subnet:
    cidr = ip_network(body["cidr"])
    pool = AllocationPool(start=cidr[1], end=cidr[254])
    return Subnet(
        id=body["id"], project_id="any", created_at=datetime.now(UTC), cidr=cidr, gateway=None, allocation_pools=(pool,)
    )


def _port(body: Mapping[str, Any]) -> Port:
    fixed = (FixedIP(subnet_id=each["subnet_id"], address=ip_address(each["ip_address"])) for each in body["fixed_ips"])
    return Port(
        id=body["id"],
        project_id="any",
        created_at=datetime.now(UTC),
        network_id=body["network_id"],
        mac_address=body["mac_address"],
        device_id=body["device_id"],
        fixed_ips=tuple(fixed),
    )


@contextmanager
def functional_server(folder: Path) -> Iterator[str]:
    """Its address."""

    @asynccontextmanager
    async def doors() -> AsyncIterator[ASGIApp]:
        site = FunctionalTestSite(folder)
        control = (site.begin, site.rest, site.fail, site.learn, site.unreadable)
        routes = [Route(f"/control/{called.__name__}", called, methods=["PUT"]) for called in control]
        yield Starlette(routes=[*routes, Mount(PATH, site)])
        await site.close()

    with serving(doors) as address:
        yield address
