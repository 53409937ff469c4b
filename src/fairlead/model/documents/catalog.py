"""Catalog of the operator: flavors, availability zones and their profiles.

None of these has rows. They constrain load balancers and are read when a load balancer is created.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Parameters for a provider. `metadata` is a JSON object, kept and shown as it was written."""

    id: str
    name: str
    provider: str
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorProfile(Profile):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityZoneProfile(Profile):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """Flavor of a load balancer. Its name is unique."""

    id: str
    name: str
    profile_id: str
    description: str = ""
    enabled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityZone:
    """Availability zone, identified by its name, which never changes."""

    name: str
    profile_id: str
    description: str = ""
    enabled: bool = True
