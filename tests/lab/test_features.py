"""End to end: optional features of listeners, pools and load balancers, with real connections."""

from collections.abc import Iterator

import pytest

from fairlead.lab import Lab, Protocol, Traffic, TrafficResult
from harness.lab.site import CreatedBalancer, LabSite, open_site

pytestmark = [pytest.mark.lab, pytest.mark.ovn]

MEMBERS = ("m1", "m2", "spare")
CLIENTS = {"near": "chassis1", "far": "chassis2"}
PROTOCOLS = [Protocol.TCP, Protocol.UDP]


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    """Members and `near` on azure, `far` on lime across a router, on different chassis."""
    site = open_site(lab)
    site.network("azure", "10.0.0.0/24", "fd00:a::/64")
    site.network("lime", "10.0.1.0/24", "fd00:b::/64")
    site.router("features", "azure-v4", "azure-v6", "lime-v4", "lime-v6")
    site.machines("azure", dict.fromkeys(MEMBERS, "chassis2"), serve=[8080])
    site.machines("azure", {"near": "chassis1", "other": "chassis1"})
    site.machines("lime", {"far": "chassis2"})
    yield site
    for name in (*MEMBERS, "near", "other", "far"):
        lab.remove_workload(name)
    assert lab.status().is_healthy, "a daemon of the lab ended by itself"
    site.close()


def ask(
    site: LabSite, client: str, to: str, protocol: Protocol = Protocol.TCP, count: int = 10, timeout: float = 30
) -> TrafficResult:
    traffic = Traffic(to=to, port=80, protocol=protocol, count=count, concurrency=5, timeout=timeout)
    return site.lab.traffic(client, traffic)


def flows_of(site: LabSite, chassis: str) -> int:
    told = site.lab.exec(chassis, ["ovs-ofctl", "dump-aggregate", "br-int"])
    return int(told.rpartition("flow_count=")[2])


def allow(site: LabSite, balancer: CreatedBalancer, *cidrs: str) -> None:
    site.cloud.load_balancer.update_listener(balancer.listener, allowed_cidrs=list(cidrs))
    site.settle(balancer.id)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_clients_outside_allowed_cidrs_get_no_answer(site: LabSite, protocol: Protocol, version: int):
    """Clients are on the same switch and across the router; an established connection continues."""
    members = ["m1", "m2"]
    with site.balancer(f"azure-v{version}", members, protocol=protocol.value.upper(), version=version) as balancer:
        with site.lab.hold("near", Traffic(to=balancer.vip, port=80, protocol=protocol)) as held:
            assert held.exchange("before")
            allow(site, balancer, f"{site.address('other', version)}/{32 if version == 4 else 128}")
            assert held.exchange("after")
            for client in ("near", "far"):
                assert ask(site, client, balancer.vip, protocol, 4, timeout=1).errors == {"timeout": 4}
            assert ask(site, "other", balancer.vip, protocol).errors == {}
        far_only = "10.0.1.0/24" if version == 4 else "fd00:b::/64"
        allow(site, balancer, far_only)
        assert ask(site, "far", balancer.vip, protocol).errors == {}
        assert ask(site, "near", balancer.vip, protocol, 4, timeout=1).errors == {"timeout": 4}
        allow(site, balancer)
        for client in ("near", "far", "other"):
            assert ask(site, client, balancer.vip, protocol).errors == {}


@pytest.mark.parametrize("version", [4, 6])
def test_hundred_allowed_cidrs_add_fewer_than_a_thousand_flows(site: LabSite, version: int):
    """Many allowed prefixes must not fill the memory of every node with flows."""
    with site.balancer(f"azure-v{version}", ["m1"], version=version) as balancer:
        before = flows_of(site, "chassis1")
        others = [f"198.18.{n}.0/24" if version == 4 else f"2001:db8:{n:x}::/48" for n in range(99)]
        allow(site, balancer, f"{site.address('other', version)}/{32 if version == 4 else 128}", *others)
        assert ask(site, "other", balancer.vip).errors == {}
        assert ask(site, "far", balancer.vip, count=4, timeout=1).errors == {"timeout": 4}
        assert flows_of(site, "chassis1") - before < 1000


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_vip_forwards_to_members_of_its_ip_version(site: LabSite, protocol: Protocol):
    pool = {"name": "p", "protocol": protocol.value.upper(), "lb_algorithm": "SOURCE_IP_PORT"}
    members = [
        {"address": site.address(name, 4 if name == "m1" else 6), "protocol_port": 8080} for name in ("m1", "m2")
    ]
    made = site.cloud.load_balancer.create_load_balancer(
        name="both",
        vip_subnet_id=site.subnet("azure-v4").id,
        additional_vips=[{"subnet_id": site.subnet("azure-v6").id}],
        listeners=[{"protocol": pool["protocol"], "protocol_port": 80, "default_pool": {**pool, "members": members}}],
    )
    try:
        site.settle(made.id)
        for client in ("near", "far"):
            for vip, member in ((made.vip_address, "m1"), (made.additional_vips[0]["ip_address"], "m2")):
                result = ask(site, client, vip, protocol)
                assert (result.errors, set(result.answers)) == ({}, {member})
                version = "-6" if ":" in vip else "-4"
                site.lab.exec(client, ["ping", version, "-c1", "-w30", vip])
    finally:
        site.cloud.load_balancer.delete_load_balancer(made.id, cascade=True)


@pytest.mark.parametrize("version", [4, 6])
def test_backup_member_serves_only_without_other_usable_members(site: LabSite, version: int):
    with site.balancer(f"azure-v{version}", MEMBERS, version=version) as balancer:
        site.set_member(balancer, "spare", backup=True)
        assert set(ask(site, "near", balancer.vip, count=40).answers) == {"m1", "m2"}
        for name in ("m1", "m2"):
            site.set_member(balancer, name, is_admin_state_up=False)
        assert set(ask(site, "far", balancer.vip).answers) == {"spare"}
        site.set_member(balancer, "m2", is_admin_state_up=True)
        assert set(ask(site, "far", balancer.vip, count=40).answers) == {"m2"}
