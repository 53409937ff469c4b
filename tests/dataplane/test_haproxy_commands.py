"""Runtime API commands that replace a reload, and changes that need a reload."""

from dataclasses import replace
from ipaddress import ip_address

import pytest

from fairlead.dataplane.haproxy import Backend, Certificate, Frontend, HAProxyRow, Process, Server
from fairlead.dataplane.haproxy_commands import Command, checked, commands, of_servers, renewal_commands
from fairlead.dataplane.haproxy_policies import Policy
from fairlead.dataplane.rows import Rows, diff
from fairlead.model.queries.secrets import Role, Secret

FOUR, SIX = ip_address("10.0.0.11"), ip_address("fd00::11")
SERVER = Server(backend="b", name="s", number=1, address=FOUR, port=80, weight=1)
SHOWN = Certificate(frontend="f", reference="ref")
FRONTEND = Frontend(name="f", process="net", connections=10, lines=(("mode", "http"),))
PROCESS = Process(network="net", port="p", mac="m", mtu=1400, addresses=(), connections=1, threads=1)
PATH = Secret(role=Role.CERTIFICATE, reference="ref").path


def rows(*found: HAProxyRow) -> Rows:
    return {row.key: row for row in found}


def texts(after: Rows, before: Rows) -> list[str] | None:
    told = commands(diff(after, before))
    return None if told is None else [command.text for command in told]


@pytest.mark.parametrize(
    ("server", "wanted"),
    [
        (SERVER, ["add server b/s 10.0.0.11:80 id 1 weight 1", "enable server b/s"]),
        (replace(SERVER, address=SIX, maintained=True), ["add server b/s [fd00::11]:80 id 1 weight 1"]),
        (
            replace(SERVER, cookie_key="p", options=("backup", "send-proxy-v2")),
            [
                "add server b/s 10.0.0.11:80 id 1 weight 1 backup send-proxy-v2",
                "set dynamic-cookie-key backend b p",
                "enable server b/s",
            ],
        ),
    ],
)
def test_new_server_starts_in_maintenance_and_is_enabled_last(server: Server, wanted: list[str]) -> None:
    assert wanted == texts(rows(server), {})


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({"weight": 0}, ["set server b/s weight 0"]),
        ({"maintained": True}, ["set server b/s state maint"]),
        ({"address": SIX, "port": 81}, ["set server b/s addr fd00::11 port 81"]),
        ({"options": ("backup",)}, None),
        ({"number": 2}, None),
    ],
)
def test_changed_server_is_updated_by_runtime_commands_if_possible(
    changed: dict[str, object], wanted: list[str] | None
) -> None:
    after = replace(SERVER, **changed)  # type: ignore[arg-type]
    assert wanted == texts(rows(after), rows(SERVER))


def test_removed_server_is_deleted_when_its_connections_end() -> None:
    told = commands(diff({}, rows(SERVER)))
    assert (Command(text="set server b/s state maint"), Command(text="del server b/s", may_fail=True)) == told


def test_new_server_is_enabled_before_the_old_one_is_deleted() -> None:
    other = replace(SERVER, name="t", number=2)
    found = texts(rows(other), rows(SERVER))
    assert found is not None
    assert [1, 3] == [found.index("enable server b/t"), found.index("del server b/s")]


def test_certificate_is_added_with_its_secret_and_removed() -> None:
    secret = Secret(role=Role.CERTIFICATE, reference="ref")
    assert (
        Command(text=f"new ssl cert {PATH}", may_fail=True),
        Command(text=f"set ssl cert {PATH}", secret=secret),
        Command(text=f"commit ssl cert {PATH}"),
        Command(text=f"add ssl crt-list lists/f {PATH}"),
    ) == commands(diff(rows(SHOWN), {}))
    assert [f"del ssl crt-list lists/f {PATH}", f"del ssl cert {PATH}"] == texts({}, rows(SHOWN))
    assert texts(rows(replace(SHOWN, is_default=True)), rows(SHOWN)) is None


