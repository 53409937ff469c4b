"""The Octavia API has an error text for every refusal of the load-balancing rules."""

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from fairlead import changes
from fairlead.api.octavia import refusals
from fairlead.changes.l7_checks import RuleProblem
from fairlead.changes.refusal import Refusal

OF_NETWORKING = {
    *("networks", "ports", "resources", "subnets", "routers", "gateways", "floatingips", "local_ips", "associations")
}
OF_DESCRIPTIONS = {
    *(
        "balancer_specs",
        "balancer_spec_checks",
        "listen_addresses",
        "untranslated_prefixes",
        "declarative_uplinks",
        "declarative_networks",
    )
}
OF_TRUST = {"projects", "trust", "nodes"}
OF_HOSTS = {"hosts", "host_checks"}
OF_OTHERS = OF_NETWORKING | OF_DESCRIPTIONS | OF_TRUST | OF_HOSTS
"""Modules whose refusals this API cannot meet."""
OF_TRUST = {"projects", "trust", "nodes"}
"""Modules for LXD clients and agents."""
OF_PORTS = {
    "AddressIsAutomatic",
    "AddressOutsideNetwork",
    "GatewayInPool",
    "LimitBelowUsage",
    "NotAllowed",
    "PoolNotValid",
    "PoolOutside",
    "PoolsOverlap",
    "SubnetOfOtherNetwork",
    "UplinkNotAllowed",
}
"""Refusals of addresses for workload ports and subnets, and of quotas and access rights that only Neutron's API has."""


def refused_by(module: ModuleType) -> set[type[Refusal]]:
    found = (value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Refusal))
    return {each for each in found if each.__module__ == module.__name__ and each.__name__ not in OF_PORTS}


def test_every_refusal_has_an_error_text():
    names = {each.name for each in iter_modules(changes.__path__)} - OF_OTHERS - {"refusal"}
    modules = [import_module(f"fairlead.changes.{name}") for name in names]
    assert set[type[Refusal]]().union(*map(refused_by, modules)) == refusals.ERROR_TEXTS.keys()


def test_every_rule_problem_has_an_error_text():
    assert refusals._RULE.keys() == set(RuleProblem)
