"""Neighbour entries that machines of a network must learn: for a Local IP and for its ordinary port."""

from ipaddress import ip_address

from fairlead.model.queries.neighbours import Neighbour

VIRTUAL_MAC, OWNER_MAC = "0e:00:00:00:00:01", "02:00:00:00:00:c8"


def local_ip(address: str = "10.0.0.200", unheard: tuple[str, ...] = ()) -> Neighbour:
    return Neighbour(address=ip_address(address), mac=VIRTUAL_MAC, lasting=True, unheard=unheard)


def ordinary(address: str = "10.0.0.200", unheard: tuple[str, ...] = ()) -> Neighbour:
    return Neighbour(address=ip_address(address), mac=OWNER_MAC, lasting=False, unheard=unheard)
