"""Projects: create, show, edit and delete; projects that exist because a resource belongs to them."""

import pytest

from fairlead.changes.identity import LONGEST_PROJECT
from fairlead.model.documents import trust
from fairlead.model.documents.quota import Quota
from harness.front_ends.lxd_world import Door


def test_default_is_always_there(door: Door):
    assert door.good("GET", "/1.0/projects") == ["/1.0/projects/default"]
    assert door.good("GET", "/1.0/projects/default") == {
        "name": "default",
        "description": "",
        "config": {"features.networks": "true"},
        "used_by": [],
    }
    assert door.bad("DELETE", "/1.0/projects/default") == (403, "The 'default' project cannot be deleted")


def test_one_is_made_edited_and_taken_away(door: Door):
    made = door.send("POST", "/1.0/projects", {"name": "shop", "description": "x", "config": {"user.a": "b"}})
    assert (made.status_code, made.headers["location"]) == (201, "/1.0/projects/shop")
    shown = door.send("GET", "/1.0/projects/shop")
    assert shown.json()["metadata"]["config"] == {"features.networks": "true", "user.a": "b"}

    tag = shown.headers["etag"]
    door.good("PUT", "/1.0/projects/shop", {"description": "y", "config": {"user.c": "d"}}, if_match=tag)
    code, text = door.bad("PUT", "/1.0/projects/shop", {"description": "z"}, if_match=tag)
    assert code == 412
    assert text.startswith("ETag doesn't match: ")
    door.good("PATCH", "/1.0/projects/shop", {"config": {"user.a": "b", "user.c": ""}})
    found = door.good("GET", "/1.0/projects/shop")
    assert (found["description"], found["config"]) == ("y", {"features.networks": "true", "user.a": "b"})

    door.good("DELETE", "/1.0/projects/shop")
    assert door.bad("GET", "/1.0/projects/shop") == (404, "Project not found")


def test_one_with_a_network_is_there_and_stays(door: Door):
    door.make_project("bank")
    assert door.good("GET", "/1.0/projects") == ["/1.0/projects/bank", "/1.0/projects/default"]
    assert door.good("GET", "/1.0/projects/bank")["used_by"] == ["/1.0/networks/net-of-bank?project=bank"]
    assert door.bad("DELETE", "/1.0/projects/bank") == (400, "Only empty projects can be removed")
    door.good("PATCH", "/1.0/projects/bank", {"description": "ours"})
    assert door.good("GET", "/1.0/projects/bank")["description"] == "ours"


def test_what_it_uses_is_told(door: Door):
    door.make_project("bank")
    door.write(Quota(project_id="bank", network=7))
    told = door.good("GET", "/1.0/projects/bank/state")
    assert told == {"resources": {"networks": {"Limit": 7, "Usage": 1}}}
    assert door.good("GET", "/1.0/projects/default/state")["resources"]["networks"] == {"Limit": -1, "Usage": 0}
    assert door.bad("GET", "/1.0/projects/bank/state", by="ann") == (404, "Project not found")


def test_a_name_stays(door: Door):
    door.make_project("bank")
    assert door.bad("POST", "/1.0/projects/bank", {"name": "shop"}) == (501, "Projects cannot be renamed")
    assert door.bad("POST", "/1.0/projects/nope", {"name": "shop"}) == (404, "Project not found")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"name": ""}, (400, "No name provided")),
        ({"name": "a/b"}, (400, "Project names may not contain slashes")),
        ({"name": "a b"}, (400, "Project names may not contain spaces")),
        ({"name": "a'b"}, (400, "Project names may not contain quotes")),
        ({"name": ".."}, (400, 'Invalid project name ".."')),
        ({"name": "x" * (LONGEST_PROJECT + 1)}, (400, "Project name is too long")),
        ({"name": "default"}, (409, 'Failed creating project "default": This "projects" entry already exists')),
        ({"name": "x", "config": {"limits.x": "1"}}, (400, 'Invalid project configuration key "limits.x"')),
        (
            {"name": "x", "config": {"features.networks": "false"}},
            (400, "Every project has networks of its own: features.networks can only be true"),
        ),
    ],
)
def test_what_is_no_project(door: Door, body, told):
    assert door.bad("POST", "/1.0/projects", body) == told


def test_there_is_an_end(door: Door, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.changes.projects.MOST_PROJECTS", 2)
    assert trust.MOST_PROJECTS > 2
    for name in ("a", "b"):
        door.good("POST", "/1.0/projects", {"name": name})
    assert door.bad("POST", "/1.0/projects", {"name": "c"}) == (409, "There are 2 projects already")


def test_who_is_restricted_sees_theirs_and_makes_none(door: Door):
    for name in ("one", "more", "two"):
        door.good("POST", "/1.0/projects", {"name": name})
    assert door.good("GET", "/1.0/projects", by="ann") == ["/1.0/projects/more", "/1.0/projects/one"]
    assert door.bad("GET", "/1.0/projects/two", by="ann") == (404, "Project not found")
    assert door.bad("GET", "/1.0/projects/two?project=two", by="ann") == (404, "Project not found")
    for method, path, body in (
        ("POST", "/1.0/projects", {"name": "x"}),
        ("PUT", "/1.0/projects/one", {"description": "x"}),
        ("DELETE", "/1.0/projects/one", None),
    ):
        assert door.bad(method, path, body, by="ann") == (403, "not authorized")


def test_a_list_is_filtered(door: Door):
    for name in ("shop", "bank"):
        door.good("POST", "/1.0/projects", {"name": name})
    found = door.good("GET", "/1.0/projects?recursion=1&filter=name+eq+s.*")
    assert [each["name"] for each in found] == ["shop"]
    assert door.bad("GET", "/1.0/projects?filter=name") == (400, "Invalid filter: clause has no operator")


def test_strangers_are_told_nothing(door: Door):
    for method, path in (("GET", "/1.0/projects"), ("GET", "/1.0/operations"), ("GET", "/1.0/certificates")):
        assert door.bad(method, path, by="stranger") == (403, "not authorized")
