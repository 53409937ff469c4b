"""Flavors, availability zones and their profiles, which operators offer to load balancers.

Flavors and availability zones have the same rules with different names, so they share one implementation; a Family has
the names.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from immutables import Map
from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import JsonObject, Services, identity, json_response
from fairlead.api.http.openapi import FLAG, IDENTITY, TEXT, Operation, read_body
from fairlead.api.octavia import limits, specs
from fairlead.api.octavia.errors import invalid_option, not_found
from fairlead.api.octavia.lists import SimpleList, show_one
from fairlead.changes.catalog import (
    CatalogProfile,
    create_offer,
    create_profile,
    delete_offer,
    delete_profile,
    update_offer,
    update_profile,
)
from fairlead.compilers.providers import Provider
from fairlead.model.documents.catalog import AvailabilityZone, AvailabilityZoneProfile, Flavor, FlavorProfile, Profile
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.schema import Field, Schema, Spec, Values, boolean, object_schema, reads, text, uuid

NIL = "00000000-0000-0000-0000-000000000000"
"""Reserved id of Octavia's internal rows: it returns 404 with different text for them."""
_NAME = text(limits.MAX_TEXT_LENGTH)


@reads({"type": "string", "maxLength": limits.MAX_TEXT_LENGTH, "pattern": r"^(?!\.{1,2}$)[^/\u0000]+$"})
def zone_name(value: object) -> str:
    """Parse the name of an availability zone, which is a path segment."""
    name = _NAME(value)
    if "/" in name or name in ("", ".", ".."):
        raise ValueError("Value should be a non-empty text without slashes, other than '.' and '..'.")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogNames:
    """Names of flavors, or of availability zones. Most are derived from `root`, the element of a body."""

    root: str
    profile_root: str
    error_name: str
    """Name in error texts; Octavia's capitalisation is inconsistent."""
    profile_error_name: str
    nil_profile_error_name: str
    """Name in error texts of the profile with the id `NIL`."""
    key: str
    """Attribute that is the path parameter."""
    name: Field
    kind: Kind
    profile_kind: Kind
    make: Callable[[str, Values, str], Flavor | AvailabilityZone]
    """Constructor with the arguments (new id, attributes, profile id)."""
    make_profile: Callable[..., FlavorProfile | AvailabilityZoneProfile]
    capabilities: Callable[[Provider], Mapping[str, str]]

    @property
    def profile_id(self) -> str:
        return f"{self.root}_profile_id"

    @property
    def metadata(self) -> str:
        return f"{self.root}_data"

    @property
    def list(self) -> SimpleList:
        shown = {"name": TEXT, "description": TEXT, "enabled": FLAG, self.profile_id: IDENTITY}
        attributes: Mapping[str, Schema] = {**({} if self.key == "name" else {self.key: IDENTITY}), **shown}
        return SimpleList(plural=f"{self.root}s", links=f"{self.root}s_links", key=self.key, attributes=attributes)

    @property
    def profile_list(self) -> SimpleList:
        shown = {"id": IDENTITY, "name": TEXT, "provider_name": TEXT, self.metadata: TEXT}
        return SimpleList(plural=f"{self.profile_root}s", links=f"{self.profile_root}_links", attributes=shown)

    def offers(self, snapshot: Snapshot) -> Map[str, Flavor | AvailabilityZone]:
        found: Map[str, Any] = snapshot.documents(self.kind)
        return found

    def profiles(self, snapshot: Snapshot) -> Map[str, CatalogProfile]:
        found: Map[str, Any] = snapshot.documents(self.profile_kind)
        return found


