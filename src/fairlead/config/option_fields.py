"""Fields of option dataclasses: each carries its default, its type with range and unit, and its description."""

from dataclasses import field
from enum import Enum, auto
from typing import Any

from fairlead.config.types import Choice, Flag, NameList, Number, OptionType, Text
from fairlead.model.documents.quota import MAX_QUOTA


def declare_option(default: Any, type_: OptionType, description: str, **more: Any) -> Any:
    return field(default=default, metadata={"description": description, "type": type_, **more})


def text_option(default: str, description: str) -> Any:
    return declare_option(default, Text(), description)


def choice_option(default: str, words: tuple[str, ...], description: str) -> Any:
    return declare_option(default, Choice(words), description)


def flag_option(default: bool, description: str) -> Any:
    return declare_option(default, Flag(), description)


def names_option(description: str, default: tuple[str, ...] = ()) -> Any:
    return declare_option(default, NameList(), description)


def number_option(default: int, minimum: int, maximum: int, description: str, *, unit: str = "") -> Any:
    return declare_option(default, Number(minimum=minimum, maximum=maximum, unit=unit), description)


def limit_option(default: int, description: str) -> Any:
    """A quota, or another limit that can be lifted."""
    return declare_option(default, Number(minimum=0, maximum=MAX_QUOTA, may_be_unlimited=True), description)


class PathKind(Enum):
    """Content of the file or folder that an option names; `fairlead.config.option_files` opens each kind."""

    CERTIFICATE = auto()
    """PEM: a certificate and its chain; the option `key` of the same section names the private key."""
    KEY = auto()
    """PEM: the private key of a certificate."""
    AUTHORITIES = auto()
    """PEM: certificates of certificate authorities."""
    IDENTITY = auto()
    """PEM: a certificate and its private key in one file."""
    USERS = auto()
    """Lines of user:hash:project:roles."""
    PASSWORD = auto()
    """A password and nothing else."""
    FILE = auto()
    """Any content."""
    FOLDER = auto()
    STORE = auto()
    """URL of a store; it may be the URL of a file."""


SECRET_KINDS = frozenset({PathKind.KEY, PathKind.IDENTITY, PathKind.USERS, PathKind.PASSWORD})
"""Files that only this program may read."""


def path_option(kind: PathKind, default: str, description: str, **more: Any) -> Any:
    """A file or folder. `may_be_absent` is set where a program creates it or runs without it."""
    return declare_option(default, Text(), description, kind=kind, **more)


def quota_option(default: int, resource: str) -> Any:
    return limit_option(default, f"{resource} of a project without its own quota.")
