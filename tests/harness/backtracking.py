"""Counts the steps of a backtracking matcher such as `re` for a text, without a clock.

`re` matches in C, where steps cannot be counted. This matcher executes the same parsed pattern in the same order,
without the optimizations of `re`, so its count is an upper bound.
"""

from collections.abc import Callable, Sequence
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, TypeAlias

Code: TypeAlias = list[tuple[str, Any]]
"""Operation and its argument; jump targets are relative."""


def count_match_steps(pattern: str, text: str, most: int) -> int:
    """Steps of `re.fullmatch` for a text, at most about `most`: an ambiguous pattern needs 2 ** len(text)."""
    code, steps, alternatives = _compile(_parser.parse(pattern)), 0, [(0, 0)]
    while alternatives and steps <= most:
        place, position = alternatives.pop()
        while place < len(code):
            steps += 1
            operation, argument = code[place]
            if operation == "fork":
                alternatives += [(place + other, position) for other in reversed(argument[1:])]
                place += argument[0]
            elif operation == "jump":
                place += argument
            elif operation == "character" and position < len(text) and argument(ord(text[position])):
                place, position = place + 1, position + 1
            elif operation == "at" and position == argument(text):
                place += 1
            else:
                break
        else:
            if position == len(text):
                return steps
    return steps


def _compile(parsed: Sequence[tuple[Any, Any]]) -> Code:
    return [step for operation, argument in parsed for step in _compile_one(operation, argument)]


def _compile_one(operation: Any, argument: Any) -> Code:
    match operation:
        case sre.LITERAL | sre.NOT_LITERAL | sre.IN | sre.ANY:
            return [("character", _matches(operation, argument))]
        case sre.SUBPATTERN:
            return _compile(argument[-1])
        case sre.AT:
            return [("at", {sre.AT_BEGINNING: lambda _: 0, sre.AT_END: len}[argument])]
        case sre.BRANCH:
            return _branches([_compile(each) for each in argument[1]])
        case sre.MAX_REPEAT:
            return _compile_repeat(_compile(argument[2]), *argument[:2])
    raise NotImplementedError(operation)


def _branches(branches: Sequence[Code]) -> Code:
    starts = [1 + sum(len(each) + 1 for each in branches[:number]) for number in range(len(branches))]
    end = starts[-1] + len(branches[-1]) + 1
    found: Code = [("fork", starts)]
    for each in branches:
        found += each
        found.append(("jump", end - len(found)))
    return found


def _compile_repeat(code: Code, least: int, most: Any) -> Code:
    if most is sre.MAXREPEAT:
        return [*code * least, ("fork", (1, len(code) + 2)), *code, ("jump", -len(code) - 1)]
    ends = range((most - least) * (len(code) + 1), 0, -len(code) - 1)
    return [*code * least, *(step for end in ends for step in (("fork", (1, end)), *code))]


def _matches(operation: Any, argument: Any) -> Callable[[int], bool]:
    match operation:
        case sre.LITERAL:
            return lambda found: bool(found == argument)
        case sre.NOT_LITERAL:
            return lambda found: bool(found != argument)
        case sre.RANGE:
            return lambda found: bool(argument[0] <= found <= argument[1])
        case sre.ANY:
            return lambda found: found != ord("\n")
    is_negated, *others = argument if argument[0][0] is sre.NEGATE else (None, *argument)
    tests = [_matches(*each) for each in others]
    return lambda found: any(test(found) for test in tests) is (is_negated is None)
