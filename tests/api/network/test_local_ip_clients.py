"""Local IPs through the unmodified stock clients: each subcommand with its output, and each call of the SDK."""

from pathlib import Path
from typing import Any

import openstack
import pytest
from openstack.connection import Connection

from harness.shell import OpenStackShell, shell

SHOWN = {
    *("created_at", "description", "id", "ip_mode", "local_ip_address", "local_port_id", "name", "network_id"),
    *("project_id", "revision_number", "updated_at"),
}
LISTED = ["ID", "Name", "Description", "Project", "Local Port ID", "Network", "Local IP address", "IP mode"]
ASSOCIATION = {"fixed_ip", "fixed_port_id", "host", "local_ip_address", "local_ip_id"}
ASSOCIATIONS = ["Local IP ID", "Local IP Address", "Fixed port ID", "Fixed IP", "Host"]


@pytest.mark.client
def test_cli_manages_local_ips_and_associations(clouds: Path):
    with shell(clouds) as typed:
        ports = _make_network(typed)
        made = typed.run_ok("local ip create --name dns --description d --local-port owner --ip-mode translate -f json")
        assert made.keys() >= SHOWN
        assert (made["local_ip_address"], made["local_port_id"]) == ("10.0.0.7", ports["owner"])
        _list(typed, made)
        assert typed.run_ok("local ip show dns -f json") == made
        typed.run_ok("local ip set --name ntp --description e dns")
        assert typed.run_ok("local ip show ntp -f json")["description"] == "e"
        _associate(typed, made, ports)
        typed.run_error("local ip delete ntp", "is still associated with one or more ports.")
        typed.run_error("port delete owner", "still referenced by Local IPs.")
        typed.run_ok(f"local ip association delete ntp {ports['one']} {ports['six']}")
        assert typed.run_ok("local ip association list ntp -f json") == []
        typed.run_ok("local ip delete ntp")
        assert typed.run_ok("local ip list -f json") == []
        typed.run_error("local ip show ntp", "No LocalIP found for ntp")
        typed.run_error(
            "local ip create --name x", "Either Port ID or Network ID must be specified for Local IP create."
        )


def _make_network(typed: OpenStackShell) -> dict[str, str]:
    typed.run_ok("network create lan")
    typed.run_ok("subnet create lan4 --network lan --subnet-range 10.0.0.0/24")
    typed.run_ok("subnet create lan6 --network lan --subnet-range fd00::/64 --ip-version 6")
    port = "port create {0} --network lan {1} -f value -c id"
    fixed = {"owner": ["10.0.0.7"], "one": ["10.0.0.8"], "six": ["10.0.0.9", "fd00::9"]}
    options = {name: " ".join(f"--fixed-ip ip-address={each}" for each in fixed[name]) for name in fixed}
    return {name: typed.run_ok(port.format(name, options[name])) for name in fixed}


def _list(typed: OpenStackShell, made: dict[str, Any]) -> None:
    (listed,) = typed.run_ok("local ip list -f json")
    values = ("id", "name", "description", "project_id", "local_port_id", "network_id", "local_ip_address", "ip_mode")
    assert listed == dict(zip(LISTED, (made[name] for name in values), strict=True))
    for sieve, found in {
        "--name dns": 1,
        "--name other": 0,
        "--network lan": 1,
        "--local-port owner": 1,
        "--local-port one": 0,
        "--local-ip-address 10.0.0.7": 1,
        "--ip-mode passthrough": 0,
        f"--project {made['project_id']}": 1,
    }.items():
        assert len(typed.run_ok(f"local ip list {sieve} -f json")) == found, sieve


def _associate(typed: OpenStackShell, made: dict[str, Any], ports: dict[str, str]) -> None:
    one = typed.run_ok("local ip association create ntp one -f json")
    assert one.keys() >= ASSOCIATION
    values = {"fixed_ip": "10.0.0.8", "fixed_port_id": ports["one"], "host": "", "local_ip_id": made["id"]}
    assert one.items() >= values.items()
    typed.run_ok("local ip association create ntp six --fixed-ip 10.0.0.9")
    listed = typed.run_ok("local ip association list ntp -f json")
    assert [list(each) for each in listed] == [ASSOCIATIONS] * 2
    assert [each["Fixed IP"] for each in listed] == ["10.0.0.8", "10.0.0.9"]
    for sieve, found in {
        "--fixed-port one": 1,
        "--fixed-ip 10.0.0.9": 1,
        "--fixed-ip 10.0.0.1": 0,
        "--host n": 0,
    }.items():
        assert len(typed.run_ok(f"local ip association list ntp {sieve} -f json")) == found, sieve
    typed.run_error("local ip association create ntp one", "is already associated with port")
    typed.run_error("local ip association create ntp nothing", "No Port found for nothing")
    typed.run_error("local ip association create ntp owner", "has the address of Local IP")


