"""Names in URLs, lists of all projects, malformed filters, and keys that the server owns."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from fairlead.model.documents.trust import TrustToken
from harness.api import NOON
from harness.front_ends.lxd_balancing import LISTEN, settle
from harness.front_ends.lxd_world import LxdFrontEnd


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LxdFrontEnd]:
    door = LxdFrontEnd(tmp_path)
    settle(door)
    yield door
    door.close()


@pytest.mark.parametrize("name", ["a\x1bb", "a\x07b", "näme", "名前a", "a%b"])
def test_a_name_is_percent_encoded_in_every_url(site: LxdFrontEnd, name: str):
    config = {"network": "UPLINK", "ipv4.address": "10.7.0.1/24", "ipv4.nat": "true", "ipv6.address": "none"}
    name = f"x{name}x"
    path = f"/1.0/networks/{quote(name)}"
    made = site.send("POST", "/1.0/networks", {"name": name, "type": "ovn", "config": config})
    assert (made.status_code, made.headers["location"]) == (201, path)
    assert path in site.call_ok("GET", "/1.0/networks")
    listens = site.send("POST", f"{path}/load-balancers", {"listen_address": LISTEN})
    assert (listens.status_code, listens.headers["location"]) == (201, f"{path}/load-balancers/{LISTEN}")
    assert site.call_ok("GET", path)["used_by"] == [f"{path}/load-balancers/{LISTEN}"]
    assert site.call_ok("GET", path)["name"] == name
    assert path in site.call_ok("GET", "/1.0/projects/default")["used_by"]


def test_a_project_is_percent_encoded_in_every_url(site: LxdFrontEnd):
    made = site.send("POST", "/1.0/projects", {"name": "büro"})
    assert made.headers["location"] == "/1.0/projects/b%C3%BCro"
    config = {"network": "UPLINK", "ipv4.address": "10.7.0.1/24", "ipv4.nat": "true", "ipv6.address": "none"}
    body = {"name": "n1", "config": config}
    location = site.send("POST", "/1.0/networks?project=b%C3%BCro", body).headers["location"]
    assert location == "/1.0/networks/n1?project=b%C3%BCro"


def test_all_projects_query_lists_networks_of_all_visible_projects(site: LxdFrontEnd):
    assert "networks_all_projects" in site.call_ok("GET", "/1.0")["api_extensions"]
    urls = [
        *("/1.0/networks/UPLINK", "/1.0/networks/alone", "/1.0/networks/four", "/1.0/networks/net"),
        "/1.0/networks/other?project=one",
    ]
    assert site.call_ok("GET", "/1.0/networks?all-projects=true") == urls
    found = site.call_ok("GET", "/1.0/networks?all-projects=true&recursion=1")
    shown = {(each["project"], each["name"]) for each in found}
    assert shown == {("one", "other"), *(("default", name) for name in ("UPLINK", "alone", "four", "net"))}
    assert site.call_ok("GET", "/1.0/networks?all-projects=false") == urls[:-1]
    assert site.call_ok("GET", "/1.0/networks?all-projects=true&project=one", by="ann") == urls[-1:]
    assert site.call_ok("GET", "/1.0/networks?all-projects=true&filter=name+eq+other") == urls[-1:]


@pytest.mark.parametrize("many", ["networks", "projects", "certificates", "operations", "networks/net/load-balancers"])
def test_malformed_filter_is_rejected_in_every_list(site: LxdFrontEnd, many: str):
    token = TrustToken(id="t", name="laptop", digest="d", created_at=NOON, expires_at=NOON.replace(year=2027))
    site.write(token)
    assert site.call_error("GET", f"/1.0/{many}?filter=((((") == (400, "Invalid filter: clause has no operator")
    unbalanced = "Invalid filter: Failed to parse value: error parsing regexp: missing closing ): `((((`"
    assert site.call_error("GET", f"/1.0/{many}?filter=name eq ((((") == (400, unbalanced)


def test_operations_are_filtered(site: LxdFrontEnd):
    site.write(TrustToken(id="t", name="laptop", digest="d", created_at=NOON, expires_at=NOON.replace(year=2027)))
    assert site.call_ok("GET", "/1.0/operations?filter=class+eq+token") == {"running": ["/1.0/operations/t"]}
    assert site.call_ok("GET", "/1.0/operations?filter=class+eq+task") == {}


@pytest.mark.parametrize(("method", "more"), [("PUT", {"network": "UPLINK"}), ("PATCH", {})])
@pytest.mark.parametrize("version", [4, 6])
def test_server_owned_key_cannot_be_unset(site: LxdFrontEnd, method: str, more: dict[str, Any], version: int):
    """Keys that the server owns cannot be unset, for which `incus network unset` sends an empty value."""
    key = f"volatile.network.ipv{version}.address"
    said = f'Invalid value for network "net" option "{key}": The value is set by the server'
    assert site.call_error(method, "/1.0/networks/net", {"config": {**more, key: ""}}) == (400, said)
