"""Display names: cut to a length, on one line."""

import pytest

from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.sanitize import shorten
from fairlead.model.registry.changeset import Changes, apply_changes, with_unmanaged
from fairlead.model.registry.display_names import (
    MAX_NAME_LENGTH,
    describe_member,
    describe_owner,
    display_name,
    with_display_names,
)
from fairlead.model.snapshot import Snapshot
from harness.case import parse_model


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("web", "web"),
        ("a\nb\x1b[31m\x7f", "a?b?[31m?"),
        ("right\u202eto left\u2028", "right?to left?"),
        ("x" * 200, "x" * (MAX_NAME_LENGTH - 1) + "…"),
        ("日本", "日本"),
    ],
)
def test_display_names_are_truncated_and_control_characters_replaced(text: str, shown: str):
    assert shorten(text, MAX_NAME_LENGTH) == shown


def test_owner_description_includes_its_name():
    documents, _ = parse_model("network net1 10.0.0.0/24\nweb vip=10.0.0.10 on=net1 tcp:80=a/10.0.0.11:80", {})
    snapshot = apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1)
    web = Owner(Kind.LOAD_BALANCER, "web")
    name = snapshot.load_balancers["web"].name
    assert describe_owner(snapshot, web) == (f"{web} '{name}'" if name else str(web))
    assert display_name(snapshot, Owner(Kind.LOAD_BALANCER, "gone")) == ""
    assert describe_owner(snapshot, Owner(Kind.VIP_NETWORK, "net1")) == "vip-network/net1"
    [member] = snapshot.load_balancers["web"].pools[0].members
    assert next(iter(describe_member(member))) == "10.0.0.11:80"


def test_row_messages_include_names_of_unmanaged_resources():
    text = "network net1 by=neutron 10.0.0.0/24 name=web\nrouter r1 by=neutron net1=10.0.0.1"
    documents, _ = parse_model(text, {})
    snapshot = with_unmanaged(Snapshot(), documents)
    row = snapshot.networks["net1"].row
    assert with_display_names(snapshot, f"Logical_Switch {row} += net1") == "Logical_Switch neutron-net1 'web' += net1"
    assert with_display_names(snapshot, f"Logical_Router {snapshot.routers['r1'].row} += net1").startswith(
        "Logical_Router neutron-r1 += "
    )
    gone = "neutron-gone@00000000-0000-0000-0000-000000000000"
    assert with_display_names(snapshot, f"Logical_Switch {gone} += x") == "Logical_Switch neutron-gone += x"
    assert with_display_names(snapshot, "Load_Balancer a@b") == "Load_Balancer a@b"
