"""What was typed, as values. Options may stand anywhere among the words, and before the command, as with `incus`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from fairlead.network_cli.failure import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One option, declared once: the parser and the help are made of it."""

    name: str
    meaning: str
    short: str = ""
    value: str = ""
    """What its value is called; empty: it has none."""
    default: str = ""

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def spellings(self) -> str:
        return f"-{self.short}, --{self.name}" if self.short else f"    --{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    words: tuple[str, ...]
    given: dict[str, Any]
    """The options that were typed, by key; others are not there."""

    def text(self, key: str, default: str = "") -> str:
        return str(self.given.get(key, default))

    def has(self, key: str) -> bool:
        return bool(self.given.get(key))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Of itself it only misses values here."""
        flag = message.removeprefix("argument ").partition("/")[0].partition(":")[0]
        raise Failure(f"flag needs an argument: {flag}")


def parse(argv: Sequence[str], flags: Sequence[Flag]) -> Typed:
    """Raises Failure for an option that none of the flags is, or without its value."""
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*")
    for flag in flags:
        spellings = [f"--{flag.name}", *([f"-{flag.short}"] if flag.short else [])]
        action = "store" if flag.value else "store_true"
        parser.add_argument(*spellings, dest=flag.key, action=action)
    given, unknown = parser.parse_known_intermixed_args(list(argv))
    if unknown:
        raise Failure(unknown_flag(unknown[0].partition("=")[0]))
    typed = vars(given)
    return Typed(words=tuple(typed.pop("words", ())), given=typed)


def unknown_flag(flag: str) -> str:
    return f"unknown flag: {flag}" if flag.startswith("--") else f"unknown shorthand flag: '{flag[1:2]}' in {flag}"
