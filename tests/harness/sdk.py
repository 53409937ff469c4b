"""openstacksdk's load-balancer proxy, with a record of called methods, and checks of results and errors."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from inspect import isfunction
from typing import Any

import pytest
from openstack import exceptions
from openstack.load_balancer.v2._proxy import Proxy
from openstack.resource import Resource

NON_FILTER_PARAMETERS = {"limit", "marker"}


class RecordingProxy:
    """Proxy that records the names of the methods used."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(self._proxy, name)


def methods() -> set[str]:
    """Names of all methods of the proxy itself, without those inherited by every service of the SDK."""
    return {name for name, member in vars(Proxy).items() if isfunction(member) and not name.startswith("_")}


def assert_attributes(resource: Any, **wanted: Any) -> None:
    assert {name: resource[name] for name in wanted} == wanted


def assert_equal_resources(*found: Any) -> None:
    """Assert that all results are equal, whether read alone or as the only item of a list."""
    first, *others = (single(each).to_dict() for each in found)
    assert others == [first] * len(others)


def single(found: Any) -> Resource:
    (one,) = [found] if isinstance(found, Resource) else found
    return one


@contextmanager
def refused(status: int, words: str) -> Iterator[None]:
    with pytest.raises(exceptions.HttpException) as caught:
        yield
    assert (caught.value.status_code, words in str(caught.value)) == (status, True), str(caught.value)


def check_queries(resource: Any, listed: Callable[..., Iterable[Any]]) -> None:
    """Assert that each filter of the SDK finds the resource by its value, and not by another value."""
    for name in sorted(type(resource)._query_mapping._mapping.keys() - NON_FILTER_PARAMETERS):
        value = resource.to_dict().get(name)
        if value in (None, [], {}):
            continue
        for asked, found in ((value, True), ("no-such", False)):
            assert (resource.id in {each.id for each in listed(**{name: asked})}) == found, (name, asked)
