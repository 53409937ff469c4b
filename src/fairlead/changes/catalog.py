"""Changes of the operator's catalog: flavors, availability zones and their profiles.

The caller must be an administrator. All rules here raise Refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from fairlead.changes.catalog_selection import check_profile
from fairlead.changes.identity import Identity, check_administers
from fairlead.changes.ids import check_new
from fairlead.changes.refusal import Refusal, Refused
from fairlead.compilers.providers import ProviderNames
from fairlead.model.documents.catalog import AvailabilityZone, AvailabilityZoneProfile, Flavor, FlavorProfile
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Snapshot

CatalogEntry: TypeAlias = Flavor | AvailabilityZone
CatalogProfile: TypeAlias = FlavorProfile | AvailabilityZoneProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class NotInCatalog(Refusal):
    """The flavor, availability zone or profile does not exist."""

    owner: Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class NoProfile(Refusal):
    """The profile of the flavor or availability zone does not exist."""

    owner: Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogNameInUse(Refusal):
    kind: Kind
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntryInUse(Refusal):
    """A load balancer uses the flavor or availability zone, or one of these uses the profile,
    so it cannot be changed."""

    owner: Owner


def create_offer(snapshot: Snapshot, asker: Identity, offer: CatalogEntry) -> Changes:
    """Create a flavor or availability zone. The store rejects a concurrent one with the same name."""
    check_administers(asker.is_admin)
    profile = Owner(_profile_kind(offer), offer.profile_id)
    if profile.id not in snapshot.documents(profile.kind):
        raise Refused(NoProfile(owner=profile))
    owner = owner_of(offer)
    _check_name(snapshot, offer.name, owner.kind)
    check_new(snapshot.documents(owner.kind), owner.id)
    return Changes(puts=(offer,), reads=(profile,))


def update_offer(snapshot: Snapshot, asker: Identity, offer: CatalogEntry) -> Changes:
    check_administers(asker.is_admin)
    owner = owner_of(offer)
    _find(snapshot, owner)
    _check_name(snapshot, offer.name, owner.kind, owner.id)
    return Changes(puts=(offer,))


def delete_offer(snapshot: Snapshot, asker: Identity, owner: Owner) -> Changes:
    """Delete a flavor or availability zone that no load balancer uses."""
    check_administers(asker.is_admin)
    _find(snapshot, owner)
    users = snapshot.flavor_users if owner.kind is Kind.FLAVOR else snapshot.zone_users
    if owner.id in users:
        raise Refused(CatalogEntryInUse(owner=owner))
    return Changes(deletes=(owner,), requires_unchanged_model=True)


def create_profile(snapshot: Snapshot, asker: Identity, providers: ProviderNames, profile: CatalogProfile) -> Changes:
    check_administers(asker.is_admin)
    owner = owner_of(profile)
    check_new(snapshot.documents(owner.kind), owner.id)
    check_profile(providers, profile)
    return Changes(puts=(profile,))


def update_profile(
    snapshot: Snapshot,
    asker: Identity,
    providers: ProviderNames,
    profile: CatalogProfile,
    said: frozenset[str] = frozenset(),
) -> Changes:
    """Update a profile. The name can always be changed, everything else only in an unused profile.

    Changed attributes count, and so do `said`, the fields in the request: Octavia rejects these even if their value is
    unchanged.
    """
    check_administers(asker.is_admin)
    owner = owner_of(profile)
    _find(snapshot, owner)
    old = snapshot.documents(owner.kind)[owner.id]
    if said - {"name"} or replace(old, name=profile.name) != profile:
        _check_unused(snapshot, owner)
    check_profile(providers, profile)
    return Changes(puts=(profile,), requires_unchanged_model=True)


def delete_profile(snapshot: Snapshot, asker: Identity, owner: Owner) -> Changes:
    check_administers(asker.is_admin)
    _check_unused(snapshot, owner)
    _find(snapshot, owner)
    return Changes(deletes=(owner,), requires_unchanged_model=True)


def _profile_kind(offer: CatalogEntry) -> Kind:
    return Kind.FLAVOR_PROFILE if isinstance(offer, Flavor) else Kind.AVAILABILITY_ZONE_PROFILE


def _find(snapshot: Snapshot, owner: Owner) -> None:
    if owner.id not in snapshot.documents(owner.kind):
        raise Refused(NotInCatalog(owner=owner))


def _check_name(snapshot: Snapshot, name: str, kind: Kind, own: str | None = None) -> None:
    """Check that the name is free, except for the key `own`. The scan is acceptable, because catalogs are small."""
    offers: Mapping[str, CatalogEntry] = snapshot.documents(kind)
    if any(other.name == name and key != own for key, other in offers.items()):
        raise Refused(CatalogNameInUse(kind=kind, name=name))


def _check_unused(snapshot: Snapshot, profile: Owner) -> None:
    is_flavors = profile.kind is Kind.FLAVOR_PROFILE
    offers: Mapping[str, CatalogEntry] = snapshot.flavors if is_flavors else snapshot.availability_zones
    if any(offer.profile_id == profile.id for offer in offers.values()):
        raise Refused(CatalogEntryInUse(owner=profile))
