"""Pings of VIPs: the receiving host replies, whichever host serves."""

import subprocess
from collections.abc import Iterator
from itertools import product

import pytest

from fairlead.model.documents.addresses import IPAddress
from harness.fabric import HOSTS, VIPS, Fabric, fabric
from harness.net_namespace import NetNamespace, require_root

pytestmark = pytest.mark.slow

EVEN = bytes(slot % 3 for slot in range(256))
LARGE = 3000
"""Bytes of a ping that needs fragments."""


@pytest.fixture
def site() -> Iterator[Fabric]:
    require_root("/usr/sbin/nft", "/usr/bin/ping")
    with fabric() as made:
        yield made


def answers(where: NetNamespace, to: IPAddress, size: int = 56) -> bool:
    with where.inside():
        asked = ["ping", "-n", "-c1", "-W1", f"-s{size}", str(to)]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("slots", [EVEN, bytes(256), b""], ids=["all serve", "one serves", "nobody serves"])
def test_every_host_answers_pings_of_a_vip(site: Fabric, slots: bytes) -> None:
    site.open()
    for number in HOSTS:
        site.serve(number, slots)
    for entry, vip in product(HOSTS, VIPS):
        site.route_to(entry)
        assert answers(site.client, vip), f"{vip} by host {entry}"
        assert answers(site.client, vip, LARGE), f"{vip} by host {entry}, in fragments"
    for vip in VIPS:
        assert answers(site.hosts[2], vip), f"{vip} from a host"
        assert answers(site.members[2], vip), f"{vip} from behind a host"


def test_client_outside_the_allowed_cidrs_still_gets_ping_replies(site: Fabric) -> None:
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN, clients=())
    site.route_to(1)
    for vip in VIPS:
        assert answers(site.client, vip)
