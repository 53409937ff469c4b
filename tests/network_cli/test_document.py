"""YAML and JSON of a load balancer: as `incus show` prints them, and as its callers write them."""

import pytest

from fairlead.network_cli.document import (
    SHOWN_ONLY,
    Backend,
    Description,
    LoadBalancer,
    Port,
    of_wire,
    parse_yaml,
    render_yaml,
    to_wire,
)
from fairlead.network_cli.failure import Failure

SHOP = LoadBalancer(
    description="the shop",
    config={"user.b": "yes", "user.a": "b"},
    backends=(Backend(name="c1", target_port="8080", target_address="10.1.0.2"), Backend(name="c2")),
    ports=(Port(protocol="tcp", listen_port="80", target_backend=("c1", "c2")),),
    listen_address="192.0.2.9",
)
SHOWN = """description: the shop
config:
  user.a: b
  user.b: "yes"
backends:
- name: c1
  description: ""
  target_port: "8080"
  target_address: 10.1.0.2
- name: c2
  description: ""
  target_port: ""
  target_address: ""
ports:
- description: ""
  protocol: tcp
  listen_port: "80"
  target_backend:
  - c1
  - c2
listen_address: 192.0.2.9
location: ""
"""


def test_shown_as_incus_shows_it():
    assert render_yaml(to_wire(SHOP)) == SHOWN


def test_what_is_shown_can_be_edited():
    edited = parse_yaml(SHOWN, SHOWN_ONLY)
    assert (edited.config, edited.backends, edited.ports) == (SHOP.config, SHOP.backends, SHOP.ports)


def test_an_empty_one():
    shown = render_yaml(to_wire(LoadBalancer(listen_address="2001:db8::1")))
    assert shown == (
        'description: ""\nconfig: {}\nbackends: []\nports: []\nlisten_address: 2001:db8::1\nlocation: ""\n'
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", '""'),
        ("plain", "plain"),
        ("yes", '"yes"'),
        ("N", '"N"'),
        ("10", '"10"'),
        ("1.0", '"1.0"'),
        ("1e3", '"1e3"'),
        ("0x1f", '"0x1f"'),
        ("010", '"010"'),
        ("12:30:45", '"12:30:45"'),
        ("1_000", '"1_000"'),
        (".inf", '".inf"'),
        ("null", '"null"'),
        ("~", '"~"'),
        ("2020-01-01", '"2020-01-01"'),
        ("- a", "'- a'"),
        ("a:b", "a:b"),
        ("a #b", "'a #b'"),
        ("it's", "it's"),
        ("é: ü", "'é: ü'"),
        ("{a}", "'{a}'"),
        ("a\tb", '"a\\tb"'),
        ("a\nb", "|-\n  a\n  b"),
        ("\ntwo\nlines ", '"\\ntwo\\nlines "'),
    ],
)
def test_texts_are_quoted_as_incus_quotes_them(text: str, shown: str):
    assert render_yaml({"a": text}) == f"a: {shown}\n"
    assert parse_yaml(f"description: {shown}\n").description == text


def test_keys_are_sorted_as_people_count():
    keys = ["healthcheck", "healthcheck.interval", "user.1", "user.2", "user.10", "user.a", "user_b"]
    assert list(to_wire(Description(config=dict.fromkeys(reversed(keys), "")))["config"]) == [*keys[:2], *keys[2:]]


@pytest.mark.parametrize("text", ["", "# only a remark\n", "null\n", "{}\n", "config:\nbackends:\nports: null\n"])
def test_nothing_is_an_empty_description(text: str):
    assert parse_yaml(text) == Description()


def test_scalars_are_what_their_writer_sees():
    asked = parse_yaml("config: {user.a: 1, user.b: yes, user.c: null}\nports: [{listen_port: 080}]\n")
    assert asked == Description(config={"user.a": "1", "user.b": "yes", "user.c": ""}, ports=(Port(listen_port="080"),))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("descriptions: x", "line 1: field descriptions not found"),
        ("listen_address: 192.0.2.9", "line 1: field listen_address not found"),
        ("backends:\n- name: a\n  port: 80", "line 3: field port not found"),
        ("description: [a]", "line 1: cannot unmarshal !!seq into string"),
        ("config: 1", "line 1: cannot unmarshal !!int into config"),
        ("ports: {}", "line 1: cannot unmarshal !!map into a list"),
        ("- a", "line 1: cannot unmarshal !!seq into a load balancer"),
        ("config:\n  a: 1\n  a: 2", "line 3: key 'a' is already set in config"),
    ],
)
def test_what_is_not_known_is_refused_by_line(text: str, complaint: str):
    with pytest.raises(Failure) as refused:
        parse_yaml(text)
    assert str(refused.value) == f"yaml: unmarshal errors:\n  {complaint}"


def test_every_wrong_line_is_told():
    with pytest.raises(Failure, match=r"line 1: field a not found\n  line 2: field b not found"):
        parse_yaml("a: 1\nb: 2\n")


def test_what_is_no_yaml_is_told_by_line():
    with pytest.raises(Failure, match="yaml: line 2: "):
        parse_yaml("description: a\n[}")


def test_other_servers_may_say_more_and_null():
    said = {"description": None, "config": None, "backends": None, "ports": [{"target_pool": "p"}], "etag": 3}
    assert of_wire(said) == LoadBalancer(ports=(Port(),))
    with pytest.raises(Failure, match="cannot be read"):
        of_wire({"backends": 3})
