"""Octavia's rows are converted to the driver's request, from names of columns to names of attributes."""

from types import SimpleNamespace
from typing import Any

from fairlead.octavia_plugin import bodies, database_bodies


class Row(SimpleNamespace):
    """Row of Octavia's models; attributes that a test does not set are None."""

    def __getattr__(self, name: str) -> Any:
        return None


def part(name: str, **more: Any) -> Row:
    return Row(id=name, enabled=True, provisioning_status="ACTIVE", **more)


def balancer(**more: Any) -> Row:
    vip = Row(ip_address="10.0.0.5", port_id="port", subnet_id="sub", network_id="net", sg_ids=[])
    return part("lb", project_id="p", vip=vip, **{"additional_vips": [], "listeners": [], "pools": [], **more})


def listener(name: str, **more: Any) -> Row:
    lists = {"allowed_cidrs": [], "sni_containers": [], "l7policies": []}
    return part(name, protocol="TCP", protocol_port=80, **{**lists, **more})


def test_database_bodies_have_every_attribute_of_driver_requests():
    whole = database_bodies.load_balancer(
        balancer(
            listeners=[listener("l", l7policies=[part("x", position=1, l7rules=[part("r")])])],
            pools=[part("p", members=[part("m")], health_monitor=part("h", type="TCP"))],
        )
    )
    kinds = {
        bodies.LOAD_BALANCER: whole,
        bodies.LISTENER: whole["listeners"][0],
        bodies.L7_POLICY: whole["listeners"][0]["l7policies"][0],
        bodies.L7_RULE: whole["listeners"][0]["l7policies"][0]["rules"][0],
        bodies.POOL: whole["pools"][0],
        bodies.MEMBER: whole["pools"][0]["members"][0],
        bodies.MONITOR: whole["pools"][0]["healthmonitor"],
    }
    assert [sorted(set(names) - body.keys()) for names, body in kinds.items()] == [[]] * len(kinds)


def test_renamed_columns_are_mapped_to_attributes():
    whole = database_bodies.load_balancer(
        balancer(
            additional_vips=[Row(ip_address="fd00::5", subnet_id="six", port_id=None)],
            listeners=[
                listener(
                    "l",
                    tls_certificate_id="cert",
                    client_ca_tls_certificate_id="ca",
                    client_crl_container_id="crl",
                    allowed_cidrs=[Row(cidr="10.2.0.0/16"), Row(cidr="10.1.0.0/16")],
                    sni_containers=[Row(tls_container_id="sni")],
                )
            ],
            pools=[
                part(
                    "p",
                    tls_certificate_id="own",
                    session_persistence=Row(type="SOURCE_IP", persistence_timeout=5),
                    members=[part("m", ip_address="10.0.0.11")],
                    health_monitor=part("h", rise_threshold=2, fall_threshold=3),
                )
            ],
        )
    )
    (shown,), (pool,) = whole["listeners"], whole["pools"]
    assert whole["additional_vips"] == [{"ip_address": "fd00::5", "subnet_id": "six"}]
    refs = (
        "default_tls_container_ref",
        "client_ca_tls_container_ref",
        "client_crl_container_ref",
        "sni_container_refs",
    )
    assert [shown[name] for name in refs] == ["cert", "ca", "crl", ["sni"]]
    assert shown["allowed_cidrs"] == ["10.1.0.0/16", "10.2.0.0/16"]
    assert (pool["tls_container_ref"], pool["members"][0]["address"]) == ("own", "10.0.0.11")
    assert pool["session_persistence"] == {
        "type": "SOURCE_IP",
        "cookie_name": None,
        "persistence_timeout": 5,
        "persistence_granularity": None,
    }
    assert (pool["healthmonitor"]["max_retries"], pool["healthmonitor"]["max_retries_down"]) == (2, 3)


def test_deleted_listeners_are_omitted_and_the_order_is_stable():
    gone = listener("b")
    gone.provisioning_status = "PENDING_DELETE"
    whole = database_bodies.load_balancer(balancer(listeners=[listener("c"), gone, listener("a")]))
    assert [each["id"] for each in whole["listeners"]] == ["a", "c"]
