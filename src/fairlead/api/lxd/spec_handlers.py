"""Handlers of objects with a declarative spec, common to load balancers and forwards."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import ApiError, JsonObject, NotApplied, Services, StoredChange
from fairlead.api.http.openapi import TEXT, Operation, read_body
from fairlead.api.lxd.apply_status import status_of, with_status, without_status
from fairlead.api.lxd.balancer_body import Document, complete, merge
from fairlead.api.lxd.balancer_decode import Decoded
from fairlead.api.lxd.balancer_encode import show, tagged
from fairlead.api.lxd.caller import caller_of, in_project
from fairlead.api.lxd.envelope import EMPTY, LIST, check_match, created, etag, sync, sync_schema
from fairlead.api.lxd.errors import ErrorOf, error_of, not_applied, not_found, unsupported_error
from fairlead.api.lxd.events import lifecycle
from fairlead.api.lxd.filters import LIST_QUERY, PROJECT_QUERY, listed
from fairlead.api.lxd.go_texts import quote
from fairlead.api.lxd.listen_address import canonical, read_address
from fairlead.api.lxd.lookup import find_managed, find_network
from fairlead.api.lxd.network_encode import path_of
from fairlead.changes.balancer_spec_checks import BalancerSpec
from fairlead.changes.balancer_specs import (
    create_from_spec,
    delete_declarative,
    describe,
    find_declarative,
    list_declarative,
    replace_from_spec,
)
from fairlead.changes.caller import ChangeContext
from fairlead.changes.listen_addresses import AnyAddress, Listen
from fairlead.changes.refusal import Refusal, Refused
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.abilities import Abilities
from fairlead.model.documents.network import Network
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps
from fairlead.schema import Parser, Schema, Values
from fairlead.store.model import Change

COMMON_SCHEMA: Mapping[str, Schema] = {
    "listen_address": TEXT,
    "location": {"const": ""},
    "description": TEXT,
    "config": {"type": "object", "additionalProperties": TEXT},
}
"""Attributes of load balancers and forwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecKind:
    """Differences between load balancers and forwards."""

    use: lb.SpecPurpose
    plural: str
    """Name in paths."""
    noun: str
    """Name in texts."""
    no_address: Callable[[str], str]
    """Error text of an invalid listen address."""
    put: Parser[Values]
    post: Parser[Values]
    empty: Document
    """Document of an empty body."""
    shown: Schema
    decode: Callable[[Document, str, Abilities], Decoded]
    """Decode a document; the str is the network's id. Raises ApiError 400."""
    encode: Callable[[BalancerSpec], Document]
    error_texts: Mapping[type[Refusal], ErrorOf]
    """Texts that differ from the common ones."""

    @property
    def event(self) -> str:
        return f"network-{self.noun.replace(' ', '-')}"


