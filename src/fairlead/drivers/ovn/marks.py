"""What tells our rows from others', and whose each is. No I/O.

* A row's `external_ids` say whose it is. Load_Balancer_Group has no such column: there the name says it.
* A row's UUID follows from its key, so a reference needs no look-up, and what was written twice exists once.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1
from urllib.parse import quote, unquote
from uuid import UUID, uuid5

from fairlead.dataplane.ovn import SOURCE_IPV6
from fairlead.dataplane.ovn_tables import (
    FOREIGN_TABLES,
    HELD,
    SHARED,
    TABLES,
    WORDS,
    foreign_name,
    foreign_uuid,
)
from fairlead.dataplane.rows import Key
from fairlead.drivers.ovsdb.protocol import TableMonitor
from fairlead.drivers.ovsdb.values import Json, decode_map, encode_map, patch_map
from fairlead.model.owner import Owner

_UNMARKED = "Load_Balancer_Group"
"""The table without `external_ids`."""
_NAMESPACE = UUID("a3c1a5f4-6c0e-5d0b-9d5e-0b6f1a1c7e11")
_MARK, _OWNER, _KEY, _ADDRESS = "fairlead", "fairlead:owner", "fairlead:key", "fairlead:address:"
_VARIABLE = "fairlead:variable:"
_SAFE = "/:;@+=()[]{} "  # stays readable in a mark; the comma separates
_PLAIN = re.compile(r"[A-Za-z0-9_.\-~/:;@+=()\[\]{} ]*")  # nothing to quote


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Whose a row is. `orphan`: it bears our mark, but is not the row that its key names, or names no owner. `foreign`:
    it is somebody else's, and what counts of it is what it holds of ours, or which row of ours refers to it."""

    owner: Owner
    key: Key
    orphan: bool = False
    foreign: bool = False


@dataclass(frozen=True)
class Mark:
    """Tells the rows of one deployment from all others."""

    deployment: str

    @cached_property
    def _namespace(self) -> UUID:
        return uuid5(_NAMESPACE, self.deployment)

    @cached_property
    def default_lock(self) -> str:
        """A lock's name is an <id> (RFC 7047 section 3.1): letters, digits and underscores."""
        return f"fairlead_{self._namespace.hex}"

    def uuid(self, key: Key) -> str:
        """A name-based one (RFC 9562 section 5.5), without an object of `uuid` for each of 100,000 rows; of somebody
        else's row, its own."""
        foreign = foreign_uuid(key)
        if foreign is not None:
            return foreign
        digest = bytearray(sha1(self._namespace.bytes + join_text(key).encode(), usedforsecurity=False).digest()[:16])
        digest[6] = digest[6] & 0x0F | 0x50
        digest[8] = digest[8] & 0x3F | 0x80
        text = digest.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def external_ids(self, owner: Owner, key: Key, words: Mapping[str, str] | None = None) -> dict[str, str]:
        """`words` are the row's own, by column."""
        said = {WORDS[column]: text for column, text in (words or {}).items() if text}
        return {_MARK: self.deployment, _OWNER: str(owner), _KEY: join_text(key), **said}

    @property
    def ours(self) -> Json:
        """What `external_ids` include of every row that is ours."""
        return encode_map({_MARK: self.deployment})

    def group_name(self, owner: Owner, name: str) -> str:
        return join_text((_MARK, self.deployment, str(owner), name))

    @property
    def of_the_row(self) -> dict[str, str]:
        """What `external_ids` say of a row that everybody may use, and that we made."""
        return {_MARK: self.deployment}

    def variable_mark(self, owner: Owner, name: str) -> dict[str, str]:
        """What `external_ids` say beside a template variable."""
        return {_VARIABLE + name: join_text((self.deployment, str(owner)))}

    def read_variable_owner(self, text: str, place: str) -> Owner | None:
        """None if the variable is not ours; `orphan_owner` of this place if the mark names no owner."""
        deployment, *owner = split_text(text)
        return parse_owner(",".join(owner), place) if deployment == self.deployment else None

    def monitors(self) -> dict[str, TableMonitor]:
        """Rows of others are not even sent, except groups, of which nothing but the name tells whose they are, rows
        that are everybody's, and those in which there may be rows of ours: switches, routers, and ports that lead to
        one."""
        ours = (["external_ids", "includes", self.ours],)
        every: dict[str, tuple[Json, ...]] = dict.fromkeys(FOREIGN_TABLES, ())
        wheres = {**every, "Logical_Switch_Port": (*ours, ["type", "==", "router"])}  # one of them is enough
        monitors = {}
        for name, table in TABLES.items():
            own = (each.name for each in table.columns if each.read and each.name not in WORDS)
            if name == _UNMARKED:
                monitors[name] = TableMonitor(columns=(*own, *HELD[name]))
            else:
                columns = (*own, *HELD[name], "external_ids")
                monitors[name] = TableMonitor(columns=columns, where=wheres.get(name, ours))
        for shared in SHARED:
            if shared.value:
                monitors[shared.table] = TableMonitor(columns=(shared.holder, shared.column, "external_ids"))
        return monitors

    def read(self, table: str, uuid: str, columns: Mapping[str, Json]) -> Claim | None:
        """Whose a row of the database is; None if it is not ours."""
        if table == _UNMARKED:
            match split_text(columns.get("name", "")):
                case (word, deployment, owner, name) if (word, deployment) == (_MARK, self.deployment):
                    return self._claim(uuid, owner, (table, name))
            return None
        marks = decode_map(columns.get("external_ids", ["map", []]))
        if marks.get(_MARK) != self.deployment:
            if table not in FOREIGN_TABLES:
                return None
            name = foreign_name(columns.get("name", ""), uuid)
            return Claim(owner=orphan_owner(uuid), key=(table, name), foreign=True)
        key = split_text(marks.get(_KEY, ""))
        well_formed = key[0] == table and len(key) == TABLES[table].key_parts
        return self._claim(uuid, marks.get(_OWNER, ""), (table, *(key[1:] if well_formed else (uuid,))))

    def _claim(self, uuid: str, owner: str, key: Key) -> Claim:
        try:
            claim = Claim(owner=Owner.parse(owner), key=key)
        except ValueError:
            return Claim(owner=orphan_owner(uuid), key=key, orphan=True)
        return claim if self.uuid(key) == uuid else Claim(owner=orphan_owner(uuid), key=key, orphan=True)