@pytest.mark.client
def test_cli_creates_local_ips_by_network_and_with_ipv6(clouds: Path):
    with shell(clouds) as typed:
        typed.run_ok("network create wan")
        typed.run_ok("subnet create wan4 --network wan --subnet-range 10.9.0.0/24")
        typed.run_ok("subnet create wan6 --network wan --subnet-range fd09::/64 --ip-version 6")
        value = "-f value -c"
        assert typed.run_ok(f"local ip create --name a --network wan {value} ip_mode") == "translate"
        six = f"local ip create --name b --network wan --local-ip-address fd09::53 {value} local_ip_address"
        assert typed.run_ok(six) == "fd09::53"
        typed.run_error("local ip create --network wan --local-ip-address fd09::53", "already allocated in subnet")
        typed.run_error("local ip create --network wan --local-ip-address 10.9.0.1/24", "is not a valid IP address.")
        typed.run_error("local ip create --network wan --ip-mode foo", "foo is not in valid_values.")
        owners = typed.run_ok(f"port list --network wan --device-owner network:local_ip {value} ID").split()
        assert len(owners) == 2
        typed.run_error("network delete wan", "There are one or more ports still in use on the network.")
        typed.run_ok("local ip delete a b")
        assert typed.run_ok(f"port list --network wan {value} ID") == ""
        typed.run_ok("network delete wan")
        quota = typed.run_ok("extension list --network -f value -c Alias").split()
        assert {"local_ip", "local-ip-fairlead"} <= set(quota)


def test_sdk_manages_local_ips_and_associations(cloud: Connection):
    network = cloud.network.create_network(name="sdk-local")
    cloud.network.create_subnet(network_id=network.id, cidr="10.7.0.0/24", ip_version=4)
    port = cloud.network.create_port(network_id=network.id)
    made = cloud.network.create_local_ip(network_id=network.id, name="sdk", description="d")
    assert (made.ip_mode, made.network_id, made.project_id) == ("translate", network.id, "default")
    assert cloud.network.find_local_ip("sdk").id == cloud.network.get_local_ip(made.id).id == made.id
    assert cloud.network.find_local_ip("nothing") is None
    assert [each.id for each in cloud.network.local_ips(network_id=network.id, local_ip_address=made.local_ip_address)]
    assert cloud.network.update_local_ip(made, name="sdk2").name == "sdk2"
    association = cloud.network.create_local_ip_association(made.id, fixed_port_id=port.id)
    assert association.fixed_ip == port.fixed_ips[0]["ip_address"]
    assert [each.fixed_port_id for each in cloud.network.local_ip_associations(made.id)] == [port.id]
    paged = cloud.network.local_ip_associations(made.id, limit=1, host="")
    assert [each.host for each in paged] == [""]
    assert cloud.network.get_local_ip_association(port.id, made.id).fixed_port_id == port.id
    assert cloud.network.find_local_ip_association(port.id, made.id).local_ip_id == made.id
    with pytest.raises(openstack.exceptions.ConflictException, match="is already associated with port"):
        cloud.network.create_local_ip_association(made.id, fixed_port_id=port.id)
    with pytest.raises(openstack.exceptions.ConflictException, match="is still associated with one or more ports"):
        cloud.network.delete_local_ip(made.id, ignore_missing=False)
    cloud.network.delete_local_ip_association(made.id, port.id, ignore_missing=False)
    assert cloud.network.find_local_ip_association(port.id, made.id) is None
    cloud.network.delete_local_ip(made.id, ignore_missing=False)
    with pytest.raises(openstack.exceptions.NotFoundException, match="could not be found"):
        cloud.network.get_local_ip(made.id)
    cloud.network.delete_port(port)
    cloud.network.delete_network(network)
    assert cloud.network.find_extension("local_ip").name == "Local IP"
