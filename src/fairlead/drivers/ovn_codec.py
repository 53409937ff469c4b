"""Rows of the OVN Northbound database as OVSDB has them, and back; a diff as one transaction. No I/O.

* `decode_row(encode_columns(row)) == row`: what was written reads as what the compiler made.
* A row's UUID follows from its key, so a reference needs no look-up, and what was written twice exists once.
* A row's `external_ids` say whose it is. Load_Balancer_Group has no such column: there the name says it.
* A transaction changes what differs and no more: one element of a set, one column. It fails as a whole when a row that
  it refers to or updates is gone, or when a row that it deletes still holds what it does not delete.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha1
from typing import TypeAlias, assert_never, cast
from urllib.parse import quote, unquote
from uuid import UUID, uuid5

from fairlead.dataplane.ovn import (
    SOURCE_IPV6,
    Acl,
    GatewayChassis,
    GroupMember,
    LoadBalancer,
    LoadBalancerGroup,
    LoadBalancerHealthCheck,
    LogicalRouter,
    LogicalRouterPort,
    LogicalSwitch,
    LogicalSwitchPort,
    Nat,
    OvnRow,
    PortAddress,
    PortGroup,
    PortGroupPort,
    RouterGroup,
    StaticRoute,
    SwitchGroup,
    VirtualService,
    pairs,
    references,
)
from fairlead.dataplane.rows import Diff, Key, Update
from fairlead.drivers.interface import DriverError, MissingReference
from fairlead.drivers.ovsdb_protocol import (
    Json,
    TableMonitor,
    assert_lock,
    decode_map,
    decode_optional,
    decode_set,
    encode_map,
    encode_optional,
    encode_set,
    encode_uuid,
    patch_map,
)
from fairlead.model.owner import Owner

Columns: TypeAlias = Mapping[str, Json]
Exclusive: TypeAlias = (
    LogicalSwitch
    | LogicalSwitchPort
    | LogicalRouter
    | LogicalRouterPort
    | GatewayChassis
    | Nat
    | StaticRoute
    | LoadBalancer
    | LoadBalancerHealthCheck
    | LoadBalancerGroup
    | PortGroup
    | Acl
)
"""A row of ours that is a row of the database too."""
Element: TypeAlias = GroupMember | SwitchGroup | RouterGroup | PortAddress | PortGroupPort
"""A row of ours that is one element of a column."""

_NAMESPACE = UUID("a3c1a5f4-6c0e-5d0b-9d5e-0b6f1a1c7e11")
_MARK, _OWNER, _KEY, _ADDRESS = "fairlead", "fairlead:owner", "fairlead:key", "fairlead:address:"
_TITLE = "fairlead:name"
TITLE = f"external_ids:{_TITLE}"
"""Stands for a column in what is encoded: the one word of `external_ids` that is of the row, and not a mark."""
_SAFE = "/:;@+=()[]{} "  # stays readable in a mark; the comma separates
_PLAIN = re.compile(r"[A-Za-z0-9_.\-~/:;@+=()\[\]{} ]*")  # nothing to quote

_SETS = frozenset({"addresses", "port_security", "selection_fields"})
_MAPS = frozenset({"ip_port_mappings", "options", "other_config", "vips"})
HELD: Mapping[str, tuple[str, ...]] = {
    "Logical_Switch": ("ports", "load_balancer_group"),
    "Logical_Router": ("ports", "static_routes", "nat", "load_balancer_group"),
    "Logical_Router_Port": ("gateway_chassis",),
    "Load_Balancer": ("health_check",),
    "Load_Balancer_Group": ("load_balancer",),
    "Port_Group": ("ports", "acls"),
}
"""The columns whose elements are rows of other owners, or lead to them. Others must not notice when one changes."""
_OWN: Mapping[str, tuple[str, ...]] = {
    "Logical_Switch": ("name", "other_config"),
    "Logical_Switch_Port": ("name", "type", "addresses", "port_security", "options", "tag", "tag_request", "enabled"),
    "Logical_Router": ("name", "enabled", "options"),
    "Logical_Router_Port": ("name", "mac", "networks", "enabled", "options"),
    "Gateway_Chassis": ("chassis_name", "priority"),
    "NAT": ("type", "external_ip", "logical_ip"),
    "Logical_Router_Static_Route": ("ip_prefix", "nexthop", "policy"),
    "Load_Balancer": ("name", "protocol", "vips", "selection_fields", "options", "ip_port_mappings"),
    "Load_Balancer_Health_Check": ("vip", "options"),
    "Load_Balancer_Group": ("name",),
    "Port_Group": ("name",),
    "ACL": ("direction", "priority", "match", "action"),
}
_KEY_PARTS: Mapping[str, int] = {
    "Logical_Router_Static_Route": 4,
    "Gateway_Chassis": 3,
    "Load_Balancer_Health_Check": 3,
}
"""Of rows without a name of their own; the key of others is table and name."""


# Marks


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Whose a row is. `orphan`: it bears our mark, but is not the row that its key names, or names no owner."""

    owner: Owner
    key: Key
    orphan: bool = False


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
        """A name-based one (RFC 9562 section 5.5), without an object of `uuid` for each of 100,000 rows."""
        digest = bytearray(sha1(self._namespace.bytes + join_text(key).encode(), usedforsecurity=False).digest()[:16])
        digest[6] = digest[6] & 0x0F | 0x50
        digest[8] = digest[8] & 0x3F | 0x80
        text = digest.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def external_ids(self, owner: Owner, key: Key) -> dict[str, str]:
        return {_MARK: self.deployment, _OWNER: str(owner), _KEY: join_text(key)}

    def group_name(self, owner: Owner, name: str) -> str:
        return join_text((_MARK, self.deployment, str(owner), name))

    def monitors(self) -> dict[str, TableMonitor]:
        """Rows of others are not even sent, except groups: nothing but the name tells whose they are."""
        ours = (["external_ids", "includes", encode_map({_MARK: self.deployment})],)
        monitors = {
            table: TableMonitor(columns=(*columns, *HELD.get(table, ()), "external_ids"), where=ours)
            for table, columns in _OWN.items()
        }
        group = "Load_Balancer_Group"
        return monitors | {group: TableMonitor(columns=(*_OWN[group], *HELD[group]))}

    def read(self, table: str, uuid: str, columns: Columns) -> Claim | None:
        """Whose a row of the database is; None if it is not ours."""
        if table == "Load_Balancer_Group":
            match split_text(columns.get("name", "")):
                case (word, deployment, owner, name) if (word, deployment) == (_MARK, self.deployment):
                    return self._claim(uuid, owner, (table, name))
            return None
        marks = decode_map(columns.get("external_ids", ["map", []]))
        if marks.get(_MARK) != self.deployment:
            return None
        key = split_text(marks.get(_KEY, ""))
        well_formed = key[0] == table and len(key) == _KEY_PARTS.get(table, 2)
        return self._claim(uuid, marks.get(_OWNER, ""), key if well_formed else (table, uuid))

    def _claim(self, uuid: str, owner: str, key: Key) -> Claim:
        try:
            claim = Claim(owner=Owner.parse(owner), key=key)
        except ValueError:
            return Claim(owner=orphanage(uuid), key=key, orphan=True)
        return claim if self.uuid(key) == uuid else Claim(owner=orphanage(uuid), key=key, orphan=True)


