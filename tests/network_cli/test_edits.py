"""What each command makes of a load balancer, and what it refuses, in Incus's words."""

import pytest

from fairlead.network_cli import edits
from fairlead.network_cli.document import Backend, Description, LoadBalancer, Port
from fairlead.network_cli.failure import Failure

C1, C2 = Backend(name="c1", target_address="10.0.0.1"), Backend(name="c2", target_address="10.0.0.2")
TCP, TCP_443 = (Port(protocol="tcp", listen_port=port, target_backend=("c1",)) for port in ("80", "443"))
UDP = Port(protocol="udp", listen_port="53", target_backend=("c1", "c2"))
FULL = Description(description="d", config={"user.a": "b"}, backends=(C1, C2), ports=(TCP, TCP_443, UDP))


def test_backends_keep_their_order():
    added = edits.add_backend(Description(backends=(C2,)), C1)
    assert added.backends == (C2, C1)
    assert edits.remove_backend(added, "c2").backends == (C1,)
    with pytest.raises(Failure, match=r"^No matching backend found$"):
        edits.remove_backend(added, "c3")


def test_ports_are_found_by_what_is_said_of_them():
    assert edits.add_port(Description(), UDP).ports == (UDP,)
    assert edits.remove_ports(FULL, "udp", None, force=False).ports == (TCP, TCP_443)
    assert edits.remove_ports(FULL, "tcp", "80", force=False).ports == (TCP_443, UDP)
    assert edits.remove_ports(FULL, "tcp", None, force=True).ports == (UDP,)
    assert edits.remove_ports(FULL, None, None, force=True).ports == ()
    with pytest.raises(Failure, match=r"^No matching port\(s\) found$"):
        edits.remove_ports(FULL, "udp", "80", force=True)
    with pytest.raises(Failure, match=r"^Multiple ports match. Use --force to remove them all$"):
        edits.remove_ports(FULL, "tcp", None, force=False)


def test_config_and_properties():
    assert edits.set_config(FULL, {"user.a": "", "user.c": "d"}).config == {"user.a": "", "user.c": "d"}
    assert edits.set_properties(FULL, {"description": "new"}).description == "new"
    assert edits.unset_property(FULL, "description").description == ""
    for change in (lambda: edits.set_properties(FULL, {"ports": "x"}), lambda: edits.unset_property(FULL, "ports")):
        with pytest.raises(Failure, match='The property with tag "ports" does not exist'):
            change()


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("description", "d"),
        ("config", "map[user.a:b]"),
        ("backends", "[{c1   10.0.0.1} {c2   10.0.0.2}]"),
        ("ports", "[{ tcp 80 [c1]} { tcp 443 [c1]} { udp 53 [c1 c2]}]"),
    ],
)
def test_properties_are_printed_as_incus_prints_them(name: str, printed: str):
    assert edits.property_of(FULL, "net1", name) == printed


def test_a_property_that_there_is_not():
    with pytest.raises(Failure, match=r'^The property "nope" does not exist on the load balancer "net1": The property'):
        edits.property_of(FULL, "net1", "nope")


def test_pairs():
    assert edits.parse_new_pairs(["user.a=b=c", "user.d="]) == {"user.a": "b=c", "user.d": ""}
    with pytest.raises(Failure, match=r"^Bad key/value pair: user.a$"):
        edits.parse_new_pairs(["user.a"])
    assert edits.parse_pairs(["user.a=b", "user.c=d"]) == {"user.a": "b", "user.c": "d"}
    assert edits.parse_pairs(["user.a", "b=c"]) == {"user.a": "b=c"}
    with pytest.raises(Failure, match=r"^Invalid key=value configuration: user.a$"):
        edits.parse_pairs(["user.a"])


def test_what_can_be_changed_of_it():
    shown = LoadBalancer(description="d", backends=(C1,), listen_address="192.0.2.9", location="here")
    assert edits.description_of(shown) == Description(description="d", backends=(C1,))
