"""What an operator offers and a new load balancer may name: providers, flavors and availability zones."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from fairlead.changes.refusal import Refusal, Refused
from fairlead.compilers.providers import VIP_NETWORKS, Names, Provider
from fairlead.model.catalog import AvailabilityZone, Flavor, FlavorProfile, Profile
from fairlead.model.network import Network
from fairlead.model.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot


class Offer(NamedTuple):
    """What a new load balancer gets by what it names."""

    provider: str
    flavor_id: str | None
    availability_zone: str | None
    vip_networks: frozenset[str] | None
    """Where its VIP may be; None is anywhere."""
    reads: tuple[Owner, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownProvider(Refusal):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownOffer(Refusal):
    """A flavor or an availability zone that is not there."""

    kind: Kind
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferDisabled(Refusal):
    kind: Kind
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferOfOtherProvider(Refusal):
    """The load balancer is to be another provider's than the flavor or the availability zone is."""

    kind: Kind
    key: str
    provider: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkNotOffered(Refusal):
    """In this availability zone no VIP may be there."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VipNotAnnounced(Refusal):
    """Hosts announce the VIPs of this provider, and the network is not one that an operator has declared for that."""

    network_id: str
    provider: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VipNeedsAnnouncing(Refusal):
    """The network is for VIPs that hosts announce, which this provider's are not."""

    network_id: str
    provider: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BadProfile(Refusal):
    """What a profile says is no JSON object."""

    profile: Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class BadVipNetworks(Refusal):
    """They are not a list of ids."""

    profile: Profile
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownCapability(Refusal):
    """The provider has no such key of a profile."""

    profile: Profile
    name: str


def choose(
    providers: Names, snapshot: Snapshot, provider: str | None, flavor_id: str | None, zone: str | None
) -> Offer:
    """The flavor's provider, the one that is named, or the default one. Raises Refused."""
    reads = []
    vip_networks: frozenset[str] | None = None
    if flavor_id is not None:
        profile, _ = _profile_of(providers, snapshot, snapshot.flavors.get(flavor_id), Kind.FLAVOR, flavor_id)
        reads.append(Owner(Kind.FLAVOR, flavor_id))
        if provider not in (None, profile.provider):
            raise Refused(OfferOfOtherProvider(kind=Kind.FLAVOR, key=flavor_id, provider=str(provider)))
        provider = profile.provider
    chosen = provider or providers.default
    find_provider(providers, chosen)
    if zone is not None:
        offer = snapshot.availability_zones.get(zone)
        profile, vip_networks = _profile_of(providers, snapshot, offer, Kind.AVAILABILITY_ZONE, zone)
        reads.append(Owner(Kind.AVAILABILITY_ZONE, zone))
        if not providers.share_zones(profile.provider, chosen):
            raise Refused(OfferOfOtherProvider(kind=Kind.AVAILABILITY_ZONE, key=zone, provider=chosen))
    return Offer(chosen, flavor_id, zone, vip_networks, tuple(reads))


def check_network(offer: Offer, network_id: str) -> None:
    """Raises Refused where no VIP may be."""
    if offer.vip_networks is not None and network_id not in offer.vip_networks:
        raise Refused(NetworkNotOffered(network_id=network_id))


def check_announced(providers: Names, name: str, network: Network) -> None:
    """Whether VIPs of the provider of this name may be on the network. Raises Refused."""
    announces = find_provider(providers, name).announces
    if announces and not network.announced:
        raise Refused(VipNotAnnounced(network_id=network.id, provider=name))
    if network.announced and not announces:
        raise Refused(VipNeedsAnnouncing(network_id=network.id, provider=name))


def find_provider(providers: Names, name: str) -> Provider:
    """Raises Refused."""
    if name not in providers:
        raise Refused(UnknownProvider(name=name))
    return providers[name]


def check_profile(providers: Names, profile: Profile) -> frozenset[str] | None:
    """The networks on which VIPs may be, if it says any. Raises Refused for what is no JSON object, no provider, or
    none of the provider's keys."""
    try:
        metadata = json.loads(profile.metadata, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise Refused(BadProfile(profile=profile)) from None
    if not isinstance(metadata, dict):
        raise Refused(BadProfile(profile=profile))
    provider = find_provider(providers, profile.provider)
    is_flavor = isinstance(profile, FlavorProfile)
    known = provider.flavor_capabilities if is_flavor else provider.availability_zone_capabilities
    for name in sorted(metadata.keys() - known.keys()):
        raise Refused(UnknownCapability(profile=profile, name=name))
    if VIP_NETWORKS not in metadata:
        return None
    networks = metadata[VIP_NETWORKS]
    if not isinstance(networks, list) or not all(isinstance(each, str) for each in networks):
        raise Refused(BadVipNetworks(profile=profile, value=networks))
    return frozenset(networks)


def _refuse_constant(name: str) -> NoReturn:
    """NaN and Infinity are no JSON (RFC 8259, section 6)."""
    raise ValueError(name)


def _profile_of(
    providers: Names, snapshot: Snapshot, offer: Flavor | AvailabilityZone | None, kind: Kind, key: str
) -> tuple[Profile, frozenset[str] | None]:
    """The profile behind an offer, and the networks that it says: its provider may have known more keys before."""
    if offer is None:
        raise Refused(UnknownOffer(kind=kind, key=key))
    if not offer.enabled:
        raise Refused(OfferDisabled(kind=kind, key=key))
    is_flavor = isinstance(offer, Flavor)
    profiles: Mapping[str, Profile] = snapshot.flavor_profiles if is_flavor else snapshot.availability_zone_profiles
    profile = profiles[offer.profile_id]
    return profile, check_profile(providers, profile)