@pytest.mark.parametrize(("role", "kind"), [(Role.AUTHORITY, "ca-file"), (Role.REVOCATIONS, "crl-file")])
def test_secret_renewal_uses_the_command_of_its_role(role: Role, kind: str) -> None:
    secret = Secret(role=role, reference="ref")
    wanted = [f"set ssl {kind} {secret.path}", f"commit ssl {kind} {secret.path}"]
    assert wanted == [command.text for command in renewal_commands(secret)]


BACKEND = Backend(name="b", process="net", lines=())


@pytest.mark.parametrize("row", [PROCESS, FRONTEND, replace(SHOWN, is_default=True)])
def test_sections_are_added_changed_and_removed_by_a_reload(row: HAProxyRow) -> None:
    assert texts(rows(row), {}) is None
    assert texts({}, rows(row)) is None


def test_backend_is_added_by_a_reload_and_removed_without() -> None:
    """Nothing in the process leads there any more: else its frontend changes too."""
    assert texts(rows(BACKEND), {}) is None
    assert texts({}, rows(BACKEND)) == []
    assert texts(rows(replace(FRONTEND, lines=())), rows(BACKEND, FRONTEND)) is None


def test_connection_limit_changes_by_a_reload() -> None:
    assert texts(rows(replace(FRONTEND, connections=20)), rows(FRONTEND)) is None


def test_any_change_that_needs_a_reload_makes_the_whole_diff_a_reload() -> None:
    assert texts(rows(SERVER, FRONTEND), {}) is None
    assert texts({}, {}) == []


def test_value_with_socket_separators_needs_a_reload() -> None:
    assert texts(rows(replace(SERVER, options=("ciphers", "a;b"))), {}) is None
    assert texts(rows(replace(SERVER, options=("ciphers", "a b"))), {}) is None


@pytest.mark.parametrize("changed", [{"mtu": 1300}, {"addresses": ("10.0.0.61/24",)}])
def test_mtu_or_address_change_of_a_proxy_needs_no_command(changed: dict[str, object]) -> None:
    assert texts(rows(replace(PROCESS, **changed)), rows(PROCESS)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("changed", [{"connections": 2}, {"threads": 2}, {"port": "other"}, {"mac": "other"}])
def test_change_of_limit_threads_port_or_mac_needs_a_new_process(changed: dict[str, object]) -> None:
    assert texts(rows(replace(PROCESS, **changed)), rows(PROCESS)) is None  # type: ignore[arg-type]


def test_haproxy_loads_changed_frontends_before_commands_and_nothing_else() -> None:
    """With their certificates and backends, but without the servers and listeners that stay."""
    policy = Policy(action="deny", conditions=())
    frontend, other = replace(FRONTEND, backends=("b",)), replace(FRONTEND, name="g", backends=("c",))
    far, new = replace(BACKEND, name="c"), replace(SERVER, name="new", number=2)
    elsewhere = replace(SERVER, backend="c", name="new")
    before = rows(PROCESS, frontend, other, BACKEND, far, SERVER, SHOWN)
    changed = replace(frontend, policies=(policy,))
    after = {**before, **rows(changed, new, elsewhere)}
    assert rows(changed, BACKEND, SHOWN, new) == {row.key: row for row in checked(diff(after, before), after)}  # type: ignore[attr-defined]


def test_haproxy_checks_a_frontend_with_other_certificates_and_no_servers() -> None:
    before = rows(FRONTEND, BACKEND, SERVER)
    after = {**before, **rows(SHOWN)}
    assert (FRONTEND, SHOWN) == checked(diff(after, before), after)
    assert (FRONTEND,) == checked(diff(before, after), before)
    for changed in (rows(FRONTEND, BACKEND), {**before, **rows(replace(SERVER, weight=2))}):
        assert checked(diff(changed, before), changed) == ()
    everything = diff(rows(SHOWN, replace(SERVER, weight=2)), rows(FRONTEND, SERVER))
    assert [("Server", "b", "s")] == [*of_servers(everything).updates]
    assert not of_servers(everything).creates
    assert not of_servers(everything).deletes
