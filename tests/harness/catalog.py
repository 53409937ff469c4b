"""Runs every stock command for quotas, flavors, availability zones, providers and amphorae, and checks its output."""

from importlib.metadata import entry_points

from harness.shell import LoadBalancerShell

UNKNOWN_ID = "99999999-0000-4000-8000-000000000009"
RESOURCES = ("amphora", "availabilityzone", "availabilityzoneprofile", "flavor", "flavorprofile", "provider", "quota")


def commands() -> set[str]:
    """Names of all the client's commands for these resources."""
    names = {point.name.replace("_", " ") for point in entry_points(group="openstack.load_balancer.v2")}
    wanted = {name.removeprefix("loadbalancer ") for name in names}
    return {name for name in wanted if name.split()[0] in RESOURCES}


QUOTA_RESOURCES = {"load_balancer", "listener", "pool", "health_monitor", "member", "l7policy", "l7rule"}


def quotas(cli: LoadBalancerShell) -> None:
    defaults = cli.run_ok("quota defaults show -f json")
    assert defaults.keys() == QUOTA_RESOURCES
    own = {**defaults, "load_balancer": 1, "member": 5}
    assert cli.run_ok("quota list -f json") == []
    assert cli.run_ok("quota set default --loadbalancer 1 --member 5 -f json") == own
    assert cli.run_ok("quota show default -f json") == own
    assert cli.run_ok(f"quota show {UNKNOWN_ID} -f json") == defaults
    assert cli.run_ok("quota list --project default -f json") == [{"project_id": "default", **own}]
    cli.run_ok("create --name one --vip-subnet-id sub")
    cli.run_error("create --name two --vip-subnet-id sub", "Quota has been met for resources: Load Balancer")
    cli.run_ok("quota unset default --loadbalancer")
    assert cli.run_ok("quota show default -f json") == {**own, "load_balancer": defaults["load_balancer"]}
    cli.run_ok("quota set default --healthmonitor 2 --l7policy 0 --l7rule 0 --listener 9 --pool 9")
    cli.run_ok("quota reset default")
    assert cli.run_ok("quota list -f json") == []
    cli.run_error("quota reset default", "Quotas default not found.")
    cli.run_ok("delete one")


def flavors(cli: LoadBalancerShell) -> None:
    made = cli.run_ok("flavorprofile create --name plain --provider ovn --flavor-data {} -f json")
    assert made == {"id": made["id"], "name": "plain", "provider_name": "ovn", "flavor_data": "{}"}
    cli.run_error(
        "flavorprofile create --name no --provider amphora --flavor-data {}", "Provider 'amphora' is not enabled."
    )
    cli.run_error(
        "flavorprofile create --name no --provider ovn --flavor-data {", "{ is not a valid option for flavor_data"
    )
    words = "Provider 'ovn' does not support a requested option: flavor_data compute_flavor"
    cli.run_error("""flavorprofile create --name no --provider ovn --flavor-data '{"compute_flavor": "x"}'""", words)
    assert cli.run_ok("flavorprofile list -f json") == [{k: made[k] for k in ("id", "name", "provider_name")}]
    cli.run_ok("flavorprofile set plain --name basic")
    assert cli.run_ok("flavorprofile show basic -f json") == {**made, "name": "basic"}
    flavor = cli.run_ok("flavor create --name gold --flavorprofile basic --description d --enable -f json")
    assert (flavor["flavor_profile_id"], flavor["enabled"], flavor["description"]) == (made["id"], True, "d")
    cli.run_error("flavor create --name gold --flavorprofile basic", "A flavor of gold already exists.")
    assert [each["name"] for each in cli.run_ok("flavor list --enable --flavorprofile basic -f json")] == ["gold"]
    cli.run_ok("flavor unset gold --description")
    assert cli.run_ok("flavor show gold -f json") == {**flavor, "description": ""}
    balancer = cli.run_ok("create --name three --vip-subnet-id sub --flavor gold -f json")
    assert balancer["flavor_id"] == flavor["id"]
    cli.run_error("flavor delete gold", "is in use and cannot be modified.")
    cli.run_error("flavorprofile delete basic", "is in use and cannot be modified.")
    cli.run_ok("flavor set gold --disable --name silver")
    cli.run_error("create --name four --vip-subnet-id sub --flavor silver", "is not allowed in this deployment")
    cli.run_ok("delete three")
    cli.run_ok("flavor delete silver")
    cli.run_ok("flavorprofile delete basic")


