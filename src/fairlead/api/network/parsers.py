"""Parsers of attribute values, with the error texts of neutron-lib (api/validators).

A parser returns a value of the model, or raises ValueError with the reason; the front end adds the attribute's name.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from itertools import pairwise
from typing import Any, TypeVar

from fairlead import schema
from fairlead.api.network.errors import invalid_input
from fairlead.api.network.limits import (
    ALLOCATION_POOLS,
    DNS_NAMESERVERS,
    FIXED_IPS,
    HOST_ROUTES,
    MAX_DESCRIPTION_LENGTH,
    MAX_NAME_LENGTH,
    MAX_TAG_LENGTH,
    TAGS,
)
from fairlead.changes.addresses import AddressRequest
from fairlead.model.documents.addresses import IPAddress, IPNetwork, parse_address, parse_network
from fairlead.model.documents.network import AllocationPool, Route, sort_routes
from fairlead.schema import NULL, Parser, array_schema, enum_schema, object_schema, reads

MAC = re.compile(r"[0-9a-fA-F]{2}([:-])([0-9a-fA-F]{2}\1){4}[0-9a-fA-F]{2}")
_E = TypeVar("_E", bound=StrEnum)


def string(longest: int = MAX_NAME_LENGTH) -> Parser[str]:
    @reads(schema.text(longest).schema)
    def parse(value: object) -> str:
        if not isinstance(value, str) or "\0" in value:
            raise ValueError(f"'{_shown(value)}' is not a valid string")
        if len(value) > longest:
            raise ValueError(f"'{_shown(value)}' exceeds maximum length of {longest}")
        return value

    return parse


name = string(MAX_NAME_LENGTH)
description = string(MAX_DESCRIPTION_LENGTH)


@reads(schema.boolean.schema)
def boolean(value: object) -> bool:
    try:
        return schema.boolean(value)
    except ValueError:
        raise ValueError(f"'{_shown(value)}' is not a valid boolean value") from None


def integer(least: int, most: int) -> Parser[int]:
    @reads(schema.integer(least, most).schema)
    def parse(value: object) -> int:
        number = schema.as_integer(value)
        if number is None:
            raise ValueError(f"'{_shown(value)}' is not an integer")
        if number < least:
            raise ValueError(f"'{_shown(number)}' is too small - must be at least '{least}'")
        if number > most:
            raise ValueError(f"'{_shown(number)}' is too large - must be no larger than '{most}'")
        return number

    return parse


@reads({"type": "integer", "enum": [4, 6]})
def ip_version(value: object) -> int:
    version = schema.as_integer(value)
    if version not in (4, 6):
        raise ValueError(f"{_shown(value)} is not in [4, 6]")
    return version


@reads(schema.address.schema)
def address(value: object) -> IPAddress:
    """Parse an IP address. IPv4-mapped IPv6 addresses (RFC 4291, 2.5.5.2) are rejected, because no packet carries
    them."""
    found = parse_address(value) if isinstance(value, str) else None
    if found is None or (found.version == 6 and found.ipv4_mapped is not None):
        raise ValueError(f"'{_shown(value)}' is not a valid IP address")
    return found


@reads(schema.cidr.schema)
def cidr(value: object) -> IPNetwork:
    if not isinstance(value, str):
        raise ValueError(f"'{_shown(value)}' is not a valid IP subnet")
    return parse_network(value)


@reads({"type": "string", "pattern": "^[0-9a-fA-F][02468aceACE](:[0-9a-fA-F]{2}){5}$"})
def mac(value: object) -> str:
    """Parse a unicast MAC address; group addresses (IEEE 802, first bit on the wire) and all zeros are rejected."""
    if not isinstance(value, str) or not MAC.fullmatch(value):
        raise ValueError(f"'{_shown(value)}' is not a valid MAC address")
    text = value.lower().replace("-", ":")
    if int(text[:2], 16) & 1 or text == "00:00:00:00:00:00":
        raise ValueError(f"'{value}' is not a valid MAC address")
    return text


@reads(schema.uuid.schema)
def uuid(value: object) -> str:
    try:
        return schema.uuid(value)
    except ValueError:
        raise ValueError(f"'{_shown(value)}' is not a valid UUID") from None


def enum_of(words: type[_E]) -> Parser[_E]:
    @reads(enum_schema(words))
    def parse(value: object) -> _E:
        try:
            return words(str(value))
        except ValueError:
            raise ValueError(f"{_shown(value)} is not in {[word.value for word in words]}") from None

    return parse


def only(*values: object, because: str) -> Parser[object]:
    """Make a parser of an attribute that Neutron has and that accepts only `values` here (without any: null). `because`
    is the reason."""

    @reads({"enum": list(values), "description": because} if values else NULL)
    def parse(value: object) -> object:
        if not any(value == allowed and type(value) is type(allowed) for allowed in values):
            raise ValueError(because)
        return value

    return parse


@reads({**array_schema(string(MAX_TAG_LENGTH).schema, TAGS), "uniqueItems": True})
def tags(value: object) -> tuple[str, ...]:
    """Parse tags; sorted, because they are a set."""
    found = [string(MAX_TAG_LENGTH)(tag) for tag in _list(value, TAGS)]
    if len(set(found)) < len(found):
        twice = sorted({tag for tag in found if found.count(tag) > 1})
        raise ValueError(f"Duplicate items in the list: '{', '.join(twice)}'")
    return tuple(sorted(found))


@reads({**array_schema(address.schema, DNS_NAMESERVERS), "uniqueItems": True})
def nameservers(value: object) -> tuple[IPAddress, ...]:
    found = [address(item) for item in _list(value, DNS_NAMESERVERS)]
    for item in found:
        if found.count(item) > 1:
            raise ValueError(f"Duplicate nameserver '{item}'")
    return tuple(found)


@reads(
    array_schema(object_schema({"start": address.schema, "end": address.schema}, ["start", "end"]), ALLOCATION_POOLS)
)
def allocation_pools(value: object) -> tuple[AllocationPool, ...]:
    items = [_exactly(item, {"start", "end"}) for item in _list(value, ALLOCATION_POOLS)]
    return tuple(AllocationPool(start=address(item["start"]), end=address(item["end"])) for item in items)


_ROUTE = object_schema({"destination": cidr.schema, "nexthop": address.schema}, ["destination", "nexthop"])


def routes(most: int = HOST_ROUTES) -> Parser[tuple[Route, ...]]:
    """Make a parser of routes; sorted, because they are a set."""

    @reads({**array_schema(_ROUTE, most), "uniqueItems": True})
    def parse(value: object) -> tuple[Route, ...]:
        items = [_exactly(item, {"destination", "nexthop"}) for item in _list(value, most)]
        found = [Route(destination=cidr(item["destination"]), nexthop=address(item["nexthop"])) for item in items]
        ordered = sort_routes(found)
        for one, other in pairwise(ordered):
            if one == other:
                raise ValueError(f"Duplicate hostroute '{encode_route(one)}'")
        return ordered

    return parse


def encode_route(route: Route) -> dict[str, str]:
    return {"destination": str(route.destination), "nexthop": str(route.nexthop)}


@reads(
    array_schema(
        {**object_schema({"subnet_id": uuid.schema, "ip_address": address.schema}), "minProperties": 1}, FIXED_IPS
    )
)
def fixed_ips(value: object) -> tuple[AddressRequest, ...]:
    """Parse fixed IPs. Also raises ApiError, where Neutron's error does not name the attribute."""
    if isinstance(value, list) and len(value) > FIXED_IPS:
        raise invalid_input("Exceeded maximum amount of fixed ips per port")
    found = [_fixed_ip(item) for item in _list(value, FIXED_IPS)]
    addresses = [wanted.address for wanted in found if wanted.address is not None]
    for item in addresses:
        if addresses.count(item) > 1:
            raise ValueError(f"Duplicate IP address '{item}'")
    return tuple(found)


