"""Lists: `recursion`, and Incus' `filter` (`name eq web and config.user.team ne red`), with limits.

A filter is evaluated from left to right, as in Incus: `and` and `or` have the same precedence. A value is a regular
expression for the whole text, ignoring case (`expressions`); with a comma it is a list of texts. Incus treats an
invalid expression as a text and finds nothing; here such a filter is rejected.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import and_, or_
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import ApiError, JsonObject
from fairlead.api.http.openapi import TEXT
from fairlead.api.lxd.envelope import sync
from fairlead.api.lxd.expressions import SPECIAL, BadExpression, Expression
from fairlead.api.lxd.go_texts import parse_int, quote
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps
from fairlead.schema import Schema

MAX_CLAUSES = 16
MAX_FILTER_LENGTH = 1000
"""Characters."""
PROJECT_QUERY: Mapping[str, Schema] = {"project": TEXT}
LIST_QUERY: Mapping[str, Schema] = {**PROJECT_QUERY, "recursion": TEXT, "filter": TEXT}
OPERATORS = frozenset({"eq", "ne", "gt", "lt", "ge", "le"})
EQUALITY = frozenset({"eq", "ne"})
QUOTES = ("'", '"')
FLAGS: Mapping[str, bool] = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
"""Boolean texts of Go's `strconv.ParseBool`."""
FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*", re.ASCII)
"""Attribute name; a key of a map follows it after a dot."""
NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


def is_recursive(request: Request) -> bool:
    text = request.query_params.get("recursion", "")
    return NUMBER.fullmatch(text) is not None and int(text) != 0


async def listed(request: Request, items: Iterable[tuple[str, Callable[[], JsonObject]]]) -> Response:
    """Return the response of a list: URLs, or objects with `recursion`, in the given order. An item is its URL and a
    function that encodes the object. Raises ApiError 400 for an invalid filter."""
    return sync(await found_by(request, items))


async def found_by(request: Request, items: Iterable[tuple[str, Callable[[], JsonObject]]]) -> list[object]:
    """Return the items of the response of `listed`."""
    return await run_in_steps(_found(request, items))


def _found(request: Request, items: Iterable[tuple[str, Callable[[], JsonObject]]]) -> Steps[list[object]]:
    found: list[object] = []
    admits, recursive = (yield from read_filter(request)), is_recursive(request)
    for url, encode in items:
        item = encode() if recursive or admits.clauses else {}
        if (yield from admits.matches_item(item)):
            found.append(item if recursive else url)
        yield
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    any_of: bool
    """Whether it is joined by "or" to the clauses before it."""
    negated: bool
    field: str
    operator: str
    value: str
    matches: Callable[[str], Steps[bool]]
    """Whether a text matches `value`."""

    def matches_item(self, item: Mapping[str, Any]) -> Steps[bool]:
        return (yield from self._compare(_value_of(item, self.field))) != self.negated

    def _compare(self, found: object) -> Steps[bool]:
        """Compare an attribute. Raises ApiError with Incus' message if the operator or value does not fit its type."""
        match found:
            case None:
                found = ""
            case bool():
                found, wanted = bool(found), FLAGS.get(self.value)
                if wanted is None:
                    raise _invalid(
                        f"Failed to parse value: strconv.ParseBool: parsing {quote(self.value)}: invalid syntax"
                    )
                if self.operator not in EQUALITY:
                    raise self._incomparable()
                return (found == wanted) == (self.operator == "eq")
            case int():
                return self._compare_number(found)
            case list() | tuple() | dict():
                raise _invalid(f"Invalid type for field {quote(self.field)}")
        if self.operator not in EQUALITY:
            raise self._incomparable()
        return (yield from self.matches(str(found))) == (self.operator == "eq")

    def _incomparable(self) -> ApiError:
        return _invalid(f"Invalid operator {quote(self.operator)} for field {quote(self.field)}")

    def _compare_number(self, found: int) -> bool:
        try:
            wanted = parse_int(self.value)
        except ValueError as error:
            raise _invalid(f"Failed to parse value: {error}") from None
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

    def matches_item(self, item: Mapping[str, Any]) -> Steps[bool]:
        """Whether the item passes. All clauses are evaluated, so that each invalid one is reported."""
        admitted = True
        for clause in self.clauses:
            admitted = (and_, or_)[clause.any_of](admitted, (yield from clause.matches_item(item)))
        return admitted


def read_filter(request: Request) -> Steps[Filter]:
    """Parse the filter of a request. Raises ApiError 400."""
    text = request.query_params.get("filter", "")
    if len(text) > MAX_FILTER_LENGTH:
        raise _invalid(f"more than {MAX_FILTER_LENGTH} characters")
    words, clauses = text.split(), list[Clause]()
    any_of = False
    while words:
        if len(clauses) == MAX_CLAUSES:
            raise _invalid(f"more than {MAX_CLAUSES} clauses")
        clause, words = _read_clause(words, any_of)
        clauses.append(clause)
        yield
        if words:
            if words[0] not in ("and", "or"):
                raise _invalid("invalid clause composition")
            any_of = words[0] == "or"
            words = words[1:]
            if not words:
                raise _invalid("unterminated compound clause")
    return Filter(tuple(clauses))


def _read_clause(words: list[str], any_of: bool) -> tuple[Clause, list[str]]:
    """Parse the first clause; return it and the remaining words."""
    negated = words[0].lower() == "not"
    words = words[negated:]
    for number, missing in enumerate(("incomplete not clause", "clause has no operator", "clause has no value")):
        if len(words) <= number:
            raise _invalid(missing)
    field, operator = words[0], words[1]
    if not FIELD.fullmatch(field.partition(".")[0]):
        raise _unknown(field)
    if operator not in OPERATORS:
        raise _invalid("Unsupported operation")
    value, rest = _read_value(words[2:])
    clause = Clause(
        any_of=any_of, negated=negated, field=field, operator=operator, value=value, matches=_matcher(value)
    )
    return clause, rest


def _read_value(words: list[str]) -> tuple[str, list[str]]:
    """Parse one word, or all words between two quotes."""
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
    """Return the matcher of a value. Raises ApiError 400."""
    if "," in value:
        return _one_of({value, *value.split(",")})
    if SPECIAL.isdisjoint(value):
        return _one_of({value})
    try:
        expression = Expression(value)
    except BadExpression as error:
        raise _unreadable(error) from None

    def matches(text: str) -> Steps[bool]:
        yield
        try:
            return expression.matches(text)
        except BadExpression as error:
            raise _unreadable(error) from None

    return matches


def _one_of(values: Collection[str]) -> Callable[[str], Steps[bool]]:
    texts = frozenset(map(str.casefold, values))

    def matches(text: str) -> Steps[bool]:
        yield
        return text.casefold() in texts

    return matches


def _value_of(item: Mapping[str, Any], field: str) -> object:
    """Return an attribute, or a key of a map, which may itself contain dots. Raises ApiError 400 if unknown."""
    name, _, rest = field.partition(".")
    if name not in item:
        raise _unknown(field)
    found = item[name]
    return found.get(rest) if rest and isinstance(found, dict) else None if rest else found


def _unknown(field: str) -> ApiError:
    return _invalid(f'Invalid type "invalid" for field {quote(field)}')


def _unreadable(error: BadExpression) -> ApiError:
    return _invalid(f"Failed to parse value: error parsing regexp: {error}")


def _invalid(why: str) -> ApiError:
    return ApiError(400, f"Invalid filter: {why}")
