"""The list operations of the Octavia API: filters, tags, fields, sorting, paging, and the links to the next page."""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.door import ApiError, JsonObject, json_response
from fairlead.api.fields import Schema, array_schema
from fairlead.api.listing import MOST_SORT_KEYS, BadQuery, Item, Page, Query, TagFilter, select
from fairlead.api.openapi import IDENTITY, TEXT, TEXTS

_TAG_WORDS = ("tags", "tags-any", "not-tags", "not-tags-any")
_WORDS: Mapping[str, Schema] = {
    "fields": TEXTS,
    "limit": {"type": "integer", "minimum": 0, "maximum": 10**9 - 1},
    "marker": IDENTITY,
    "page_reverse": {"type": "boolean"},
    "sort": TEXT,
    "sort_key": array_schema(TEXT, MOST_SORT_KEYS),
    "sort_dir": array_schema({"enum": ["asc", "desc"]}, MOST_SORT_KEYS),
    **dict.fromkeys(_TAG_WORDS, TEXT),
}
"""What a query string may hold beside filters."""


def _nested_ids(attribute: str) -> Callable[[Item], Iterable[object]]:
    return lambda item: [entry["id"] for entry in item.get(attribute) or ()]


_MATCHERS: Mapping[str, Callable[[Item], Iterable[object]]] = {
    "loadbalancer_id": _nested_ids("loadbalancers"),
    "load_balancer_id": _nested_ids("loadbalancers"),
    "listener_id": _nested_ids("listeners"),
    "pool_id": _nested_ids("pools"),
    "member_id": _nested_ids("members"),
}


def list_query(attributes: Iterable[str]) -> Mapping[str, Schema]:
    """The parameters of a list whose items have these attributes: each can be filtered by."""
    return {**dict.fromkeys([*attributes, *_MATCHERS], TEXTS), **_WORDS}


def list_response(request: Request, plural: str, items: Iterable[Item]) -> Response:
    query = _query(request)
    try:
        page = select(items, query, _MATCHERS)
    except BadQuery as error:
        raise ApiError(400, str(error)) from None
    return json_response({plural: page.items, f"{plural}_links": _links(request, page)})


def _query(request: Request) -> Query:
    given = request.query_params
    filters = {name: frozenset(given.getlist(name)) for name in given if name not in _WORDS}
    return Query(
        filters=filters,
        tags=TagFilter(
            **dict(zip(("all_of", "any_of", "not_all_of", "none_of"), map(_tags(request), _TAG_WORDS), strict=True))
        ),
        sort=_sort(request),
        limit=_limit(given.get("limit")),
        marker=given.get("marker"),
        reverse=given.get("page_reverse", "").lower() in ("true", "1"),
        fields=frozenset(given.getlist("fields")),
    )


def _tags(request: Request) -> Callable[[str], frozenset[str]]:
    return lambda word: frozenset(
        tag for value in request.query_params.getlist(word) for tag in value.split(",") if tag
    )


def _sort(request: Request) -> tuple[tuple[str, bool], ...]:
    given = request.query_params
    keys = [part.partition(":")[::2] for part in given.get("sort", "").split(",") if part]
    keys += zip_longest(given.getlist("sort_key"), given.getlist("sort_dir"), fillvalue="")
    for _, direction in keys:
        if direction not in ("", "asc", "desc"):
            raise ApiError(400, f"The sort direction '{direction}' is not valid; it is asc or desc.")
    named = tuple((key, direction == "desc") for key, direction in keys)
    return (*(named or (("created_at", False),)), ("id", False))


def _limit(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ApiError(400, f"The pagination limit '{text}' is not valid; it is a number of at least 0.")
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