def orphanage(place: str) -> Owner:
    """An owner that no model has, so that a resync removes what it holds."""
    return Owner.parse(f"loadbalancer/orphan-{place}")


def join_text(parts: Iterable[str]) -> str:
    """Parts as one readable text; the inverse of `split_text`."""
    return ",".join(part if _PLAIN.fullmatch(part) else quote(part, safe=_SAFE) for part in parts)


def split_text(text: str) -> tuple[str, ...]:
    return tuple(unquote(part) for part in text.split(","))


def read_address_mark(mark: str) -> str | None:
    """The network of a Logical_Router_Port that this key of `external_ids` names the owner of; None for any other."""
    return mark.removeprefix(_ADDRESS) if mark.startswith(_ADDRESS) else None


def read_title(marks: Json) -> dict[str, Json]:
    """What `external_ids` say that is a row's own, as a column."""
    return {TITLE: decode_map(marks).get(_TITLE, "")}


def patch_title(columns: Columns, difference: Json) -> dict[str, Json]:
    """The same after a "modify" of `external_ids`; nothing if that says nothing of it, or the row has none."""
    changed = {word: text for word, text in decode_map(difference).items() if word == _TITLE}
    if not changed or TITLE not in columns:
        return {}
    before = {_TITLE: columns[TITLE]} if columns[TITLE] else {}
    return {TITLE: patch_map(before, encode_map(changed)).get(_TITLE, "")}