def zones(cli: LoadBalancerShell) -> None:
    profile = "availabilityzoneprofile"
    made = cli.run_ok(f"{profile} create --name plain --provider ovn --availability-zone-data {{}} -f json")
    assert (made["name"], made["provider_name"], made["availability_zone_data"]) == ("plain", "ovn", "{}")
    assert [each["name"] for each in cli.run_ok(f"{profile} list -f json")] == ["plain"]
    cli.run_ok(f"{profile} set plain --name basic")
    assert cli.run_ok(f"{profile} show basic -f json") == {**made, "name": "basic"}
    zone = cli.run_ok("availabilityzone create --name east --availabilityzoneprofile basic --description d -f json")
    assert (zone["name"], zone["availability_zone_profile_id"], zone["enabled"]) == ("east", made["id"], True)
    assert [each["name"] for each in cli.run_ok("availabilityzone list -f json")] == ["east"]
    cli.run_ok("availabilityzone unset east --description")
    assert cli.run_ok("availabilityzone show east -f json") == {**zone, "description": ""}
    balancer = cli.run_ok("create --name five --vip-subnet-id sub --availability-zone east -f json")
    assert balancer["availability_zone"] == "east"
    cli.run_error("availabilityzone delete east", "Availability Zone east is in use and cannot be modified.")
    cli.run_error(f"{profile} delete basic", "is in use and cannot be modified.")
    cli.run_ok("availabilityzone set east --disable")
    cli.run_error(
        "create --name six --vip-subnet-id sub --availability-zone east", "is not allowed in this deployment: east"
    )
    cli.run_ok("delete five")
    cli.run_ok("availabilityzone delete east")
    cli.run_ok(f"{profile} delete basic")


def check_remaining_commands(cli: LoadBalancerShell) -> None:
    assert cli.run_ok("provider list -f json -c name") == [{"name": name} for name in ("fairlead", "ovn")]
    (capability,) = cli.run_ok("provider capability list ovn -f json")
    assert capability["name"] == "valid_vip_networks"
    assert cli.run_ok("provider capability list ovn --flavor -f json") == []
    cli.run_error("provider capability list amphora", "Provider 'amphora' is not enabled.")
    assert cli.run_ok("amphora list -f json") == []
    cli.run_error(f"amphora show {UNKNOWN_ID}", f"{UNKNOWN_ID} not found")
    cli.run_error(f"amphora delete {UNKNOWN_ID}", f"Amphora {UNKNOWN_ID} not found.")
    cli.run_error(f"amphora stats show {UNKNOWN_ID}", f"Amphora stats for {UNKNOWN_ID} not found.")
    for command in ("failover", "configure"):
        cli.run_error(f"amphora {command} {UNKNOWN_ID}", f"Unable to locate {UNKNOWN_ID} in amphorae")


def run_every_command(cli: LoadBalancerShell) -> None:
    """Run all commands, on a server without these resources and without load balancers of the project `default`."""
    cli.run_other("network create net")
    cli.run_other("subnet create sub --network net --subnet-range 10.0.0.0/24")
    for story in (quotas, flavors, zones, check_remaining_commands):
        story(cli)
    typed = {command for command in commands() for line in cli.lines if f"{line} ".startswith(f"{command} ")}
    assert commands() - typed == set()
    cli.run_other("network delete net")
