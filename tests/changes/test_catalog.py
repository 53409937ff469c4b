"""The operator's catalog: objects in use cannot change, and names are unique."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fairlead.changes.catalog import (
    CatalogEntryInUse,
    CatalogNameInUse,
    NoProfile,
    NotInCatalog,
    create_offer,
    create_profile,
    delete_offer,
    delete_profile,
    update_offer,
    update_profile,
)
from fairlead.changes.catalog_selection import (
    BadProfile,
    BadVipNetworks,
    Offer,
    OfferDisabled,
    OfferOfOtherProvider,
    UnknownCapability,
    UnknownOffer,
    UnknownProvider,
    check_profile,
    choose,
)
from fairlead.changes.identity import NotAnAdministrator
from fairlead.changes.refusal import Refusal, Refused
from fairlead.compilers.providers import DEFAULT
from fairlead.model.documents.catalog import AvailabilityZoneProfile, Flavor, FlavorProfile
from fairlead.model.documents.owner import Kind, Owner
from harness.changes.catalog import EAST, GOLD, OFFERED, SMALL
from harness.changes.world import ADMIN, OWNER, snapshot_with


def refusal(rule: Callable[..., Any], *arguments: Any, **named: Any) -> Refusal:
    with pytest.raises(Refused) as refused:
        rule(*arguments, **named)
    return refused.value.why


def test_flavor_and_zone_names_are_unique():
    again = Flavor(id="other", name="gold", profile_id="small")
    assert refusal(create_offer, OFFERED, ADMIN, again) == CatalogNameInUse(kind=Kind.FLAVOR, name="gold")
    assert refusal(create_offer, OFFERED, ADMIN, EAST) == CatalogNameInUse(kind=Kind.AVAILABILITY_ZONE, name="east")
    assert update_offer(OFFERED, ADMIN, GOLD).puts == (GOLD,)


def test_profile_in_use_cannot_be_deleted_or_changed_except_its_name():
    profile = Owner(Kind.FLAVOR_PROFILE, "small")
    other = Flavor(id="other", name="other", profile_id="none")
    assert refusal(create_offer, OFFERED, ADMIN, other) == NoProfile(owner=Owner(Kind.FLAVOR_PROFILE, "none"))
    assert refusal(delete_profile, OFFERED, ADMIN, profile) == CatalogEntryInUse(owner=profile)
    assert refusal(update_profile, OFFERED, ADMIN, DEFAULT, SMALL, frozenset({"metadata"})) == CatalogEntryInUse(
        owner=profile
    )
    assert update_profile(OFFERED, ADMIN, DEFAULT, SMALL, frozenset({"name"})).puts == (SMALL,)
    none = Owner(Kind.FLAVOR, "none")
    assert refusal(delete_offer, OFFERED, ADMIN, none) == NotInCatalog(owner=none)
    assert delete_offer(OFFERED, ADMIN, Owner(Kind.FLAVOR, "gold")).deletes == (Owner(Kind.FLAVOR, "gold"),)


def test_profile_change_is_detected_by_value_not_by_reported_fields():
    profile = Owner(Kind.FLAVOR_PROFILE, "small")
    for other in (replace(SMALL, provider="fairlead"), replace(SMALL, metadata=" {}")):
        assert refusal(update_profile, OFFERED, ADMIN, DEFAULT, other) == CatalogEntryInUse(owner=profile)
    named = replace(SMALL, name="little")
    assert update_profile(OFFERED, ADMIN, DEFAULT, named).puts == (named,)


def test_catalog_changes_require_an_administrator():
    profile, offer = Owner(Kind.FLAVOR_PROFILE, "small"), Owner(Kind.FLAVOR, "gold")
    for rule, arguments in (
        (create_offer, (replace(GOLD, id="new", name="new"),)),
        (update_offer, (GOLD,)),
        (delete_offer, (offer,)),
        (create_profile, (DEFAULT, replace(SMALL, id="new"))),
        (update_profile, (DEFAULT, SMALL)),
        (delete_profile, (profile,)),
    ):
        assert refusal(rule, OFFERED, OWNER, *arguments) == NotAnAdministrator()


@pytest.mark.parametrize("metadata", ["", "[]", "NaN", "{", "[" * 100_000])
def test_profile_with_unreadable_metadata_is_refused(metadata: str):
    profile = FlavorProfile(id="p", name="p", provider="ovn", metadata=metadata)
    assert refusal(check_profile, DEFAULT, profile) == BadProfile(profile=profile)


def test_profile_unsupported_by_its_provider_is_refused():
    unknown = FlavorProfile(id="p", name="p", provider="ovn", metadata='{"topology": "ACTIVE_STANDBY"}')
    assert refusal(check_profile, DEFAULT, unknown) == UnknownCapability(profile=unknown, name="topology")
    nobody = FlavorProfile(id="p", name="p", provider="nobody", metadata="{}")
    assert refusal(check_profile, DEFAULT, nobody) == UnknownProvider(name="nobody")
    wrong = AvailabilityZoneProfile(id="p", name="p", provider="ovn", metadata='{"valid_vip_networks": 1}')
    assert refusal(check_profile, DEFAULT, wrong) == BadVipNetworks(profile=wrong, value=1)


def test_new_load_balancer_gets_the_named_flavor_and_zone():
    reads = (Owner(Kind.FLAVOR, "gold"), Owner(Kind.AVAILABILITY_ZONE, "east"))
    assert choose(DEFAULT, OFFERED, None, "gold", "east") == Offer("ovn", "gold", "east", frozenset({"net"}), reads)
    assert choose(DEFAULT, OFFERED, None, None, None).provider == DEFAULT.default


def test_unknown_mismatched_or_disabled_flavor_is_refused():
    assert refusal(choose, DEFAULT, OFFERED, None, "x", None) == UnknownOffer(kind=Kind.FLAVOR, key="x")
    assert refusal(choose, DEFAULT, OFFERED, "fairlead", "gold", None) == OfferOfOtherProvider(
        kind=Kind.FLAVOR, key="gold", provider="fairlead"
    )
    off = snapshot_with(SMALL, Flavor(id="gold", name="gold", profile_id="small", enabled=False))
    assert refusal(choose, DEFAULT, off, None, "gold", None) == OfferDisabled(kind=Kind.FLAVOR, key="gold")
