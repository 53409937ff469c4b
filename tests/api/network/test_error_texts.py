"""The Neutron API has an error text for each refusal, and each text uses only fields of that refusal."""

import dataclasses
import string

from fairlead.api.network.error_texts import NeutronErrorText
from fairlead.api.network.refusals import ERROR_TEXTS
from fairlead.changes import (
    access,
    addresses,
    associations,
    floatingips,
    gateways,
    identity,
    ids,
    local_ips,
    monitor_checks,
    networks,
    ports,
    probe_limits,
    probe_ports,
    quotas,
    restrictions,
    routers,
    subnets,
    untranslated_prefixes,
)
from fairlead.changes.refusal import Refusal

MODULES = (
    *(
        access,
        addresses,
        floatingips,
        gateways,
        identity,
        ids,
        networks,
        untranslated_prefixes,
        ports,
        quotas,
        routers,
        subnets,
    ),
    *(associations, local_ips, monitor_checks, probe_limits, probe_ports, restrictions),
)
SAID_BY_RULE = {access.NotAllowed}
"""Refusals worded by the name of the policy rule that Neutron checks."""
OF_POOLS = {monitor_checks.WrongMonitorType, monitor_checks.NoHttpVersion, monitor_checks.HttpWithoutHost}
OF_ALL_ROUTES = {routers.BadRoute}
OF_UPLINKS = {untranslated_prefixes.RouteNeeded}
"""Neutron has no error text for routes of an external network, nor for a route that is still needed."""


def test_every_refusal_has_an_error_text():
    declared = {
        kind
        for module in MODULES
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Refusal) and kind.__module__ == module.__name__
    }
    assert declared - SAID_BY_RULE - OF_POOLS - OF_ALL_ROUTES - OF_UPLINKS == set(ERROR_TEXTS)


def test_error_texts_use_only_fields_of_their_refusal():
    for kind, words in ERROR_TEXTS.items():
        if isinstance(words, NeutronErrorText):
            named = {name.split(".")[1] for _, name, _, _ in string.Formatter().parse(words.text) if name}
            assert named <= {field.name for field in dataclasses.fields(kind)}, kind
