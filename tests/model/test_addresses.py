"""Addresses and networks, without a model."""

import random
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network

import pytest

from fairlead.model.documents.addresses import complement, overlaps, parse_network, remove_nested


@pytest.mark.parametrize("version", [4, 6])
def test_complement_of_networks_has_every_other_address_exactly_once(version: int):
    dice = random.Random(version)
    bits, form = (32, IPv4Network) if version == 4 else (128, IPv6Network)
    for count in range(6):
        kept = [
            form((dice.getrandbits(bits) >> (bits - length) << (bits - length), length))
            for length in (dice.randint(1, bits) for _ in range(count))
        ]
        others = list(complement(kept, version))
        assert others == sorted(others)
        assert list(collapse_addresses(others)) == others  # type: ignore[type-var]
        assert not any(overlaps(one, other) for one in others for other in kept)
        together = collapse_addresses([*others, *kept])  # type: ignore[type-var]
        assert list(together) == [ip_network("0.0.0.0/0" if version == 4 else "::/0")]


def test_networks_contained_in_other_networks_are_dropped():
    texts = ["10.1.0.0/16", "192.0.2.0/24", "10.0.0.0/8", "10.0.0.0/8", "10.255.0.0/16", "11.0.0.0/8"]
    assert [str(each) for each in remove_nested(map(parse_network, texts))] == [
        "10.0.0.0/8",
        "11.0.0.0/8",
        "192.0.2.0/24",
    ]
    assert list(remove_nested([])) == []
