"""Access rules: the number of flows grows with the tenant's rules, never with their product."""

import re
from pathlib import Path

import pytest

from fairlead.compilers.ovn.admission import MAX_DROPPED_PREFIXES
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn_rules import Acl
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.registry.changeset import Changes, apply_changes, with_unmanaged
from harness.case import EMPTY_SNAPSHOT, PRODUCT_DATAPLANES, read_case
from harness.language import parse_model

STORIES = sorted((Path(__file__).parent.parent / "cases").glob("*.txt"))
NEGATED_SET = re.compile(r"!= *[{$]|! *\(?ip[46]")


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_no_rule_negates_an_address_set(path: Path):
    """No rule negates a set: ovn-controller 23.03 would make 32 (IPv6: 128) to the power of its size flows."""
    read_case(path)
    lines = [line for line in path.read_text().splitlines() if line.startswith(("ACL ", "Logical_Router_Policy "))]
    assert [line for line in lines if NEGATED_SET.search(line)] == []


def test_dropped_prefixes_beside_unmanaged_rules_are_bounded():
    """The number of dropped prefixes next to unmanaged rules is bounded; many distant allowed prefixes are refused."""
    prefixes = "+".join(f"{number}.0.0.1/32" for number in range(11, 111))
    model = "network net1 by=neutron 10.0.0.0/24 fd00::/64\nweb vip={vip} on=net1 tcp:80{{allow={allow}}}=-\n"
    few = compiled(model.format(vip="10.0.0.10", allow=prefixes))
    assert max(text.count("/") for text in few) <= MAX_DROPPED_PREFIXES
    many = "+".join(f"{number:x}::1/128" for number in range(0x2001, 0x2001 + 100))
    with pytest.raises(Unsupported, match="allowed_cidrs on unmanaged networks with more than 4096 prefixes"):
        compiled(model.format(vip="fd00::10", allow=many))


def compiled(model: str) -> list[str]:
    """Return the compiled access rules."""
    documents, _ = parse_model(model, {})
    snapshot = with_unmanaged(EMPTY_SNAPSHOT, {owner: each for owner, each in documents.items() if is_unmanaged(each)})
    ours = tuple(each for each in documents.values() if not is_unmanaged(each))
    snapshot = apply_changes(snapshot, Changes(puts=ours), 1)
    rows = PRODUCT_DATAPLANES[0].compile(snapshot, Owner(Kind.LOAD_BALANCER, "web")).values()
    return [str(row) for row in rows if isinstance(row, Acl)]
