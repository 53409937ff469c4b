"""Every method of openstacksdk's load-balancer proxy, against a real OVN: return values and effects.

Calls that Fairlead rejects are included, because programs depend on the status and the error text.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pytest
from openstack import exceptions

from fairlead.lab import Lab, Traffic
from harness.lab.site import ACTIVE_TIMEOUT, PORT, LabSite, open_site
from harness.sdk import RecordingProxy, assert_attributes, assert_equal_resources, check_queries, methods, refused

pytestmark = pytest.mark.lab

UNKNOWN_ID = "99999999-0000-4000-8000-000000000009"
VIP = "10.0.0.100"
VIP6 = "fd00:a::100"
REFUSED, UNANSWERED = {"refused": 8}, {"timeout": 8}
TESTED_ELSEWHERE = {
    "get_load_balancer_statistics": "tests/lab/test_statistics.py",
    "get_listener_statistics": "tests/lab/test_statistics.py",
}
"""File that calls each of these methods of the proxy."""


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    site = open_site(lab)
    site.network("sdk", "10.0.0.0/24", "fd00:a::/64")
    site.machines("sdk", {"sdk1": "chassis1", "sdk2": "chassis2"}, serve=[PORT])
    site.machines("sdk", {"sdk-client": "chassis1"})
    yield site
    for name in ("sdk1", "sdk2", "sdk-client"):
        lab.remove_workload(name)
    site.close()


def test_every_load_balancer_method_of_the_sdk_works(site: LabSite):
    lb = RecordingProxy(site.cloud.load_balancer)
    balancer = load_balancers(site, lb)
    listener = listeners(site, lb, balancer)
    pool = pools(site, lb, balancer, listener)
    members(site, lb, pool)
    monitors(site, lb, pool)
    policies(lb, listener)
    rules(lb)
    quotas(site, lb, pool)
    flavors(site, lb)
    zones(site, lb)
    providers(lb)
    amphorae(lb)
    ends(site, lb, balancer, listener, pool)
    missing = methods() - lb.names - TESTED_ELSEWHERE.keys()
    assert missing == set(), f"openstacksdk has methods that nobody tried: call each of {sorted(missing)} in this file"
    gone = TESTED_ELSEWHERE.keys() - methods()
    assert gone == set(), f"openstacksdk has no {sorted(gone)} any more: take them out of TESTED_ELSEWHERE"


def ask(site: LabSite, to: str = VIP, count: int = 8) -> tuple[set[str], dict[str, int]]:
    """Names and errors of the answers to a client of the VIP."""
    site.lab.wait_synced()
    result = site.lab.traffic("sdk-client", Traffic(to=to, port=80, count=count, concurrency=8, timeout=5))
    return set(result.answers), dict(result.errors)


def load_balancers(site: LabSite, lb: Any) -> str:
    subnet, subnet6 = site.subnet("sdk-v4"), site.subnet("sdk-v6")
    made = lb.create_load_balancer(
        name="sdk-web",
        description="first",
        vip_subnet_id=subnet.id,
        vip_address=VIP,
        additional_vips=[{"subnet_id": subnet6.id, "ip_address": VIP6}],
        tags=["gold"],
        is_admin_state_up=False,
    )
    assert_attributes(
        made, name="sdk-web", description="first", vip_address=VIP, vip_subnet_id=subnet.id, tags=["gold"]
    )
    assert_attributes(
        made, provider="fairlead", is_admin_state_up=False, listeners=[], pools=[], vip_network_id=subnet.network_id
    )
    assert_attributes(made, flavor_id=None, availability_zone=None, vip_qos_policy_id=None, vip_sg_ids=[])
    port = site.cloud.network.get_port(made.vip_port_id)
    assert {fixed["ip_address"] for fixed in port.fixed_ips} == {VIP, VIP6}
    assert [vip["ip_address"] for vip in made.additional_vips] == [VIP6]
    active = lb.wait_for_load_balancer("sdk-web", interval=0.05, wait=ACTIVE_TIMEOUT)
    assert_attributes(active, id=made.id, provisioning_status="ACTIVE", operating_status="OFFLINE")
    assert ask(site) == (set(), REFUSED)
    site.lab.exec("sdk-client", ["ping", "-c1", "-w30", VIP])
    changed = lb.update_load_balancer(
        made.id, name="sdk-shop", description="other", tags=["gold", "silver"], is_admin_state_up=True
    )
    assert_attributes(changed, name="sdk-shop", description="other", tags=["gold", "silver"], is_admin_state_up=True)
    site.settle(made.id)
    shown = lb.get_load_balancer(made.id)
    assert_attributes(
        shown, id=made.id, provisioning_status="ACTIVE", operating_status="ONLINE", created_at=made.created_at
    )
    assert_equal_resources(
        shown, lb.find_load_balancer("sdk-shop"), lb.find_load_balancer(made.id), lb.load_balancers(name="sdk-shop")
    )
    assert lb.find_load_balancer("sdk-web") is None
    with pytest.raises(exceptions.NotFoundException):
        lb.find_load_balancer("sdk-web", ignore_missing=False)
    with refused(404, f"Load Balancer {UNKNOWN_ID} not found."):
        lb.get_load_balancer(UNKNOWN_ID)
    with refused(409, f"The VIP IP address is already in use: {VIP}"):
        lb.create_load_balancer(name="sdk-no", vip_subnet_id=subnet.id, vip_address=VIP)
    with refused(501, "a requested option: vip_qos_policy_id"):
        lb.update_load_balancer(made.id, vip_qos_policy_id=UNKNOWN_ID)
    assert lb.failover_load_balancer(made.id) is None
    site.settle(made.id)
    again = lb.get_load_balancer(made.id)
    assert (again.updated_at > shown.updated_at, again.provisioning_status) == (True, "ACTIVE")
    identity: str = made.id
    return identity


def listeners(site: LabSite, lb: Any, balancer: str) -> str:
    made = lb.create_listener(
        name="sdk-http",
        load_balancer_id=balancer,
        protocol="TCP",
        protocol_port=80,
        description="d",
        allowed_cidrs=["10.0.9.0/24"],
        timeout_client_data=1000,
        tags=["t"],
    )
    assert_attributes(
        made, name="sdk-http", protocol="TCP", protocol_port=80, description="d", allowed_cidrs=["10.0.9.0/24"]
    )
    assert_attributes(
        made, timeout_client_data=1000, timeout_member_connect=5000, timeout_member_data=50000, timeout_tcp_inspect=0
    )
    assert_attributes(
        made, load_balancers=[{"id": balancer}], default_pool_id=None, connection_limit=-1, is_admin_state_up=True
    )
    assert_attributes(made, tls_ciphers=None, sni_container_refs=[], insert_headers={}, l7_policies=[], tags=["t"])
    site.settle(balancer)
    shown = lb.get_listener(made.id)
    assert_attributes(shown, id=made.id, provisioning_status="ACTIVE", operating_status="ONLINE")
    assert_equal_resources(
        shown, lb.find_listener("sdk-http"), lb.listeners(load_balancer_id=balancer), lb.listeners(name="sdk-http")
    )
    assert ask(site) == (set(), UNANSWERED)
    changed = lb.update_listener(made.id, name="sdk-front", allowed_cidrs=None, timeout_client_data=None)
    assert_attributes(changed, name="sdk-front", allowed_cidrs=None, timeout_client_data=50000)
    site.settle(balancer)
    assert ask(site) == (set(), REFUSED)
    assert lb.find_listener("sdk-http") is None
    with refused(404, f"Listener {UNKNOWN_ID} not found."):
        lb.get_listener(UNKNOWN_ID)
    with refused(501, "a requested option: connection_limit"):
        lb.update_listener(made.id, connection_limit=5)
    with refused(501, "a requested option: protocol HTTP"):
        lb.create_listener(load_balancer_id=balancer, protocol="HTTP", protocol_port=81)
    assert_attributes(lb.get_listener(made.id), connection_limit=-1)
    identity: str = made.id
    return identity


def pools(site: LabSite, lb: Any, balancer: str, listener: str) -> str:
    persistence = {"type": "SOURCE_IP"}
    made = lb.create_pool(
        name="sdk-app",
        listener_id=listener,
        protocol="TCP",
        lb_algorithm="ROUND_ROBIN",
        session_persistence=persistence,
        tags=["t"],
    )
    assert_attributes(
        made, name="sdk-app", protocol="TCP", lb_algorithm="ROUND_ROBIN", members=[], is_admin_state_up=True
    )
    assert_attributes(
        made, listeners=[{"id": listener}], loadbalancers=[{"id": balancer}], health_monitor_id=None, tags=["t"]
    )
    assert made.session_persistence["type"] == "SOURCE_IP"
    assert_attributes(lb.get_listener(listener), default_pool_id=made.id)
    site.settle(balancer)
    shown = lb.get_pool(made.id)
    assert_attributes(shown, id=made.id, provisioning_status="ACTIVE", operating_status="ONLINE")
    assert_equal_resources(
        shown, lb.find_pool("sdk-app"), lb.pools(loadbalancer_id=balancer), lb.pools(listener_id=listener)
    )
    changed = lb.update_pool(made.id, name="sdk-pool", lb_algorithm="SOURCE_IP_PORT", session_persistence=None)
    assert_attributes(changed, name="sdk-pool", lb_algorithm="SOURCE_IP_PORT", session_persistence=None)
    assert lb.find_pool("sdk-app") is None
    with refused(404, f"Pool {UNKNOWN_ID} not found."):
        lb.get_pool(UNKNOWN_ID)
    with refused(501, "a requested option: lb_algorithm LEAST_CONNECTIONS"):
        lb.update_pool(made.id, lb_algorithm="LEAST_CONNECTIONS")
    with refused(409, "This listener already has a default pool"):
        lb.create_pool(listener_id=listener, protocol="TCP", lb_algorithm="ROUND_ROBIN")
    identity: str = made.id
    return identity


def members(site: LabSite, lb: Any, pool: str) -> None:
    """A client of the VIP observes the effect of each call."""
    balancer = lb.get_pool(pool).loadbalancers[0]["id"]
    subnet = site.subnet("sdk-v4").id
    first, second = site.address("sdk1"), site.address("sdk2")
    made = lb.create_member(pool, name="a", address=first, protocol_port=PORT, subnet_id=subnet, weight=2, tags=["t"])
    assert_attributes(
        made, name="a", address=first, protocol_port=PORT, subnet_id=subnet, weight=2, backup=False, tags=["t"]
    )
    assert_attributes(made, monitor_address=None, monitor_port=None, is_admin_state_up=True, pool_id=pool)
    site.settle(balancer)
    shown = lb.get_member(made.id, pool)
    assert_attributes(shown, id=made.id, provisioning_status="ACTIVE", operating_status="NO_MONITOR")
    assert_equal_resources(shown, lb.find_member("a", pool), lb.members(pool, address=first), lb.members(pool))
    assert ask(site) == ({"sdk1"}, {})
    other = lb.create_member(pool, name="b", address=second, protocol_port=PORT)
    site.settle(balancer)
    assert ask(site, count=80) == ({"sdk1", "sdk2"}, {})
    assert_attributes(lb.update_member(made.id, pool, weight=0), weight=0, id=made.id)
    site.settle(balancer)
    assert_attributes(lb.get_member(made.id, pool), operating_status="DRAINING", provisioning_status="ACTIVE")
    assert ask(site, count=80) == ({"sdk2"}, {})
    assert_attributes(lb.update_member(other.id, pool, is_admin_state_up=False), is_admin_state_up=False)
    site.settle(balancer)
    assert_attributes(lb.get_member(other.id, pool), operating_status="OFFLINE")
    assert ask(site) == (set(), REFUSED)
    batch = [{"address": second, "protocol_port": PORT, "name": "b", "admin_state_up": True}]
    assert lb.put(f"/lbaas/pools/{pool}/members", json={"members": batch}).status_code == 202
    site.settle(balancer)
    assert [(each.id, each.name, each.is_admin_state_up) for each in lb.members(pool)] == [(other.id, "b", True)]
    assert ask(site) == ({"sdk2"}, {})
    assert lb.find_member("a", pool) is None
    with refused(404, f"Member {made.id} not found."):
        lb.get_member(made.id, pool)
    with refused(409, f"Another member on this pool is already using ip {second}"):
        lb.create_member(pool, address=second, protocol_port=PORT)
    again = lb.create_member(pool, name="c", address=first, protocol_port=PORT)
    assert (lb.delete_member(again.id, pool), lb.delete_member(again.id, pool)) == (None, None)
    with refused(404, f"Member {again.id} not found."):
        lb.delete_member(again.id, pool, ignore_missing=False)


def monitors(site: LabSite, lb: Any, pool: str) -> None:
    balancer = lb.get_pool(pool).loadbalancers[0]["id"]
    made = lb.create_health_monitor(
        name="sdk-probe", pool_id=pool, type="TCP", delay=1, timeout=1, max_retries=1, tags=["t"]
    )
    assert_attributes(
        made, name="sdk-probe", type="TCP", delay=1, timeout=1, max_retries=1, max_retries_down=3, tags=["t"]
    )
    assert_attributes(
        made, pools=[{"id": pool}], http_method=None, url_path=None, expected_codes=None, is_admin_state_up=True
    )
    site.settle(balancer)
    shown = lb.get_health_monitor(made.id)
    assert_attributes(shown, id=made.id, provisioning_status="ACTIVE", operating_status="ONLINE")
    assert_equal_resources(shown, lb.find_health_monitor("sdk-probe"), lb.health_monitors(pool_id=pool))
    assert_attributes(lb.get_pool(pool), health_monitor_id=made.id)
    (member,) = lb.members(pool)
    seen = lb.wait_for_status(member, "ONLINE", interval=0.05, wait=ACTIVE_TIMEOUT, attribute="operating_status")
    assert_attributes(seen, id=member.id, operating_status="ONLINE")
    assert_attributes(
        lb.update_health_monitor(made.id, name="sdk-watch", delay=2, max_retries_down=2), name="sdk-watch", delay=2
    )
    assert_attributes(lb.get_health_monitor(made.id), max_retries_down=2, delay=2, timeout=1)
    assert lb.find_health_monitor("sdk-probe") is None
    with refused(409, "This pool already has a health monitor"):
        lb.create_health_monitor(pool_id=pool, type="TCP", delay=1, timeout=1, max_retries=1)
    with refused(400, "url_path is not a valid option for health monitors of type TCP"):
        lb.update_health_monitor(made.id, url_path="/")
    lb.delete_health_monitor(made.id)
    assert_attributes(lb.wait_for_delete(made, interval=0.05, wait=ACTIVE_TIMEOUT), id=made.id)
    with refused(404, f"Health Monitor {made.id} not found."):
        lb.get_health_monitor(made.id)
    with refused(404, f"Health Monitor {made.id} not found."):
        lb.delete_health_monitor(made.id, ignore_missing=False)
    with refused(501, "a requested option: health monitors of type PING"):
        lb.create_health_monitor(pool_id=pool, type="PING", delay=1, timeout=1, max_retries=1)


def policies(lb: Any, listener: str) -> None:
    """OVN supports no L7 policies."""
    with refused(501, "a requested option: L7 policies"):
        lb.create_l7_policy(listener_id=listener, action="REJECT")
    assert list(lb.l7_policies(listener_id=listener)) == []
    assert lb.find_l7_policy("sdk-policy") is None
    with refused(404, f"L7 Policy {UNKNOWN_ID} not found."):
        lb.get_l7_policy(UNKNOWN_ID)
    with refused(404, f"L7 Policy {UNKNOWN_ID} not found."):
        lb.update_l7_policy(UNKNOWN_ID, name="x")
    assert lb.delete_l7_policy(UNKNOWN_ID) is None
    with refused(404, f"L7 Policy {UNKNOWN_ID} not found."):
        lb.delete_l7_policy(UNKNOWN_ID, ignore_missing=False)


def rules(lb: Any) -> None:
    words = f"L7 Policy {UNKNOWN_ID} not found."
    with refused(404, words):
        lb.create_l7_rule(UNKNOWN_ID, type="PATH", compare_type="EQUAL_TO", rule_value="/")
    with refused(404, words):
        list(lb.l7_rules(UNKNOWN_ID))
    with refused(404, words):
        lb.get_l7_rule(UNKNOWN_ID, UNKNOWN_ID)
    with refused(404, words):
        lb.find_l7_rule("sdk-rule", UNKNOWN_ID)
    with refused(404, words):
        lb.update_l7_rule(UNKNOWN_ID, UNKNOWN_ID, invert=True)
    with refused(404, words):
        lb.delete_l7_rule(UNKNOWN_ID, UNKNOWN_ID, ignore_missing=False)


def quotas(site: LabSite, lb: Any, pool: str) -> None:
    limits = {"load_balancers": 100, "listeners": 500, "pools": 500, "members": 5000, "health_monitors": 500}
    assert_attributes(lb.get_quota_default(), **limits)
    project = lb.get_pool(pool).project_id
    assert_attributes(lb.update_quota(project, members=0, health_monitors=2), members=0, health_monitors=2, pools=500)
    assert_attributes(lb.get_quota(project), members=0, health_monitors=2, listeners=500)
    assert [(quota.project_id, quota.members) for quota in lb.quotas()] == [(project, 0)]
    with refused(403, "Quota has been met for resources: Member"):
        lb.create_member(pool, address=site.address("sdk1"), protocol_port=PORT)
    assert lb.delete_quota(project) is None
    assert_attributes(lb.get_quota(project), **limits)
    assert list(lb.quotas()) == []
    with refused(404, f"Quotas {project} not found."):
        lb.delete_quota(project, ignore_missing=False)


def flavors(site: LabSite, lb: Any) -> None:
    profile = lb.create_flavor_profile(name="sdk-fp", provider_name="ovn", flavor_data="{}")
    assert_attributes(profile, name="sdk-fp", provider_name="ovn", flavor_data="{}")
    assert_equal_resources(
        lb.get_flavor_profile(profile.id), lb.find_flavor_profile("sdk-fp"), lb.flavor_profiles(name="sdk-fp")
    )
    assert_attributes(lb.update_flavor_profile(profile.id, name="sdk-fq"), id=profile.id, name="sdk-fq")
    flavor = lb.create_flavor(name="sdk-gold", flavor_profile_id=profile.id, description="d")
    assert_attributes(flavor, name="sdk-gold", flavor_profile_id=profile.id, description="d", is_enabled=True)
    assert_equal_resources(lb.get_flavor(flavor.id), lb.find_flavor("sdk-gold"), lb.flavors(is_enabled=True))
    assert list(lb.flavors(is_enabled=False)) == []
    made = lb.create_load_balancer(name="sdk-f", vip_subnet_id=site.subnet("sdk-v4").id, flavor_id=flavor.id)
    assert_attributes(made, flavor_id=flavor.id, provider="ovn")
    assert_attributes(lb.update_flavor(flavor.id, description="e", is_enabled=False), description="e", is_enabled=False)
    with refused(400, "is not allowed in this deployment"):
        lb.create_load_balancer(name="sdk-g", vip_subnet_id=site.subnet("sdk-v4").id, flavor_id=flavor.id)
    for delete, used in ((lb.delete_flavor, flavor), (lb.delete_flavor_profile, profile)):
        with refused(409, "is in use and cannot be modified."):
            delete(used.id)
    with refused(501, "flavor_data compute_flavor"):
        lb.create_flavor_profile(name="sdk-no", provider_name="ovn", flavor_data='{"compute_flavor": "x"}')
    lb.delete_load_balancer(made.id)
    lb.delete_flavor(flavor.id)
    lb.delete_flavor_profile(profile.id)
    assert (lb.find_flavor("sdk-gold"), lb.find_flavor_profile("sdk-fq")) == (None, None)
    with refused(404, flavor.id):
        lb.get_flavor(flavor.id)
    with refused(404, profile.id):
        lb.get_flavor_profile(profile.id)


def zones(site: LabSite, lb: Any) -> None:
    """An availability zone is identified by its name."""
    profile = lb.create_availability_zone_profile(name="sdk-zp", provider_name="ovn", availability_zone_data="{}")
    assert_attributes(profile, name="sdk-zp", provider_name="ovn", availability_zone_data="{}")
    assert_equal_resources(
        lb.get_availability_zone_profile(profile.id),
        lb.find_availability_zone_profile("sdk-zp"),
        lb.availability_zone_profiles(name="sdk-zp"),
    )
    assert_attributes(lb.update_availability_zone_profile(profile.id, name="sdk-zq"), id=profile.id, name="sdk-zq")
    zone = lb.create_availability_zone(name="sdk-east", availability_zone_profile_id=profile.id, description="d")
    assert_attributes(zone, name="sdk-east", availability_zone_profile_id=profile.id, description="d", is_enabled=True)
    for shown in (
        lb.get_availability_zone("sdk-east"),
        lb.find_availability_zone("sdk-east"),
        *lb.availability_zones(is_enabled=True),
    ):
        assert_attributes(
            shown, name="sdk-east", availability_zone_profile_id=profile.id, description="d", is_enabled=True
        )
    made = lb.create_load_balancer(name="sdk-z", vip_subnet_id=site.subnet("sdk-v4").id, availability_zone="sdk-east")
    assert_attributes(made, availability_zone="sdk-east", provider="fairlead")
    assert_attributes(
        lb.update_availability_zone("sdk-east", description="e", is_enabled=False), description="e", is_enabled=False
    )
    with refused(400, "is not allowed in this deployment: sdk-east"):
        lb.create_load_balancer(name="sdk-y", vip_subnet_id=site.subnet("sdk-v4").id, availability_zone="sdk-east")
    with refused(409, "is in use and cannot be modified."):
        lb.delete_availability_zone("sdk-east")
    with refused(409, "is in use and cannot be modified."):
        lb.delete_availability_zone_profile(profile.id)
    lb.delete_load_balancer(made.id)
    lb.delete_availability_zone("sdk-east")
    lb.delete_availability_zone_profile(profile.id)
    assert lb.find_availability_zone("sdk-east") is None
    assert lb.find_availability_zone_profile("sdk-zq") is None


def providers(lb: Any) -> None:
    found = [(provider.name, "Open vSwitch" in provider.description) for provider in lb.providers()]
    assert found == [("fairlead", True), ("ovn", True)]
    assert list(lb.provider_flavor_capabilities("ovn")) == []
    with refused(400, "Provider 'amphora' is not enabled."):
        list(lb.provider_flavor_capabilities("amphora"))


def amphorae(lb: Any) -> None:
    """Amphorae do not exist."""
    assert (list(lb.amphorae()), lb.find_amphora("sdk-amphora")) == ([], None)
    for call in (lb.get_amphora, lb.configure_amphora, lb.failover_amphora):
        with refused(404, f"Amphora {UNKNOWN_ID} not found."):
            call(UNKNOWN_ID)


def ends(site: LabSite, lb: Any, balancer: str, listener: str, pool: str) -> None:
    """Deleted and disabled parts no longer answer."""
    with refused(400, "it has children"):
        lb.delete_load_balancer(balancer)
    assert ask(site) == ({"sdk2"}, {})
    for update, part in ((lb.update_pool, pool), (lb.update_listener, listener)):
        for enabled, seen in ((False, (set(), REFUSED)), (True, ({"sdk2"}, {}))):
            assert_attributes(update(part, is_admin_state_up=enabled), is_admin_state_up=enabled)
            site.settle(balancer)
            assert ask(site) == seen
    for delete, identity in ((lb.delete_listener, listener), (lb.delete_pool, pool)):
        delete(identity)
    for get, identity in ((lb.get_listener, listener), (lb.get_pool, pool)):
        with refused(404, f"{identity} not found."):
            get(identity)
    for delete, identity in ((lb.delete_listener, listener), (lb.delete_pool, pool)):
        with refused(404, f"{identity} not found."):
            delete(identity, ignore_missing=False)
    lb.create_listener(load_balancer_id=balancer, protocol="TCP", protocol_port=80)
    gone = lb.get_load_balancer(balancer)
    assert lb.delete_load_balancer(balancer, cascade=True) is None
    assert_attributes(lb.wait_for_delete(gone, interval=0.05, wait=ACTIVE_TIMEOUT), id=balancer)
    assert lb.delete_load_balancer(balancer) is None
    with refused(404, f"Load Balancer {balancer} not found."):
        lb.delete_load_balancer(balancer, ignore_missing=False)


@pytest.fixture(scope="module")
def three(site: LabSite) -> Iterator[list[Any]]:
    """Load balancers in the order of their creation, each with a listener, a pool, a member and a monitor."""
    lb, subnet = site.cloud.load_balancer, site.subnet("sdk-v4").id
    made = []
    for number, name in enumerate(("sdk-q2", "sdk-q1", "sdk-q3")):
        member = {"name": name, "address": site.address("sdk1"), "protocol_port": PORT + number, "weight": number + 1}
        monitor = {"name": name, "type": "TCP", "delay": 5 + number, "timeout": 2, "max_retries": 2}
        pool = {"name": name, "protocol": "TCP", "lb_algorithm": "SOURCE_IP_PORT", "tags": [name]}
        listener = {
            "name": name,
            "protocol": "TCP",
            "protocol_port": 80 + number,
            "allowed_cidrs": ["10.0.0.0/24", f"10.0.{number}.0/25"],
            "default_pool": {**pool, "members": [member], "healthmonitor": monitor},
        }
        common = {"description": f"number {number}", "is_admin_state_up": number != 1}
        made.append(
            lb.create_load_balancer(
                name=name, vip_subnet_id=subnet, tags=["sdk-q", name], listeners=[listener], **common
            )
        )
        site.settle(made[-1].id)
    yield [lb.get_load_balancer(each.id) for each in made]
    for each in made:
        lb.delete_load_balancer(each.id, cascade=True)


def names(found: Iterable[Any]) -> list[str]:
    return [each.name for each in found]


def test_lists_are_filtered_by_every_attribute(site: LabSite, three: list[Any]):
    lb = site.cloud.load_balancer
    second, listener, pool = three[1], three[1].listeners[0]["id"], three[1].pools[0]["id"]
    (member,) = lb.members(pool)
    check_queries(second, lb.load_balancers)
    check_queries(lb.get_listener(listener), lb.listeners)
    check_queries(lb.get_pool(pool), lb.pools)
    check_queries(member, partial(lb.members, pool))
    check_queries(lb.find_health_monitor("sdk-q1"), lb.health_monitors)
    assert names(lb.listeners(load_balancer_id=second.id)) == ["sdk-q1"]
    assert names(lb.pools(loadbalancer_id=second.id)) == names(lb.pools(listener_id=listener)) == ["sdk-q1"]
    assert names(lb.health_monitors(pool_id=pool)) == ["sdk-q1"]


def test_lists_are_filtered_by_several_attributes_and_by_tags(site: LabSite, three: list[Any]):
    lb = site.cloud.load_balancer
    assert names(lb.load_balancers(tags="sdk-q", is_admin_state_up=True)) == ["sdk-q2", "sdk-q3"]
    assert names(lb.load_balancers(tags="sdk-q", is_admin_state_up=False, description="number 1")) == ["sdk-q1"]
    assert names(lb.load_balancers(tags="sdk-q", is_admin_state_up=False, description="number 2")) == []
    assert names(lb.load_balancers(any_tags="sdk-q1,sdk-q3")) == ["sdk-q1", "sdk-q3"]
    assert names(lb.load_balancers(tags="sdk-q", not_tags="sdk-q,sdk-q1")) == ["sdk-q2", "sdk-q3"]
    assert names(lb.load_balancers(tags="sdk-q", not_any_tags="sdk-q1,sdk-q3")) == ["sdk-q2"]
    assert names(lb.load_balancers(tags="sdk-q", listeners=three[2].listeners)) == ["sdk-q3"]


def test_sdk_follows_pagination_links_to_the_end(site: LabSite, three: list[Any]):
    """`limit` is the size of a page: the SDK follows the links to the end."""
    lb = site.cloud.load_balancer
    made = ["sdk-q2", "sdk-q1", "sdk-q3"]
    for limit in (1, 2, 3, 1000):
        assert names(lb.load_balancers(tags="sdk-q", limit=limit)) == made
        assert names(lb.listeners(limit=limit, protocol="TCP"))[-3:] == made
    assert names(lb.load_balancers(tags="sdk-q", limit=1, paginated=False)) == made[:1]
    assert names(lb.load_balancers(tags="sdk-q", limit=1, marker=three[0].id)) == made[1:]
    assert names(lb.load_balancers(tags="sdk-q", limit=1, marker=three[2].id)) == []
    with refused(400, f"Supplied pagination marker '{UNKNOWN_ID}' is not valid."):
        list(lb.load_balancers(marker=UNKNOWN_ID))


def test_sdk_paginates_objects_without_ovn_rows(site: LabSite):
    """Some of these objects are identified by a name or a project."""
    lb, made = site.cloud.load_balancer, [f"sdk-{number}" for number in range(3)]
    for name in made:
        lb.update_quota(name, pools=1)
        lb.create_flavor_profile(name=name, provider_name="ovn", flavor_data="{}")
        lb.create_flavor(name=name, flavor_profile_id=lb.find_flavor_profile(name).id)
        lb.create_availability_zone_profile(name=name, provider_name="ovn", availability_zone_data="{}")
        profile = lb.find_availability_zone_profile(name)
        lb.create_availability_zone(name=name, availability_zone_profile_id=profile.id)
    named = (lb.flavor_profiles, lb.flavors, lb.availability_zone_profiles, lb.availability_zones)
    for limit in (1, 2, 3):
        assert [quota.project_id for quota in lb.quotas(limit=limit)] == made
        for listed in named:
            assert sorted(names(listed(limit=limit))) == made
            assert len(list(listed(limit=limit, paginated=False))) == limit
    for name in made:
        lb.delete_quota(name)
        lb.delete_flavor(lb.find_flavor(name))
        lb.delete_flavor_profile(lb.find_flavor_profile(name))
        lb.delete_availability_zone(name)
        lb.delete_availability_zone_profile(lb.find_availability_zone_profile(name))
    assert [each for listed in (lb.quotas, *named) for each in listed()] == []


def test_fields_and_sorting_apply_to_whole_and_paginated_lists(site: LabSite, three: list[Any]):
    """The SDK's lists do not support these, so the test uses its proxy as a plain HTTP client."""
    lb = site.cloud.load_balancer

    def asked(**query: Any) -> Any:
        return lb.get("/lbaas/loadbalancers", params={"tags": "sdk-q", **query}).json()

    fields = {"fields": ["name", "description"], "sort": "name:desc"}
    bodies = [
        {"name": f"sdk-q{number}", "description": f"number {place}"} for number, place in ((3, 2), (2, 0), (1, 1))
    ]
    assert asked(**fields)["loadbalancers"] == bodies
    sorted_by = {"sort_key": ["admin_state_up", "name"], "sort_dir": ["desc", "asc"]}
    assert [each["name"] for each in asked(**sorted_by)["loadbalancers"]] == ["sdk-q2", "sdk-q3", "sdk-q1"]
    page = asked(**fields, limit=1)
    assert page["loadbalancers"] == bodies[:1]
    (link,) = page["loadbalancers_links"]
    following = lb.get(link["href"]).json()
    assert (link["rel"], following["loadbalancers"]) == ("next", bodies[1:2])
    assert [each["rel"] for each in following["loadbalancers_links"]] == ["next", "previous"]


