"""Runs every stock command for quotas, flavors, availability zones, providers and amphorae, and checks its output."""

from importlib.metadata import entry_points

from harness.shell import Tried

NOBODY = "99999999-0000-4000-8000-000000000009"
RESOURCES = ("amphora", "availabilityzone", "availabilityzoneprofile", "flavor", "flavorprofile", "provider", "quota")


def commands() -> set[str]:
    """Names of all the client's commands for these resources."""
    names = {point.name.replace("_", " ") for point in entry_points(group="openstack.load_balancer.v2")}
    wanted = {name.removeprefix("loadbalancer ") for name in names}
    return {name for name in wanted if name.split()[0] in RESOURCES}


LIMITED = {"load_balancer", "listener", "pool", "health_monitor", "member", "l7policy", "l7rule"}


def quotas(cli: Tried) -> None:
    defaults = cli.good("quota defaults show -f json")
    assert defaults.keys() == LIMITED
    own = {**defaults, "load_balancer": 1, "member": 5}
    assert cli.good("quota list -f json") == []
    assert cli.good("quota set default --loadbalancer 1 --member 5 -f json") == own
    assert cli.good("quota show default -f json") == own
    assert cli.good(f"quota show {NOBODY} -f json") == defaults
    assert cli.good("quota list --project default -f json") == [{"project_id": "default", **own}]
    cli.good("create --name one --vip-subnet-id sub")
    cli.bad("create --name two --vip-subnet-id sub", "Quota has been met for resources: Load Balancer")
    cli.good("quota unset default --loadbalancer")
    assert cli.good("quota show default -f json") == {**own, "load_balancer": defaults["load_balancer"]}
    cli.good("quota set default --healthmonitor 2 --l7policy 0 --l7rule 0 --listener 9 --pool 9")
    cli.good("quota reset default")
    assert cli.good("quota list -f json") == []
    cli.bad("quota reset default", "Quotas default not found.")
    cli.good("delete one")


def flavors(cli: Tried) -> None:
    made = cli.good("flavorprofile create --name plain --provider ovn --flavor-data {} -f json")
    assert made == {"id": made["id"], "name": "plain", "provider_name": "ovn", "flavor_data": "{}"}
    cli.bad("flavorprofile create --name no --provider amphora --flavor-data {}", "Provider 'amphora' is not enabled.")
    cli.bad("flavorprofile create --name no --provider ovn --flavor-data {", "{ is not a valid option for flavor_data")
    words = "Provider 'ovn' does not support a requested option: flavor_data compute_flavor"
    cli.bad("""flavorprofile create --name no --provider ovn --flavor-data '{"compute_flavor": "x"}'""", words)
    assert cli.good("flavorprofile list -f json") == [{k: made[k] for k in ("id", "name", "provider_name")}]
    cli.good("flavorprofile set plain --name basic")
    assert cli.good("flavorprofile show basic -f json") == {**made, "name": "basic"}
    flavor = cli.good("flavor create --name gold --flavorprofile basic --description d --enable -f json")
    assert (flavor["flavor_profile_id"], flavor["enabled"], flavor["description"]) == (made["id"], True, "d")
    cli.bad("flavor create --name gold --flavorprofile basic", "A flavor of gold already exists.")
    assert [each["name"] for each in cli.good("flavor list --enable --flavorprofile basic -f json")] == ["gold"]
    cli.good("flavor unset gold --description")
    assert cli.good("flavor show gold -f json") == {**flavor, "description": ""}
    balancer = cli.good("create --name three --vip-subnet-id sub --flavor gold -f json")
    assert balancer["flavor_id"] == flavor["id"]
    cli.bad("flavor delete gold", "is in use and cannot be modified.")
    cli.bad("flavorprofile delete basic", "is in use and cannot be modified.")
    cli.good("flavor set gold --disable --name silver")
    cli.bad("create --name four --vip-subnet-id sub --flavor silver", "is not allowed in this deployment")
    cli.good("delete three")
    cli.good("flavor delete silver")
    cli.good("flavorprofile delete basic")


def zones(cli: Tried) -> None:
    profile = "availabilityzoneprofile"
    made = cli.good(f"{profile} create --name plain --provider ovn --availability-zone-data {{}} -f json")
    assert (made["name"], made["provider_name"], made["availability_zone_data"]) == ("plain", "ovn", "{}")
    assert [each["name"] for each in cli.good(f"{profile} list -f json")] == ["plain"]
    cli.good(f"{profile} set plain --name basic")
    assert cli.good(f"{profile} show basic -f json") == {**made, "name": "basic"}
    zone = cli.good("availabilityzone create --name east --availabilityzoneprofile basic --description d -f json")
    assert (zone["name"], zone["availability_zone_profile_id"], zone["enabled"]) == ("east", made["id"], True)
    assert [each["name"] for each in cli.good("availabilityzone list -f json")] == ["east"]
    cli.good("availabilityzone unset east --description")
    assert cli.good("availabilityzone show east -f json") == {**zone, "description": ""}
    balancer = cli.good("create --name five --vip-subnet-id sub --availability-zone east -f json")
    assert balancer["availability_zone"] == "east"
    cli.bad("availabilityzone delete east", "Availability Zone east is in use and cannot be modified.")
    cli.bad(f"{profile} delete basic", "is in use and cannot be modified.")
    cli.good("availabilityzone set east --disable")
    cli.bad("create --name six --vip-subnet-id sub --availability-zone east", "is not allowed in this deployment: east")
    cli.good("delete five")
    cli.good("availabilityzone delete east")
    cli.good(f"{profile} delete basic")


def the_rest(cli: Tried) -> None:
    assert cli.good("provider list -f json -c name") == [{"name": name} for name in ("fairlead", "ovn")]
    (capability,) = cli.good("provider capability list ovn -f json")
    assert capability["name"] == "valid_vip_networks"
    assert cli.good("provider capability list ovn --flavor -f json") == []
    cli.bad("provider capability list amphora", "Provider 'amphora' is not enabled.")
    assert cli.good("amphora list -f json") == []
    cli.bad(f"amphora show {NOBODY}", f"{NOBODY} not found")
    cli.bad(f"amphora delete {NOBODY}", f"Amphora {NOBODY} not found.")
    cli.bad(f"amphora stats show {NOBODY}", f"Amphora stats for {NOBODY} not found.")
    for command in ("failover", "configure"):
        cli.bad(f"amphora {command} {NOBODY}", f"Unable to locate {NOBODY} in amphorae")


def type_every_command(cli: Tried) -> None:
    """Run all commands, on a server without these resources and without load balancers of the project `default`."""
    cli.any("network create net")
    cli.any("subnet create sub --network net --subnet-range 10.0.0.0/24")
    for story in (quotas, flavors, zones, the_rest):
        story(cli)
    typed = {command for command in commands() for line in cli.lines if f"{line} ".startswith(f"{command} ")}
    assert commands() - typed == set()
    cli.any("network delete net")
