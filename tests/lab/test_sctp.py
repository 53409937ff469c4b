"""SCTP, which neither the userspace datapath of Open vSwitch nor every kernel tracks: traced, without traffic.

ovn-trace(8) walks the logical flows that OVN derives from Fairlead's rows, which are those that a packet would
traverse.
"""

import re
from collections.abc import Iterator

import pytest

from fairlead.lab import Lab
from fairlead.lab.command import main
from harness.lab.site import PORT, CreatedBalancer, LabSite, open_site

pytestmark = [pytest.mark.lab, pytest.mark.ovn]

MEMBERS = ("sctp1", "sctp2")
CLIENTS = ("sctp-near", "sctp-far")
CIDRS = {
    4: {"sctp-near": "10.0.0.0/24", "sctp-far": "10.0.1.0/24"},
    6: {"sctp-near": "fd00:a::/64", "sctp-far": "fd00:b::/64"},
}
"""Allowed CIDR of each client, by the version of the VIP."""
BACKENDS = re.compile(r"ct_lb\w*\(backends=([^)]*)\)")
STAGE = re.compile(r"^ *\d+\. (\w+)", re.MULTILINE)
DELIVERED = re.compile(r'/\* output to "([^"]+)", type "" \*/')


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    """Members and `near` on one network, `far` on another one across a router."""
    site = open_site(lab)
    site.network("sctp-a", "10.0.0.0/24", "fd00:a::/64")
    site.network("sctp-b", "10.0.1.0/24", "fd00:b::/64")
    site.router("sctp", "sctp-a-v4", "sctp-a-v6", "sctp-b-v4", "sctp-b-v6")
    site.machines("sctp-a", dict.fromkeys(MEMBERS, "chassis2"))
    site.machines("sctp-a", {"sctp-near": "chassis1"})
    site.machines("sctp-b", {"sctp-far": "chassis2"})
    yield site
    for name in (*MEMBERS, *CLIENTS):
        lab.remove_workload(name)
    site.close()


class Traces:
    """Traces of a client's first packet to port 80 of a VIP."""

    def __init__(self, site: LabSite, capsys: pytest.CaptureFixture[str]) -> None:
        self._site = site
        self._capsys = capsys

    def of(self, client: str, vip: str, protocol: str) -> str:
        assert main(["trace", "--name", self._site.lab.name, client, vip, f"--{protocol}", "80"]) == 0
        return self._capsys.readouterr().out

    def is_balanced(self, client: str, balancer: CreatedBalancer, version: int) -> None:
        """Assert that the packet is balanced among the members, and output at one's port.

        ovn-trace abbreviates names that are UUIDs.
        """
        trace = self.of(client, balancer.vip, "sctp")
        addresses = (self._site.address(name, version) for name in MEMBERS)
        wanted = {f"[{each}]:{PORT}" if version == 6 else f"{each}:{PORT}" for each in addresses}
        assert [set(found.split(",")) for found in BACKENDS.findall(trace)] == [wanted]
        (port,) = DELIVERED.findall(trace)
        assert [name for name in MEMBERS if self._site.lab.workload(name).port_id.startswith(port)] != []

    def is_dropped(self, client: str, balancer: CreatedBalancer) -> None:
        """Assert that the packet ends in the ACL stage. An older OVN prints `drop;`, a newer one ends without it."""
        trace = self.of(client, balancer.vip, "sctp")
        assert STAGE.findall(trace)[-1].startswith("ls_in_acl")
        assert (BACKENDS.findall(trace), "/* output" in trace) == ([], False)


@pytest.mark.parametrize("version", [4, 6])
def test_sctp_packets_of_every_client_are_balanced_to_members(
    site: LabSite, capsys: pytest.CaptureFixture[str], version: int
):
    traces = Traces(site, capsys)
    with site.balancer(f"sctp-a-v{version}", MEMBERS, protocol="SCTP", version=version) as balancer:
        for client in CLIENTS:
            traces.is_balanced(client, balancer, version)
            assert BACKENDS.findall(traces.of(client, balancer.vip, "tcp")) == []


@pytest.mark.parametrize("version", [4, 6])
def test_sctp_packets_from_outside_allowed_cidrs_are_dropped(
    site: LabSite, capsys: pytest.CaptureFixture[str], version: int
):
    traces = Traces(site, capsys)
    with site.balancer(f"sctp-a-v{version}", MEMBERS, protocol="SCTP", version=version) as balancer:
        for allowed, other in (CLIENTS, CLIENTS[::-1]):
            site.cloud.load_balancer.update_listener(balancer.listener, allowed_cidrs=[CIDRS[version][allowed]])
            site.settle(balancer.id)
            traces.is_balanced(allowed, balancer, version)
            traces.is_dropped(other, balancer)