def orphan_owner(place: str) -> Owner:
    """An owner that no model has, so that a resync removes what it holds."""
    return Owner.parse(f"loadbalancer/orphan-{place}")


def join_text(parts: Iterable[str]) -> str:
    """Parts as one readable text; the inverse of `split_text`."""
    return ",".join(part if _PLAIN.fullmatch(part) else quote(part, safe=_SAFE) for part in parts)


def split_text(text: str) -> tuple[str, ...]:
    return tuple(unquote(part) for part in text.split(","))


def read_address_mark(mark: str) -> str | None:
    """The address of a port that this key of `external_ids` names the owner of; None for any other."""
    return mark.removeprefix(_ADDRESS) if mark.startswith(_ADDRESS) else None


def read_variable_mark(mark: str) -> str | None:
    """The template variable that this key of `external_ids` names the owner of; None for any other."""
    return mark.removeprefix(_VARIABLE) if mark.startswith(_VARIABLE) else None


def variable_mark_key(name: str) -> str:
    return _VARIABLE + name


def read_words(marks: Json) -> dict[str, Json]:
    """What `external_ids` say that is a row's own, as columns."""
    said = decode_map(marks)
    return {column: said.get(word, "") for column, word in WORDS.items()}


def patch_words(columns: Mapping[str, Json], difference: Json) -> dict[str, Json]:
    """The same after a "modify" of `external_ids`; nothing of what that says nothing of, or the row has none."""
    said, found = decode_map(difference), dict[str, Json]()
    for column, word in WORDS.items():
        if word in said and column in columns:
            before = {word: columns[column]} if columns[column] else {}
            found[column] = patch_map(before, encode_map({word: said[word]})).get(word, "")
    return found


def is_mark(word: str) -> bool:
    """Whether this key of `external_ids` may say whose a row is; others are addresses of a port, or the row's own."""
    return word not in WORDS.values() and not word.startswith(_ADDRESS)


def parse_owner(text: str, place: str) -> Owner:
    """The owner that a mark names; `orphan_owner` of this place if it names none."""
    try:
        return Owner.parse(text)
    except ValueError:
        return orphan_owner(place)


def read_abilities(schema: Json) -> frozenset[str]:
    """What this OVN can do beyond what every one can, as its Northbound database's schema says (RFC 7047, 3.2)."""
    match schema:
        case {
            "tables": {"Load_Balancer": {"columns": {"selection_fields": {"type": {"key": {"enum": ["set", fields]}}}}}}
        }:
            return frozenset({SOURCE_IPV6} & set(fields))
        case _:
            return frozenset()


def decode_group_name(text: str) -> str:
    """One that somebody renamed has lost its mark with its name: it has none then, and gets both back."""
    match split_text(text):
        case (word, _, _, name) if word == _MARK:
            return name
        case _:
            return ""


def replace_word(word: str, text: str) -> list[Json]:
    """Mutations of `external_ids`. A key that is there is left alone by an insert (RFC 7047, 5.1): it goes."""
    new = [["external_ids", "insert", encode_map({word: text})]] if text else []
    return [["external_ids", "delete", word], *new]


def replace_address_mark(address: str, owner: Owner | None) -> list[Json]:
    """Who has one of the addresses of a port of a router or switch; None: nobody else than the port's own owner."""
    return replace_word(_ADDRESS + address, "" if owner is None else str(owner))