FLAVORS = CatalogNames(
    root="flavor",
    profile_root="flavorprofile",
    error_name="Flavor",
    profile_error_name="Flavor Profile",
    nil_profile_error_name="Flavor profile",
    key="id",
    name=Field(_NAME),
    kind=Kind.FLAVOR,
    profile_kind=Kind.FLAVOR_PROFILE,
    make=lambda new, values, profile: Flavor(id=new, profile_id=profile, **values),
    make_profile=FlavorProfile,
    capabilities=lambda provider: provider.flavor_capabilities,
)
ZONES = CatalogNames(
    root="availability_zone",
    profile_root="availability_zone_profile",
    error_name="Availability Zone",
    profile_error_name="Availability Zone Profile",
    nil_profile_error_name="Availability Zone Profile",
    key="name",
    name=Field(zone_name),
    kind=Kind.AVAILABILITY_ZONE,
    profile_kind=Kind.AVAILABILITY_ZONE_PROFILE,
    make=lambda _, values, profile: AvailabilityZone(profile_id=profile, **values),
    make_profile=AvailabilityZoneProfile,
    capabilities=lambda provider: provider.availability_zone_capabilities,
)


def catalog_routes(services: Services) -> list[Operation]:
    return [
        route
        for family in (FLAVORS, ZONES)
        for route in (*_offer_routes(services, family), *_profile_routes(services, family))
    ]


def _offer_routes(services: Services, family: CatalogNames) -> list[Operation]:
    views, shown, root = _OfferHandlers(services, family), family.list, family.root
    create = specs.body(root, offer_post(family), argument=f"{root}_")
    update = specs.body(root, offer_put(family), argument=f"{root}_")
    return _routes(views, shown, root, (create, update), family.key)


def _profile_routes(services: Services, family: CatalogNames) -> list[Operation]:
    views, shown, root = _ProfileHandlers(services, family), family.profile_list, family.profile_root
    create = specs.body(root, profile_post(family), argument=f"{family.root}_profile_")
    update = specs.body(root, profile_put(family), argument=f"{family.root}_profile_")
    return _routes(views, shown, root, (create, update), "id")


def offer_put(family: CatalogNames) -> Spec:
    own = {"name": family.name} if family.key != "name" else {}
    return {**own, "description": Field(text(limits.MAX_TEXT_LENGTH)), "enabled": Field(boolean)}


def offer_post(family: CatalogNames) -> Spec:
    required = {"name": replace(family.name, required=True), family.profile_id: Field(uuid, required=True)}
    return {**offer_put(family), **required}


def profile_put(family: CatalogNames) -> Spec:
    return {
        "name": Field(_NAME),
        "provider_name": Field(text(limits.MAX_TEXT_LENGTH)),
        family.metadata: Field(text(limits.MAX_METADATA_LENGTH)),
    }


def profile_post(family: CatalogNames) -> Spec:
    return {name: replace(field, required=True) for name, field in profile_put(family).items()}


def _routes(
    views: "_CatalogHandlers", shown: SimpleList, root: str, bodies: tuple[Any, Any], key: str
) -> list[Operation]:
    path = f"/{shown.plural.replace('_', '')}"
    each, one = f"{path}/{{{key}}}", object_schema({root: object_schema(shown.attributes, shown.attributes)}, [root])
    create, update = bodies
    return [
        Operation("GET", path, views.list, gives={200: shown.response}, query=shown.query),
        Operation("POST", path, views.create, takes=create, gives={201: one}),
        show_one(each, views.show, root, shown.attributes),
        Operation("PUT", each, views.update, takes=update, gives={200: one}),
        Operation("DELETE", each, views.delete, gives={204: None}),
    ]


class _CatalogHandlers(ABC):
    """Handlers, one method for each request."""

    def __init__(self, services: Services, family: CatalogNames) -> None:
        self._services = services
        self._family = family

    @property
    def _snapshot(self) -> Snapshot:
        return self._services.model.snapshot

    @abstractmethod
    async def list(self, request: Request) -> Response: ...

    @abstractmethod
    async def create(self, request: Request) -> Response: ...

    @abstractmethod
    async def show(self, request: Request) -> Response: ...

    @abstractmethod
    async def update(self, request: Request) -> Response: ...

    @abstractmethod
    async def delete(self, request: Request) -> Response: ...


