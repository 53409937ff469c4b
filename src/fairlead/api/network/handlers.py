"""Handlers of the Neutron API: read the body, write the change to the model, and encode the result."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Generic

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import JsonObject, Services, base_url, identity, json_response
from fairlead.api.http.listing import MAX_PAGE_SIZE, BadQuery, Item, Page, Query, select_page_in_steps
from fairlead.api.http.openapi import LINKS, TEXTS, Operation, read_body
from fairlead.api.network import errors, networks, policy, ports, queries, routers
from fairlead.api.network.attributes import PUT, CreateBody, one, one_or_several, shown
from fairlead.api.network.collection import Collection, EncodeContext, R, RequestContext
from fairlead.api.network.limits import BULK
from fairlead.api.network.parsers import tags as parse_tags
from fairlead.api.network.routers import ROUTERS
from fairlead.changes import routers as rules
from fairlead.changes.identity import Identity
from fairlead.changes.resources import with_update_time
from fairlead.changes.routers import Attachment
from fairlead.model.documents.network import Resource, Router
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Aggregate, Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps, sort_cooperatively
from fairlead.schema import NULL, Parser, Schema, Values, array_schema, object_schema, reads

CREATED, NO_CONTENT = 201, 204
HIDDEN = networks.HIDDEN | ports.HIDDEN
REVISED = (412,)
"""Further error statuses of writes; all of them check If-Match."""
IF_MATCH = re.compile(r'\s*"?revision_number\s*=\s*(\d{1,18})"?\s*')


def collection_routes(services: Services, collection: Collection[R]) -> list[Operation]:
    return routes_of(CollectionHandlers(services, collection), f"/{collection.plural}")


def routes_of(
    views: "CollectionHandlers[R]", path: str, deleting: Mapping[str, Schema] | None = None
) -> list[Operation]:
    """Return the routes of a collection. `deleting` are the query parameters of DELETE."""
    collection = views.collection
    attributes, root = shown(collection.attributes), collection.singular
    item, whole = object_schema(attributes), object_schema(attributes, attributes.keys() - HIDDEN)
    pages = {collection.plural: array_schema(item, MAX_PAGE_SIZE), f"{collection.plural}_links": LINKS}
    create = one_or_several(root, collection.plural, collection.attributes)
    made = {root: whole, collection.plural: array_schema(whole, BULK)}
    update = one(root, collection.attributes, PUT)
    query = queries.list_query(collection.attributes)
    one_item, one_whole = object_schema({root: item}, [root]), object_schema({root: whole}, [root])
    return [
        Operation("GET", path, views.index, query=query, gives={200: object_schema(pages, [collection.plural])}),
        Operation("POST", path, views.create, takes=create, gives={201: {**object_schema(made), "minProperties": 1}}),
        Operation("GET", path + "/{id}", views.show, query={"fields": TEXTS}, gives={200: one_item}),
        Operation("PUT", path + "/{id}", views.update, takes=update, gives={200: one_whole}, fails=REVISED),
        Operation("DELETE", path + "/{id}", views.delete, query=deleting, gives={204: None}, fails=REVISED),
        *(_tag_routes(views, path + "/{id}/tags") if "tags" in collection.attributes else ()),
    ]


def _tag_routes(views: "CollectionHandlers[R]", path: str) -> list[Operation]:
    tags = object_schema({"tags": parse_tags.schema}, ["tags"])
    return [
        Operation("GET", path, views.list_tags, gives={200: tags}),
        Operation("PUT", path, views.replace_tags, takes=read_tags, gives={200: tags}, fails=REVISED),
        Operation("POST", path, views.add_tags, takes=read_tags, gives={201: tags}, fails=REVISED),
        Operation("DELETE", path, views.remove_all_tags, gives={204: None}, fails=REVISED),
        Operation("GET", path + "/{tag:path}", views.show_tag, gives={204: None}),
        Operation("PUT", path + "/{tag:path}", views.add_tag, gives={201: NULL}, fails=REVISED),
        Operation("DELETE", path + "/{tag:path}", views.remove_tag, gives={204: None}, fails=REVISED),
    ]


def router_routes(services: Services) -> list[Operation]:
    views, attributes = RouterHandlers(services, ROUTERS), shown(ROUTERS.attributes)
    attached = object_schema(routers.ATTACHMENT, routers.ATTACHMENT)
    router = object_schema({"router": object_schema(attributes, attributes)}, ["router"])

    def action(name: str, takes: Parser[Any], gives: Schema) -> Operation:
        return Operation(
            *("PUT", f"/routers/{{id}}/{name}", getattr(views, name)), takes=takes, gives={200: gives}, fails=REVISED
        )

    return [
        action("add_router_interface", routers.read_target, attached),
        action("remove_router_interface", routers.read_removed, attached),
        action("add_extraroutes", routers.read_routes, router),
        action("remove_extraroutes", routers.read_routes, router),
    ]


class CollectionHandlers(Generic[R]):
    """Handlers of a collection, one method for each request."""

    def __init__(self, services: Services, collection: Collection[R]) -> None:
        self._services = services
        self.collection = collection

    async def index(self, request: Request) -> Response:
        collection, snapshot = self.collection, self._services.model.snapshot
        query = queries.read_query(
            request.query_params, collection.attributes, () if identity(request).is_admin else HIDDEN
        )
        if query.marker:
            self._find(request, snapshot, query.marker)
        try:
            page = await run_in_steps(self._listed(self._view(request, snapshot), query))
        except BadQuery as error:
            raise errors.bad_request(str(error)) from None
        body: JsonObject = {collection.plural: page.items}
        links = queries.page_links(f"{base_url(request)}/v2.0/{collection.plural}", request.query_params, page)
        if links:
            body[f"{collection.plural}_links"] = links
        return json_response(body)

    def _listed(self, view: EncodeContext, query: Query) -> Steps[Page]:
        collection = self.collection
        fits, filters = collection.split_filters({name: query.filters[name] for name in query.filters if name != "id"})
        rest = {name: texts for name, texts in filters.items() if name != "name"}
        found = yield from self._sifted(view, query, fits)
        by_id = {resource.id: resource for resource in found}
        yield
        # encode the resources outside the page only if a filter or sort key needs it
        encode = partial(collection.encode, view)
        looks = frozenset({"id", "tags", *rest, *(name for name, _ in query.sort)})
        look = (lambda resource: select_fields(encode(resource), looks)) if rest or query.sort else _identify
        page = yield from select_page_in_steps(map(look, found), replace(query, filters=rest, fields=frozenset()), {})
        items = []
        for item in page.items:
            items.append(select_fields(encode(by_id[item["id"]]), query.fields))
            yield
        return replace(page, items=items)

    def _sifted(self, view: EncodeContext, query: Query, fits: Callable[[R], bool]) -> Steps[list[R]]:
        """Return the visible resources that may match, oldest first."""
        names, snapshot = query.filters.get("name"), view.snapshot
        found: list[R] = []
        for resource in self.collection.candidates(snapshot, query.filters):
            yield
            named = names is None or resource.name in names
            if named and fits(resource) and self._sees(snapshot, view.caller, resource):
                found.append(resource)
        return (yield from sort_cooperatively(found, lambda resource: (resource.created_at, resource.id)))

    async def show(self, request: Request) -> Response:
        item = self._encode(request, self._services.model.snapshot, request.path_params["id"])
        fields = frozenset(text for text in request.query_params.getlist("fields") if text)
        return json_response({self.collection.singular: select_fields(item, fields)})

    async def create(self, request: Request) -> Response:
        collection = self.collection
        asked: CreateBody = await self._read(request, "create")
        items = [(self._context(request), values) for values in asked.resources]

        async def change(snapshot: Snapshot) -> Changes:
            return await run_in_steps(merge_changes(snapshot, [partial(_create, collection, *item) for item in items]))

        snapshot = await self._services.write(change)
        made = await run_in_steps(self._encode_all(request, snapshot, [context.new_id for context, _ in items]))
        return json_response({collection.plural: made} if asked.several else {collection.singular: made[0]}, CREATED)

    async def update(self, request: Request) -> Response:
        collection, context = self.collection, self._context(request)
        values = await self._read(request)
        snapshot = await self._change(request, lambda now, resource: collection.update(now, context, resource, values))
        return json_response({collection.singular: self._encode(request, snapshot, request.path_params["id"])})

    async def delete(self, request: Request) -> Response:
        caller, delete = identity(request), self.collection.delete
        await self._change(request, lambda now, resource: delete(now, caller, resource), verb="delete")
        return Response(status_code=NO_CONTENT)

    async def list_tags(self, request: Request) -> Response:
        resource = self._find(request, self._services.model.snapshot, request.path_params["id"])
        return json_response({"tags": resource.tags})

    async def show_tag(self, request: Request) -> Response:
        resource = self._find(request, self._services.model.snapshot, request.path_params["id"])
        if request.path_params["tag"] not in resource.tags:
            raise errors.tag_not_found(request.path_params["tag"])
        return Response(status_code=NO_CONTENT)

    async def replace_tags(self, request: Request) -> Response:
        wanted = await self._read(request)
        return json_response({"tags": await self._retag(request, lambda tags: wanted)})

    async def add_tags(self, request: Request) -> Response:
        wanted = await self._read(request)
        return json_response({"tags": await self._retag(request, lambda tags: {*tags, *wanted})}, CREATED)

    async def add_tag(self, request: Request) -> Response:
        wanted = read_tags({"tags": [request.path_params["tag"]]})
        await self._retag(request, lambda tags: {*tags, *wanted})
        return json_response(None, CREATED)

    async def remove_tag(self, request: Request) -> Response:
        tag = request.path_params["tag"]

        def without(tags: Iterable[str]) -> Iterable[str]:
            if tag not in tags:
                raise errors.tag_not_found(tag)
            return {*tags} - {tag}

        await self._retag(request, without)
        return Response(status_code=NO_CONTENT)

    async def remove_all_tags(self, request: Request) -> Response:
        await self._retag(request, lambda tags: ())
        return Response(status_code=NO_CONTENT)

    async def _retag(self, request: Request, choose: Callable[[Iterable[str]], Iterable[str]]) -> Iterable[str]:
        now = self._services.now()

        def change(snapshot: Snapshot, resource: R) -> Changes:
            chosen = read_tags({"tags": [*choose(resource.tags)]})
            return self.collection.put(snapshot, with_update_time(resource, replace(resource, tags=chosen), now))

        snapshot = await self._change(request, change)
        return self._find(request, snapshot, request.path_params["id"]).tags

    async def _change(
        self, request: Request, change: Callable[[Snapshot, R], Changes], verb: str = "update"
    ) -> Snapshot:
        """Change the resource in the path. Raises ApiError 403, 404 and 412."""
        caller, key = identity(request), request.path_params["id"]
        expected = _expected_revision(request)

        def decide(snapshot: Snapshot) -> Changes:
            resource = self._find(request, snapshot, key)
            rule = f"{verb}_{self.collection.singular}"
            policy.check(self.collection.may_change(snapshot, caller, resource), rule)
            current = snapshot.generations[self.collection.owner(snapshot, resource)]
            if expected not in (None, current):
                raise errors.revision_mismatch(expected or 0, current)
            return change(snapshot, resource)

        return await self._services.write(decide)

    def _sees(self, snapshot: Snapshot, caller: Identity, resource: R) -> bool:
        """Return whether the caller may see the resource. Unmanaged ones are shown by their own API only."""
        return not is_unmanaged(resource) and self.collection.sees(snapshot, caller, resource)

    def _find(self, request: Request, snapshot: Snapshot, key: str) -> R:
        found = self.collection.find(snapshot, key)
        if found is None or not self._sees(snapshot, identity(request), found):
            raise errors.not_found(self.collection.singular, key)
        return found

    def _encode(self, request: Request, snapshot: Snapshot, key: str) -> JsonObject:
        return {**self.collection.encode(self._view(request, snapshot), self._find(request, snapshot, key))}

    def _encode_all(self, request: Request, snapshot: Snapshot, keys: Iterable[str]) -> Steps[list[JsonObject]]:
        encoded = []
        for key in keys:
            encoded.append(self._encode(request, snapshot, key))
            yield
        return encoded

    def _view(self, request: Request, snapshot: Snapshot) -> EncodeContext:
        return EncodeContext(snapshot=snapshot, applied=self._services.applied, caller=identity(request))

    async def _read(self, request: Request, verb: str = "update") -> Any:
        """Read the body if the caller has a role that may write. Raises ApiError."""
        may = bool(identity(request).roles & policy.WRITERS)
        policy.check(may, f"{verb}_{self.collection.singular}")
        request.state.asked = await read_body(request)
        return request.state.asked

    def _context(self, request: Request) -> RequestContext:
        services = self._services
        return RequestContext(
            caller=identity(request),
            now=services.now(),
            new_id=services.new_id(),
            mtu=services.mtu,
            external_mtu=services.external_mtu,
        )


class RouterHandlers(CollectionHandlers[Router]):
    async def add_router_interface(self, request: Request) -> Response:
        context, target = self._context(request), await self._read(request)
        return await self._attach(
            request,
            lambda snapshot, router: rules.add_interface(
                snapshot, context.caller, router, target, context.new_id, context.now
            ),
            "add_router_interface",
        )

    async def remove_router_interface(self, request: Request) -> Response:
        context, target = self._context(request), await self._read(request)
        return await self._attach(
            request,
            lambda snapshot, router: rules.remove_interface(snapshot, context.caller, router, target, context.now),
            "remove_router_interface",
        )

    async def add_extraroutes(self, request: Request) -> Response:
        context, routes = self._context(request), await self._read(request)
        return await self._reroute(
            request, lambda now, router: rules.add_routes(now, context.caller, router, routes, context.now)
        )

    async def remove_extraroutes(self, request: Request) -> Response:
        context, routes = self._context(request), await self._read(request)
        return await self._reroute(
            request, lambda now, router: rules.remove_routes(now, context.caller, router, routes, context.now)
        )

    async def _attach(self, request: Request, attach: Callable[[Snapshot, Router], Attachment], verb: str) -> Response:
        answer: JsonObject = {}

        def change(snapshot: Snapshot, router: Router) -> Changes:
            attachment = attach(snapshot, router)
            answer.update(routers.encode_attachment(router, attachment))
            return attachment.changes

        await self._change(request, change, verb.removesuffix("_router_interface"))
        return json_response(answer)

    async def _reroute(self, request: Request, change: Callable[[Snapshot, Router], Changes]) -> Response:
        snapshot = await self._change(request, change)
        return json_response({"router": self._encode(request, snapshot, request.path_params["id"])})


def _identify(resource: Resource) -> Item:
    return {"id": resource.id, "tags": resource.tags}


def select_fields(item: Item, fields: frozenset[str]) -> Item:
    return {name: value for name, value in item.items() if name in fields} if fields else item


def _create(collection: Collection[R], context: RequestContext, values: Values, snapshot: Snapshot) -> Steps[Changes]:
    return collection.create(snapshot, context, values)


def merge_changes(snapshot: Snapshot, changes: Iterable[Callable[[Snapshot], Steps[Changes]]]) -> Steps[Changes]:
    """Merge several changes into one; each is decided on the result of the previous ones."""
    puts: dict[Owner, Aggregate] = {}
    reads: dict[Owner, None] = {}
    rests = False
    for change in changes:
        made = yield from change(snapshot)
        snapshot = apply_changes(snapshot, made, snapshot.revision + 1)
        puts |= {owner_of(aggregate): aggregate for aggregate in made.puts}
        reads |= dict.fromkeys(made.reads)
        rests |= made.requires_unchanged_model
        yield
    unwritten = tuple(owner for owner in reads if owner not in puts)
    return Changes(puts=tuple(puts.values()), reads=unwritten, requires_unchanged_model=rests)


@reads(object_schema({"tags": parse_tags.schema}, ["tags"]))
def read_tags(body: object) -> tuple[str, ...]:
    if not isinstance(body, dict) or set(body) != {"tags"}:
        raise errors.invalid_input("Invalid tags body")
    try:
        return parse_tags(body["tags"])
    except ValueError as error:
        raise errors.invalid_input(str(error)) from None


def _expected_revision(request: Request) -> int | None:
    """Parse `If-Match: revision_number=7` (neutron, revision-if-match). Raises ApiError 400."""
    header = request.headers.get("if-match")
    if header is None:
        return None
    match = IF_MATCH.fullmatch(header)
    if match is None:
        raise errors.bad_request(f"Invalid if-match header '{header}'; give revision_number=<number>")
    return int(match[1])
