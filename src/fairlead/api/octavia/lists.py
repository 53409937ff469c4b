"""List requests of the Octavia API: filters, tags, fields, sorting, pagination and page links."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import ApiError, JsonObject, json_response
from fairlead.api.http.listing import (
    MAX_PAGE_SIZE,
    MAX_SORT_KEYS,
    BadQuery,
    Item,
    Page,
    Query,
    TagFilter,
    select_page,
    select_page_in_steps,
)
from fairlead.api.http.openapi import IDENTITY, LINKS, TEXT, TEXTS, Handler, Operation
from fairlead.runtime.cooperative import run_in_steps
from fairlead.schema import Schema, array_schema, object_schema

_TAG_WORDS = ("tags", "tags-any", "not-tags", "not-tags-any")
_RESERVED_PARAMETERS: Mapping[str, Schema] = {
    "fields": TEXTS,
    "limit": {"anyOf": [{"type": "integer", "minimum": -1, "maximum": 10**9 - 1}, {"const": "infinite"}]},
    "marker": IDENTITY,
    "page_reverse": {"type": "boolean"},
    "sort": TEXT,
    "sort_key": array_schema(TEXT, MAX_SORT_KEYS),
    "sort_dir": array_schema({"enum": ["asc", "desc"]}, MAX_SORT_KEYS),
    **dict.fromkeys(_TAG_WORDS, TEXT),
}
"""Reserved query parameters; all others are filters."""


def _nested_ids(attribute: str, plain: str = "") -> Callable[[Item], Iterable[object]]:
    """Make a matcher for the ids in a list attribute, or for the id in the `plain` attribute of an item with one
    parent."""
    return lambda item: [item[plain]] if plain in item else [entry["id"] for entry in item.get(attribute) or ()]


_MATCHERS: Mapping[str, Callable[[Item], Iterable[object]]] = {
    "loadbalancer_id": _nested_ids("loadbalancers"),
    "load_balancer_id": _nested_ids("loadbalancers"),
    "listener_id": _nested_ids("listeners", "listener_id"),
    "healthmonitor_id": lambda item: [item.get("healthmonitor_id")],
    "health_monitor_id": lambda item: [item.get("healthmonitor_id")],
    "l7policy_id": _nested_ids("l7policies"),
    "pool_id": _nested_ids("pools"),
    "member_id": _nested_ids("members"),
    "rule_value": lambda item: [item.get("value")],
}
"""Matchers of filters; `health_monitor_id` and `rule_value` are openstacksdk's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleList:
    """List of resources without parts, tags and creation time."""

    plural: str
    links: str
    key: str = "id"
    """Attribute that identifies an item: the sort order, and the value of a marker."""
    attributes: Mapping[str, Schema]

    @property
    def query(self) -> Mapping[str, Schema]:
        """Query parameters; every attribute is a filter."""
        words = {name: schema for name, schema in _RESERVED_PARAMETERS.items() if name not in _TAG_WORDS}
        return {**dict.fromkeys(self.attributes, TEXTS), **words, "marker": TEXT}

    @property
    def response(self) -> Schema:
        gives = {self.plural: array_schema(object_schema(self.attributes), MAX_PAGE_SIZE), self.links: LINKS}
        return object_schema(gives, gives)

    def respond(self, request: Request, items: Iterable[Item]) -> Response:
        query = replace(_query(request, self.key), key=self.key)
        page = _select(items, query, {})
        if query.limit and self.key != "id":
            # Without a next link, openstacksdk continues from the last id. Items without an id would make it start
            # again forever, so there is always a link, finally to an empty page.
            page = replace(page, next_marker=page.last)
        return json_response({self.plural: page.items, self.links: _links(request, page)})


def list_query(attributes: Iterable[str]) -> Mapping[str, Schema]:
    """Return the query parameters of a list; every attribute is a filter."""
    return {**dict.fromkeys([*attributes, *_MATCHERS], TEXTS), **_RESERVED_PARAMETERS}


async def list_response(request: Request, plural: str, items: Iterable[Item]) -> Response:
    """Encode a page with cooperative yields, because a page of ten thousand items takes a tenth of a second."""
    try:
        matchers = {**_MATCHERS, **_parents(request)}
        page = await run_in_steps(select_page_in_steps(items, _query(request, "created_at", "id"), matchers))
    except BadQuery as error:
        raise ApiError(400, str(error)) from None
    return json_response({plural: page.items, f"{plural}_links": _links(request, page)})


