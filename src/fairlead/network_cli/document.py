"""A load balancer as LXD's API has it, and its two forms as text: JSON of the wire, and YAML of the caller.

The order of the fields is that of Incus. YAML is read strictly: a field that is unknown is refused and not dropped, so
that a word misspelt in an editor is no silent deletion. Scalars are texts, however they look: `80`, `yes` and `null`
(which is the empty text) are what their writer sees.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import yaml

from fairlead.network_cli.failure import Failure
from fairlead.terminal import escaped

OTHER_THAN_TEXT = re.compile(r"[yYnN]|[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+")
"""What YAML takes for truth values and numbers, though PyYAML does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    name: str = ""
    description: str = ""
    target_port: str = ""
    target_address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    description: str = ""
    protocol: str = ""
    listen_port: str = ""
    target_backend: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What the caller decides of a load balancer: the body of a PUT."""

    description: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    backends: tuple[Backend, ...] = ()
    ports: tuple[Port, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancer(Description):
    listen_address: str = ""
    location: str = ""


SHOWN_ONLY = ("listen_address", "location")
"""What `show` prints and `edit` may therefore be given, but nobody can change."""


def of_wire(value: Any) -> LoadBalancer:
    """What a server said. It may know more fields, and may leave some out, or null. Raises Failure."""
    try:
        return msgspec.convert(_without_nulls(value), LoadBalancer)
    except msgspec.ValidationError as error:
        raise Failure(f"the server's load balancer cannot be read: {error}") from None


def _without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {key: _without_nulls(each) for key, each in value.items() if each is not None}
        case list():
            return [_without_nulls(each) for each in value]
        case _:
            return value


def to_wire(value: Description) -> Any:
    """Plain dictionaries and lists in the order of the fields; keys of `config` in the order of people."""
    plain = msgspec.to_builtins(value)
    return {**plain, "config": {key: plain["config"][key] for key in sorted(plain["config"], key=_place)}}


def _place(key: str) -> list[tuple[bool, int, str]]:
    """As Go's YAML sorts keys: signs, then numbers by their value, then letters: `user.2` before `user.10`."""
    parts = re.findall(r"\d+|\D", key)
    return [(part.isalpha(), int(part) if part.isdecimal() else 0, part) for part in parts]


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """In the quotes that Go's YAML chooses: literal for several lines, double where it would be read as no text."""
    style = None
    if any(escaped(line) != line for line in text.split("\n")):
        style = '"'  # the only style that has escapes
    elif "\n" in text:
        style = "|"
    elif OTHER_THAN_TEXT.fullmatch(text) or _tag_of(dumper, text) != "tag:yaml.org,2002:str":
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _tag_of(dumper: yaml.SafeDumper, text: str) -> str:
    """What it would be read as, without quotes."""
    return str(dumper.resolve(yaml.ScalarNode, text, (True, False)))  # type: ignore[no-untyped-call]


_Dumper.add_representer(str, _represent_text)


def render_yaml(value: object) -> str:
    """PyYAML leaves some control characters as they are, such as those that turn text round: in double quotes their
    escapes mean the same."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return "\n".join(map(escaped, text.split("\n")))


def parse_yaml(text: str, more: Sequence[str] = ()) -> Description:
    """What the caller wrote; nothing at all is an empty description. `more` are fields that are taken and forgotten.

    Raises Failure with every line that is wrong."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise Failure(f"yaml: {_first_problem(error)}") from None
    reader = _Reader()
    read = reader.record(node, {**_DESCRIPTION, **dict.fromkeys(more, _Reader.text)}) if node else {}
    if reader.wrong:
        raise Failure("\n  ".join(["yaml: unmarshal errors:", *reader.wrong]))
    return Description(**{name: each for name, each in read.items() if name not in more})


def _first_problem(error: yaml.YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return f"line {mark.line + 1}: {problem}" if mark and problem else str(error).splitlines()[0]


class _Reader:
    """Walks what YAML composed, and notes what is not as it should be, all of it, by line."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def complain(self, node: yaml.Node, what: str) -> None:
        self.wrong.append(f"line {node.start_mark.line + 1}: {what}")

    def text(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self.complain(node, f"cannot unmarshal !!{node.tag.rpartition(':')[2]} into string")
            return ""
        return "" if node.tag.endswith(":null") else str(node.value)

    def pairs(self, node: yaml.Node, what: str) -> list[tuple[yaml.Node, str, yaml.Node]]:
        if _is_null(node):
            return []
        if not isinstance(node, yaml.MappingNode):
            self.complain(node, f"cannot unmarshal !!{node.tag.rpartition(':')[2]} into {what}")
            return []
        pairs = [(key, self.text(key), value) for key, value in node.value]
        seen: set[str] = set()
        for key, name, _ in pairs:
            if name in seen:
                self.complain(key, f"key {name!r} is already set in {what}")
            seen.add(name)
        return pairs

    def record(self, node: yaml.Node, fields: "Mapping[str, Callable[[_Reader, yaml.Node], Any]]") -> dict[str, Any]:
        read = {}
        for key, name, value in self.pairs(node, "a load balancer"):
            if name in fields:
                read[name] = fields[name](self, value)
            else:
                self.complain(key, f"field {name} not found")
        return read

    def texts(self, node: yaml.Node) -> dict[str, str]:
        return {name: self.text(value) for _, name, value in self.pairs(node, "config")}

    def items(self, node: yaml.Node) -> list[yaml.Node]:
        if _is_null(node):
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.complain(node, f"cannot unmarshal !!{node.tag.rpartition(':')[2]} into a list")
            return []
        return list(node.value)

    def names(self, node: yaml.Node) -> tuple[str, ...]:
        return tuple(self.text(each) for each in self.items(node))

    def backends(self, node: yaml.Node) -> tuple[Backend, ...]:
        return tuple(Backend(**self.record(each, _BACKEND)) for each in self.items(node))

    def ports(self, node: yaml.Node) -> tuple[Port, ...]:
        return tuple(Port(**self.record(each, _PORT)) for each in self.items(node))


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")


_BACKEND = dict.fromkeys(("name", "description", "target_port", "target_address"), _Reader.text)
_PORT: Mapping[str, Callable[[_Reader, yaml.Node], Any]] = {
    **dict.fromkeys(("description", "protocol", "listen_port"), _Reader.text),
    "target_backend": _Reader.names,
}
_DESCRIPTION: Mapping[str, Callable[[_Reader, yaml.Node], Any]] = {
    "description": _Reader.text,
    "config": _Reader.texts,
    "backends": _Reader.backends,
    "ports": _Reader.ports,
}
