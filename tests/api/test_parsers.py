"""Parsers of JSON values: for any input they return a model value or an error text, and raise nothing else.

A value that the OpenAPI document allows is accepted.
"""

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
from hypothesis import given
from hypothesis import strategies as st

from fairlead import schema
from fairlead.api.http.front_end import ApiError
from fairlead.api.network import parsers
from fairlead.api.network.handlers import read_tags
from fairlead.api.network.networks import NETWORKS
from fairlead.api.network.ports import PORTS
from fairlead.api.network.routers import ROUTERS, read_removed, read_routes, read_target
from fairlead.api.network.subnets import SUBNETS
from fairlead.api.octavia import specs
from fairlead.schema import Parser
from harness.values import ADDRESSES, FEW_EXAMPLES, HOSTS, JSON, NEARLY_VALID, SCALARS


def every_parser() -> Iterator[tuple[str, Parser[Any]]]:
    for collection in (NETWORKS, SUBNETS, PORTS, ROUTERS):
        for name, attribute in collection.attributes.items():
            if attribute.post or attribute.put:
                yield f"{collection.singular}.{name}", attribute.parse
    for resource in ("LOAD_BALANCER", "LISTENER", "POOL", "MEMBER", "HEALTH_MONITOR", "L7_POLICY", "L7_RULE"):
        for name, field in getattr(specs, f"{resource}_POST").items():
            yield f"{resource.lower()}.{name}", field.parse
    for name, field in specs.SESSION_PERSISTENCE.items():
        yield f"session_persistence.{name}", field.parse
    yield from {"target": read_target, "removed": read_removed, "routes": read_routes, "tags": read_tags}.items()


PARSERS = dict(every_parser())
KEYS = st.sampled_from(
    ["destination", "nexthop", "start", "end", "subnet_id", "ip_address", "name", "protocol", "protocol_port",
     "address", "members", "default_pool", "type", "cookie_name", "lb_algorithm", "tags", "port_id", "router",
     "routes", "weight", "healthmonitor", "rules", "action", "value", "compare_type", "redirect_pool"]
)  # fmt: skip
NESTED = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)


SCHEMAS = {
    name: jsonschema_rs.Draft202012Validator(parser.schema, validate_formats=True) for name, parser in PARSERS.items()
}


@FEW_EXAMPLES
@given(value=st.one_of(SCALARS, NEARLY_VALID, JSON, NESTED).filter(lambda value: value is not None))
def test_every_parser_returns_a_value_or_an_error_text(value: object):
    """Every parser returns a value or an error text, for any JSON value but null, which is never passed."""
    for name, parser in PARSERS.items():
        refusal = refused(parser, value)
        if refusal is not None and SCHEMAS[name].is_valid(value):
            assert _does_not_fit_together(refusal), f"{name}: the document allows {value!r}: {refusal}"


def refused(parser: Parser[Any], value: object) -> str | None:
    try:
        parser(value)
    except schema.UnknownField as error:
        return f"unknown: {error.names}"
    except (ValueError, ApiError) as error:
        sentence = error.message if isinstance(error, ApiError) else str(error)
        assert sentence
        return sentence
    return None


def _does_not_fit_together(sentence: str) -> bool:
    """Return whether the error is beyond the schema: two spellings of one value, or a format that JSON Schema lacks."""
    return "Duplicate" in sentence or "is not a valid IP" in sentence or "should be IPv4 or IPv6" in sentence


@FEW_EXAMPLES
@given(
    least=st.integers(-10, 10), size=st.integers(0, 70_000), value=st.one_of(st.integers(), st.integers(-20, 70_010))
)
def test_integer_parser_accepts_exactly_its_range(least: int, size: int, value: int):
    for make in (schema.integer, parsers.integer):
        parser, inside = make(least, least + size), least <= value <= least + size
        for written in (value, str(value)):
            if inside:
                assert parser(written) == value
            else:
                assert refused(parser, written)


@FEW_EXAMPLES
@given(text=ADDRESSES)
def test_ip_address_parser_keeps_canonical_text_and_ignores_case(text: str):
    assert str(schema.address(text)) == text
    assert schema.address(text.upper()) == schema.address(text)


@FEW_EXAMPLES
@given(address=HOSTS, bits=st.integers(-1, 130))
def test_cidr_parser_accepts_exactly_valid_prefix_lengths(address: Any, bits: int):
    if 0 <= bits <= address.max_prefixlen:
        found = schema.cidr(f"{address}/{bits}")
        assert (address in found, found.prefixlen) == (True, bits)
    else:
        assert f"{address}/{bits}" in (refused(schema.cidr, f"{address}/{bits}") or "")


@FEW_EXAMPLES
@given(words=st.lists(st.text(max_size=300), max_size=120))
def test_tags_parser_accepts_only_short_unique_texts(words: list[str]):
    good = len(words) <= 100 and len(set(words)) == len(words) and all(len(w) <= 255 and "\0" not in w for w in words)
    assert (refused(parsers.tags, words) is None) == good
    if good:
        assert set(parsers.tags(words)) == set(words)
