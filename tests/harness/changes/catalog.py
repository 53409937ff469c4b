"""Flavors and availability zones of an operator."""

from fairlead.model.documents.catalog import AvailabilityZone, AvailabilityZoneProfile, Flavor, FlavorProfile
from harness.changes.world import snapshot_with

SMALL = FlavorProfile(id="small", name="small", provider="ovn", metadata="{}")
NORTH = AvailabilityZoneProfile(id="north", name="north", provider="ovn", metadata='{"valid_vip_networks": ["net"]}')
GOLD = Flavor(id="gold", name="gold", profile_id="small")
EAST = AvailabilityZone(name="east", profile_id="north")
OFFERED = snapshot_with(SMALL, NORTH, GOLD, EAST)