def is_mark(word: str) -> bool:
    """Whether this key of `external_ids` may say whose a row is; others are addresses of a port, or a title."""
    return word != _TITLE and not word.startswith(_ADDRESS)


def parse_owner(text: str, place: str) -> Owner:
    """The owner that a mark names; the orphanage of this place if it names none."""
    try:
        return Owner.parse(text)
    except ValueError:
        return orphanage(place)


def read_abilities(schema: Json) -> frozenset[str]:
    """What this OVN can do beyond what every one can, as its Northbound database's schema says (RFC 7047, 3.2)."""
    match schema:
        case {
            "tables": {"Load_Balancer": {"columns": {"selection_fields": {"type": {"key": {"enum": ["set", fields]}}}}}}
        }:
            return frozenset({SOURCE_IPV6} & set(fields))
        case _:
            return frozenset()


# Rows


def encode_columns(row: Exclusive) -> dict[str, Json]:  # noqa: PLR0911 - a table each
    """The columns that are this row's alone. A group has none: its name is its mark."""
    match row:
        case LogicalSwitch():
            return {"name": row.name, TITLE: row.title, "other_config": encode_map(dict(row.other_config))}
        case LogicalSwitchPort():
            return {
                "name": row.name,
                TITLE: row.title,
                "type": row.type,
                "addresses": encode_set(row.addresses),
                "port_security": encode_set(row.port_security),
                "options": encode_map(dict(row.options)),
                "tag": encode_optional(row.tag),
                "tag_request": encode_optional(row.tag_request),
                "enabled": _encode_enabled(row.enabled),
            }
        case LogicalRouter():
            columns = {"name": row.name, TITLE: row.title, "enabled": _encode_enabled(row.enabled)}
            return columns | {"options": encode_map(dict(row.options))}
        case LogicalRouterPort():
            columns = {"name": row.name, "mac": row.mac, "enabled": _encode_enabled(row.enabled)}
            return columns | {"networks": encode_set(row.networks), "options": encode_map(dict(row.options))}
        case GatewayChassis():
            return {"name": row.name, "chassis_name": row.chassis, "priority": row.priority}
        case Nat():
            return {"type": row.type, "external_ip": row.external_ip, "logical_ip": row.logical_ip}
        case StaticRoute():
            policy = encode_optional(row.policy or None)
            return {"ip_prefix": row.ip_prefix, "nexthop": row.nexthop, "policy": policy}
        case LoadBalancer():
            return {
                "name": row.name,
                TITLE: row.title,
                "protocol": encode_optional(row.protocol or None),
                "vips": encode_map({service.vip: ",".join(service.backends) for service in row.services}),
                "selection_fields": encode_set(row.selection_fields),
                "options": encode_map(dict(row.options)),
                "ip_port_mappings": encode_map(dict(row.ip_port_mappings)),
            }
        case LoadBalancerHealthCheck():
            return {"vip": row.vip, "options": encode_map(dict(row.options))}
        case LoadBalancerGroup():
            return {}
        case PortGroup():
            return {"name": row.name}
        case Acl():
            return {"direction": row.direction, "priority": row.priority, "match": row.match, "action": row.action}
        case _:
            assert_never(row)


