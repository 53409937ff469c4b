"""Addresses and networks, without a model."""

import random
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network

import pytest

from fairlead.model.documents.addresses import all_but, outermost, overlaps, parse_network


@pytest.mark.parametrize("version", [4, 6])
def test_all_but_some_is_every_address_once(version: int):
    dice = random.Random(version)
    bits, form = (32, IPv4Network) if version == 4 else (128, IPv6Network)
    for count in range(6):
        kept = [
            form((dice.getrandbits(bits) >> (bits - length) << (bits - length), length))
            for length in (dice.randint(1, bits) for _ in range(count))
        ]
        others = list(all_but(kept, version))
        assert others == sorted(others)
        assert list(collapse_addresses(others)) == others  # type: ignore[type-var]
        assert not any(overlaps(one, other) for one in others for other in kept)
        together = collapse_addresses([*others, *kept])  # type: ignore[type-var]
        assert list(together) == [ip_network("0.0.0.0/0" if version == 4 else "::/0")]


def test_networks_within_others_say_nothing_more():
    texts = ["10.1.0.0/16", "192.0.2.0/24", "10.0.0.0/8", "10.0.0.0/8", "10.255.0.0/16", "11.0.0.0/8"]
    assert [str(each) for each in outermost(map(parse_network, texts))] == ["10.0.0.0/8", "11.0.0.0/8", "192.0.2.0/24"]
    assert list(outermost([])) == []
