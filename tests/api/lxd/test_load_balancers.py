"""Load balancers in LXD's form: what is made, shown, changed and deleted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.lxd.balancing import BODY, LBS, LISTEN, settle
from api.lxd.world import Door
from harness.api import compile_anything


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Door]:
    door = Door(tmp_path, compile_anything)
    settle(door)
    yield door
    door.close()


def make(door: Door, address: str = LISTEN, **said: Any) -> str:
    """The path of a new one."""
    answer = door.send("POST", LBS, {**BODY, "listen_address": address, **said})
    assert answer.status_code == 201, answer.text
    return str(answer.headers["location"])


def test_one_is_made_shown_and_deleted(site: Door):
    path = make(site)
    assert path == f"{LBS}/{LISTEN}"
    assert site.good("GET", path) == {**BODY, "listen_address": LISTEN, "location": ""}
    assert site.good("GET", LBS) == [path]
    assert site.good("GET", f"{LBS}?recursion=1") == [site.good("GET", path)]
    assert site.good("DELETE", path) is None
    assert site.bad("GET", path) == (404, "Network load balancer not found")
    assert site.bad("DELETE", path) == (404, "Failed deleting load balancer: Network load balancer not found")
    assert not site.snapshot.load_balancers