def test_search_resources_of_the_cloud_layer_finds_load_balancer_objects(site: LabSite, three: list[Any]):
    """It has no methods for load balancers, only a generic one for resources of all services."""
    cloud = site.cloud
    own = [name for name in dir(type(cloud)) if "load_balancer" in name and name != "load_balancer"]
    assert own == [], f"openstacksdk has functions that nobody tried: call each of {own} in this file"
    pool = three[0].pools[0]["id"]
    (member,) = cloud.load_balancer.members(pool)
    for kind, name, identity, more in (
        ("load_balancer", "sdk-q2", three[0].id, {}),
        ("pool", "sdk-q2", pool, {}),
        ("health_monitor", "sdk-q2", cloud.load_balancer.find_health_monitor("sdk-q2").id, {}),
        ("member", "sdk-q2", member.id, {"get_kwargs": {"pool_id": pool}, "list_kwargs": {"pool_id": pool}}),
    ):
        for words in (name, identity):
            assert [each.id for each in cloud.search_resources(f"load_balancer.{kind}", words, **more)] == [identity]
        assert cloud.search_resources(f"load_balancer.{kind}", "sdk-no-such", **more) == []
    found = cloud.search_resources("load_balancer.load_balancer", None, tags="sdk-q", is_admin_state_up=False)
    assert names(found) == ["sdk-q1"]


def test_project_cleanup_deletes_load_balancers_with_their_children(site: LabSite, three: list[Any]):
    """The method that `project_cleanup` calls for each service of the catalogue."""
    lb = site.cloud.load_balancer
    made = lb.create_load_balancer(
        name="sdk-old",
        vip_subnet_id=site.subnet("sdk-v4").id,
        listeners=[{"protocol": "UDP", "protocol_port": 53}],
    )
    before = set(names(lb.load_balancers()))
    for dry_run, rest in ((True, before), (False, before - {"sdk-old"})):
        identified: dict[str, Any] = {}
        lb._service_cleanup(
            dry_run=dry_run,
            identified_resources=identified,
            resource_evaluation_fn=lambda resource, *_: resource.name == "sdk-old",
        )
        assert identified.keys() == {made.id}
        assert set(names(lb.load_balancers())) == rest
