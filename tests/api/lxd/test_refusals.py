"""The door has words for whatever the rules refuse that it can meet."""

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from fairlead import changes
from fairlead.api.lxd import errors
from fairlead.changes.refusal import Refusal

NOT_ASKED = {"catalog", "floatingips", "l7", "l7_checks", "offers", "tls_checks", "refusal"}
"""Modules that this door asks for nothing of."""
OF_NETWORKS = {
    *("access", "addresses", "gateways", "networks", "ports", "resources", "routers", "subnets", "whole_networks"),
}
OF_BALANCERS = {
    *(
        "balancers",
        "balancer_checks",
        "described",
        "described_checks",
        "finding",
        "listen_addresses",
        "listener_checks",
        "members",
        "monitor_checks",
    ),
    *("monitors", "persistence", "pool_checks", "pools", "probe_limits", "probe_ports", "vips"),
}
"""Modules whose refusals wait for their words: each goes when the door has networks, and load balancers."""
NOT_MET = {"LimitBelowUsage", "NoQuota", "NotAProject"}
"""Of quotas, which are set elsewhere."""


def refused_by(module: ModuleType) -> set[type[Refusal]]:
    found = (value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Refusal))
    return {each for each in found if each.__module__ == module.__name__ and each.__name__ not in NOT_MET}


def test_there_are_words_for_each():
    names = {each.name for each in iter_modules(changes.__path__)} - NOT_ASKED - OF_NETWORKS - OF_BALANCERS
    modules = [import_module(f"fairlead.changes.{name}") for name in names]
    assert set[type[Refusal]]().union(*map(refused_by, modules)) <= errors.WORDS.keys()
