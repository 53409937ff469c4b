"""Name lookup: LXD's keys find networks that any API front end created, and never match two."""

import pytest

from fairlead.api.http.front_end import ApiError
from fairlead.api.lxd.lookup import find_network, find_uplink, name_fault, name_of, networks_of, project_of
from fairlead.model.documents.network import Network
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from harness.api import NOON


def network(identity: str, name: str, project: str = "p", *, external: bool = False) -> Network:
    return Network(id=identity, name=name, project_id=project, external=external, mtu=1442, created_at=NOON)


ONE = network("1", "net")
FIRST, SECOND = network("2", "twin"), network("3", "twin")
ODD = network("4", "my net")
NAMELESS = network("5", "")
MISLEADING = network("6", "1")
THERE = network("7", "net", "q")
UPLINK = network("8", "UPLINK", "operators", external=True)
SHADOW = network("9", "both", "default")
SHADOWED = network("10", "both", external=True)
ALL = (ONE, FIRST, SECOND, ODD, NAMELESS, MISLEADING, THERE, UPLINK, SHADOW, SHADOWED)
SNAPSHOT = apply_changes(Snapshot(), Changes(puts=ALL), 1)


@pytest.mark.parametrize("each", ALL, ids=lambda each: each.id)
def test_network_is_found_by_name_and_by_id(each: Network):
    assert find_network(SNAPSHOT, project_of(each), name_of(SNAPSHOT, each)) is each
    assert find_network(SNAPSHOT, project_of(each), each.id) is each


def test_network_key_is_its_name_if_valid_and_unique():
    assert {each.id: name_of(SNAPSHOT, each) for each in ALL} == {
        **{each.id: each.id for each in (FIRST, SECOND, ODD, NAMELESS, MISLEADING, SHADOW, SHADOWED)},
        "1": "net",
        "7": "net",
        "8": "UPLINK",
    }


@pytest.mark.parametrize(
    ("project", "name"),
    [("p", "none"), ("p", "twin"), ("p", "my net"), ("p", ""), ("q", "1"), ("p", "UPLINK"), ("p", "8")],
)
def test_missing_or_ambiguous_network_name_returns_404(project: str, name: str):
    with pytest.raises(ApiError) as refused:
        find_network(SNAPSHOT, project, name)
    assert (refused.value.status, refused.value.message) == (404, "Network not found")


def test_uplinks_are_listed_in_the_default_project_and_found_from_all_projects():
    assert {each.id for each in networks_of(SNAPSHOT, "default")} == {"8", "9", "10"}
    assert {each.id for each in networks_of(SNAPSHOT, "p")} == {"1", "2", "3", "4", "5", "6"}
    assert find_uplink(SNAPSHOT, "UPLINK") is UPLINK
    assert find_uplink(SNAPSHOT, "8") is UPLINK
    assert find_uplink(SNAPSHOT, "both") is SHADOWED
    assert find_uplink(SNAPSHOT, "net") is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ovn0", None),
        ("a.b_c-d", None),
        ("x" * 64, None),
        ("x" * 65, "Maximum name length is 64 characters"),
        ("a b", "Name cannot contain white space"),
        ("a/b", 'Name contains invalid character "/"'),
        ('a"b', 'Name contains invalid character "\\""'),
        ("-a", "Names must start and end with an alphanumeric character"),
        ("", "Names must start and end with an alphanumeric character"),
        ("a:b", 'Cannot contain ":"'),
    ],
)
def test_invalid_name_returns_the_error_text_of_lxd(name: str, said: str | None):
    assert name_fault(name) == said
