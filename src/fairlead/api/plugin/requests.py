"""Requests of the plug-in API as functions of a snapshot: they decode a service's load balancer and call the rules."""

import json
from collections.abc import Mapping
from dataclasses import replace

from fairlead.api.octavia import decode, specs
from fairlead.api.octavia.caller import CreationContext, RequestCaller, common_attributes
from fairlead.api.octavia.errors import bad_request
from fairlead.api.octavia.requests import listener_with
from fairlead.changes import balancers, catalog_selection, provider_migration, vips
from fairlead.changes.idempotent_update import find_externally_managed
from fairlead.compilers.providers import ProviderNames
from fairlead.model.documents.catalog import AvailabilityZoneProfile, FlavorProfile
from fairlead.model.documents.loadbalancer import ExternalService, Listener, LoadBalancer, MigrationStage, Pool
from fairlead.model.queries.domain import AttachedObjects
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps
from fairlead.schema import Values

MAX_REVISION_DIGITS = 19
"""Maximum digits of a revision; stores use 64 bits."""


def create_load_balancer(
    snapshot: Snapshot, values: Values, caller: RequestCaller, served: AttachedObjects | None = None
) -> Steps[Changes]:
    """Create the whole load balancer, with the default provider because the service has its own provider names.
    `served`: places where another provider serves it, if these must be checked. Raises Refused, Unsupported,
    ApiError."""
    asker, balancer_id = caller.identity, values["id"]
    provider = asker.providers.default
    specs.reject_unsupported(values, provider)
    networks = check_profiles(asker.providers, values)
    vip = vips.choose_vip(snapshot, asker, decode.decode_vip(values, caller.origin, balancer_id))
    catalog_selection.check_network(catalog_selection.Offer(provider, None, None, networks, ()), vip.port.network_id)
    before = snapshot.ports.get(vip.port.id)
    balancer = LoadBalancer(
        **caller.origin.resource(values),
        **{"admin_state_up": True, **common_attributes(values)},
        provider=provider,
        vip=vip.vips[0],
        kept=ExternalService(
            made_port=before is not None and vips.is_reserved_for(before, balancer_id),
            takeover=MigrationStage.PREPARED if values.get("takeover") else None,
        ),
    )
    balancer = yield from _with_tree(balancer, values, caller.origin)
    changes = yield from balancers.create_load_balancer(snapshot, asker, balancer, vip)
    if served is not None:
        provider_migration.check_clients(snapshot, _made(changes), served, frozenset(values["leaves"]))
    return changes


def _made(changes: Changes) -> LoadBalancer:
    return next(each for each in changes.puts if isinstance(each, LoadBalancer))


def parsed_update(snapshot: Snapshot, values: Values, caller: RequestCaller, balancer_id: str) -> Steps[LoadBalancer]:
    """Return the stored load balancer with the values that the service sent; its parts have only these values. Raises
    Refused, ApiError."""
    if values["id"] != balancer_id:
        raise bad_request(f"The body has id {values['id']}, which differs from the path.")
    old = find_externally_managed(snapshot, balancer_id, caller.identity)
    bare = {"admin_state_up": True, "name": "", "description": "", **common_attributes(values)}
    return (yield from _with_tree(replace(old, **bare), values, caller.origin.with_project_of(old)))


def revision_of(text: str | None) -> int | None:
    """Parse a revision. Raises ApiError."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < MAX_REVISION_DIGITS):
        raise bad_request("revision must be a number.")
    return int(text)


def check_profiles(providers: ProviderNames, values: Values) -> frozenset[str] | None:
    """Validate the metadata of flavor and availability zone, and return the networks that VIPs are limited to, if
    any. Raises Refused for metadata unknown to the default provider."""
    common: Mapping[str, str] = {"id": "", "name": "", "provider": providers.default}
    if values.get("flavor"):
        catalog_selection.check_profile(providers, FlavorProfile(**common, metadata=json.dumps(values["flavor"])))
    if not values.get("availability_zone"):
        return None
    zone = AvailabilityZoneProfile(**common, metadata=json.dumps(values["availability_zone"]))
    return catalog_selection.check_profile(providers, zone)


def _with_tree(balancer: LoadBalancer, values: Values, origin: CreationContext) -> Steps[LoadBalancer]:
    pools, listeners = list[Pool](), list[Listener]()
    for body in values.get("pools") or ():
        pools.append(decode.decode_pool(body, origin))
        yield
    for body in values.get("listeners") or ():
        listeners.append((yield from listener_with(body, origin, {})))
    return replace(balancer, listeners=tuple(listeners), pools=tuple(pools))
