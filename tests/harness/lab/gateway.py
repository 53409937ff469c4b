"""Paths from outside OVN to the inside: a router's gateway, and floating IPs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.lab.site import CreatedBalancer, LabSite


def set_gateway(site: LabSite, router: Any, public: Any, *, snat: bool) -> None:
    """Set the router's gateway, and the host's routes to the networks behind it."""
    updated = site.cloud.network.update_router(
        router, external_gateway_info={"network_id": public.id, "enable_snat": snat}
    )
    for fixed in updated.external_gateway_info["external_fixed_ips"]:
        six = ":" in fixed["ip_address"]
        inside = "fd00::/16" if six else "10.0.0.0/16"
        site.lab.exec("outside", ["ip", "route", "replace", inside, "via", fixed["ip_address"], "dev", "eth0"])
    site.await_applied()


def ping(site: LabSite, client: str, to: str) -> None:
    """Ping an address. Raises CommandFailed. The first packet may have to wait for neighbour discovery."""
    site.lab.exec(client, ["ping", "-6" if ":" in to else "-4", "-c1", "-w30", to])


@contextmanager
def floating_ip(site: LabSite, port_id: str) -> Iterator[str]:
    network = site.cloud.network.find_network("public", ignore_missing=False)
    made = site.cloud.network.create_ip(floating_network_id=network.id, port_id=port_id)
    try:
        site.await_applied()
        yield made.floating_ip_address
    finally:
        site.cloud.network.delete_ip(made)


def vip_port(site: LabSite, balancer: CreatedBalancer) -> str:
    port: str = site.cloud.load_balancer.get_load_balancer(balancer.id).vip_port_id
    return port


def active_chassis(site: LabSite) -> str:
    """The chassis that has the only gateway."""
    words = ["ovn-sbctl", "--bare", "--columns=chassis", "find", "Port_Binding", "type=chassisredirect"]
    found = site.lab.exec("central", words).strip()
    return site.lab.exec("central", ["ovn-sbctl", "get", "Chassis", found, "name"]).strip().strip('"') if found else ""
