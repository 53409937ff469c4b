"""The LXD API has an error text for every refusal that it can meet."""

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from fairlead import changes
from fairlead.api.lxd import errors
from fairlead.changes.quotas import QuotaExceeded
from fairlead.changes.refusal import Refusal
from fairlead.model.documents.quota import QuotaResource

NOT_ASKED = {
    *(
        "catalog",
        "floatingips",
        "l7",
        "l7_checks",
        "listener_checks",
        "members",
        "monitors",
        "catalog_selection",
        "persistence",
    ),
    *(
        "pools",
        "refusal",
        "tls_checks",
        "vips",
        "local_ips",
        "associations",
        "idempotent_update",
        "nodes",
        "provider_migration",
    ),
    *("secrets", "hosts", "host_checks"),
}
"""Modules whose refusals this API cannot meet."""
NOT_MET = {
    *(
        "LimitBelowUsage",
        "NoQuota",
        "NotAProject",
        "BalancerIsDeclarative",
        "HasParts",
        "OfferImmutable",
        "VipImmutable",
    ),
    *("HttpWithoutHost", "NoHttpVersion"),
}
"""Refusals of quotas, which other APIs set; of load-balancer features that LXD has no attribute for; and of unmanaged
networks, which this API does not show."""


def refused_by(module: ModuleType) -> set[type[Refusal]]:
    found = (value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Refusal))
    return {each for each in found if each.__module__ == module.__name__ and each.__name__ not in NOT_MET}


def test_every_refusal_has_an_error_text():
    names = {each.name for each in iter_modules(changes.__path__)} - NOT_ASKED
    modules = [import_module(f"fairlead.changes.{name}") for name in names]
    assert set[type[Refusal]]().union(*map(refused_by, modules)) <= errors.ERROR_TEXTS.keys()


def test_quota_error_names_its_resource():
    said = {what: errors.error_of(QuotaExceeded(over=(what,))).message for what in QuotaResource}
    assert len(set(said.values())) == len(QuotaResource)
    assert said[QuotaResource.ROUTER] == "Project quota for routers is exhausted"
    assert said[QuotaResource.FLOATING_IP] == "Project quota for floating IPs is exhausted"
    both = errors.error_of(QuotaExceeded(over=(QuotaResource.POOL, QuotaResource.LISTENER)))
    assert both.message == "Project quota for listeners (ports of load balancers), pools is exhausted"