def decode_row(key: Key, columns: Columns, holder: str) -> Exclusive:  # noqa: PLR0911 - a table each
    """The row of this key; `holder` is the name of the row whose set it is in. A column left out has its default."""
    name, title = columns.get("name", ""), columns.get(TITLE, "")
    match key[0]:
        case "Logical_Switch":
            return LogicalSwitch(name=name, title=title, other_config=_decode_pairs(columns, "other_config"))
        case "Logical_Switch_Port":
            return LogicalSwitchPort(
                name=name,
                switch=holder,
                title=title,
                type=columns.get("type", ""),
                addresses=_decode_texts(columns, "addresses"),
                port_security=_decode_texts(columns, "port_security"),
                options=_decode_pairs(columns, "options"),
                tag=decode_optional(columns.get("tag", ["set", []])),
                tag_request=decode_optional(columns.get("tag_request", ["set", []])),
                enabled=_decode_enabled(columns),
            )
        case "Logical_Router":
            enabled, options = _decode_enabled(columns), _decode_pairs(columns, "options")
            return LogicalRouter(name=name, title=title, enabled=enabled, options=options)
        case "Logical_Router_Port":
            networks = _decode_texts(columns, "networks")
            mac = columns.get("mac", "")
            return LogicalRouterPort(
                name=name,
                router=holder,
                mac=mac,
                networks=networks,
                enabled=_decode_enabled(columns),
                options=_decode_pairs(columns, "options"),
            )
        case "Gateway_Chassis":
            return GatewayChassis(
                port=holder, chassis=columns.get("chassis_name", ""), priority=columns.get("priority", 0)
            )
        case "NAT":
            texts = {column: columns.get(column, "") for column in ("type", "external_ip", "logical_ip")}
            return Nat(name=key[1], router=holder, **texts)
        case "Logical_Router_Static_Route":
            prefix, nexthop = columns.get("ip_prefix", ""), columns.get("nexthop", "")
            policy = decode_optional(columns.get("policy", ["set", []])) or ""
            return StaticRoute(router=holder, ip_prefix=prefix, nexthop=nexthop, policy=policy)
        case "Load_Balancer":
            vips = decode_map(columns.get("vips", ["map", []]))
            return LoadBalancer(
                name=name,
                title=title,
                protocol=decode_optional(columns.get("protocol", ["set", []])) or "",
                services=tuple(VirtualService(vip=vip, backends=_decode_backends(vips[vip])) for vip in sorted(vips)),
                selection_fields=_decode_texts(columns, "selection_fields"),
                options=_decode_pairs(columns, "options"),
                ip_port_mappings=_decode_pairs(columns, "ip_port_mappings"),
            )
        case "Load_Balancer_Health_Check":
            vip, options = columns.get("vip", ""), _decode_pairs(columns, "options")
            return LoadBalancerHealthCheck(load_balancer=holder, vip=vip, options=options)
        case "Port_Group":
            return PortGroup(name=name)
        case "ACL":
            texts = {column: columns.get(column, "") for column in ("direction", "match", "action")}
            return Acl(name=key[1], group=holder, priority=columns.get("priority", 0), **texts)
        case _:
            return LoadBalancerGroup(name=_decode_group_name(name))


def patch_columns(columns: Columns, difference: Columns) -> dict[str, Json]:
    """The columns after a "modify": sets bear what came or went, maps what `patch_map` takes, others their value."""
    new = dict(columns)
    for column, value in difference.items():
        if column in _SETS:
            new[column] = encode_set(set(decode_set(columns[column])) ^ set(decode_set(value)))
        elif column in _MAPS:
            new[column] = encode_map(patch_map(decode_map(columns[column]), value))
        else:
            new[column] = value
    return new


def _decode_group_name(text: str) -> str:
    """One that somebody renamed has lost its mark with its name: it has none then, and gets both back."""
    match split_text(text):
        case (word, _, _, name) if word == _MARK:
            return name
        case _:
            return ""


def _encode_enabled(enabled: bool) -> Json:
    """Absent means enabled (ovn-nb(5))."""
    return encode_optional(None if enabled else False)


def _decode_enabled(columns: Columns) -> bool:
    return decode_optional(columns.get("enabled", ["set", []])) is not False


def _decode_texts(columns: Columns, column: str) -> tuple[str, ...]:
    return decode_set(columns.get(column, ["set", []]))


def _decode_pairs(columns: Columns, column: str) -> tuple[tuple[str, str], ...]:
    return pairs(decode_map(columns.get(column, ["map", []])))


def _decode_backends(text: str) -> tuple[str, ...]:
    """A slot table names few members many times: one text of each is kept."""
    known: dict[str, str] = {}
    return tuple(known.setdefault(backend, backend) for backend in text.split(",")) if text else ()


