"""OpenStack's own tests of listeners that end TLS, unmodified, with keys in a real Barbican.

Against Fairlead's own doors, and against a real Octavia with Fairlead in it. Their Keystone is real too, and a proxy on
a lab's node serves what they make. `test_octavia.py` runs all others, and says what the files of counts are.
"""

import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.barbican.nodes import AGENT, NodeWithBarbican, node_with_barbican
from harness.conformance.cloud import PROXY_PROVIDER_DESCRIPTIONS, write_configuration
from harness.conformance.keystone import OCTAVIA_ROLES
from harness.conformance.running import summary, tempest
from harness.keystone.cloud import REGION, password_of
from harness.neutron_lab.services import NETWORK_DRIVER, octavia
from harness.octavia_plugin.cloud import PROVIDERS

pytestmark = [pytest.mark.client, pytest.mark.tempest]

PACKAGE, MODULE = "octavia_tempest_plugin.tests", "api.v2.test_listener"
EXPECTED = Path(__file__).parent


def _others() -> list[str]:
    """The tests of the module that end no TLS: they are run elsewhere."""
    found = importlib.util.find_spec("octavia_tempest_plugin")
    assert found is not None
    assert found.origin is not None
    source = Path(found.origin).parent / "tests" / "api" / "v2" / "test_listener.py"
    tests = re.findall(r"def (test_\w+)\(", source.read_text())
    return [f"{MODULE}.ListenerAPITest.{name}" for name in tests if "terminated_https" not in name]


@dataclass(frozen=True)
class Databases:
    northbound: str
    southbound: str


@contextmanager
def _doors(place: NodeWithBarbican, octavias: bool, folder: Path) -> Iterator[tuple[str, ...]]:
    """In the catalogue; the providers that they have."""
    if not octavias:
        place.cloud.register_fairlead(place.server.url)
        yield PROXY_PROVIDER_DESCRIPTIONS[-1:]
        return
    networking = f"{place.server.url}/network"
    place.cloud.add_to_catalogue("network", networking)
    ovn = Databases(place.lab.northbound, place.lab.southbound)
    words = (networking, place.server.url, AGENT[1], NETWORK_DRIVER)
    with octavia(folder / "octavia", ovn, place.cloud, *words) as service:
        service.await_answer()
        yield (PROVIDERS,)
        for log in ("api", "agent"):
            assert "PRIVATE KEY" not in service.log(log)


@pytest.mark.parametrize("called", ["tls", "octavia-tls"])
def test_octavia_tempest_tls_tests_pass(called: str, tmp_path: Path):
    with node_with_barbican(tmp_path) as place, _doors(place, called == "octavia-tls", tmp_path) as providers:
        for role in sorted(OCTAVIA_ROLES - place.cloud.roles.keys()):
            place.cloud.create("role", role)
        write_configuration(
            tmp_path,
            place.cloud.url.removesuffix("/v3"),
            rbac="keystone_default_roles",
            ipv6=True,
            everything=False,
            providers=providers,
            interval=0.5,
            region=REGION,
            password=password_of("admin"),
        )
        found = tempest(tmp_path, PACKAGE, MODULE, _others())
    failed = [f"{test}\n{reason}" for test, outcome, reason in found if outcome == "failed"]
    assert not failed, "\n\n".join(failed)
    expected = EXPECTED / f"{called}.txt"
    if os.environ.get("REWRITE"):
        expected.write_text(summary(found))
    assert summary(found) == expected.read_text()
