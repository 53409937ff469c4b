"""Lists: `recursion`, and Incus' `filter` (`name eq web and config.user.team ne red`), bounded.

A filter reads from the left, as Incus' does: neither "and" nor "or" binds closer. A text is compared as a pattern that
matches the whole of it, case aside (`patterns`); with a comma it is a list of texts.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.door import ApiError, JsonObject
from fairlead.api.fields import Schema
from fairlead.api.lxd.envelope import sync
from fairlead.api.lxd.patterns import BadPattern, compile_pattern
from fairlead.api.openapi import TEXT
from fairlead.model.steps import Steps
from fairlead.resting import in_steps

MOST_CLAUSES = 16
LONGEST_FILTER = 1000
"""Characters."""
PROJECT_QUERY: Mapping[str, Schema] = {"project": TEXT}
LIST_QUERY: Mapping[str, Schema] = {**PROJECT_QUERY, "recursion": TEXT, "filter": TEXT}
OPERATORS = frozenset({"eq", "ne", "gt", "lt", "ge", "le"})
QUOTES = ("'", '"')
NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


def is_recursive(request: Request) -> bool:
    text = request.query_params.get("recursion", "")
    return NUMBER.fullmatch(text) is not None and int(text) != 0


async def listed(request: Request, items: Iterable[tuple[str, Callable[[], JsonObject]]]) -> Response:
    """The answer: URLs, or the objects if `recursion` asks for these; in the order that is given. An item is its URL,
    and what makes the object. Raises ApiError 400 for a filter that cannot be read."""
    return sync(await found_by(request, items))


async def found_by(request: Request, items: Iterable[tuple[str, Callable[[], JsonObject]]]) -> list[object]:
    """What `listed` answers."""
    return await in_steps(_found(read_filter(request), is_recursive(request), items))


def _found(
    admits: "Filter", recursive: bool, items: Iterable[tuple[str, Callable[[], JsonObject]]]
) -> Steps[list[object]]:
    found: list[object] = []
    for url, encode in items:
        item = encode() if recursive or admits.clauses else {}
        if (yield from admits.admits(item)):
            found.append(item if recursive else url)
        yield
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    any_of: bool
    """Whether it is joined with "or" to those before it."""
    negated: bool
    field: str
    operator: str
    value: str
    matches: Callable[[str], Steps[bool]]
    """Whether a text is what `value` says."""

    def admits(self, item: Mapping[str, Any]) -> Steps[bool]:
        return (yield from self._compare(_value_of(item, self.field))) != self.negated

    def _compare(self, found: object) -> Steps[bool]:
        """Raises ApiError for what cannot be compared so, in Incus' words."""
        match found:
            case None:
                found = ""
            case bool():
                found = "true" if found else "false"
            case int():
                return self._compare_number(found)
            case list() | tuple() | dict():
                raise _invalid(f"Invalid type for field {self.field!r}")
        if self.operator not in ("eq", "ne"):
            raise _invalid(f'Invalid operator "{self.operator}" for field "{self.field}"')
        return (yield from self.matches(str(found))) == (self.operator == "eq")

    def _compare_number(self, found: int) -> bool:
        try:
            wanted = int(self.value)
        except ValueError:
            raise _invalid(f"Failed to parse value: {self.value!r} is not a number") from None
        return {
            "eq": found == wanted,
            "ne": found != wanted,
            "gt": found > wanted,
            "lt": found < wanted,
            "ge": found >= wanted,
            "le": found <= wanted,
        }[self.operator]


@dataclass(frozen=True, slots=True)
class Filter:
    clauses: tuple[Clause, ...] = ()

    def admits(self, item: Mapping[str, Any]) -> Steps[bool]:
        admitted = True
        for clause in self.clauses:
            if admitted != clause.any_of:
                admitted = yield from clause.admits(item)
        return admitted


def read_filter(request: Request) -> Filter:
    """Raises ApiError 400."""
    text = request.query_params.get("filter", "")
    if len(text) > LONGEST_FILTER:
        raise _invalid(f"more than {LONGEST_FILTER} characters")
    words, clauses = text.split(), list[Clause]()
    any_of = False
    while words:
        if len(clauses) == MOST_CLAUSES:
            raise _invalid(f"more than {MOST_CLAUSES} clauses")
        clause, words = _read_clause(words, any_of)
        clauses.append(clause)
        if words:
            if words[0] not in ("and", "or"):
                raise _invalid("invalid clause composition")
            any_of = words[0] == "or"
            words = words[1:]
            if not words:
                raise _invalid("unterminated compound clause")
    return Filter(tuple(clauses))


def _read_clause(words: list[str], any_of: bool) -> tuple[Clause, list[str]]:
    """The first clause, and the words behind it."""
    negated = words[0].lower() == "not"
    words = words[negated:]
    for number, missing in enumerate(("incomplete not clause", "clause has no operator", "clause has no value")):
        if len(words) <= number:
            raise _invalid(missing)
    field, operator = words[0], words[1]
    if operator not in OPERATORS:
        raise _invalid("Unsupported operation")
    value, rest = _read_value(words[2:])
    clause = Clause(
        any_of=any_of, negated=negated, field=field, operator=operator, value=value, matches=_matcher(value)
    )
    return clause, rest


def _read_value(words: list[str]) -> tuple[str, list[str]]:
    """One word, or all between two quotes."""
    first = words[0]
    quote = first[0]
    if quote not in QUOTES:
        return first, words[1:]
    if len(first) > 1 and first.endswith(quote):
        return first[1:-1], words[1:]
    for number, word in enumerate(words[1:], 1):
        if word.endswith(quote):
            return " ".join([first[1:], *words[1:number], word[:-1]]), words[number + 1 :]
    raise _invalid("unterminated quote")


def _matcher(value: str) -> Callable[[str], Steps[bool]]:
    if "," in value:
        return _one_of({value, *value.split(",")})
    try:
        return compile_pattern(value).matches
    except BadPattern:  # Incus takes a text that is no pattern as it is
        return _one_of({value})


def _one_of(values: Collection[str]) -> Callable[[str], Steps[bool]]:
    texts = frozenset(map(str.casefold, values))

    def matches(text: str) -> Steps[bool]:
        yield
        return text.casefold() in texts

    return matches


def _value_of(item: Mapping[str, Any], field: str) -> object:
    """Of an attribute, or of a key in a map: keys have dots themselves."""
    name, _, rest = field.partition(".")
    found = item.get(name)
    return found.get(rest) if rest and isinstance(found, dict) else None if rest else found


def _invalid(why: str) -> ApiError:
    return ApiError(400, f"Invalid filter: {why}")