# Transactions


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """`refusals`: what it means when the operation of this index fails."""

    operations: list[Json] = field(default_factory=list)
    refusals: dict[int, DriverError] = field(default_factory=dict)

    def add(self, operation: Json, refusal: DriverError | None = None) -> None:
        if refusal is not None:
            self.refusals[len(self.operations)] = refusal
        self.operations.append(operation)

    def extend(self, operations: Iterable[Json]) -> None:
        self.operations.extend(operations)


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """A diff as one transaction. `uuid_of` gives the row of a key: by its mark, unless it is an orphan's."""

    mark: Mark
    lock: str
    owner: Owner
    uuid_of: Callable[[Key], str]

    def encode(self, change: Diff) -> Transaction:
        transaction = Transaction()
        transaction.add(assert_lock(self.lock))
        self._wait_for_rows(transaction, change)
        creates = cast(Mapping[Key, OvnRow], change.creates)
        for key, row in creates.items():
            self._insert(transaction, key, row)
        for key, row in creates.items():  # now that all are there: a holder may come after what it holds
            transaction.extend(self._place(key, row))
        for key, update in change.updates.items():
            transaction.extend(self._update(key, update))
        self._delete(transaction, cast(Mapping[Key, OvnRow], change.deletes))
        return transaction

    def _wait_for_rows(self, transaction: Transaction, change: Diff) -> None:
        """An update of a row that is gone would succeed, and a weak reference to one vanish (RFC 7047, 5.2.3, 3.2)."""
        seen = {*change.creates, *change.updates}
        for key, update in change.updates.items():
            transaction.add(self._wait_for(key), DriverError(f"no such row to update: {update.before}"))
        for row in (*change.creates.values(), *(update.after for update in change.updates.values())):
            for key in references(cast(OvnRow, row)):
                if key not in seen:
                    seen.add(key)
                    transaction.add(self._wait_for(key), MissingReference(f"{row} refers to {' '.join(key)}"))

    def _wait_for(self, key: Key) -> Json:
        return _wait(key[0], [self._is(key)], [{"_uuid": encode_uuid(self.uuid_of(key))}])

    def _insert(self, transaction: Transaction, key: Key, row: OvnRow) -> None:
        if isinstance(row, Element):
            return
        columns = self._columns(row)
        marks = self._marks(key, columns.pop(TITLE, ""))
        insert = {"op": "insert", "table": key[0], "uuid": self.uuid_of(key), "row": columns | marks}
        transaction.add(insert, DriverError(f"duplicate uuid: there already, or without our mark: {row}"))

    def _place(self, key: Key, row: OvnRow) -> Iterator[Json]:
        if isinstance(row, Element):
            yield self._change_element(row, "insert")
        else:
            yield from self._hold(key, row, "insert")

    def _update(self, key: Key, update: Update) -> Iterator[Json]:
        """Only what differs: a column that is right is not written, a set with elements of others not rewritten."""
        before, after = cast(Exclusive, update.before), cast(Exclusive, update.after)
        old, new = self._columns(before), self._columns(after)
        changed = {column: value for column, value in new.items() if old[column] != value}
        if isinstance(before, LogicalRouterPort) and isinstance(after, LogicalRouterPort):
            changed.pop("networks", None)
            yield from self._change_networks(key, set(before.networks), set(after.networks))
        if TITLE in changed:
            yield self._mutate(key, _replace_word(_TITLE, changed.pop(TITLE)))
        if changed:
            yield {"op": "update", "table": key[0], "where": [self._is(key)], "row": changed}
        if holder_of(before) != holder_of(after):
            yield from self._hold(key, before, "delete")
            yield from self._hold(key, after, "insert")

    def _columns(self, row: Exclusive) -> dict[str, Json]:
        if isinstance(row, LoadBalancerGroup):
            return {"name": self.mark.group_name(self.owner, row.name)}
        return encode_columns(row)

    def _marks(self, key: Key, title: str) -> dict[str, Json]:
        if key[0] == "Load_Balancer_Group":
            return {}
        titled = {_TITLE: title} if title else {}
        return {"external_ids": encode_map(self.mark.external_ids(self.owner, key) | titled)}

    def _change_networks(self, key: Key, old: set[str], new: set[str]) -> Iterator[Json]:
        """Insert first: a port is never without one (ovn-nb(5))."""
        changes = {"insert": new - old, "delete": old - new}
        mutations = [["networks", mutator, encode_set(texts)] for mutator, texts in changes.items() if texts]
        if mutations:
            yield self._mutate(key, mutations)

    def _delete(self, transaction: Transaction, rows: Mapping[Key, OvnRow]) -> None:
        """First what is held, then what holds it, which has to be empty by then. What is gone already is no error."""
        exclusive: dict[Key, Exclusive] = {}
        for key, row in rows.items():
            if isinstance(row, Element):
                transaction.add(self._change_element(row, "delete"))
            else:
                exclusive[key] = row
        for key, row in exclusive.items():
            if isinstance(row, LogicalRouterPort) and row.networks:
                transaction.add(*self._wait_until_only(key, "networks", row.networks))
            transaction.extend(self._hold(key, row, "delete"))
        for key, row in exclusive.items():
            for column in HELD.get(key[0], ()):
                transaction.add(*self._wait_until_only(key, column, ()))
            if holder_of(row) is None:
                transaction.add({"op": "delete", "table": key[0], "where": [self._is(key)]})

    def _wait_until_only(self, key: Key, column: str, values: tuple[str, ...]) -> tuple[Json, DriverError]:
        """A row goes only when nobody else has something in it: its rows would go with it."""
        where = [self._is(key), [column, "!=", encode_set(values)]]
        return _wait(key[0], where, []), MissingReference(f"{' '.join(key)} still has {column} of others")

    def _change_element(self, row: Element, mutator: str) -> Json:
        match row:
            case GroupMember():
                member = encode_uuid(self.uuid_of(("Load_Balancer", row.load_balancer)))
                return self._mutate(("Load_Balancer_Group", row.group), [["load_balancer", mutator, member]])
            case SwitchGroup():
                group = encode_uuid(self.uuid_of(("Load_Balancer_Group", row.group)))
                return self._mutate(("Logical_Switch", row.switch), [["load_balancer_group", mutator, group]])
            case PortGroupPort():
                port = encode_uuid(self.uuid_of(("Logical_Switch_Port", row.port)))
                return self._mutate(("Port_Group", row.group), [["ports", mutator, port]])
            case RouterGroup():
                group = encode_uuid(self.uuid_of(("Load_Balancer_Group", row.group)))
                return self._mutate(("Logical_Router", row.router), [["load_balancer_group", mutator, group]])
            case PortAddress():
                return self._mutate(("Logical_Router_Port", row.port), self._change_address(row.network, mutator))
            case _:
                assert_never(row)

    def _change_address(self, network: str, mutator: str) -> list[Json]:
        """With its mark."""
        owner = str(self.owner) if mutator == "insert" else ""
        return [["networks", mutator, network], *_replace_word(_ADDRESS + network, owner)]

    def _hold(self, key: Key, row: Exclusive, mutator: str) -> Iterator[Json]:
        """Put a row that cannot stand alone into the set of its holder, or take it out: then it is gone."""
        place = holder_of(row)
        if place is None:
            return
        (table, holder), column = place
        child = encode_uuid(self.uuid_of(key))
        where = [self._is((table, holder))] if holder else [[column, "includes", child]]
        yield {"op": "mutate", "table": table, "where": where, "mutations": [[column, mutator, child]]}

    def _mutate(self, key: Key, mutations: Sequence[Json]) -> Json:
        return {"op": "mutate", "table": key[0], "where": [self._is(key)], "mutations": mutations}

    def _is(self, key: Key) -> Json:
        return ["_uuid", "==", encode_uuid(self.uuid_of(key))]


