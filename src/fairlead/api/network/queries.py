"""Query strings and page links of lists (Neutron API reference, "Filtering" to "Pagination")."""

from collections.abc import Iterable, Mapping
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from fairlead.api.http.front_end import JsonObject
from fairlead.api.http.listing import MAX_SORT_KEYS, Page, Query, TagFilter, filter_text
from fairlead.api.http.openapi import IDENTITY, TEXT, TEXTS
from fairlead.api.network.attributes import Attribute, Attributes
from fairlead.api.network.errors import bad_request, bad_resource
from fairlead.schema import Schema, array_schema

TAG_FILTERS = ("tags", "tags-any", "not-tags", "not-tags-any")
OTHER: Mapping[str, Schema] = {
    "fields": TEXTS,
    "sort_key": array_schema(TEXT, MAX_SORT_KEYS),
    "sort_dir": array_schema({"enum": ["asc", "desc"]}, MAX_SORT_KEYS),
    "limit": {"type": "integer", "minimum": 0, "maximum": 10**9 - 1},
    "marker": IDENTITY,
    "page_reverse": {"type": "boolean"},
    **dict.fromkeys(TAG_FILTERS, TEXT),
}
"""Query parameters that are not filters."""


def list_query(attributes: Attributes) -> Mapping[str, Schema]:
    return {**dict.fromkeys((name for name in attributes if attributes[name].filterable), TEXTS), **_other(attributes)}


def _other(attributes: Attributes) -> Mapping[str, Schema]:
    """Return the query parameters that are not filters; without tag filters for resources without tags."""
    return {name: OTHER[name] for name in OTHER if "tags" in attributes or name not in TAG_FILTERS}


def read_query(params: QueryParams, attributes: Attributes, hidden: Iterable[str] = (), key: str = "id") -> Query:
    """Parse a query string. `hidden` attributes are unknown to this caller; `key` is the attribute of markers. Raises
    ApiError 400."""
    known, other = attributes.keys() - set(hidden), _other(attributes)
    filters = {name: params.getlist(name) for name in params if name not in other}
    unknown = sorted(name for name in filters if name not in known or not attributes[name].filterable)
    if unknown:
        raise bad_request(f"{unknown} is invalid attribute for filtering")
    return Query(
        filters={
            name: frozenset(_canonical(attributes[name], text) for text in texts) for name, texts in filters.items()
        },
        tags=_tags(params),
        sort=_sort(params, known),
        limit=_limit(params.get("limit")),
        marker=params.get("marker") or None,
        reverse=params.get("page_reverse", "").lower() == "true",
        key=key,
        fields=frozenset(text for text in params.getlist("fields") if text),
    )


def page_links(url: str, params: QueryParams, page: Page) -> list[JsonObject]:
    rest = [(name, value) for name, value in params.multi_items() if name not in ("marker", "page_reverse")]
    links = []
    if page.next_marker:
        links.append({"rel": "next", "href": f"{url}?{urlencode([*rest, ('marker', page.next_marker)])}"})
    if page.previous_marker:
        query = urlencode([*rest, ("marker", page.previous_marker), ("page_reverse", "True")])
        links.append({"rel": "previous", "href": f"{url}?{query}"})
    return links


def _canonical(attribute: Attribute, text: str) -> str:
    """Return the text that the encoded value has: `True` becomes true, and `FA:16:..` becomes fa:16:..."""
    try:
        value = attribute.parse(text)
    except ValueError:
        return filter_text(text)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tags(params: QueryParams) -> TagFilter:
    wanted = [frozenset(tag for text in params.getlist(name) for tag in text.split(",") if tag) for name in TAG_FILTERS]
    return TagFilter(all_of=wanted[0], any_of=wanted[1], not_all_of=wanted[2], none_of=wanted[3])


def _sort(params: QueryParams, known: Iterable[str]) -> tuple[tuple[str, bool], ...]:
    keys = [text for text in params.getlist("sort_key") if text]
    directions = [text for text in params.getlist("sort_dir") if text]
    if directions and len(keys) != len(directions):
        raise bad_request("The number of sort_keys and sort_dirs must be same")
    absent = [key for key in keys if key not in known]
    if absent:
        raise bad_request(f"{absent} is invalid attribute for sort_keys")
    wrong = [text for text in directions if text not in ("asc", "desc")]
    if wrong:
        raise bad_request(f"{wrong} is invalid value for sort_dirs, valid value is 'asc' and 'desc'")
    return tuple(zip(keys, [text == "desc" for text in directions] or [False] * len(keys), strict=True))


def _limit(text: str | None) -> int | None:
    """Parse the limit; 0 means no limit."""
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise bad_resource("limit", f"Limit must be an integer 0 or greater and not '{text}'")
    return int(text) or None
