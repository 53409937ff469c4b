"""The catalog of an operator: flavors and availability zones that a load balancer may name, and the profiles behind.

None of these has rows: they say what a load balancer may be, and are looked at when one is made.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a provider is told. `metadata` is a JSON object as it was written: that is how it is shown."""

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
    """Its name is its own: no other flavor has it."""

    id: str
    name: str
    profile_id: str
    description: str = ""
    enabled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityZone:
    """Known by its name, which never changes."""

    name: str
    profile_id: str
    description: str = ""
    enabled: bool = True
