"""Port associations of a Local IP, that is its replicas.

Unlike Neutron, the list supports `limit` and the filter `host`, and a bulk create returns no internal keys.
`operating_status` is part of the extension `local-ip-fairlead`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import JsonObject, Services, base_url, identity, json_response
from fairlead.api.http.listing import BadQuery, Item, select_page
from fairlead.api.http.openapi import IDENTITY, LINKS, TEXT, TEXTS, Operation, read_body
from fairlead.api.network import errors, parsers, policy, queries
from fairlead.api.network.attributes import (
    PUT,
    Attribute,
    CreateBody,
    one,
    one_or_several,
    project_of,
    read_only,
    shown,
)
from fairlead.api.network.handlers import CREATED, NO_CONTENT, merge_changes, select_fields
from fairlead.api.network.limits import BULK
from fairlead.changes import access, associations
from fairlead.changes.access import Verb
from fairlead.changes.associations import NotAssociated, ReplicaRequest
from fairlead.changes.local_ips import find_local_ip
from fairlead.changes.refusal import Refused
from fairlead.model.documents.local_ip import LocalIP, find_association
from fairlead.model.documents.sizes import MAX_ASSOCIATIONS
from fairlead.model.queries.replicas import replica_states
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import as_single_step
from fairlead.schema import Schema, Values, array_schema, object_schema

SINGULAR, PLURAL = "port_association", "port_associations"
CREATE = "create_local_ip_port_association"
UPDATE = "update_local_ip_port_association"
"""Names of Neutron's policy rules."""
_PROJECT = Attribute(put=False, nullable=True, filterable=False, in_responses=False)
ATTRIBUTES: Mapping[str, Attribute] = {
    "local_ip_id": read_only(IDENTITY),
    "local_ip_address": Attribute(parse=parsers.address, post=False, put=False),
    "fixed_port_id": Attribute(parse=parsers.uuid, put=False, required=True),
    "fixed_ip": Attribute(parse=parsers.address, put=False, nullable=True),
    "host": read_only(TEXT),
    "operating_status": read_only(TEXT),
    "project_id": _PROJECT,
    "tenant_id": _PROJECT,
}


def association_routes(services: Services, local_ips: str) -> list[Operation]:
    """Return the routes below the path of Local IPs."""
    views, attributes = AssociationHandlers(services), shown(ATTRIBUTES)
    item, whole = object_schema(attributes), object_schema(attributes, attributes)
    pages = {PLURAL: array_schema(item, MAX_ASSOCIATIONS), f"{PLURAL}_links": LINKS}
    made: Mapping[str, Schema] = {SINGULAR: whole, PLURAL: array_schema(whole, BULK)}
    create, update = one_or_several(SINGULAR, PLURAL, ATTRIBUTES), one(SINGULAR, ATTRIBUTES, PUT)
    query = queries.list_query(ATTRIBUTES)
    shows = object_schema({SINGULAR: item}, [SINGULAR])
    seen = {"fields": TEXTS, "local_ip_id": TEXT}  # openstacksdk repeats the path parameter
    path = f"{local_ips}/{{id}}/{PLURAL}"
    return [
        Operation("GET", path, views.index, query=query, gives={200: object_schema(pages, [PLURAL])}),
        Operation("POST", path, views.create, takes=create, gives={201: {**object_schema(made), "minProperties": 1}}),
        Operation("GET", path + "/{port_id}", views.show, query=seen, gives={200: shows}),
        Operation("PUT", path + "/{port_id}", views.update, takes=update, gives={200: shows}),
        Operation("DELETE", path + "/{port_id}", views.delete, gives={204: None}),
    ]


def encode_associations(snapshot: Snapshot, local_ip: LocalIP) -> Iterator[Item]:
    states = replica_states(snapshot, local_ip)
    for each in local_ip.associations:
        yield {
            "local_ip_id": local_ip.id,
            "local_ip_address": str(local_ip.address),
            "fixed_port_id": each.port_id,
            "fixed_ip": str(each.address),
            "host": snapshot.plugged.get(each.port_id, ""),
            "operating_status": states[each.port_id].value,
        }


