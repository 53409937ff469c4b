"""The door has words for whatever the rules refuse that it can meet."""

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from fairlead import changes
from fairlead.api.lxd import errors
from fairlead.changes.refusal import Refusal

NOT_ASKED = {
    *("catalog", "floatingips", "l7", "l7_checks", "listener_checks", "members", "monitors", "offers", "persistence"),
    *("pools", "refusal", "tls_checks", "vips"),
}
"""Modules that this door asks for nothing of, or for nothing that they could refuse."""
NOT_MET = {
    *("LimitBelowUsage", "NoQuota", "NotAProject", "DescribedAsAWhole", "HasParts", "OfferStays", "VipStays"),
    *("HttpWithoutHost", "NoHttpVersion"),
}
"""Of quotas, which are set elsewhere; and of load balancers what nothing here asks for."""


def refused_by(module: ModuleType) -> set[type[Refusal]]:
    found = (value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Refusal))
    return {each for each in found if each.__module__ == module.__name__ and each.__name__ not in NOT_MET}


def test_there_are_words_for_each():
    names = {each.name for each in iter_modules(changes.__path__)} - NOT_ASKED
    modules = [import_module(f"fairlead.changes.{name}") for name in names]
    assert set[type[Refusal]]().union(*map(refused_by, modules)) <= errors.WORDS.keys()
