"""Lists for every API front end: filters by attribute and tags, sorting, pagination and field selection.

Items are encoded resources. Filters compare strings, because query strings have no other type.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from fairlead.runtime.steps import Steps, run_to_completion, sort_cooperatively

Item: TypeAlias = Mapping[str, Any]
MAX_PAGE_SIZE = 1000
MAX_SORT_KEYS = 16
"""Maximum sort keys; each sorts the whole list again."""


class BadQuery(Exception):
    """Invalid query string; the message names the part and the valid form."""


class LazyItem(Item):
    """Item that is encoded on the first access to an attribute outside `plain`: of ten thousand items most are only
    sorted. `omitted` has values of attributes that the encoded item leaves out."""

    __slots__ = ("_encode", "_item", "_omitted", "_plain", "_resource")

    def __init__(
        self,
        resource: object,
        plain: Mapping[str, Callable[[Any], Any]],
        encode: Callable[[], Item],
        omitted: Mapping[str, object],
    ) -> None:
        self._resource = resource
        self._plain = plain
        self._encode = encode
        self._omitted = omitted
        self._item: Item | None = None

    @property
    def item(self) -> Item:
        if self._item is None:
            self._item = self._encode()
        return self._item

    def __getitem__(self, name: str) -> Any:
        plain = self._plain.get(name)
        if plain is not None:
            return plain(self._resource)
        return self.item[name] if name in self.item else self._omitted[name]

    def __contains__(self, name: object) -> bool:
        return name in self._plain or name in self._omitted or name in self.item

    def __iter__(self) -> Iterator[str]:
        return iter(self.item)

    def __len__(self) -> int:
        return len(self.item)


@dataclass(frozen=True, slots=True, kw_only=True)
class TagFilter:
    """Tag filters of Octavia and Neutron: `tags`, `tags-any`, `not-tags`, `not-tags-any`."""

    all_of: frozenset[str] = frozenset()
    any_of: frozenset[str] = frozenset()
    not_all_of: frozenset[str] = frozenset()
    none_of: frozenset[str] = frozenset()

    def matches(self, tags: Iterable[str]) -> bool:
        have = set(tags)
        return (
            self.all_of <= have
            and (not self.any_of or bool(self.any_of & have))
            and not (self.not_all_of and self.not_all_of <= have)
            and not self.none_of & have
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    filters: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Attribute -> accepted strings; any of them matches."""
    tags: TagFilter = TagFilter()
    sort: tuple[tuple[str, bool], ...] = ()
    """(attribute, descending) pairs, most significant first."""
    limit: int | None = None
    marker: str | None = None
    reverse: bool = False
    """Return the page before the marker instead of the one after it."""
    key: str = "id"
    """Attribute that markers refer to."""
    fields: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    items: Sequence[Item]
    last: str | None = None
    """Value of `key` of the last item."""
    next_marker: str | None = None
    previous_marker: str | None = None


Matchers: TypeAlias = Mapping[str, Callable[[Item], Iterable[object]]]


def select_page(items: Iterable[Item], query: Query, matchers: Matchers) -> Page:
    """Return the requested page of items.

    `matchers` compute the values of filterable attributes that are not a single plain value. Raises BadQuery for an
    unknown filter, sort key or marker.
    """
    return run_to_completion(select_page_in_steps(items, query, matchers))


def select_page_in_steps(items: Iterable[Item], query: Query, matchers: Matchers) -> Steps[Page]:
    """Run `select` with a cooperative yield after each item and each sort key."""
    if len(query.sort) > MAX_SORT_KEYS:
        raise BadQuery(f"A list has at most {MAX_SORT_KEYS} sort keys.")
    found = []
    for item in items:
        yield
        if _admits(item, query, matchers):
            found.append(item)
    for name, descending in reversed(query.sort):
        if found and name not in found[0]:
            raise BadQuery(f"Supplied sort key '{name}' is not valid.")
        found = yield from sort_cooperatively(found, partial(_sort_value, name), reverse=descending)
    page = _page(found, query)
    items = []
    for item in page.items:
        items.append(item.item if isinstance(item, LazyItem) else item)
        yield
    if query.fields:
        items = [{name: value for name, value in item.items() if name in query.fields} for item in items]
    return replace(page, items=items)


def _admits(item: Item, query: Query, matchers: Mapping[str, Callable[[Item], Iterable[object]]]) -> bool:
    for name, wanted in query.filters.items():
        if name in matchers:
            values = matchers[name](item)
        elif name in item:
            values = (item[name],)
        else:
            raise BadQuery(
                f"One or more arguments are either duplicate or invalid: '{name}' is not an attribute of these."
            )
        if not any(_matches(value, wanted) for value in values):
            return False
    return query.tags.matches(item.get("tags", ()))


def _page(found: list[Item], query: Query) -> Page:
    size = min(query.limit or MAX_PAGE_SIZE, MAX_PAGE_SIZE)
    if query.marker is None:
        start = max(0, len(found) - size) if query.reverse else 0
    else:
        place = next((index for index, item in enumerate(found) if item.get(query.key) == query.marker), None)
        if place is None:
            raise BadQuery(f"Supplied pagination marker '{query.marker}' is not valid. It names nothing here.")
        start = max(0, place - size) if query.reverse else place + 1
        size = place - start if query.reverse else size
    items = found[start : start + size]
    more = start + size < len(found)
    last = items[-1].get(query.key) if items else None
    return Page(
        items=items,
        last=last,
        next_marker=last if more else None,
        previous_marker=items[0][query.key] if items and start > 0 else None,
    )


def _matches(value: object, wanted: frozenset[str]) -> bool:
    """Compare a value with strings of a query; the value's type determines how a string is read. A list matches by any
    of its values, an object by any of its names."""
    match value:
        case bool():
            return any(text.lower() in (("true", "1") if value else ("false", "0")) for text in wanted)
        case None:
            return bool(wanted & {"", "None", "null"})
        case list() | tuple() | dict():
            return any(_matches(each, wanted) for each in value)
        case _:
            return str(value) in wanted


def filter_text(value: str) -> str:
    """Normalise a query string value to the form that `select` compares."""
    return value.lower() if value in ("True", "False") else "" if value in ("None", "null") else value


def _sort_value(name: str, item: Item) -> tuple[bool, float, str]:
    return _sortable(item.get(name))


def _sortable(value: object) -> tuple[bool, float, str]:
    match value:
        case bool() | int() | float():
            return (True, float(value), "")
        case None:
            return (False, 0.0, "")
        case _:
            return (True, 0.0, str(value))
