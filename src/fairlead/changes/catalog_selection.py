"""Offers of the operator for new load balancers: providers, flavors and availability zones."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from fairlead.changes.refusal import Refusal, Refused
from fairlead.compilers.providers import VIP_NETWORKS, Provider, ProviderNames
from fairlead.model.documents.catalog import AvailabilityZone, Flavor, FlavorProfile, Profile
from fairlead.model.documents.network import Network
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot


class Offer(NamedTuple):
    """Provider, flavor and availability zone of a new load balancer."""

    provider: str
    flavor_id: str | None
    availability_zone: str | None
    vip_networks: frozenset[str] | None
    """Networks allowed for the VIP; None for all."""
    reads: tuple[Owner, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownProvider(Refusal):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownOffer(Refusal):
    """The flavor or availability zone does not exist."""

    kind: Kind
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferDisabled(Refusal):
    kind: Kind
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferOfOtherProvider(Refusal):
    """The flavor or availability zone belongs to another provider than the requested one."""

    kind: Kind
    key: str
    provider: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkNotOffered(Refusal):
    """The availability zone does not allow VIPs on this network."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VipNotAnnounced(Refusal):
    """The provider's VIPs are announced by hosts, but the network is not an announced one."""

    network_id: str
    provider: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VipNeedsAnnouncing(Refusal):
    """The network is for announced VIPs, but the provider's VIPs are not announced."""

    network_id: str
    provider: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BadProfile(Refusal):
    """The profile's metadata is not a JSON object."""

    profile: Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class BadVipNetworks(Refusal):
    """The profile's VIP networks are not a list of ids."""

    profile: Profile
    value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownCapability(Refusal):
    """The provider does not support this key of a profile."""

    profile: Profile
    name: str


def choose(
    providers: ProviderNames, snapshot: Snapshot, provider: str | None, flavor_id: str | None, zone: str | None
) -> Offer:
    """Return the offer: the provider is that of the flavor, the requested one, or the default. Raises Refused."""
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
    """Check that the VIP may be on the network. Raises Refused."""
    if offer.vip_networks is not None and network_id not in offer.vip_networks:
        raise Refused(NetworkNotOffered(network_id=network_id))


def check_announced(providers: ProviderNames, name: str, network: Network) -> None:
    """Check that VIPs of this provider may be on the network. Raises Refused."""
    announces = find_provider(providers, name).announces
    if announces and not network.announced:
        raise Refused(VipNotAnnounced(network_id=network.id, provider=name))
    if network.announced and not announces:
        raise Refused(VipNeedsAnnouncing(network_id=network.id, provider=name))


def find_provider(providers: ProviderNames, name: str) -> Provider:
    """Return the provider with this name. Raises Refused."""
    if name not in providers:
        raise Refused(UnknownProvider(name=name))
    return providers[name]


def check_profile(providers: ProviderNames, profile: Profile) -> frozenset[str] | None:
    """Check a profile and return its VIP networks; None if it has none. Raises Refused if the metadata is not a JSON
    object, the provider does not exist, or the provider does not support a key."""
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
    """Reject NaN and Infinity, which are not valid JSON (RFC 8259, section 6)."""
    raise ValueError(name)


def _profile_of(
    providers: ProviderNames, snapshot: Snapshot, offer: Flavor | AvailabilityZone | None, kind: Kind, key: str
) -> tuple[Profile, frozenset[str] | None]:
    """Return the profile of an offer and its VIP networks. The profile is checked again, because the provider may no
    longer support all of its keys."""
    if offer is None:
        raise Refused(UnknownOffer(kind=kind, key=key))
    if not offer.enabled:
        raise Refused(OfferDisabled(kind=kind, key=key))
    is_flavor = isinstance(offer, Flavor)
    profiles: Mapping[str, Profile] = snapshot.flavor_profiles if is_flavor else snapshot.availability_zone_profiles
    profile = profiles[offer.profile_id]
    return profile, check_profile(providers, profile)
