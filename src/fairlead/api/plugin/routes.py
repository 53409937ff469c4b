"""Operations of the plug-in API: changes in Octavia's form, and statuses."""

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import Services, json_response
from fairlead.api.http.openapi import FLAG, IDENTITY, NUMBER, TEXT, Operation, read_body
from fairlead.api.octavia import encode, handlers
from fairlead.api.octavia import specs as octavia
from fairlead.api.octavia.handlers import LoadBalancerHandlers
from fairlead.api.octavia.parts import MEMBER, Part
from fairlead.api.plugin import requests, specs
from fairlead.api.plugin.comparison import DIFFERENCES, differences_of
from fairlead.api.plugin.feed import MAX_IDS_PER_RESPONSE, MAX_POLL_SECONDS, StatusFeed
from fairlead.api.plugin.statuses import (
    CIDRS,
    MAX_PER_PAGE,
    STATUSES,
    encode_statuses,
    is_of_plugin,
    page_of,
    probed_on,
    statistics_of,
)
from fairlead.changes.idempotent_update import merge_external_state, put_external_state
from fairlead.changes.lookup import NoSuch
from fairlead.changes.provider_migration import take_over
from fairlead.changes.refusal import Refused
from fairlead.model.documents.quota import QuotaResource
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.schema import Values, array_schema, object_schema, or_null
from fairlead.store.model import Change

_BALANCERS = "/loadbalancers"
_STATISTICS = {"id": IDENTITY, **encode.STATISTICS}
_SHOWN = object_schema({"loadbalancer": STATUSES}, ["loadbalancer"])


class _Balancers:
    """Handlers of whole load balancers. The rules and compilers decide; a rejected load balancer is not written."""

    def __init__(self, services: Services, seen: LoadBalancerHandlers) -> None:
        self._services, self._octavia_handlers = services, seen

    async def create(self, request: Request) -> Response:
        """Create a load balancer with all its parts."""
        values = await read_body(request)
        snapshot = await self._services.write(await self._creation(request, values))
        return await self._show(snapshot, values["id"], 201)

    async def dry_run(self, request: Request) -> Response:
        """Check whether a load balancer could be created now. Nothing is written."""
        await self._services.dry_run(await self._creation(request, await read_body(request)))
        return Response(status_code=handlers.NO_CONTENT)

    async def _creation(self, request: Request, values: Values) -> Change:
        caller = self._octavia_handlers.caller(request, values["project_id"])
        served = (
            None if values.get("leaves") is None else await self._services.placements_at_other_provider(values["id"])
        )
        return lambda old: run_in_steps(requests.create_load_balancer(old, values, caller, served))

    async def compare(self, request: Request) -> Response:
        """Compare a load balancer of the service with the stored one, and return the differences. Nothing is
        written."""
        values = await read_body(request)
        caller, snapshot = self._octavia_handlers.caller(request), self._services.model.snapshot
        balancer_id = request.path_params["id"]
        said = await run_in_steps(requests.parsed_update(snapshot, values, caller, balancer_id))
        stored = snapshot.load_balancers[balancer_id]
        wanted = await run_in_steps(merge_external_state(stored, said, caller.identity.now))
        where = encode.status_in(self._services, snapshot, stored)
        found = await run_in_steps(differences_of(where, wanted))
        return json_response({"differences": found, "revision": where.generation})

    async def replace(self, request: Request) -> Response:
        """Replace a load balancer with the service's version; with `revision`, only if it is unchanged since then."""
        values = await read_body(request)
        caller, balancer_id = self._octavia_handlers.caller(request), request.path_params["id"]
        revision = requests.revision_of(request.query_params.get("revision"))

        async def change(old: Snapshot) -> Changes:
            said = await run_in_steps(requests.parsed_update(old, values, caller, balancer_id))
            return await run_in_steps(put_external_state(old, caller.identity, said, revision))

        return await self._show(await self._services.write(change), balancer_id, 200)

    async def _show(self, snapshot: Snapshot, balancer_id: str, status: int) -> Response:
        where = encode.status_in(self._services, snapshot, snapshot.load_balancers[balancer_id])
        return json_response({"loadbalancer": await run_in_steps(encode_statuses(snapshot, where))}, status)


