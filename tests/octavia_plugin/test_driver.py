"""Requests of Octavia's driver reach the server unchanged, and the server's errors reach Octavia."""

from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import httpx
import pytest
from octavia_lib.api.drivers import data_models as models
from octavia_lib.api.drivers import exceptions
from octavia_lib.api.drivers.provider_base import ProviderDriver
from oslo_config import cfg

from fairlead.octavia_plugin.driver import FairleadDriver
from fairlead.octavia_plugin.options import OPTIONS, SECTION, read
from harness.served import served
from harness.waiting import DEADLINE

LB, LISTENER, POOL = (f"{letter * 8}-0000-4000-8000-000000000001" for letter in "abc")
ONE, TWO, MONITOR, RULE = (f"{letter * 8}-0000-4000-8000-000000000002" for letter in "abcd")
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def door(tmp_path: Path) -> Iterator[httpx.Client]:
    """Plug-in front end of a server; the driver's first configured server is down."""
    with served(tmp_path) as url, httpx.Client(base_url=url, timeout=DEADLINE) as client:
        read(cfg.CONF)
        cfg.CONF.set_override("servers", [NOWHERE, url], SECTION)
        yield client
        cfg.CONF.clear_override("servers", SECTION)


@pytest.fixture
def subnet(door: httpx.Client) -> str:
    network = door.post("/network/v2.0/networks", json={"network": {"project_id": "p"}}).json()["network"]["id"]
    body = {"network_id": network, "cidr": "10.0.0.0/24", "ip_version": 4, "project_id": "p"}
    made: str = door.post("/network/v2.0/subnets", json={"subnet": body}).json()["subnet"]["id"]
    return made


def tree(subnet: str, **changes: Any) -> Any:
    """Load balancer as Octavia builds it from a request with all parts: the pool is in the list and in the listener."""
    member = models.Member(
        member_id=ONE, address="10.0.0.11", protocol_port=80, weight=3, backup=False, vnic_type="normal"
    )
    persistence = {
        "type": "SOURCE_IP",
        "cookie_name": None,
        "persistence_timeout": None,
        "persistence_granularity": None,
    }
    pool = models.Pool(
        pool_id=POOL,
        name="p",
        protocol="TCP",
        lb_algorithm="ROUND_ROBIN",
        members=[member],
        loadbalancer_id=LB,
        listener_id=LISTENER,
        session_persistence=persistence,
        tls_enabled=False,
        tls_versions=None,
        tls_container_data=None,
    )
    listener = models.Listener(
        listener_id=LISTENER,
        name="l",
        protocol="TCP",
        protocol_port=80,
        loadbalancer_id=LB,
        default_pool=pool,
        default_pool_id=POOL,
        connection_limit=-1,
        insert_headers={},
        timeout_client_data=50000,
        allowed_cidrs=None,
        **changes,
    )
    return models.LoadBalancer(
        loadbalancer_id=LB,
        name="web",
        project_id="p",
        vip_subnet_id=subnet,
        vip_address="10.0.0.50",
        additional_vips=[],
        listeners=[listener],
        pools=[pool],
        flavor={},
        admin_state_up=True,
    )


def stored(door: httpx.Client, path: str) -> Any:
    """First attribute of the response; lists have links besides."""
    return next(iter(door.get(f"/load-balancer/v2/lbaas/{path}").raise_for_status().json().values()))


def test_every_provider_driver_method_has_the_same_signature():
    methods = {name for name in vars(ProviderDriver) if not name.startswith("_") and name != "name"}
    assert methods <= vars(FairleadDriver).keys()
    for name in methods:
        asked, answered = (signature(getattr(each, name)).parameters for each in (ProviderDriver, FairleadDriver))
        assert [*asked] == [*answered], name
        assert [each.default for each in asked.values()] == [each.default for each in answered.values()], name


