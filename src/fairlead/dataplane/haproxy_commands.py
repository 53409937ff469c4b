"""Runtime API commands (management guide, 9.3 "Unix Socket commands") that replace a reload.

L7 policies use slots that the process has (`haproxy_policies.py`). An unused backend stays in the process until the
next reload, without servers.

The files are updated afterwards, so a process that starts later has the change. The failure of a command that may
fail is ignored; any other failure means that process and files differ, and a reload follows.

A changed connection limit also needs a reload, because `set maxconn frontend` on a full frontend crashes HAProxy
2.6: it deadlocks on its own lock (HAProxy issue 2726; seen with 2.6.12).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias

from fairlead.dataplane.haproxy import Backend, Certificate, Frontend, Process, Server, list_path
from fairlead.dataplane.haproxy_policies import (
    TABLE_KEY,
    Slots,
    changed_actions,
    changed_patterns,
    is_loaded,
    map_path,
    table,
)
from fairlead.dataplane.haproxy_words import Unwritable
from fairlead.dataplane.rows import NO_CHANGE, Diff, Key, Row, Rows, Update
from fairlead.model.queries.secrets import Role, Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    text: str
    secret: Secret | None = None
    """Secret with contents that follow the command as its payload."""
    may_fail: bool = False


Commands: TypeAlias = tuple[Command, ...]
MAX_POLICY_COMMANDS = 500
"""Maximum commands of one change of L7 policies. A change that needs more is a reload: 20,000 patterns of one listener
would occupy the process and the agent longer than a new process.

Changes of servers are not counted, because a reload for each failed member would be worse; MAX_PROXY_SERVERS
(`model/queries/proxy_backends.py`) bounds them.
"""
_MAX_ARGUMENT_LENGTH = 8_000
_PLAIN = re.compile(r"[A-Za-z0-9_./:\[\]=@,!+-]+")
"""Words that the socket accepts without escapes; `;`, blanks and `<<` have a meaning there."""
_ESCAPES = {code: f"\\{chr(code)}" for code in range(128) if not _PLAIN.fullmatch(chr(code))}


_FILES = {Role.CERTIFICATE: "cert", Role.AUTHORITY: "ca-file", Role.REVOCATIONS: "crl-file"}


class _Reload(Exception):
    """The change needs a reload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChange:
    """Slots of L7 policies before and after a change, by frontend."""

    before: Mapping[str, Slots] = field(default_factory=dict)
    after: Mapping[str, Slots] = field(default_factory=dict)


NO_SLOT_CHANGE = SlotChange()


def commands(diff: Diff, arranged: SlotChange = NO_SLOT_CHANGE) -> Commands | None:
    """Return the commands for a change; None if it needs a reload. Additions come before removals, so a backend
    always has a server."""
    try:
        return (
            *(command for row in diff.creates.values() for command in _create(row)),
            *(command for update in diff.updates.values() for command in _update(update)),
            *_put_all_policies(diff, arranged),
            *(command for row in diff.deletes.values() for command in _delete(row)),
        )
    except (_Reload, Unwritable):
        return None


def _put_all_policies(diff: Diff, arranged: SlotChange) -> Iterator[Command]:
    """Yield the commands that change L7 policies; if there are too many, the change needs a reload."""
    before, after = arranged.before, arranged.after
    names = (each.after.name for each in diff.updates.values() if isinstance(each.after, Frontend))
    found = (_put_policies(name, before.get(name), after.get(name)) for name in names)
    for number, command in enumerate(chain.from_iterable(found), 1):
        if number > MAX_POLICY_COMMANDS:
            raise _Reload
        yield command


def part_without_reload(change: Diff, before: Rows) -> Diff:
    """Return the part of a change that commands can apply now, before any reload: rows of unchanged sections."""
    moving = {*change.creates, *change.updates, *change.deletes}

    def stays(row: Row) -> bool:
        match row:
            case Server():
                section = ("Backend", row.backend)
            case Certificate():
                section = ("Frontend", row.frontend)
            case _:
                return False
        return section in before and section not in moving

    def only(**part: Mapping[Key, Any]) -> Diff:
        return replace(NO_CHANGE, **part)

    return Diff(
        creates={key: row for key, row in change.creates.items() if stays(row) and commands(only(creates={key: row}))},
        updates={
            key: each
            for key, each in change.updates.items()
            if not isinstance(each.after, Frontend) and commands(only(updates={key: each})) is not None
        },
        deletes={key: row for key, row in change.deletes.items() if stays(row) and commands(only(deletes={key: row}))},
    )


def of_servers(change: Diff) -> Diff:
    """Return the part of a change that is about servers, which HAProxy need not check first (`checked`)."""

    def only(rows: Mapping[Key, Any]) -> Mapping[Key, Any]:
        return {key: row for key, row in rows.items() if key[0] == "Server"}

    return Diff(creates=only(change.creates), updates=only(change.updates), deletes=only(change.deletes))