class _MetadataHandlers:
    """Handlers of flavor and availability zone metadata."""

    def __init__(self, services: Services) -> None:
        self._providers = services.providers

    async def validate(self, request: Request) -> Response:
        """Validate the metadata of a flavor or availability zone."""
        requests.check_profiles(self._providers, await read_body(request))
        return Response(status_code=handlers.NO_CONTENT)

    async def capabilities(self, _: Request) -> Response:
        """Show the metadata keys of flavors and availability zones, with descriptions."""
        provider = self._providers[self._providers.default]
        known = {"flavor": provider.flavor_capabilities, "availability_zone": provider.availability_zone_capabilities}
        return json_response({name: dict(each) for name, each in known.items()})


def change_routes(services: Services) -> list[Operation]:
    seen = LoadBalancerHandlers(services)
    balancers, offered = _Balancers(services, seen), _MetadataHandlers(services)
    one = f"{_BALANCERS}/{{id}}"
    post = octavia.body("loadbalancer", specs.LOAD_BALANCER, argument="load_balancer")
    put = octavia.body("loadbalancer", octavia.LOAD_BALANCER_PUT, argument="load_balancer")
    compared = {"differences": DIFFERENCES, "revision": NUMBER}
    shown = {200: object_schema({"loadbalancer": encode.full_schema(encode.LOAD_BALANCER)}, ["loadbalancer"])}
    profiles = octavia.body("profiles", specs.PROFILES, argument="plugin")
    texts = {"type": "object", "additionalProperties": TEXT}
    known = object_schema({"flavor": texts, "availability_zone": texts}, ["flavor", "availability_zone"])
    return [
        Operation("POST", _BALANCERS, balancers.create, takes=post, gives={201: _SHOWN}, fails=[501]),
        Operation("PUT", one, seen.update_load_balancer, takes=put, gives=shown, fails=[501]),
        Operation("DELETE", one, seen.delete_load_balancer, gives={204: None}, query={"cascade": FLAG}),
        Operation("PUT", f"{one}/failover", seen.fail_over, gives={202: None}),
        Operation(
            "POST", f"{one}/comparison", balancers.compare, takes=post, gives={200: object_schema(compared, compared)}
        ),
        Operation(
            "PUT",
            f"{one}/whole",
            balancers.replace,
            takes=post,
            gives={200: _SHOWN},
            query={"revision": NUMBER},
            fails=[501],
        ),
        *(operation for part in specs.PARTS for operation in _part_routes(seen, part)),
        Operation("PUT", MEMBER.path, seen.replace_members, takes=specs.MEMBERS, gives={202: None}, fails=[501]),
        Operation("POST", "/profiles", offered.validate, takes=profiles, gives={204: None}, fails=[501]),
        Operation("GET", "/profiles", offered.capabilities, gives={200: known}),
    ]


def takeover_routes(services: Services) -> list[Operation]:
    """Return the operations for load balancers of another provider: creation with `takeover` prepares one."""
    seen = LoadBalancerHandlers(services)
    balancers = _Balancers(services, seen)

    async def take(request: Request) -> Response:
        """Complete a prepared takeover from another provider of the service. Idempotent."""
        caller, balancer_id = seen.caller(request), request.path_params["id"]
        await services.write(lambda old: take_over(old, caller.identity, balancer_id))
        return Response(status_code=handlers.NO_CONTENT)

    post = octavia.body("loadbalancer", specs.LOAD_BALANCER, argument="load_balancer")
    return [
        Operation("POST", "/trials", balancers.dry_run, takes=post, gives={204: None}, fails=[501]),
        Operation("PUT", f"{_BALANCERS}/{{id}}/takeover", take, gives={204: None}, fails=[501]),
    ]


