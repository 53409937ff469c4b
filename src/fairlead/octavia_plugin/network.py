"""Octavia's network driver where Octavia's Neutron is Fairlead's own network door.

Octavia's stock driver does not start without the extension allowed-address-pairs, by which amphorae share a VIP. There
are no amphorae here, Fairlead's ports have no such attribute, and what Octavia does for any provider (look at subnets,
make the VIP's port and delete it) needs none.
"""

from octavia.network.drivers.neutron.allowed_address_pairs import AllowedAddressPairsDriver


class FairleadNetworkDriver(AllowedAddressPairsDriver):  # type: ignore[misc]
    """Entry point `fairlead_network_driver` of octavia.network.drivers."""

    def _check_aap_loaded(self) -> None:
        """Nothing is missing."""