class _OfferHandlers(_CatalogHandlers):
    """Handlers for flavors or availability zones."""

    async def list(self, request: Request) -> Response:
        offers = self._family.offers(self._snapshot).values()
        return self._family.list.respond(request, map(self._encode, offers))

    async def create(self, request: Request) -> Response:
        values, family = await read_body(request), self._family
        given = {name: value for name, value in values.items() if value is not None}
        profile = given.pop(family.profile_id)
        offer = family.make(self._services.new_id(), given, profile)

        caller = identity(request)
        await self._services.write(lambda old: create_offer(old, caller, offer))
        return self._answer(offer, 201)

    async def show(self, request: Request) -> Response:
        return self._answer(self._find(self._snapshot, request))

    async def update(self, request: Request) -> Response:
        self._find(self._snapshot, request)
        values = dict(await read_body(request))
        for name in ("name", "enabled"):
            if name in values and values[name] is None:
                raise invalid_option(None, name)
        if "description" in values:
            values["description"] = values["description"] or ""

        def change(old: Snapshot) -> Changes:
            return update_offer(old, identity(request), replace(self._find(old, request), **values))

        return self._answer(self._find(await self._services.write(change), request))

    async def delete(self, request: Request) -> Response:
        """Delete a flavor or availability zone that no load balancer uses."""
        owner = Owner(self._family.kind, request.path_params[self._family.key])
        await self._services.write(lambda old: delete_offer(old, identity(request), owner))
        return Response(status_code=204)

    def _find(self, snapshot: Snapshot, request: Request) -> Flavor | AvailabilityZone:
        key = request.path_params[self._family.key]
        offer = self._family.offers(snapshot).get(key)
        if offer is None:
            raise not_found(self._family.error_name, key)
        return offer

    def _answer(self, offer: Flavor | AvailabilityZone, status: int = 200) -> Response:
        return json_response({self._family.root: self._encode(offer)}, status)

    def _encode(self, offer: Flavor | AvailabilityZone) -> JsonObject:
        own = {"id": offer.id} if isinstance(offer, Flavor) else {}
        return {
            **own,
            "name": offer.name,
            "description": offer.description,
            "enabled": offer.enabled,
            self._family.profile_id: offer.profile_id,
        }


class _ProfileHandlers(_CatalogHandlers):
    """Handlers for profiles of flavors or availability zones."""

    async def list(self, request: Request) -> Response:
        profiles = self._family.profiles(self._snapshot).values()
        return self._family.profile_list.respond(request, map(self._encode, profiles))

    async def create(self, request: Request) -> Response:
        values = await read_body(request)
        profile = self._family.make_profile(id=self._services.new_id(), **self._attributes(values))
        caller, providers = identity(request), self._services.providers
        await self._services.write(lambda old: create_profile(old, caller, providers, profile))
        return self._answer(profile, 201)

    async def show(self, request: Request) -> Response:
        return self._answer(self._find(self._snapshot, request))

    async def update(self, request: Request) -> Response:
        """Update a profile. While flavors or availability zones use it, only its name can change."""
        self._find(self._snapshot, request)
        values = await read_body(request)
        for name, value in values.items():
            if value is None:
                raise invalid_option(None, name)
        attributes = self._attributes(values)

        def change(old: Snapshot) -> Changes:
            changed = replace(self._find(old, request), **attributes)
            return update_profile(old, identity(request), self._services.providers, changed, frozenset(attributes))

        return self._answer(self._find(await self._services.write(change), request))

    async def delete(self, request: Request) -> Response:
        owner = Owner(self._family.profile_kind, request.path_params["id"])
        await self._services.write(lambda old: delete_profile(old, identity(request), owner))
        return Response(status_code=204)

    def _find(self, snapshot: Snapshot, request: Request) -> CatalogProfile:
        key = request.path_params["id"]
        profile = self._family.profiles(snapshot).get(key)
        if profile is None:
            raise not_found(self._family.nil_profile_error_name if key == NIL else self._family.profile_error_name, key)
        return profile

    def _attributes(self, values: Values) -> dict[str, Any]:
        names = {"name": "name", "provider_name": "provider", self._family.metadata: "metadata"}
        return {names[name]: value for name, value in values.items()}

    def _answer(self, profile: Profile, status: int = 200) -> Response:
        return json_response({self._family.profile_root: self._encode(profile)}, status)

    def _encode(self, profile: Profile) -> JsonObject:
        return {
            "id": profile.id,
            "name": profile.name,
            "provider_name": profile.provider,
            self._family.metadata: profile.metadata,
        }