def _part_routes(seen: LoadBalancerHandlers, part: Part) -> list[Operation]:
    shown = object_schema({part.root: encode.full_schema(part.shown)}, [part.root])
    create = octavia.body(part.root, part.post, argument=part.argument)
    update = octavia.body(part.root, part.put, argument=part.argument)
    one = f"{part.path}/{{id}}"
    return [
        Operation("POST", part.path, seen.create_part(part), takes=create, gives={201: shown}, fails=[501]),
        Operation("PUT", one, seen.update_part(part), takes=update, gives={200: shown}, fails=[501]),
        Operation("DELETE", one, seen.delete_part(part), gives={204: None}, fails=[501]),
    ]


def status_routes(services: Services, feed: StatusFeed) -> list[Operation]:
    async def show_all(request: Request) -> Response:
        """List all load balancers of the service with their parts, in pages ordered by id."""
        page = await run_in_steps(page_of(services, request.query_params.get("after", "")))
        return json_response({"loadbalancers": page.shown, "next": page.next})

    async def show(request: Request) -> Response:
        snapshot = services.model.snapshot
        balancer = snapshot.load_balancers.get(request.path_params["id"])
        if balancer is None or not is_of_plugin(balancer):
            raise Refused(NoSuch(what=QuotaResource.LOAD_BALANCER, id=request.path_params["id"]))
        where = encode.status_in(services, snapshot, balancer)
        return json_response({"loadbalancer": await run_in_steps(encode_statuses(snapshot, where))})

    async def tell(request: Request) -> Response:
        """List the ids of load balancers that may have changed since a cursor. Without a cursor, return the present
        one."""
        query = request.query_params
        wait = query.get("wait", "0")
        seconds = min(int(wait), MAX_POLL_SECONDS) if wait.isascii() and wait.isdecimal() and len(wait) < 9 else 0
        news = await feed.changes_after(query.get("since", ""), seconds)
        return json_response({"cursor": news.cursor, "changed": news.ids, "whole": news.is_resync_needed})

    async def count(request: Request) -> Response:
        """Show the counters of the listeners of these load balancers since their creation; empty while no node
        counts."""
        shown = await run_in_steps(statistics_of(services, _ids(request)))
        return json_response({"listeners": shown})

    async def show_probed(request: Request) -> Response:
        """Show the addresses that the probe port on an unmanaged network needs. All load balancers share the port."""
        cidrs = await run_in_steps(probed_on(services, request.path_params["id"]))
        return json_response({"network": {"is_probed": cidrs is not None, "cidrs": cidrs or []}})

    page = {"loadbalancers": array_schema(STATUSES, MAX_PER_PAGE), "next": or_null(TEXT)}
    news = {"cursor": TEXT, "changed": array_schema(TEXT, MAX_IDS_PER_RESPONSE), "whole": FLAG}
    needed = {"is_probed": FLAG, "cidrs": CIDRS}
    probed = object_schema({"network": object_schema(needed, needed)}, ["network"])
    counted = {"listeners": {"type": "array", "items": object_schema(_STATISTICS, _STATISTICS)}}
    return [
        Operation("GET", "/statuses", show_all, query={"after": TEXT}, gives={200: object_schema(page, page)}),
        Operation("GET", "/statuses/{id}", show, gives={200: _SHOWN}),
        Operation("GET", "/news", tell, query={"since": TEXT, "wait": NUMBER}, gives={200: object_schema(news, news)}),
        Operation("GET", "/probed-networks/{id}", show_probed, gives={200: probed}),
        Operation("GET", "/statistics", count, query={"id": IDENTITY}, gives={200: object_schema(counted, counted)}),
    ]


def _ids(request: Request) -> Iterable[str]:
    return request.query_params.getlist("id")[:MAX_PER_PAGE]
