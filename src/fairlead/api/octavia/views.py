"""The requests of the Octavia API: read the body, hand the change to the model, encode what is true afterwards."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.door import House, Identity, JsonObject, identity, json_response
from fairlead.api.listing import Item, Lazy
from fairlead.api.octavia import changes, encode
from fairlead.api.octavia.decode import Birth, Caller
from fairlead.api.octavia.errors import forbidden
from fairlead.api.octavia.lists import list_response
from fairlead.api.openapi import read_body
from fairlead.compilers.providers import DEFAULT_PROVIDER
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.network import Resource
from fairlead.model.owner import Kind, Owner
from fairlead.model.snapshot import Changes, Snapshot

NO_CONTENT = 204
ACCEPTED = 202


class Views:
    """One method a request; what they share is the house."""

    def __init__(self, house: House) -> None:
        self._house = house

    @property
    def _snapshot(self) -> Snapshot:
        return self._house.model.snapshot

    def _caller(self, request: Request, project_id: str | None = None) -> Caller:
        """Who asks, and what what he makes will get. Raises ApiError 403 when he asks for another project."""
        who = identity(request)
        project = project_id or who.project_id
        if not who.may_change(project):
            raise forbidden()
        birth = Birth(project_id=project, now=self._house.now(), new_id=self._house.new_id, provider=DEFAULT_PROVIDER)
        return Caller(identity=who, birth=birth)

    def _visible(self, who: Identity, narrowed: Iterable[str] | None = None) -> Iterator[LoadBalancer]:
        """Those that the caller may see; of these ids only, where the query names some."""
        balancers = self._snapshot.load_balancers
        found = (
            balancers.values() if narrowed is None else (balancers[each] for each in set(narrowed) if each in balancers)
        )
        return (item for item in found if who.may_see(item.project_id))

    def _narrowed(self, request: Request, index: Mapping[str, str] | None = None) -> Iterable[str] | None:
        """The load balancers that a query by id can be about; None when it is about all."""
        query = request.query_params
        for name in ("loadbalancer_id", "load_balancer_id"):
            if name in query:
                return query.getlist(name)
        if "id" not in query:
            return None
        return query.getlist("id") if index is None else [index.get(each, "") for each in query.getlist("id")]

    def _standing(self, balancer: LoadBalancer) -> encode.Standing:
        return encode.standing(self._house, self._snapshot, balancer)

    def _later(self, encoder: Callable[..., JsonObject], balancer: LoadBalancer, *part: Resource) -> Item:
        """The load balancer, or a part of it, for a list: encoded when it is shown."""
        resource = part[0] if part else balancer
        return Lazy(resource, encode.PLAIN, lambda: encoder(balancer, *part, self._standing(balancer)))

    # load balancers

    async def list_load_balancers(self, request: Request) -> Response:
        items = self._visible(identity(request), self._narrowed(request))
        if wanted := set(request.query_params.getlist("name")):
            items = (item for item in items if item.name in wanted)
        lazy = (self._later(encode.encode_load_balancer, item) for item in items)
        return list_response(request, "loadbalancers", lazy)

    async def create_load_balancer(self, request: Request) -> Response:
        values = await read_body(request)
        caller = self._caller(request, values.get("project_id") or values.get("tenant_id"))
        made = self._house.new_id()
        snapshot = await self._house.write(lambda old: changes.create_load_balancer(old, values, caller, made))
        balancer = snapshot.load_balancers[made]
        where = encode.standing(self._house, snapshot, balancer)
        return json_response({"loadbalancer": encode.encode_tree(balancer, where)}, 201)

    async def show_load_balancer(self, request: Request) -> Response:
        return self._load_balancer(self._snapshot, request)

    async def update_load_balancer(self, request: Request) -> Response:
        balancer_id = request.path_params["id"]
        changes.find_load_balancer(self._snapshot, balancer_id, identity(request))
        values = await read_body(request)
        caller = self._caller(request)
        snapshot = await self._house.write(lambda old: changes.update_load_balancer(old, values, caller, balancer_id))
        return self._load_balancer(snapshot, request)

    async def delete_load_balancer(self, request: Request) -> Response:
        caller, balancer_id = self._caller(request), request.path_params["id"]
        cascade = request.query_params.get("cascade", "").lower() in ("true", "1")
        await self._house.write(lambda old: changes.delete_load_balancer(old, caller, balancer_id, cascade=cascade))
        return Response(status_code=NO_CONTENT)

    async def show_statuses(self, request: Request) -> Response:
        balancer = changes.find_load_balancer(self._snapshot, request.path_params["id"], identity(request))
        return json_response({"statuses": encode.encode_statuses(balancer, self._standing(balancer))})

    async def fail_over(self, request: Request) -> Response:
        """There is no instance to move; what was asked for is a dataplane that is known to be right."""
        balancer = changes.find_load_balancer(self._snapshot, request.path_params["id"], identity(request))
        self._house.resync_owner(Owner(Kind.LOAD_BALANCER, balancer.id))
        return Response(status_code=ACCEPTED)

    def _load_balancer(self, snapshot: Snapshot, request: Request) -> Response:
        balancer = changes.find_load_balancer(snapshot, request.path_params["id"], identity(request))
        where = encode.standing(self._house, snapshot, balancer)
        return json_response({"loadbalancer": encode.encode_load_balancer(balancer, where)})

    # listeners

    async def list_listeners(self, request: Request) -> Response:
        return list_response(request, "listeners", self._listeners(request))

    def _listeners(self, request: Request) -> Iterator[Item]:
        narrowed = self._narrowed(request, self._snapshot.listener_owner)
        for balancer in self._visible(identity(request), narrowed):
            yield from (self._later(encode.encode_listener, balancer, listener) for listener in balancer.listeners)

    async def create_listener(self, request: Request) -> Response:
        values = await read_body(request)
        caller, made = self._caller(request, values.get("project_id") or values.get("tenant_id")), list[str]()

        def change(old: Snapshot) -> Changes:
            result, listener_id = changes.create_listener(old, values, caller)
            made.append(listener_id)
            return result

        return self._listener(await self._house.write(change), made[-1], request, 201)

    async def show_listener(self, request: Request) -> Response:
        return self._listener(self._snapshot, request.path_params["id"], request)

    async def update_listener(self, request: Request) -> Response:
        listener_id = request.path_params["id"]
        changes.find_listener(self._snapshot, listener_id, identity(request))
        values = await read_body(request)
        caller = self._caller(request)
        snapshot = await self._house.write(lambda old: changes.update_listener(old, values, caller, listener_id))
        return self._listener(snapshot, listener_id, request)

    async def delete_listener(self, request: Request) -> Response:
        caller, listener_id = self._caller(request), request.path_params["id"]
        await self._house.write(lambda old: changes.delete_listener(old, caller, listener_id))
        return Response(status_code=NO_CONTENT)

    def _listener(self, snapshot: Snapshot, listener_id: str, request: Request, status: int = 200) -> Response:
        balancer, listener = changes.find_listener(snapshot, listener_id, identity(request))
        where = encode.standing(self._house, snapshot, balancer)
        return json_response({"listener": encode.encode_listener(balancer, listener, where)}, status)

    # pools

    async def list_pools(self, request: Request) -> Response:
        return list_response(request, "pools", self._pools(request))

    def _pools(self, request: Request) -> Iterator[Item]:
        narrowed = self._narrowed(request, self._snapshot.pool_owner)
        for balancer in self._visible(identity(request), narrowed):
            yield from (self._later(encode.encode_pool, balancer, pool) for pool in balancer.pools)

    async def create_pool(self, request: Request) -> Response:
        values = await read_body(request)
        caller, made = self._caller(request, values.get("project_id") or values.get("tenant_id")), list[str]()

        def change(old: Snapshot) -> Changes:
            result, pool_id = changes.create_pool(old, values, caller)
            made.append(pool_id)
            return result

        return self._pool(await self._house.write(change), made[-1], request, 201)

    async def show_pool(self, request: Request) -> Response:
        return self._pool(self._snapshot, request.path_params["id"], request)

    async def update_pool(self, request: Request) -> Response:
        pool_id = request.path_params["id"]
        changes.find_pool(self._snapshot, pool_id, identity(request))
        values = await read_body(request)
        caller = self._caller(request)
        snapshot = await self._house.write(lambda old: changes.update_pool(old, values, caller, pool_id))
        return self._pool(snapshot, pool_id, request)

    async def delete_pool(self, request: Request) -> Response:
        caller, pool_id = self._caller(request), request.path_params["id"]
        await self._house.write(lambda old: changes.delete_pool(old, caller, pool_id))
        return Response(status_code=NO_CONTENT)

    def _pool(self, snapshot: Snapshot, pool_id: str, request: Request, status: int = 200) -> Response:
        balancer, pool = changes.find_pool(snapshot, pool_id, identity(request))
        where = encode.standing(self._house, snapshot, balancer)
        return json_response({"pool": encode.encode_pool(balancer, pool, where)}, status)

    # members

    async def list_members(self, request: Request) -> Response:
        balancer, pool = changes.find_pool(self._snapshot, request.path_params["pool_id"], identity(request))
        where = self._standing(balancer)
        return list_response(request, "members", (encode.encode_member(member, where) for member in pool.members))

    async def create_member(self, request: Request) -> Response:
        pool_id = request.path_params["pool_id"]
        changes.find_pool(self._snapshot, pool_id, identity(request))
        values = await read_body(request)
        caller, made = self._caller(request, values.get("project_id") or values.get("tenant_id")), list[str]()

        def change(old: Snapshot) -> Changes:
            result, member_id = changes.create_member(old, values, caller, pool_id)
            made.append(member_id)
            return result

        return self._member(await self._house.write(change), made[-1], request, 201)

    async def show_member(self, request: Request) -> Response:
        return self._member(self._snapshot, request.path_params["id"], request)

    async def update_member(self, request: Request) -> Response:
        pool_id, member_id = request.path_params["pool_id"], request.path_params["id"]
        _, pool = changes.find_pool(self._snapshot, pool_id, identity(request))
        changes.find_member(pool, member_id)
        values = await read_body(request)
        caller = self._caller(request)
        snapshot = await self._house.write(lambda old: changes.update_member(old, values, caller, pool_id, member_id))
        return self._member(snapshot, member_id, request)

    async def delete_member(self, request: Request) -> Response:
        caller, pool_id, member_id = self._caller(request), request.path_params["pool_id"], request.path_params["id"]
        await self._house.write(lambda old: changes.delete_member(old, caller, pool_id, member_id))
        return Response(status_code=NO_CONTENT)

    async def replace_members(self, request: Request) -> Response:
        pool_id = request.path_params["pool_id"]
        additive = request.query_params.get("additive_only", "").lower() in ("true", "1")
        bodies = await read_body(request)
        caller = self._caller(request)
        await self._house.write(lambda old: changes.replace_members(old, bodies, caller, pool_id, additive=additive))
        return Response(status_code=ACCEPTED)

    def _member(self, snapshot: Snapshot, member_id: str, request: Request, status: int = 200) -> Response:
        balancer, pool = changes.find_pool(snapshot, request.path_params["pool_id"], identity(request))
        member = changes.find_member(pool, member_id)
        where = encode.standing(self._house, snapshot, balancer)
        return json_response({"member": encode.encode_member(member, where)}, status)
