"""Projects: create, show, edit and delete; projects that exist because a resource belongs to them."""

import pytest

from fairlead.changes.identity import MAX_PROJECT_ID_LENGTH
from fairlead.model.documents import trust
from fairlead.model.documents.quota import Quota
from harness.front_ends.lxd_world import LxdFrontEnd


def test_default_project_always_exists(door: LxdFrontEnd):
    assert door.call_ok("GET", "/1.0/projects") == ["/1.0/projects/default"]
    assert door.call_ok("GET", "/1.0/projects/default") == {
        "name": "default",
        "description": "",
        "config": {"features.networks": "true"},
        "used_by": [],
    }
    assert door.call_error("DELETE", "/1.0/projects/default") == (403, "The 'default' project cannot be deleted")


def test_project_is_created_changed_and_deleted(door: LxdFrontEnd):
    made = door.send("POST", "/1.0/projects", {"name": "shop", "description": "x", "config": {"user.a": "b"}})
    assert (made.status_code, made.headers["location"]) == (201, "/1.0/projects/shop")
    shown = door.send("GET", "/1.0/projects/shop")
    assert shown.json()["metadata"]["config"] == {"features.networks": "true", "user.a": "b"}

    tag = shown.headers["etag"]
    door.call_ok("PUT", "/1.0/projects/shop", {"description": "y", "config": {"user.c": "d"}}, if_match=tag)
    code, text = door.call_error("PUT", "/1.0/projects/shop", {"description": "z"}, if_match=tag)
    assert code == 412
    assert text.startswith("ETag doesn't match: ")
    door.call_ok("PATCH", "/1.0/projects/shop", {"config": {"user.a": "b", "user.c": ""}})
    found = door.call_ok("GET", "/1.0/projects/shop")
    assert (found["description"], found["config"]) == ("y", {"features.networks": "true", "user.a": "b"})

    door.call_ok("DELETE", "/1.0/projects/shop")
    assert door.call_error("GET", "/1.0/projects/shop") == (404, "Project not found")


def test_project_with_a_network_exists_and_cannot_be_deleted(door: LxdFrontEnd):
    door.make_project("bank")
    assert door.call_ok("GET", "/1.0/projects") == ["/1.0/projects/bank", "/1.0/projects/default"]
    assert door.call_ok("GET", "/1.0/projects/bank")["used_by"] == ["/1.0/networks/net-of-bank?project=bank"]
    assert door.call_error("DELETE", "/1.0/projects/bank") == (400, "Only empty projects can be removed")
    door.call_ok("PATCH", "/1.0/projects/bank", {"description": "ours"})
    assert door.call_ok("GET", "/1.0/projects/bank")["description"] == "ours"


def test_project_state_shows_limits_and_usage(door: LxdFrontEnd):
    door.make_project("bank")
    door.write(Quota(project_id="bank", network=7))
    told = door.call_ok("GET", "/1.0/projects/bank/state")
    assert told == {"resources": {"networks": {"Limit": 7, "Usage": 1}}}
    assert door.call_ok("GET", "/1.0/projects/default/state")["resources"]["networks"] == {"Limit": -1, "Usage": 0}
    assert door.call_error("GET", "/1.0/projects/bank/state", by="ann") == (404, "Project not found")


def test_project_cannot_be_renamed(door: LxdFrontEnd):
    door.make_project("bank")
    assert door.call_error("POST", "/1.0/projects/bank", {"name": "shop"}) == (501, "Projects cannot be renamed")
    assert door.call_error("POST", "/1.0/projects/nope", {"name": "shop"}) == (404, "Project not found")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"name": ""}, (400, "No name provided")),
        ({"name": "a/b"}, (400, "Project names may not contain slashes")),
        ({"name": "a b"}, (400, "Project names may not contain spaces")),
        ({"name": "a'b"}, (400, "Project names may not contain quotes")),
        ({"name": ".."}, (400, 'Invalid project name ".."')),
        ({"name": "x" * (MAX_PROJECT_ID_LENGTH + 1)}, (400, "Project name is too long")),
        ({"name": "default"}, (409, 'Failed creating project "default": This "projects" entry already exists')),
        ({"name": "x", "config": {"limits.x": "1"}}, (400, 'Invalid project configuration key "limits.x"')),
        (
            {"name": "x", "config": {"features.networks": "false"}},
            (400, "Every project has networks of its own: features.networks can only be true"),
        ),
    ],
)
def test_invalid_project_is_rejected(door: LxdFrontEnd, body, told):
    assert door.call_error("POST", "/1.0/projects", body) == told


def test_number_of_projects_is_limited(door: LxdFrontEnd, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.changes.projects.MAX_PROJECTS", 2)
    assert trust.MAX_PROJECTS > 2
    for name in ("a", "b"):
        door.call_ok("POST", "/1.0/projects", {"name": name})
    assert door.call_error("POST", "/1.0/projects", {"name": "c"}) == (409, "There are 2 projects already")


def test_restricted_client_sees_only_its_projects_and_creates_none(door: LxdFrontEnd):
    for name in ("one", "more", "two"):
        door.call_ok("POST", "/1.0/projects", {"name": name})
    assert door.call_ok("GET", "/1.0/projects", by="ann") == ["/1.0/projects/more", "/1.0/projects/one"]
    assert door.call_error("GET", "/1.0/projects/two", by="ann") == (404, "Project not found")
    assert door.call_error("GET", "/1.0/projects/two?project=two", by="ann") == (404, "Project not found")
    for method, path, body in (
        ("POST", "/1.0/projects", {"name": "x"}),
        ("PUT", "/1.0/projects/one", {"description": "x"}),
        ("DELETE", "/1.0/projects/one", None),
    ):
        assert door.call_error(method, path, body, by="ann") == (403, "not authorized")


def test_project_list_is_filtered(door: LxdFrontEnd):
    for name in ("shop", "bank"):
        door.call_ok("POST", "/1.0/projects", {"name": name})
    found = door.call_ok("GET", "/1.0/projects?recursion=1&filter=name+eq+s.*")
    assert [each["name"] for each in found] == ["shop"]
    assert door.call_error("GET", "/1.0/projects?filter=name") == (400, "Invalid filter: clause has no operator")


def test_untrusted_clients_cannot_list_resources(door: LxdFrontEnd):
    for method, path in (("GET", "/1.0/projects"), ("GET", "/1.0/operations"), ("GET", "/1.0/certificates")):
        assert door.call_error(method, path, by="stranger") == (403, "not authorized")