def checked(change: Diff, rows: Rows) -> tuple[Row, ...]:
    """Return the rows that HAProxy has to load before commands make this change to `rows`: the changed frontends, and
    those with changed certificates, with certificates and backends, but only with servers that change too. Empty if
    the change has neither."""
    new = {**change.creates, **{key: update.after for key, update in change.updates.items()}}
    names = {
        row.frontend if isinstance(row, Certificate) else row.name
        for row in (*new.values(), *change.deletes.values())
        if isinstance(row, Frontend | Certificate)
    }
    frontends = [row for name in sorted(names) if isinstance(row := rows.get(("Frontend", name)), Frontend)]
    backends = {backend for row in frontends for backend in row.backends}

    def belongs(key: Key, row: Row) -> bool:
        match row:
            case Certificate():
                return row.frontend in names
            case Backend():
                return row.name in backends
            case Server():
                return key in new and row.backend in backends
            case _:
                return False

    return (*frontends, *(row for key, row in rows.items() if belongs(key, row))) if frontends else ()


def renewal_commands(secret: Secret) -> Commands:
    """Commands that load new contents of a secret."""
    file = f"ssl {_FILES[secret.role]} {secret.path}"
    return Command(text=f"set {file}", secret=secret), Command(text=f"commit {file}")


def _create(row: Row) -> Iterator[Command]:
    match row:
        case Server():
            yield from _add(row)
        case Certificate(is_default=False):
            yield Command(text=f"new ssl cert {row.secret.path}", may_fail=True)  # another frontend may have it
            yield from renewal_commands(row.secret)
            yield Command(text=f"add ssl crt-list {list_path(row.frontend)} {row.secret.path}")
        case _:
            raise _Reload


def _update(update: Update) -> Iterator[Command]:
    match update.before, update.after:
        case Server() as before, Server() as after if before.reload_attributes == after.reload_attributes:
            yield from _change(before, after)
        case Process() as before, Process() as after if before.reload_attributes == after.reload_attributes:
            return  # its namespace is updated in place
        case Frontend() as before, Frontend() as after if before.reload_attributes == after.reload_attributes:
            return  # `_put_all_policies`
        case _:
            raise _Reload


def _delete(row: Row) -> Iterator[Command]:
    match row:
        case Server():
            place = _place(row)
            yield Command(text=f"set server {place} state maint")
            yield Command(text=f"del server {place}", may_fail=True)  # fails with connections; a reload removes it
        case Certificate(is_default=False):
            yield Command(text=f"del ssl crt-list {list_path(row.frontend)} {row.secret.path}")
            yield Command(text=f"del ssl cert {row.secret.path}", may_fail=True)  # another frontend shows it
        case Backend():
            return  # it stays without servers: tables of policies are told before deletes, so nothing leads to it
        case _:
            raise _Reload


def _put_policies(frontend: str, before: Slots | None, after: Slots | None) -> Iterator[Command]:
    """Yield the commands that change L7 policies. The old policies apply until the last command replaces the table."""
    if before is None or after is None or not is_loaded(before, after):
        raise _Reload
    path = map_path(frontend)
    for identity, value in changed_patterns(before, after):
        yield Command(text=f"clear acl #{identity}")
        yield Command(text=f"add acl #{identity} {escaped(value)}")
    for slot, action in changed_actions(before, after):
        yield Command(text=f"set map {path} {slot} {escaped(action)}")
    if table(before) != table(after):
        yield Command(text=f"set map {path} {TABLE_KEY} {table(after)}")


def escaped(text: str) -> str:
    """Escape an argument of a command. Raises _Reload for control characters and long arguments, because the socket
    reads a line into a buffer of 16 KB (configuration manual, tune.bufsize)."""
    found = text.translate(_ESCAPES)
    if not text or not text.isprintable() or len(found.encode()) > _MAX_ARGUMENT_LENGTH:
        raise _Reload
    return found


def _add(server: Server) -> Iterator[Command]:
    """Add a server in maintenance, then enable it."""
    place = _place(server)
    yield _command("add server", place, *server.words)
    if server.cookie_key:
        yield _command("set dynamic-cookie-key backend", server.backend, server.cookie_key)
    if not server.maintained:
        yield Command(text=f"enable server {place}")


def _change(before: Server, after: Server) -> Iterator[Command]:
    place = _place(after)
    if (before.address, before.port) != (after.address, after.port):
        yield Command(text=f"set server {place} addr {after.address} port {after.port}")
    if before.weight != after.weight:
        yield Command(text=f"set server {place} weight {after.weight}")
    if before.maintained != after.maintained:
        yield Command(text=f"set server {place} state {'maint' if after.maintained else 'ready'}")


def _place(server: Server) -> str:
    return f"{server.backend}/{server.name}"


def _command(*words: str) -> Command:
    """Render a command. The first word is constant and may have blanks."""
    if not all(map(_PLAIN.fullmatch, words[1:])):
        raise _Reload
    return Command(text=" ".join(words))
