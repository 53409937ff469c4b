"""LXD load balancers do not block the event loop: the longest step of each request, at the limits of one load
balancer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.model.documents import sizes
from harness.api import compile_anything
from harness.front_ends.lxd_balancing import LBS, LISTEN, backend, port, settle
from harness.front_ends.lxd_world import LxdFrontEnd

ONE = f"{LBS}/{LISTEN}"
NAMES = [f"b{number}" for number in range(240)]
BACKENDS = [backend(name, target_address=f"10.0.0.{2 + place}") for place, name in enumerate(NAMES)]
FEW = sizes.MAX_MEMBERS // sizes.MAX_LISTENERS


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LxdFrontEnd]:
    door = LxdFrontEnd(tmp_path, compile_anything)
    settle(door)
    yield door
    door.close()


def send(door: LxdFrontEnd, method: str, path: str, body: Any = None) -> int:
    """Send a request as an administrator and return its status. `harness.step_limits` counts its steps and the
    reconciler's."""
    return door.send(method, path, body).status_code


MANY = {
    "as many ports as there may be, one by one": [
        port(str(1000 + number), *NAMES[number % 200 : number % 200 + FEW]) for number in range(sizes.MAX_LISTENERS)
    ],
    "as many ports as there may be, in one range": [port(f"1001-{1000 + sizes.MAX_PORTS}", *NAMES[:FEW])],
    "all backends behind some": [port(f"{1000 * number}-{1000 * number + 4}", *NAMES) for number in range(1, 5)],
}


@pytest.mark.parametrize("name", MANY)
def test_requests_for_the_largest_load_balancer_run_in_short_steps(site: LxdFrontEnd, name: str):
    weights = {f"fairlead.weight.b{number}": str(number) for number in range(30)}
    body = {
        "config": {**weights, "healthcheck": "true", "healthcheck.interval": "3600"},
        "backends": BACKENDS,
        "ports": MANY[name],
    }
    assert send(site, "POST", LBS, {**body, "listen_address": LISTEN}) == 201
    assert send(site, "GET", ONE) == send(site, "GET", f"{ONE}/state") == 200
    assert send(site, "PATCH", ONE, {"config": dict.fromkeys(weights, "")}) == 200
    assert send(site, "PUT", ONE, {**body, "ports": MANY[name][::-1]}) == 200
    assert send(site, "GET", f"{LBS}?recursion=1") == 200
    assert send(site, "DELETE", ONE) == 200