def test_driver_creates_updates_and_deletes_a_whole_tree(door: httpx.Client, subnet: str):
    driver = FairleadDriver()
    driver.loadbalancer_create(tree(subnet))
    assert stored(door, f"pools/{POOL}")["session_persistence"]["type"] == "SOURCE_IP"
    assert stored(door, f"pools/{POOL}/members/{ONE}")["weight"] == 3
    old = models.Member(member_id=ONE, pool_id=POOL)
    driver.member_update(old, models.Member(member_id=ONE, weight=None))
    assert stored(door, f"pools/{POOL}/members/{ONE}")["weight"] == 1, "a None is the default; what is Unset stays"
    added = models.Member(member_id=TWO, pool_id=POOL, address="10.0.0.12", protocol_port=80, subnet_id=subnet)
    driver.member_create(added)
    driver.member_batch_update(POOL, [added])
    assert [each["id"] for each in stored(door, f"pools/{POOL}/members")] == [TWO]
    driver.listener_update(models.Listener(), models.Listener(listener_id=LISTENER, allowed_cidrs=["10.0.0.0/8"]))
    driver.pool_update(models.Pool(), models.Pool(pool_id=POOL, session_persistence=None))
    driver.loadbalancer_update(models.LoadBalancer(), models.LoadBalancer(loadbalancer_id=LB, name="shop"))
    assert stored(door, f"listeners/{LISTENER}")["allowed_cidrs"] == ["10.0.0.0/8"]
    assert stored(door, f"pools/{POOL}")["session_persistence"] is None
    assert stored(door, f"loadbalancers/{LB}")["name"] == "shop"
    driver.loadbalancer_failover_with_flavor(LB, "")
    driver.member_delete(added)
    driver.member_delete(added)
    driver.pool_delete(models.Pool(pool_id=POOL))
    driver.listener_delete(models.Listener(listener_id=LISTENER))
    driver.loadbalancer_delete(models.LoadBalancer(loadbalancer_id=LB))
    driver.loadbalancer_delete(models.LoadBalancer(loadbalancer_id=LB), cascade=True)
    assert door.get("/plugin/statuses").json()["loadbalancers"] == []


def test_unsupported_option_is_named_and_rule_violation_is_a_driver_error(door: httpx.Client, subnet: str):
    driver = FairleadDriver()
    with pytest.raises(exceptions.UnsupportedOptionError) as unsupported:
        driver.loadbalancer_create(tree(subnet, l7policies=[policy()]))
    assert unsupported.value.user_fault_string == "L7 policies"
    assert door.get(f"/load-balancer/v2/lbaas/loadbalancers/{LB}").status_code == 404
    driver.loadbalancer_create(tree(subnet))
    for refused in (
        lambda: driver.listener_update(None, models.Listener(listener_id=LISTENER, connection_limit=5)),
        lambda: driver.l7policy_create(policy()),
        lambda: driver.health_monitor_create(
            models.HealthMonitor(
                healthmonitor_id=MONITOR,
                pool_id=POOL,
                type="HTTP",
                delay=5,
                timeout=3,
                max_retries=2,
                http_version=None,
            )
        ),
        lambda: driver.validate_flavor({"size": "xl"}),
    ):
        with pytest.raises(exceptions.UnsupportedOptionError):
            refused()
    again = models.Listener(listener_id=TWO, loadbalancer_id=LB, protocol="TCP", protocol_port=80)
    with pytest.raises(exceptions.DriverError) as taken:
        driver.listener_create(again)
    assert "already using protocol TCP and protocol_port 80" in taken.value.user_fault_string
    with pytest.raises(exceptions.DriverError) as missing:
        driver.l7rule_create(
            models.L7Rule(l7rule_id=RULE, l7policy_id=TWO, type="PATH", compare_type="REGEX", value="/")
        )
    assert TWO in missing.value.user_fault_string
    direct = models.Member(member_id=TWO, pool_id=POOL, address="10.0.0.12", protocol_port=80, vnic_type="direct")
    with pytest.raises(exceptions.DriverError, match="SR-IOV"):
        driver.member_create(direct)
    with pytest.raises(exceptions.NotImplementedError):
        driver.create_vip_port(LB, "p", {}, [])


def test_exceeded_quota_is_reported_to_the_tenant(door: httpx.Client, subnet: str):
    path = "/load-balancer/v2/lbaas/quotas/p"
    door.put(path, json={"quota": {"listener": 0}}).raise_for_status()
    with pytest.raises(exceptions.DriverError) as met:
        FairleadDriver().loadbalancer_create(tree(subnet))
    assert met.value.user_fault_string == "Quota has been met for resources: Listener"
    assert door.get(f"/load-balancer/v2/lbaas/loadbalancers/{LB}").status_code == 404


def policy() -> Any:
    rule = models.L7Rule(l7rule_id=RULE, type="PATH", compare_type="STARTS_WITH", value="/", invert=False)
    return models.L7Policy(l7policy_id=TWO, listener_id=LISTENER, action="REJECT", position=1, rules=[rule])


def test_flavor_and_zone_metadata_come_from_the_server(door: httpx.Client):
    driver = FairleadDriver()
    assert driver.get_supported_flavor_metadata() == {}
    assert set(driver.get_supported_availability_zone_metadata()) == {"valid_vip_networks"}
    driver.validate_availability_zone({"valid_vip_networks": [ONE]})


def test_unreachable_server_is_named_to_operators_not_to_tenants(door: httpx.Client):
    cfg.CONF.set_override("servers", [NOWHERE], SECTION)
    with pytest.raises(exceptions.DriverError) as gone:
        FairleadDriver().pool_delete(models.Pool(pool_id=POOL))
    assert (NOWHERE in gone.value.operator_fault_string, NOWHERE in gone.value.user_fault_string) == (True, False)


def test_all_options_have_a_help_text():
    assert all(option.help for option in OPTIONS)
