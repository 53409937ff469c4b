"""Load balancers and forwards in LXD's form survive a round trip: decoding, then encoding, keeps the document."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.lxd import bodies
from fairlead.api.lxd.balancer_body import MAX_NAME_LENGTH, MAX_TEXT_LENGTH, Document, complete, merge
from fairlead.api.lxd.balancers import LOAD_BALANCERS
from fairlead.api.lxd.forwards import FORWARDS
from fairlead.api.lxd.spec_handlers import SpecKind
from fairlead.model.documents import sizes
from fairlead.model.documents.abilities import Abilities
from fairlead.model.documents.loadbalancer import (
    Algorithm,
    DownMember,
    Locality,
    MonitorType,
    PersistenceType,
    RawMatch,
)
from fairlead.schema import BadField, Parser, Values

ABLE = Abilities()
SORTS = (LOAD_BALANCERS, FORWARDS)


def decode(sort: SpecKind, body: Any) -> Document:
    """Decode the body and return the document that a client would read back."""
    decoded = sort.decode(complete(sort.put(body), sort.empty), "net", ABLE)
    assert decoded.wrong is None
    return sort.encode(decoded.spec)


numbers = st.integers(1, 65535)
ranges = st.one_of(
    numbers.map(str),
    st.tuples(st.integers(1, 65000), st.integers(1, 100)).map(lambda ends: f"{ends[0]}-{ends[0] + ends[1]}"),
)
port_lists = st.lists(ranges, min_size=1, max_size=5).map(",".join)
addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str).filter(lambda text: "ffff:" not in text)
words = st.text(max_size=20).filter(lambda text: "\0" not in text).map(str.strip)
names = st.text(min_size=1, max_size=20).filter(lambda text: "\0" not in text)
values = names.map(str.strip).filter(bool)
user_options = st.dictionaries(names.map("user.{}".format), values, max_size=3)
balancer_options = st.fixed_dictionaries(
    {},
    optional={
        "healthcheck": st.sampled_from(["true", "FALSE", "1", "no"]),
        "healthcheck.interval": st.integers(1, 3600).map(str),
        "healthcheck.failure_count": st.integers(1, sizes.MAX_RETRIES).map(str),
        "fairlead.algorithm": st.sampled_from(["round-robin", "source-ip"]),
        "fairlead.affinity": st.just("source-ip"),
        "fairlead.locality": st.sampled_from(["chassis", "none", "zone"]),
        "fairlead.down-member": st.sampled_from(["keep", "reset"]),
        "fairlead.raw": st.sampled_from(["0:5353482d", "4095:00ff"]),
        "fairlead.weight.web": st.integers(0, 256).map(str),
    },
)
protocols = st.sampled_from(["tcp", "udp"])
balancers = st.fixed_dictionaries(
    {
        "description": words,
        "config": st.builds(lambda a, b: {**a, **b}, user_options, balancer_options),
        "backends": st.lists(
            st.fixed_dictionaries(
                {
                    "name": names,
                    "description": words,
                    "target_port": st.one_of(st.just(""), port_lists),
                    "target_address": addresses,
                }
            ),
            max_size=4,
        ),
        "ports": st.lists(
            st.fixed_dictionaries(
                {
                    "description": words,
                    "protocol": protocols,
                    "listen_port": port_lists,
                    "target_backend": st.lists(names, min_size=1, max_size=3),
                }
            ),
            max_size=4,
        ),
    }
)
forwards = st.fixed_dictionaries(
    {
        "description": words,
        "config": st.builds(
            lambda a, b: {**a, **b}, user_options, st.fixed_dictionaries({}, optional={"target_address": addresses})
        ),
        "ports": st.lists(
            st.fixed_dictionaries(
                {
                    "description": words,
                    "protocol": protocols,
                    "listen_port": port_lists,
                    "target_port": st.one_of(st.just(""), port_lists),
                    "target_address": addresses,
                }
            ),
            max_size=4,
        ),
    }
)


def listed(document: Document) -> Any:
    """Convert tuples to lists, as JSON does."""
    match document:
        case dict():
            return {name: listed(value) for name, value in document.items()}
        case list() | tuple():
            return [listed(value) for value in document]
        case _:
            return document


@given(balancers)
def test_load_balancer_document_round_trips(document: Document):
    assert listed(decode(LOAD_BALANCERS, document)) == document


@given(forwards)
def test_forward_document_round_trips(document: Document):
    assert listed(decode(FORWARDS, document)) == document


def test_texts_are_normalized_as_in_lxd():
    shown = decode(
        LOAD_BALANCERS,
        {
            "description": " hello\n",
            "config": {"user.b": "2", "user.a": "1", "user.c": "", "healthcheck": ""},
            "backends": [{"name": "c1", "target_address": "2001:DB8:0::1", "target_port": " 80 , 81 "}],
            "ports": [{"protocol": " tcp ", "listen_port": "443, 8443,,", "target_backend": ["c1"], "snat": True}],
            "listen_address": "192.0.2.9",
            "location": "none",
        },
    )
    assert listed(shown) == {
        "description": "hello",
        "config": {"user.a": "1", "user.b": "2"},
        "backends": [{"name": "c1", "description": "", "target_port": "80,81", "target_address": "2001:db8::1"}],
        "ports": [{"description": "", "protocol": "tcp", "listen_port": "443,8443", "target_backend": ["c1"]}],
    }


@pytest.mark.parametrize("sort", SORTS)
def test_null_values_are_read_as_empty(sort: SpecKind):
    assert decode(sort, dict.fromkeys(sort.empty)) == decode(sort, {}) == sort.empty
    inner = {"target_address": "192.0.2.1", "protocol": "tcp", "listen_port": "80", "target_backend": ["a"]}
    shown = decode(sort, {"ports": [{"description": None, **inner}]})
    assert shown["ports"][0]["description"] == ""
    assert decode(sort, {"config": {"user.a": None, "user.b": "1"}})["config"] == {"user.b": "1"}


def test_patch_keeps_absent_fields():
    stored = {**LOAD_BALANCERS.empty, "description": "old", "config": {"user.a": "1", "user.b": "2"}}
    for body, after in (
        ({}, stored),
        ({"description": None, "config": None, "ports": None}, stored),
        ({"description": ""}, {**stored, "description": ""}),
        ({"config": {"user.b": "", "user.c": "3"}}, {**stored, "config": {"user.a": "1", "user.c": "3"}}),
    ):
        assert merge(LOAD_BALANCERS.put(body), stored) == after


def test_options_decode_to_health_monitor_and_pool_settings():
    config = {
        "healthcheck": "true",
        "healthcheck.failure_count": "2",
        "fairlead.healthcheck.method": "udp-connect",
        "fairlead.algorithm": "source-ip-port",
        "fairlead.affinity": "source-ip",
        "fairlead.locality": "chassis",
        "fairlead.down-member": "reset",
        "fairlead.weight.a.b": "0",
        "fairlead.raw": "2:5353482d",
    }
    asked = LOAD_BALANCERS.decode({**LOAD_BALANCERS.empty, "config": config}, "net", ABLE).spec
    assert asked.probing is not None
    assert (asked.probing.type, asked.probing.delay, asked.probing.timeout) == (MonitorType.UDP_CONNECT, 10, 30)
    assert (asked.probing.max_retries, asked.probing.max_retries_down) == (3, 2)
    assert asked.algorithm is Algorithm.SOURCE_IP_PORT
    assert asked.persistence is not None
    assert asked.persistence.type is PersistenceType.SOURCE_IP
    assert asked.down_member is DownMember.RESET
    assert asked.raw == RawMatch(location=2, value=b"SSH-")
    assert (asked.locality, asked.weights) == (Locality.CHASSIS, {"a.b": 0})


BACKEND = {"name": "a", "target_address": "192.0.2.1"}


def too_long(sort: SpecKind) -> list[Any]:
    """Return bodies that reach each limit on text and list lengths."""
    return [
        {"description": "x" * MAX_TEXT_LENGTH},
        {"config": {"user.a": "x" * bodies.MAX_VALUE_LENGTH}},
        {"config": {"user.".ljust(bodies.MAX_KEY_LENGTH, "x"): "y"}},
        {"config": {f"user.{number}": "y" for number in range(bodies.MAX_FREE_KEYS)}},
        {"config": {f"healthcheck.{number}": "y" for number in range(bodies.MAX_OTHER_KEYS)}},
        {"ports": [{"protocol": "x" * MAX_NAME_LENGTH}]},
        {"ports": [{"listen_port": "8" * MAX_TEXT_LENGTH}]},
        {"ports": [{}] * sizes.MAX_LISTENERS},
    ]


MORE: tuple[Any, ...] = (
    {"backends": [{"name": "x" * MAX_NAME_LENGTH}]},
    {"backends": [BACKEND] * sizes.MAX_BACKENDS},
    {"ports": [{"target_backend": ["x"] * sizes.MAX_BACKENDS}]},
    {"ports": [{"target_backend": ["x" * MAX_NAME_LENGTH]}]},
)


def one_more(value: Any) -> Any:
    """Return the same body, one step beyond the limit."""
    match value:
        case str():
            return value + value[-1]
        case list() if len(value) > 1:
            return [*value, value[-1]]
        case list():
            return [one_more(value[0])]
        case dict() if len(value) > 1:
            return {**value, next(iter(value)) + ".more": "y"}
        case dict():
            ((name, inner),) = value.items()
            return {name + "x": inner} if name.startswith("user.x") else {name: one_more(inner)}
    raise AssertionError(value)


@pytest.mark.parametrize(
    ("read", "body"),
    [(sort.put, body) for sort in SORTS for body in too_long(sort)] + [(LOAD_BALANCERS.put, body) for body in MORE],
)
def test_body_above_a_limit_is_rejected(read: Parser[Values], body: Any):
    read(body)
    with pytest.raises(BadField):
        read(one_more(body))


@pytest.mark.parametrize("body", [7, [], "x", {"ports": 7}, {"ports": [7]}, {"config": []}, {"config": {"user.a": 1}}])
@pytest.mark.parametrize("sort", SORTS)
def test_body_with_wrong_types_is_rejected(sort: SpecKind, body: Any):
    with pytest.raises(BadField) as bad:
        sort.put(body)
    assert bad.value.name in ("body", "ports", "config")