class AssociationHandlers:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def index(self, request: Request) -> Response:
        snapshot = self._services.model.snapshot
        local_ip = _find(request, snapshot)
        query = queries.read_query(request.query_params, ATTRIBUTES, key="fixed_port_id")
        try:
            page = select_page(encode_associations(snapshot, local_ip), query, {})
        except BadQuery as error:
            raise errors.bad_request(str(error)) from None
        if query.limit and page.items and not query.reverse:
            # openstacksdk requests a further page by the last item's `id`, which associations lack
            page = replace(page, next_marker=page.last)
        body: JsonObject = {PLURAL: page.items}
        url = f"{base_url(request)}/v2.0/local_ips/{local_ip.id}/{PLURAL}"
        links = queries.page_links(url, request.query_params, page)
        return json_response({**body, f"{PLURAL}_links": links} if links else body)

    async def show(self, request: Request) -> Response:
        fields = frozenset(text for text in request.query_params.getlist("fields") if text)
        return json_response({SINGULAR: select_fields(self._encode(request, self._services.model.snapshot), fields)})

    async def create(self, request: Request) -> Response:
        """Associate ports, in the order of the request. The last one is the newest replica."""
        policy.check(bool(identity(request).roles & policy.WRITERS), CREATE)
        asked: CreateBody = await read_body(request)
        request.state.asked = asked
        each = [as_single_step(partial(self._associate, request, values)) for values in asked.resources]

        async def change(snapshot: Snapshot) -> Changes:
            _find(request, snapshot)
            return await run_in_steps(merge_changes(snapshot, each))

        snapshot = await self._services.write(change)
        items = {item["fixed_port_id"]: item for item in encode_associations(snapshot, _find(request, snapshot))}
        made = [items[values["fixed_port_id"]] for values in asked.resources if values["fixed_port_id"] in items]
        return json_response({PLURAL: made} if asked.several else {SINGULAR: made[0]}, CREATED)

    def _associate(self, request: Request, values: Values, snapshot: Snapshot) -> Changes:
        caller = identity(request)
        said = values.get("project_id") or values.get("tenant_id")  # its project is the Local IP's
        if said and project_of(caller, values) != caller.project_id:
            access.check_fields(caller.is_admin, Verb.ADD, LocalIP, {"project_id"})
        replica = ReplicaRequest(port_id=values["fixed_port_id"], address=values.get("fixed_ip"))
        return associations.associate(snapshot, caller, _find(request, snapshot), replica, self._services.now())

    async def update(self, request: Request) -> Response:
        """Update an association. It has no attributes that can change."""
        policy.check(bool(identity(request).roles & policy.WRITERS), UPDATE)
        await read_body(request)
        return json_response({SINGULAR: self._encode(request, self._services.model.snapshot)})

    async def delete(self, request: Request) -> Response:
        caller, port_id = identity(request), request.path_params["port_id"]
        await self._services.write(
            lambda snapshot: associations.dissociate(snapshot, caller, _find(request, snapshot), port_id)
        )
        return Response(status_code=NO_CONTENT)

    def _encode(self, request: Request, snapshot: Snapshot) -> Item:
        local_ip, port_id = _find(request, snapshot), request.path_params["port_id"]
        if find_association(local_ip, port_id) is None:
            raise Refused(NotAssociated(local_ip_id=local_ip.id, port_id=port_id))
        return next(item for item in encode_associations(snapshot, local_ip) if item["fixed_port_id"] == port_id)


def _find(request: Request, snapshot: Snapshot) -> LocalIP:
    """Return the Local IP in the path. Raises Refused."""
    return find_local_ip(snapshot, identity(request), request.path_params["id"])
