"""Lists: filtered by any attribute, by tags, sorted, paged, and cut to some fields; the same for every door.

Items are encoded resources. A filter compares texts, as a query string has nothing else.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from fairlead.model.steps import Steps, at_once, in_order

Item: TypeAlias = Mapping[str, Any]
LARGEST_PAGE = 1000
MOST_SORT_KEYS = 16
"""Each orders the whole list once more."""


class BadQuery(Exception):
    """The message says which part of the query string and what would be right."""


class Lazy(Item):
    """An item that is encoded when somebody asks for more than its `plain` attributes: of ten thousand in a list most
    are only sorted, and not shown. `omitted` has the values of attributes that the encoded item leaves out."""

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
    """Octavia's and Neutron's four: `tags`, `tags-any`, `not-tags`, `not-tags-any`."""

    all_of: frozenset[str] = frozenset()
    any_of: frozenset[str] = frozenset()
    not_all_of: frozenset[str] = frozenset()
    none_of: frozenset[str] = frozenset()

    def admits(self, tags: Iterable[str]) -> bool:
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
    """Attribute -> the texts that match; several mean any of them."""
    tags: TagFilter = TagFilter()
    sort: tuple[tuple[str, bool], ...] = ()
    """(attribute, descending), the first one first."""
    limit: int | None = None
    marker: str | None = None
    reverse: bool = False
    """The page before the marker instead of the one after it."""
    key: str = "id"
    """The attribute that a marker is a value of."""
    fields: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    items: Sequence[Item]
    last: str | None = None
    """What names the last item."""
    next_marker: str | None = None
    previous_marker: str | None = None


Matchers: TypeAlias = Mapping[str, Callable[[Item], Iterable[object]]]


def select(items: Iterable[Item], query: Query, matchers: Matchers) -> Page:
    """The page of items that the query asks for.

    `matchers` answer for attributes that a filter may name and that are not one plain value: they give all values that
    count as a match. Raises BadQuery for a filter or a sort key that no item has, and for an unknown marker.
    """
    return at_once(selecting(items, query, matchers))


def selecting(items: Iterable[Item], query: Query, matchers: Matchers) -> Steps[Page]:
    """`select`, with a rest after each item and each sort key."""
    if len(query.sort) > MOST_SORT_KEYS:
        raise BadQuery(f"A list is sorted by at most {MOST_SORT_KEYS} keys.")
    found = []
    for item in items:
        yield
        if _admits(item, query, matchers):
            found.append(item)
    for name, descending in reversed(query.sort):
        if found and name not in found[0]:
            raise BadQuery(f"Supplied sort key '{name}' is not valid.")
        found = yield from in_order(found, partial(_sort_value, name), reverse=descending)
    page = _page(found, query)
    items = []
    for item in page.items:
        items.append(item.item if isinstance(item, Lazy) else item)
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
    return query.tags.admits(item.get("tags", ()))


def _page(found: list[Item], query: Query) -> Page:
    size = min(query.limit or LARGEST_PAGE, LARGEST_PAGE)
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
    """A query string has texts only: what a text means depends on what it is compared with.

    A list matches by any of its values, an object by any of its names.
    """
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
    """A text of a query string in the form that `select` compares with."""
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