def _fixed_ip(item: object) -> AddressRequest:
    if not isinstance(item, dict):
        raise ValueError(f"Invalid data format for fixed IP: '{_shown(item)}'")
    unknown = sorted(str(key) for key in item if key not in ("subnet_id", "ip_address"))
    if unknown:
        raise ValueError(f"Unexpected keys supplied: {', '.join(unknown)}")
    wanted = AddressRequest(
        subnet_id=uuid(item["subnet_id"]) if item.get("subnet_id") is not None else None,
        address=address(item["ip_address"]) if item.get("ip_address") is not None else None,
    )
    if wanted == AddressRequest():
        raise ValueError("IP allocation requires subnet_id or ip_address")
    return wanted


def _list(value: object, most: int) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"'{_shown(value)}' is not a list")
    if len(value) > most:
        raise ValueError(f"there are {len(value)} items, and at most {most} are allowed")
    return value


def _exactly(value: object, keys: set[str]) -> Mapping[str, object]:
    if not isinstance(value, dict) or set(value) != keys:
        raise ValueError(f"Invalid input. '{_shown(value)}' must be a dictionary with keys: {sorted(keys)}")
    return value


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 300 else f"{text[:300]}..."


def canonical_address(text: str) -> str:
    """Return an address of a filter in the canonical form of responses; any other text is returned unchanged."""
    try:
        return str(address(text))
    except ValueError:
        return text
