"""Octavia's network driver for a deployment with Fairlead's network API in place of Neutron.

Octavia's stock driver requires the extension allowed-address-pairs, which amphorae need to share a VIP. There are no
amphorae here, Fairlead's ports do not have that attribute, and Octavia's work for a provider (reading subnets, creating
and deleting the VIP's port) does not need it.
"""

from octavia.network.drivers.neutron.allowed_address_pairs import AllowedAddressPairsDriver


class FairleadNetworkDriver(AllowedAddressPairsDriver):  # type: ignore[misc]
    """Entry point `fairlead_network_driver` of octavia.network.drivers."""

    def _check_aap_loaded(self) -> None:
        """Skip the check."""
