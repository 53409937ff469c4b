"""Handlers of the Octavia API: read the body, write the change to the model, and encode the result."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import JsonObject, Services, identity, json_response, pieces_response
from fairlead.api.http.listing import Item, LazyItem
from fairlead.api.http.openapi import Handler, read_body
from fairlead.api.octavia import encode, requests
from fairlead.api.octavia.caller import CreationContext, RequestCaller
from fairlead.api.octavia.errors import missing_project
from fairlead.api.octavia.lists import list_response
from fairlead.api.octavia.parts import Chain, Names, Part
from fairlead.changes.balancers import delete_load_balancer, fail_over
from fairlead.changes.caller import ChangeContext
from fairlead.changes.identity import Identity
from fairlead.changes.lookup import NotTheirs, find_listener, find_load_balancer
from fairlead.changes.refusal import Refused
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents.balancer_status import BalancerStatus
from fairlead.model.documents.loadbalancer import Listener, LoadBalancer, is_forward
from fairlead.model.documents.network import Resource
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import run_in_steps

NO_CONTENT = 204
ACCEPTED = 202


class LoadBalancerHandlers:
    """Handlers of load balancers and their parts, one method for each request."""

    def __init__(self, services: Services, moment: Snapshot | None = None) -> None:
        """`moment` is a fixed snapshot to answer from; None means the current one of each access."""
        self._services = services
        self._moment = moment

    @property
    def _snapshot(self) -> Snapshot:
        return self._moment or self._services.model.snapshot

    def _at_fixed_snapshot(self) -> "LoadBalancerHandlers":
        """Return the handlers with a fixed snapshot, for work with cooperative yields."""
        return LoadBalancerHandlers(self._services, self._snapshot)

    def caller(self, request: Request, project_id: str | None = None) -> RequestCaller:
        """Return the caller and the attributes of objects that it creates. Raises Refused if it may not change the
        project."""
        who, services = identity(request), self._services
        project, now = project_id or who.project_id, services.now()
        if not who.may_change(project):
            raise Refused(NotTheirs(project_id=project))
        asker = ChangeContext(identity=who, now=now, applied=services.applied, providers=services.providers)
        return RequestCaller(
            identity=asker, origin=CreationContext(project_id=project, now=now, new_id=services.new_id)
        )

    def _visible(self, who: Identity, narrowed: Iterable[str] | None = None) -> Iterator[LoadBalancer]:
        """Yield the load balancers that the caller may see, limited to the ids in `narrowed`."""
        balancers = self._snapshot.load_balancers
        found = (
            balancers.values() if narrowed is None else (balancers[each] for each in set(narrowed) if each in balancers)
        )
        return (item for item in found if who.may_see(item.project_id) and not is_forward(item))

    def _narrowed(self, request: Request, index: Mapping[str, str] | None = None) -> Iterable[str] | None:
        """Return the load balancer ids that a query is limited to; None if it is not limited."""
        query = request.query_params
        for name in ("loadbalancer_id", "load_balancer_id"):
            if name in query:
                return query.getlist(name)
        if "id" not in query:
            return None
        return query.getlist("id") if index is None else [index.get(each, "") for each in query.getlist("id")]

    def _status(self, balancer: LoadBalancer) -> BalancerStatus:
        return encode.status_in(self._services, self._snapshot, balancer)

    def _encode(self, encoder: Callable[..., JsonObject], balancer: LoadBalancer, *chain: Any) -> JsonObject:
        return encoder(self._status(balancer), *chain)

    def _later(
        self,
        resource: Resource,
        encoder: Callable[[], JsonObject],
        omitted: Mapping[str, object] = MappingProxyType({}),
    ) -> Item:
        """Return a list item that is encoded when it is shown. Each has few objects, because the garbage collector
        traverses those of twenty thousand items."""
        return LazyItem(resource, encode.PLAIN, encoder, omitted)

    # load balancers

    async def list_load_balancers(self, request: Request) -> Response:
        return await list_response(request, "loadbalancers", self._at_fixed_snapshot().load_balancers(request))

    def load_balancers(self, request: Request) -> Iterator[Item]:
        items = self._visible(identity(request), self._narrowed(request))
        if wanted := set(request.query_params.getlist("name")):
            items = (item for item in items if item.name in wanted)
        return (self._later(item, partial(self._encode, encode.encode_load_balancer, item)) for item in items)

    async def create_load_balancer(self, request: Request) -> Response:
        values = await read_body(request)
        caller = self.caller(request, values.get("tenant_id") or values.get("project_id"))
        if caller.identity.identity.system and not caller.origin.project_id:
            raise missing_project()
        made = self._services.new_id()
        snapshot = await self._services.write(
            lambda old: run_in_steps(requests.create_load_balancer(old, values, caller, made))
        )
        where = encode.status_in(self._services, snapshot, snapshot.load_balancers[made])
        return json_response({"loadbalancer": await run_in_steps(encode.encode_tree(where))}, 201)

    async def show_load_balancer(self, request: Request) -> Response:
        return self._load_balancer(self._snapshot, request)

    async def update_load_balancer(self, request: Request) -> Response:
        balancer_id = request.path_params["id"]
        find_load_balancer(self._snapshot, balancer_id, identity(request))
        values = await read_body(request)
        caller = self.caller(request)
        snapshot = await self._services.write(
            lambda old: run_in_steps(requests.update_load_balancer(old, values, caller, balancer_id))
        )
        return self._load_balancer(snapshot, request)

    async def delete_load_balancer(self, request: Request) -> Response:
        caller, balancer_id = self.caller(request), request.path_params["id"]
        cascade = request.query_params.get("cascade", "").lower() in ("true", "1")
        await self._services.write(lambda old: delete_load_balancer(old, caller.identity, balancer_id, cascade=cascade))
        return Response(status_code=NO_CONTENT)

    async def show_statuses(self, request: Request) -> Response:
        balancer = find_load_balancer(self._snapshot, request.path_params["id"], identity(request))
        return pieces_response(await run_in_steps(encode.encode_statuses(self._status(balancer))))

    async def show_load_balancer_stats(self, request: Request) -> Response:
        """Show the statistics of a load balancer: the sum of its listeners."""
        balancer = find_load_balancer(self._snapshot, request.path_params["id"], identity(request))
        return self._statistics(balancer, balancer.listeners)

    async def show_listener_stats(self, request: Request) -> Response:
        balancer, listener = find_listener(self._snapshot, request.path_params["id"], identity(request))
        return self._statistics(balancer, [listener])

    def _statistics(self, balancer: LoadBalancer, listeners: Iterable[Listener]) -> Response:
        """Sum the counters of listeners. Raises Unsupported until a node has reported counters."""
        figures = self._services.node_counts.total(listener.id for listener in listeners)
        if figures is None:
            raise Unsupported(
                "statistics (no compute node reports counters; run `fairlead agent` on the nodes)", balancer.provider
            )
        return json_response({"stats": encode.encode_statistics(figures)})

    async def fail_over(self, request: Request) -> Response:
        """Fail over a load balancer: its rows are read again and reconciled, because there is no amphora to replace."""
        caller, balancer_id = self.caller(request), request.path_params["id"]
        await self._services.write(lambda old: fail_over(old, caller.identity, balancer_id))
        self._services.resync_owner(Owner(Kind.LOAD_BALANCER, balancer_id))
        return Response(status_code=ACCEPTED)

    def _load_balancer(self, snapshot: Snapshot, request: Request) -> Response:
        balancer = find_load_balancer(snapshot, request.path_params["id"], identity(request))
        where = encode.status_in(self._services, snapshot, balancer)
        return json_response({"loadbalancer": encode.encode_load_balancer(where)})

    # parts of load balancers

    def list_parts(self, part: Part) -> Handler:
        async def show_all(request: Request) -> Response:
            return await list_response(request, part.plural, self._at_fixed_snapshot().parts(part, request))

        return show_all

    def parts(self, part: Part, request: Request) -> Iterator[Item]:
        who, omitted = identity(request), encode.omitted_of(part.shown)

        def item(balancer: LoadBalancer, chain: Chain) -> Item:
            return self._later(chain[-1], partial(self._encode, part.encode, balancer, *chain), omitted)

        if part.index is None:
            found = part.parent(self._snapshot, request.path_params, who)
            yield from (item(found[0], chain) for chain in part.below(found))
            return
        for balancer in self._visible(who, self._narrowed(request, part.index(self._snapshot))):
            yield from (item(balancer, chain) for chain in part.within(balancer))

    def create_part(self, part: Part) -> Handler:
        async def create(request: Request) -> Response:
            names = request.path_params
            part.parent(self._snapshot, names, identity(request))
            values = await read_body(request)
            caller, made = self.caller(request), list[str]()

            async def change(old: Snapshot) -> Changes:
                result, part_id = await run_in_steps(part.create(old, values, caller, names))
                made.append(part_id)
                return result

            snapshot = await self._services.write(change)
            return self._shown(part, snapshot, {**names, "id": made[-1]}, request, 201)

        return create

    def show_part(self, part: Part) -> Handler:
        async def show(request: Request) -> Response:
            return self._shown(part, self._snapshot, request.path_params, request)

        return show

    def update_part(self, part: Part) -> Handler:
        async def update(request: Request) -> Response:
            names = request.path_params
            part.find(self._snapshot, names, identity(request))
            values = await read_body(request)
            caller = self.caller(request)
            snapshot = await self._services.write(lambda old: run_in_steps(part.update(old, values, caller, names)))
            return self._shown(part, snapshot, names, request)

        return update

    def delete_part(self, part: Part) -> Handler:
        async def delete(request: Request) -> Response:
            caller, names = self.caller(request), request.path_params
            await self._services.write(lambda old: run_in_steps(part.delete(old, caller, names)))
            return Response(status_code=NO_CONTENT)

        return delete

    def _shown(self, part: Part, snapshot: Snapshot, names: Names, request: Request, status: int = 200) -> Response:
        balancer, *chain = part.find(snapshot, names, identity(request))
        where = encode.status_in(self._services, snapshot, balancer)
        return json_response({part.root: part.encode(where, *chain)}, status)

    async def replace_members(self, request: Request) -> Response:
        pool_id = request.path_params["pool_id"]
        additive = request.query_params.get("additive_only", "").lower() in ("true", "1")
        bodies = await read_body(request)
        caller = self.caller(request)
        await self._services.write(
            lambda old: run_in_steps(requests.replace_members(old, bodies, caller, pool_id, additive=additive))
        )
        return Response(status_code=ACCEPTED)