class SpecHandlers:
    def __init__(self, services: Services, sort: SpecKind) -> None:
        self._services = services
        self._kind = sort

    def routes(self) -> list[Operation]:
        sort, query = self._kind, PROJECT_QUERY
        many = f"/networks/{{network}}/{sort.plural}"
        one = f"{many}/{{listen_address}}"
        return [
            Operation("GET", many, self.show_all, gives={200: sync_schema(LIST)}, query=LIST_QUERY),
            Operation("POST", many, self.create, takes=sort.post, gives={201: EMPTY}, query=query),
            Operation("GET", one, self.show_one, gives={200: sync_schema(sort.shown)}, query=query),
            Operation("PUT", one, self.replace, takes=sort.put, gives={200: EMPTY}, query=query, fails=[412]),
            Operation("PATCH", one, self.patch, takes=sort.put, gives={200: EMPTY}, query=query, fails=[412]),
            Operation("DELETE", one, self.delete, gives={200: EMPTY}, query=query),
        ]

    # handlers

    async def show_all(self, request: Request) -> Response:
        """Respond with the URLs of the network's objects, or with the objects themselves if `recursion` is set."""
        snapshot = self._services.model.snapshot
        network, who = self._network(snapshot, request), caller_of(request)
        found = (each for each in list_declarative(snapshot, network, self._kind.use) if who.may_see(each.project_id))
        return await listed(
            request,
            ((self._path(snapshot, network, each.vip.address), partial(self._show, snapshot, each)) for each in found),
        )

    async def create(self, request: Request) -> Response:
        """Create an object. The listen address may be the network's own, or routed to its uplink; 0.0.0.0 and ::
        select a free one."""
        network = self._target(self._services.model.snapshot, request)
        values = self._read(await read_body(request), "creating")
        made = self._services.new_id()
        document = complete(values, self._kind.empty)

        async def change(old: Snapshot) -> Changes:
            listen, asker = self._listen_address(values.get("listen_address", "")), self._caller(request)
            where, new_id = self._target(old, request).id, self._services.new_id
            return await self._decided(
                document, where, lambda asked: create_from_spec(old, asker, made, new_id, asked, listen)
            )

        written = await self._record("creating", change)
        snapshot = written.snapshot
        path = self._path(snapshot, network, snapshot.load_balancers[made].vip.address)
        lifecycle(request, f"{self._kind.event}-created", path)
        await self._wait_applied("creating", written)
        return created(in_project(path, caller_of(request).project_id))

    async def show_one(self, request: Request) -> Response:
        """Show an object. Its ETag is accepted in If-Match."""
        snapshot = self._services.model.snapshot
        balancer = self.find(snapshot, request)
        tag = self._tag(self._kind.encode(describe(balancer)), balancer)
        return sync(self._show(snapshot, balancer), tag=tag)

    async def replace(self, request: Request) -> Response:
        """Replace an object. Omitted attributes are reset."""
        return await self._update(request, lambda values, _: complete(values, self._kind.empty))

    async def patch(self, request: Request) -> Response:
        """Update an object. Omitted attributes and options are unchanged."""
        return await self._update(request, merge)

    async def delete(self, request: Request) -> Response:
        """Delete an object with all its parts."""
        snapshot = self._services.model.snapshot
        path = self._path_of(snapshot, request)
        written = await self._record(
            "deleting", lambda old: delete_declarative(old, self._caller(request), self.find(old, request).id)
        )
        lifecycle(request, f"{self._kind.event}-deleted", path)
        await self._wait_applied("deleting", written)
        return sync()

    async def _update(self, request: Request, revise: Callable[[Values, Document], Document]) -> Response:
        """Update the object. An update without changes is not written and sends no event."""
        path = self._path_of(self._services.model.snapshot, request)
        values, changed = self._read(await read_body(request), "updating"), list[bool]()

        async def change(old: Snapshot) -> Changes:
            balancer = self.find(old, request)
            asked = describe(balancer)
            before = self._kind.encode(asked)
            check_match(request, self._tag(before, balancer))
            after = revise(values, before)
            changed[:] = [after != before]
            if after == before:
                return Changes()
            return await self._decided(
                after,
                asked.network_id,
                lambda wanted: replace_from_spec(
                    old, self._caller(request), balancer.id, self._services.new_id, wanted
                ),
            )

        written = await self._record("updating", change)
        if changed == [True]:
            lifecycle(request, f"{self._kind.event}-updated", path)
        await self._wait_applied("updating", written)
        return sync()

    async def _record(self, doing: str, change: Change) -> StoredChange:
        with self._error_prefix(doing):
            return await self._services.record(change)

    async def _wait_applied(self, doing: str, written: StoredChange) -> None:
        """Wait for the apply. Raises ApiError 503 if OVN has not applied the change in time."""
        with self._error_prefix(doing):
            await self._services.wait_applied(written)

    async def _decided(
        self, document: Document, network_id: str, rule: Callable[[BalancerSpec], Steps[Changes]]
    ) -> Changes:
        """Decode the document and apply the rule, whose errors take precedence over unparsable values. Raises Refused,
        and ApiError 400."""
        decoded = self._kind.decode(document, network_id, self._abilities)
        changes = await run_in_steps(rule(decoded.spec))
        if decoded.wrong is not None:
            raise decoded.wrong
        return changes

    # shared

    def _error_prefix(self, doing: str) -> AbstractContextManager[None]:
        return error_prefix(f"Failed {doing} {self._kind.noun}", self._kind.error_texts)

    @property
    def _abilities(self) -> Abilities:
        """Abilities of the default provider."""
        names = self._services.providers
        return names[names.default].abilities_in(self._services.model.snapshot)

    def _caller(self, request: Request) -> ChangeContext:
        services = self._services
        return ChangeContext(
            identity=caller_of(request), now=services.now(), applied=services.applied, providers=services.providers
        )

    def _network(self, snapshot: Snapshot, request: Request) -> Network:
        """Find the network. Raises ApiError 404, and 400 for an uplink, which has no load balancers itself."""
        project = caller_of(request).project_id
        with error_prefix("Failed loading network", {}):
            network = find_network(snapshot, project, request.path_params["network"])
        if network.external:
            raise ApiError(400, f"Network driver {quote('physical')} does not support {self._kind.noun}s")
        return network

    def _target(self, snapshot: Snapshot, request: Request) -> Network:
        """Find the network of a new object. Networks managed by another program are included; the rule rejects them.
        Raises ApiError."""
        managed = find_managed(snapshot, caller_of(request), request.path_params["network"])
        return self._network(snapshot, request) if managed is None else managed

    def _listen_address(self, text: str) -> Listen:
        """Parse the listen address. Raises ApiError 400."""
        try:
            address = read_address(text)
        except ValueError:
            raise ApiError(400, self._kind.no_address(text)) from None
        return AnyAddress(version=address.version) if address.is_unspecified else address

    def find(self, snapshot: Snapshot, request: Request) -> lb.LoadBalancer:
        """Find the object in the path. Raises Refused, and ApiError 404 for an invalid address."""
        network = self._network(snapshot, request)
        try:
            address = read_address(request.path_params["listen_address"])
        except ValueError:
            raise not_found(f"Network {self._kind.noun}") from None
        balancer = find_declarative(snapshot, network, address, self._kind.use)
        if not caller_of(request).may_see(balancer.project_id):
            raise not_found(f"Network {self._kind.noun}")
        return balancer

    def _path(self, snapshot: Snapshot, network: Network, address: object) -> str:
        return f"{path_of(snapshot, network)}/{self._kind.plural}/{address}"

    def _path_of(self, snapshot: Snapshot, request: Request) -> str:
        """Return the API path of the object in the request."""
        address = canonical(request.path_params["listen_address"])
        return self._path(snapshot, self._network(snapshot, request), address)

    def _read(self, values: Values, doing: str) -> Values:
        """Remove the status from a body. Raises ApiError 400."""
        with self._error_prefix(doing):
            return without_status(values)

    def _show(self, snapshot: Snapshot, balancer: lb.LoadBalancer) -> JsonObject:
        document = self._kind.encode(describe(balancer))
        config = with_status(document["config"], self.status(snapshot, balancer))
        return show({**document, "config": config}, balancer.vip.address)

    def status(self, snapshot: Snapshot, balancer: lb.LoadBalancer) -> str:
        return status_of(self._services, snapshot, [Owner(Kind.LOAD_BALANCER, balancer.id)])

    def _tag(self, document: Document, balancer: lb.LoadBalancer) -> str:
        return etag(tagged(document, balancer.vip.address))


@contextmanager
def error_prefix(what: str, words: Mapping[type[Refusal], ErrorOf]) -> Iterator[None]:
    """Prefix errors with `what`, as LXD does; `words` are texts that differ from the common ones."""
    try:
        yield
    except Refused as refused:
        raise _after(what, words.get(type(refused.why), error_of)(refused.why)) from refused
    except Unsupported as unsupported:
        raise _after(what, unsupported_error(unsupported)) from unsupported
    except NotApplied as error:
        raise _after(what, not_applied("load balancer", error)) from error
    except ApiError as error:
        raise _after(what, error) from error


def _after(what: str, error: ApiError) -> ApiError:
    return ApiError(error.status, f"{what}: {error.message}", error.kind)