def _parents(request: Request) -> Mapping[str, Callable[[Item], Iterable[object]]]:
    """Return matchers for the path parameters, which openstacksdk repeats in the query."""

    def of(value: object) -> Callable[[Item], Iterable[object]]:
        return lambda _: (value,)

    return {name: of(value) for name, value in request.path_params.items()}


def with_fields(view: Handler) -> Handler:
    """Decorator of a view of one object: keep only the attributes in `fields`."""

    @wraps(view)
    async def cut(request: Request) -> Response:
        answer = await view(request)
        wanted = frozenset(request.query_params.getlist("fields"))
        if not wanted:
            return answer
        ((root, item),) = msgspec.json.decode(answer.body).items()
        return json_response({root: {name: value for name, value in item.items() if name in wanted}})

    return cut


def show_one(path: str, view: Handler, root: str, shown: Mapping[str, Schema]) -> Operation:
    """Return the operation that shows one object, or the attributes in `fields`."""
    gives = {200: object_schema({root: object_schema(shown)}, [root])}
    return Operation("GET", path, with_fields(view), gives=gives, query={"fields": TEXTS})


def unpaged(request: Request, items: Iterable[Item]) -> Sequence[Item]:
    """Return all items of a short list after filters and `fields`."""
    return _select(items, replace(_query(request), limit=None, marker=None), {}).items


def _select(items: Iterable[Item], query: Query, matchers: Mapping[str, Callable[[Item], Iterable[object]]]) -> Page:
    try:
        return select_page(items, query, matchers)
    except BadQuery as error:
        raise ApiError(400, str(error)) from None


def _query(request: Request, *order: str) -> Query:
    """Parse the query. `order` is the sort order without sort keys; its last key makes every order total."""
    given = request.query_params
    filters = {name: frozenset(given.getlist(name)) for name in given if name not in _RESERVED_PARAMETERS}
    return Query(
        filters=filters,
        tags=TagFilter(
            **dict(zip(("all_of", "any_of", "not_all_of", "none_of"), map(_tags(request), _TAG_WORDS), strict=True))
        ),
        sort=_sort(request, order),
        limit=_limit(given.get("limit")),
        marker=given.get("marker"),
        reverse=given.get("page_reverse", "").lower() in ("true", "1"),
        fields=frozenset(given.getlist("fields")),
    )


def _tags(request: Request) -> Callable[[str], frozenset[str]]:
    return lambda word: frozenset(
        tag for value in request.query_params.getlist(word) for tag in value.split(",") if tag
    )


def _sort(request: Request, order: tuple[str, ...]) -> tuple[tuple[str, bool], ...]:
    given = request.query_params
    keys = [part.partition(":")[::2] for part in given.get("sort", "").split(",") if part]
    directions = _words(given.getlist("sort_dir"))
    keys += [
        (key, directions[at] if at < len(directions) else "")
        for at, key in enumerate(_words(given.getlist("sort_key")))
    ]
    for _, direction in keys:
        if direction.lower() not in ("", "asc", "desc"):
            raise ApiError(400, f"Supplied sort direction '{direction}' is not valid. It is asc or desc.")
    named = tuple((key, direction.lower() == "desc") for key, direction in keys)
    return (*named, *((key, False) for key in (order[-1:] if named else order)))


def _words(values: Iterable[str]) -> list[str]:
    """Split repeated and comma-separated values."""
    return [word for value in values for word in value.split(",")]


def _limit(text: str | None) -> int | None:
    if text in (None, "-1", "infinite"):
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ApiError(400, f"Supplied pagination limit '{text}' is not valid. It is a number of at least 0.")
    return int(text) or None


def _links(request: Request, page: Page) -> list[JsonObject]:
    url = f"{request.url.scheme}://{request.url.netloc}{request.url.path}"
    rest = [(key, value) for key, value in request.query_params.multi_items() if key not in ("marker", "page_reverse")]
    links = []
    if page.next_marker:
        links.append({"rel": "next", "href": f"{url}?{urlencode([*rest, ('marker', page.next_marker)])}"})
    if page.previous_marker:
        back = [*rest, ("marker", page.previous_marker), ("page_reverse", "True")]
        links.append({"rel": "previous", "href": f"{url}?{urlencode(back)}"})
    return links
