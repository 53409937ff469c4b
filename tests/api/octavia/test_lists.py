"""What a query string may say: sorting, pages and fields, with the words of octavia.api.common.pagination."""

import pytest

from harness.front_ends.octavia_world import NOBODY, SUBNET, Door

NAMES = ("b", "a", "c")


@pytest.fixture
def three(ovn: Door) -> Door:
    for name in NAMES:
        made = ovn.make("lb", vip_subnet_id=SUBNET, name=name, description="x" if name == "c" else "y")
        ovn.ids[name] = made["id"]
    return ovn


@pytest.mark.parametrize(
    ("query", "order"),
    [
        ("sort=name", "abc"),
        ("sort=name:DESC", "cba"),
        ("sort=description,name:desc", "cba"),
        ("sort_key=name&sort_dir=DESC", "cba"),
        ("sort_key=description,name&sort_dir=desc,asc", "abc"),
        ("sort_key=description&sort_key=name&sort_dir=asc&sort_dir=desc", "cba"),
        ("sort_key=name,id&sort_dir=desc", "cba"),
        ("sort_dir=desc", "bac"),
        ("limit=-1", "bac"),
        ("limit=infinite", "bac"),
        ("limit=0", "bac"),
        ("limit=2", "ba"),
    ],
)
def test_a_list_is_sorted_and_limited_as_octavia_reads_it(three: Door, query: str, order: str):
    found = three.good("GET", f"/loadbalancers?{query}")["loadbalancers"]
    assert "".join(each["name"] for each in found) == order


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("sort=name:bad", "Supplied sort direction 'bad' is not valid."),
        ("sort_key=name&sort_dir=bad", "Supplied sort direction 'bad' is not valid."),
        ("sort=bogus", "Supplied sort key 'bogus' is not valid."),
        (f"marker={NOBODY}", f"Supplied pagination marker '{NOBODY}' is not valid."),
        ("limit=x", "Supplied pagination limit 'x' is not valid."),
        ("limit=-2", "Supplied pagination limit '-2' is not valid."),
        ("bogus=1", "One or more arguments are either duplicate or invalid: 'bogus'"),
    ],
)
def test_what_is_wrong_is_said_in_octavias_words(three: Door, query: str, words: str):
    status, said = three.bad("GET", f"/loadbalancers?{query}")
    assert (status, said[: len(words)]) == (400, words)


def test_fields_cut_one_object_too(three: Door):
    made = three.make("listener", loadbalancer_id=three.ids["a"], protocol="TCP", protocol_port=80)
    found = three.good("GET", "/loadbalancers/{a}?fields=id&fields=name")
    assert found == {"loadbalancer": {"id": three.ids["a"], "name": "a"}}
    found = three.good("GET", f"/listeners/{made['id']}?fields=protocol_port")
    assert found == {"listener": {"protocol_port": 80}}
    found = three.good("GET", "/quotas/p1?fields=pool")
    assert found == {"quota": {"pool": -1}}
    assert three.good("GET", "/loadbalancers/{a}?fields=nothing") == {"loadbalancer": {}}


def test_a_method_that_there_is_not_is_answered_with_those_that_there_are(three: Door):
    for path, allowed in (
        ("/loadbalancers", "GET, HEAD, POST"),
        ("/loadbalancers/{a}", "DELETE, GET, HEAD, PUT"),
        ("/pools/{a}/members", "GET, HEAD, POST, PUT"),
    ):
        answer = three.call("PATCH", path)
        assert (answer.status_code, answer.headers.get("allow")) == (405, allowed)