def holder_of(row: Exclusive) -> tuple[tuple[str, str], str] | None:
    """The row, and its column, in whose set this row is; None for one that stands alone. The name may be unknown."""
    match row:
        case LogicalSwitchPort():
            return ("Logical_Switch", row.switch), "ports"
        case LogicalRouterPort():
            return ("Logical_Router", row.router), "ports"
        case StaticRoute():
            return ("Logical_Router", row.router), "static_routes"
        case GatewayChassis():
            return ("Logical_Router_Port", row.port), "gateway_chassis"
        case Nat():
            return ("Logical_Router", row.router), "nat"
        case Acl():
            return ("Port_Group", row.group), "acls"
        case LoadBalancerHealthCheck():
            return ("Load_Balancer", row.load_balancer), "health_check"
        case _:
            return None


def _replace_word(word: str, text: str) -> list[Json]:
    """Of `external_ids`. An insert leaves a key alone that is there (RFC 7047 section 5.1): a stale one goes first."""
    new = [["external_ids", "insert", encode_map({word: text})]] if text else []
    return [["external_ids", "delete", word], *new]


def _wait(table: str, where: list[Json], rows: list[Json]) -> Json:
    """Fails at once unless the rows that match are these."""
    wanted = {"columns": ["_uuid"], "until": "==", "rows": rows}
    return {"op": "wait", "timeout": 0, "table": table, "where": where, **wanted}
