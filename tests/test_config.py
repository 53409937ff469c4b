"""Configuration: errors name option and value, and no address of other hosts is served without authentication."""

import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest

import fairlead
from fairlead.config.load import (
    BadConfiguration,
    check_secrets,
    is_local,
    read_configuration,
    render_configuration,
    render_template,
)
from fairlead.config.options import SECTIONS, Configuration, ServerOptions
from fairlead.config.renamed import FLAGS, OPTIONS, REMOVED, migrate
from fairlead.model.documents.quota import ProbeLimits


def test_configuration_template_is_valid_and_has_every_section(tmp_path: Path):
    path = tmp_path / "fairlead.toml"
    path.write_text(render_template())
    assert read_configuration(path, {}) == read_configuration(None, {})
    assert set(tomllib.loads(render_template())) == set(SECTIONS)


def test_the_environment_wins_over_the_file(tmp_path: Path):
    path = tmp_path / "fairlead.toml"
    path.write_text('[server]\nlisten = "127.0.0.1:1"\n[network]\nmtu = 1400\n[quota]\npool = 5\nmember = -1\n')
    given = {"FAIRLEAD_SERVER_LISTEN": "[::1]:2", "FAIRLEAD_QUOTA_POOL": "0", "HOME": "/root"}
    configuration = read_configuration(path, given)
    assert (configuration.quota.pool, configuration.quota.member) == (0, -1)
    assert (configuration.server.listen, configuration.network.mtu) == ("[::1]:2", 1400)


def test_prober_option_does_not_change_the_probe_limits():
    """A server with the defaults, and one whose agents probe, have the limits that the operator wrote."""
    for prober in ("ovn", "agents"):
        given = {"FAIRLEAD_HEALTH_PROBER": prober, "FAIRLEAD_HEALTH_MAX_PROBES_PER_SECOND": "7"}
        assert read_configuration(None, given).health.limits == ProbeLimits(max_probes_per_second=7)


KEYSTONE = {
    "FAIRLEAD_SERVER_AUTHENTICATION": "keystone",
    "FAIRLEAD_KEYSTONE_URL": "http://127.0.0.1:5000/v3",
    "FAIRLEAD_KEYSTONE_PASSWORD_FILE": __file__,
}
"""What is needed, and no more."""
BARBICAN = {"FAIRLEAD_KEYS_BARBICAN": "https://192.0.2.1:9311/key-manager/v1"}
BAD = [
    ("[sever]\n", {}, "no section 'sever'; did you mean server?"),
    ("[server]\nlissen = 'x'\n", {}, "no option server.lissen; did you mean listen?"),
    ("[server]\nlisten = 5\n", {}, "server.listen: expected a string, got 5"),
    ("[server\n", {}, "fairlead.toml"),
    ("[network]\nmtu = 'big'\n", {}, 'network.mtu: expected an integer from 1280 to 65535 (bytes), got "big"'),
    ("", {"FAIRLEAD_NETWORK_MTU": "100"}, "network.mtu: expected an integer from 1280"),
    ("", {"FAIRLEAD_NETWORK_MTU": "-1500"}, "network.mtu: expected an integer from 1280"),
    ("[quota]\ntrunk = 1\n", {}, "no option quota.trunk"),
    (
        "",
        {"FAIRLEAD_QUOTA_POOL": "-2"},
        "quota.pool: expected an integer from 0 to 2000000000, or -1 for no limit, got",
    ),
    ("[health]\nprober = 'me'\n", {}, 'health.prober: expected ovn or agents, got "me"'),
    ("[health]\nmin_delay = 0\n", {}, "health.min_delay: expected an integer from 1 to 3600 (seconds), got 0"),
    ("[health]\nmax_probes_per_second = -2\n", {}, "or -1 for no limit, got -2"),
    ("[health]\nmax_probes_per_second_per_port = -2\n", {}, "or -1 for no limit, got -2"),
    ("[agent]\nhaproxy_memory_limit = 63\n", {}, "expected an integer from 64 to 65536 (MB), got 63"),
    ("[providers]\nmax_proxy_servers = -2\n", {}, "or -1 for no limit, got -2"),
    ("", {"FAIRLEAD_QUOTA_POOL": "2000000001"}, "to 2000000000"),
    ("", {"FAIRLEAD_QUOTA_POOL": "1-1"}, 'got "1-1"'),
    (
        "",
        {"FAIRLEAD_PROVIDERS_HOST_PROXY_PORTS": "9100"},
        'expected FIRST-LAST from 1024 (unprivileged ports) to 65535, got "9100"',
    ),
    (
        "",
        {"FAIRLEAD_PROVIDERS_HOST_PROXY_PORTS": "1023-2000"},
        'expected FIRST-LAST from 1024 (unprivileged ports) to 65535, got "1023-2000"',
    ),
    (
        "",
        {"FAIRLEAD_PROVIDERS_HOST_PROXY_PORTS": "3000-2000"},
        'expected FIRST-LAST from 1024 (unprivileged ports) to 65535, got "3000-2000"',
    ),
    (
        "",
        {"FAIRLEAD_PROVIDERS_HOST_PROXY_PORTS": "60000-65536"},
        'expected FIRST-LAST from 1024 (unprivileged ports) to 65535, got "60000-65536"',
    ),
    (
        "",
        {"FAIRLEAD_PROVIDERS_HOST_PROXY_PORTS": "2000--3000"},
        'expected FIRST-LAST from 1024 (unprivileged ports) to 65535, got "2000--3000"',
    ),
    ("", {"FAIRLEAD_SERVER_LISTEN": "localhost"}, "expected HOST:PORT"),
    ("", {"FAIRLEAD_SERVER_LISTEN": "0.0.0.0:80"}, "is reachable from other hosts"),
    ("", {"FAIRLEAD_SERVER_LISTEN": "[::]:80"}, "is reachable from other hosts"),
    ("", {"FAIRLEAD_SERVER_LISTEN": "lb.example.org:80"}, "is reachable from other hosts"),
    ("", {"FAIRLEAD_SERVER_AUTHENTICATION": "http_basic"}, "server.password_file"),
    ("", {"FAIRLEAD_SERVER_AUTHENTICATION": "ldap"}, 'expected none, http_basic or keystone, got "ldap"'),
    ("", {"FAIRLEAD_SERVER_TLS_KEY": "x"}, "server.tls_key: requires server.tls_certificate"),
    ("", {"FAIRLEAD_SERVER_MAX_CONNECTIONS": "0"}, "server.max_connections: expected an integer from 1"),
    (
        "",
        {"FAIRLEAD_SERVER_MAX_CONNECTIONS_PER_ADDRESS": "-1"},
        "server.max_connections_per_address: expected an integer from 1",
    ),
    (
        "",
        {"FAIRLEAD_SERVER_TRUSTED_PROXIES": "10.0.0.1, lb.example.org"},
        'server.trusted_proxies: expected addresses, networks or unix, got "lb.example.org"',
    ),
    (
        "",
        {"FAIRLEAD_SERVER_ALLOW_INSECURE_AUTH": "maybe"},
        'server.allow_insecure_auth: expected true or false, got "maybe"',
    ),
    (
        "[server]\nauthentication = 'http_basic'\npassword_file = '/x'\nlisten = '0.0.0.0:9876'\n",
        {},
        "passwords and tokens would be sent in clear text; set server.tls_certificate",
    ),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": ""}, "keystone.url: expected http://"),
    ("", {"FAIRLEAD_KEYS_BARBICAN": "http://127.0.0.1:9311"}, "keystone.url: expected http://"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYS_BARBICAN": "127.0.0.1:9311"}, "keys.barbican: expected http://"),
    (
        "",
        {**KEYSTONE, "FAIRLEAD_KEYS_BARBICAN": "http://192.0.2.1:9311"},
        "private keys and tokens would be sent in clear text",
    ),
    ("", {**KEYSTONE, **BARBICAN, "FAIRLEAD_KEYS_BARBICAN_CA": "/none"}, "keys.barbican_ca: /none: no such file"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "127.0.0.1:5000"}, "keystone.url: expected http://"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "http://:5000"}, "keystone.url: "),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "http://h:x"}, "keystone.url: "),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "http://[::1"}, "keystone.url: "),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "http://u:p@h:1/v3"}, "keystone.url: "),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "http://h:1/v3?x"}, "keystone.url: "),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "http://h:1/v 3"}, "keystone.url: "),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "http://" + "h" * 64}, "keystone.url: "),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_PUBLIC_URL": "here"}, "keystone.public_url: expected http://"),
    (
        "",
        {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "http://10.0.0.1:5000"},
        "the password and all tokens would be sent in clear text",
    ),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_USER": ""}, "keystone.user: required"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_PASSWORD_FILE": ""}, "keystone.password_file: required"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_PASSWORD_FILE": "/nothing"}, "keystone.password_file: /nothing: no such file"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_CA": "/nothing"}, "keystone.ca: /nothing: no such file"),
    (
        "",
        {**KEYSTONE, "FAIRLEAD_KEYSTONE_TOKEN_CACHE_TTL": "3601"},
        "keystone.token_cache_ttl: expected an integer from 0 to 3600",
    ),
    (
        "",
        {**KEYSTONE, "FAIRLEAD_KEYSTONE_STALE_TOKEN_GRACE": "-1"},
        "keystone.stale_token_grace: expected an integer from 0 to 86400",
    ),
    ("", {**KEYSTONE, "FAIRLEAD_SERVER_LISTEN": "0.0.0.0:80"}, "passwords and tokens would be sent in clear text"),
    ("", {"FAIRLEAD_LXD_SOCKET": "unix.socket"}, "lxd.socket: expected unix:PATH"),
    ("", {"FAIRLEAD_LXD_SOCKET": "unix:here"}, "lxd.socket: expected unix:PATH"),
    ("", {"FAIRLEAD_LXD_SOCKET_MODE": "0666"}, "lxd.socket_mode: expected an octal mode without access for others"),
    ("", {"FAIRLEAD_LXD_SOCKET_MODE": "rw"}, 'such as 0660, got "rw"'),
    ("", {"FAIRLEAD_LXD_LISTEN": "8443"}, "lxd.listen: expected HOST:PORT"),
    ("", {"FAIRLEAD_LXD_ADVERTISE_ADDRESSES": "a:1,b"}, "lxd.advertise_addresses: expected HOST:PORT"),
    ("", {"FAIRLEAD_LXD_KEY": "/nothing"}, "lxd.key: requires lxd.certificate"),
    ("", {"FAIRLEAD_LXD_TOKEN_LIFETIME": "59"}, "lxd.token_lifetime: expected an integer from 60 to"),
    (
        "",
        {"FAIRLEAD_OVN_NORTBOUND": "x"},
        "FAIRLEAD_OVN_NORTBOUND: no such option; did you mean FAIRLEAD_OVN_NORTHBOUND?",
    ),
    ("", {"FAIRLEAD_REMOTE": "unix:/x"}, "FAIRLEAD_REMOTE was removed with `fairlead network`; unset it"),
    ("[probes]\n", {}, "section probes was renamed to health; `fairlead config migrate "),
    ("", {"FAIRLEAD_PROBES_BY": "agents"}, "FAIRLEAD_PROBES_BY was renamed to FAIRLEAD_HEALTH_PROBER"),
    ("[probes]\nby = 'agents'\n", {}, "probes.by was renamed to health.prober; `fairlead config migrate "),
    ("[ovn]\nfollow = 'no'\n", {}, "ovn.follow was renamed to ovn.import_networks"),
    ("", {"FAIRLEAD_OVN_NORTHBOUND": "foo"}, "ovn.northbound: "),
    ("", {"FAIRLEAD_OVN_NORTHBOUND": "ssl:10.0.0.1:6641"}, "ssl requires ovn.private_key"),
    ("", {"FAIRLEAD_OVN_SOUTHBOUND": "bar"}, "ovn.southbound: "),
    ("", {"FAIRLEAD_OVN_SOUTHBOUND": "ssl:10.0.0.1:6642"}, "ovn.southbound: ssl requires ovn.private_key"),
    ("", {"FAIRLEAD_OVN_CA": "/nothing"}, "ovn.ca: requires ovn.private_key and ovn.certificate"),
    ("", {"FAIRLEAD_OVN_COUNT_REPLY_BYTES": "2"}, 'ovn.count_reply_bytes: expected true or false, got "2"'),
    ("[ovn]\nimport_networks = 1\n", {}, "ovn.import_networks: expected true or false, got 1"),
    ("[ovn]\ngateway_chassis = [1]\n", {}, "ovn.gateway_chassis: expected a list of strings, got [1]"),
    ("[network]\nmtu = true\n", {}, "got true"),
    ("[network]\nmtu = 1442.5\n", {}, "got 1442.5"),
    ("", {"FAIRLEAD_OVN_PROBE_INTERVAL": "0"}, "ovn.probe_interval: expected an integer from 1 to 3600 (seconds), got"),
    ("", {"FAIRLEAD_OVN_OWNER_TAG": ""}, "ovn.owner_tag: must not be empty"),
    (
        "",
        {"FAIRLEAD_OVN_CHASSIS_PROBE_INTERVAL": "30"},
        "ovn.chassis_probe_interval: expected at most half of ovn.chassis_timeout (45)",
    ),
    ("", {"FAIRLEAD_OVN_CHASSIS_TIMEOUT": "9999"}, "ovn.chassis_timeout: expected an integer from 1 to 3600"),
    ("", {"FAIRLEAD_LOG_LEVEL": "loud"}, 'log.level: expected debug, info, warning or error, got "loud"'),
    ("", {"FAIRLEAD_PROVIDERS_NAMES": "ovn"}, "providers: 'ovn' is not NAME=IMPLEMENTATION"),
    ("", {"FAIRLEAD_PROVIDERS_NAMES": "o/n=ovn"}, "providers: 'o/n=ovn' is not NAME=IMPLEMENTATION"),
    ("", {"FAIRLEAD_PROVIDERS_NAMES": "fairlead=octavia"}, "unknown implementation 'octavia'; known: fairlead, ovn"),
    ("", {"FAIRLEAD_PROVIDERS_NAMES": "a=ovn,a=ovn"}, "duplicate name 'a'"),
    ("", {"FAIRLEAD_PROVIDERS_NAMES": "amphora=ovn"}, "the default 'fairlead' is not one of the names amphora"),
    ("", {"FAIRLEAD_PROVIDERS_DEFAULT": "gold"}, "the default 'gold' is not one of the names fairlead, ovn"),
    ("", {"FAIRLEAD_AGENT_SERVERS": "127.0.0.1:9876"}, "agent.servers: expected http://"),
    ("", {"FAIRLEAD_AGENT_SERVERS": " , "}, "agent.servers: "),
    ("", {"FAIRLEAD_AGENT_USER": "u"}, "agent.user: requires agent.password_file"),
    ("", {"FAIRLEAD_AGENT_USER": "u", "FAIRLEAD_AGENT_PASSWORD_FILE": "/nothing"}, "/nothing: no such file"),
    ("", {"FAIRLEAD_AGENT_CA": "/nothing"}, "agent.ca: /nothing: no such file"),
    ("", {"FAIRLEAD_AGENT_INTERVAL": "0"}, "agent.interval: expected an integer from 1"),
    (
        "",
        {"FAIRLEAD_AGENT_SECRET_REFRESH_INTERVAL": "0"},
        "agent.secret_refresh_interval: expected an integer from 1 to 3600 (seconds)",
    ),
    ("", {"FAIRLEAD_AGENT_MAX_TRACKED_CONNECTIONS": "-1"}, "agent.max_tracked_connections: expected an integer from 0"),
    ("", {"FAIRLEAD_LOG_FORMAT": "xml"}, 'log.format: expected text or json, got "xml"'),
]


@pytest.mark.parametrize(("text", "environment", "words"), BAD, ids=lambda value: str(value)[:40])
def test_configuration_error_names_option_and_value(tmp_path: Path, text: str, environment: dict[str, str], words: str):
    path = tmp_path / "fairlead.toml"
    path.write_text(text)
    with pytest.raises(BadConfiguration, match=re.escape(words)):
        read_configuration(path, environment)


def test_environment_variables_of_other_programs_are_accepted() -> None:
    """A server or an agent inherits what is for the lab, the demo or the command line."""
    sources = Path(fairlead.__file__).parent.rglob("*.py")
    words = {word for source in sources for word in re.findall(r"\bFAIRLEAD_[A-Z_]*[A-Z]\b", source.read_text())}
    assert "FAIRLEAD_LAB_ROOT" in words
    sections = tuple(f"FAIRLEAD_{name.upper()}_" for name in SECTIONS)
    own = {word for word in words - REMOVED if not word.startswith(sections)}
    assert Configuration() == read_configuration(None, dict.fromkeys(own, "x"))


def test_missing_configuration_file_is_an_error(tmp_path: Path):
    with pytest.raises(BadConfiguration, match="No such file"):
        read_configuration(tmp_path / "nothing.toml", {})


@pytest.mark.parametrize(
    ("listen", "local"),
    [("127.0.0.1:1", True), ("localhost:1", True), ("[::1]:1", True), ("unix:/x", True), ("10.0.0.1:1", False)],
)
def test_local_listen_addresses_are_recognized(listen: str, local: bool):
    assert is_local(listen) is local


def test_gateway_chassis_are_comma_separated():
    found = read_configuration(None, {"FAIRLEAD_OVN_GATEWAY_CHASSIS": "gw2, gw1,,gw1"})
    assert found.ovn.gateways == ("gw1", "gw2")
    assert Configuration().ovn.gateways == ()


def test_basic_auth_off_localhost_needs_tls_or_an_explicit_option(tmp_path: Path):
    given = {"FAIRLEAD_SERVER_AUTHENTICATION": "http_basic", "FAIRLEAD_SERVER_PASSWORD_FILE": "/x"}
    assert read_configuration(None, given).server.listen == "127.0.0.1:9876"
    everywhere = {**given, "FAIRLEAD_SERVER_LISTEN": "0.0.0.0:9876"}
    for more in (
        {"FAIRLEAD_SERVER_ALLOW_INSECURE_AUTH": "true"},
        {"FAIRLEAD_SERVER_TLS_CERTIFICATE": "c", "FAIRLEAD_SERVER_TLS_KEY": "k"},
    ):
        assert read_configuration(None, {**everywhere, **more}).server.listen == "0.0.0.0:9876"


@pytest.mark.parametrize("url", ["http://127.0.0.1:5000", "http://127.0.0.1:5000/", "http://127.0.0.1:5000/v3/"])
def test_keystone_url_is_accepted_with_or_without_the_version(url: str):
    found = read_configuration(None, {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": url})
    assert found.keystone.root == "http://127.0.0.1:5000/v3"


@pytest.mark.parametrize(
    "more",
    [
        {"FAIRLEAD_KEYSTONE_URL": "https://id.example.org/identity"},
        {"FAIRLEAD_KEYSTONE_URL": "http://[::1]:5000"},
        {"FAIRLEAD_KEYSTONE_URL": "http://localhost:5000"},
        {"FAIRLEAD_KEYSTONE_URL": "http://10.0.0.1:5000", "FAIRLEAD_SERVER_ALLOW_INSECURE_AUTH": "true"},
    ],
)
def test_keystone_url_is_local_or_https_unless_insecure_is_allowed(more: dict[str, str]):
    assert read_configuration(None, {**KEYSTONE, **more}).server.authentication == "keystone"


@pytest.mark.parametrize("option", ["SERVER_PASSWORD_FILE", "KEYSTONE_PASSWORD_FILE"])
def test_password_files_beside_keystone_are_checked_for_file_mode(tmp_path: Path, option: str):
    path = tmp_path / "password"
    path.touch(mode=0o600)
    right = tmp_path / "right"
    right.touch(mode=0o600)
    given = {**KEYSTONE, "FAIRLEAD_KEYSTONE_PASSWORD_FILE": str(right), f"FAIRLEAD_{option}": str(path)}
    configuration = read_configuration(None, given)
    check_secrets(configuration)
    path.chmod(0o644)
    with pytest.raises(BadConfiguration, match=f"{path}: accessible to other users"):
        check_secrets(configuration)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o601])
def test_world_accessible_password_file_is_rejected(tmp_path: Path, mode: int):
    path = tmp_path / "users"
    path.touch()
    given = {"FAIRLEAD_SERVER_AUTHENTICATION": "http_basic", "FAIRLEAD_SERVER_PASSWORD_FILE": str(path)}
    configuration = read_configuration(None, given)
    path.chmod(mode)
    with pytest.raises(
        BadConfiguration, match=f"server.password_file: {path}: accessible to other users .*mode {mode:04o}"
    ):
        check_secrets(configuration)
    path.chmod(0o640)
    check_secrets(configuration)


SECRETS = (
    "agent.identity_file",
    "agent.password_file",
    "keystone.password_file",
    "lxd.key",
    "nodes.authority",
    "ovn.private_key",
    "server.password_file",
    "server.tls_key",
    "store.key",
    "store.password_file",
)


@pytest.mark.parametrize("name", SECRETS)
def test_world_accessible_secret_file_of_any_option_is_rejected(tmp_path: Path, name: str):
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    section, _, option = name.partition(".")
    server = replace(ServerOptions(), authentication="http_basic")
    given = replace(Configuration(), server=server)
    configuration = replace(given, **{section: replace(getattr(given, section), **{option: str(path)})})
    check_secrets(configuration)
    path.chmod(0o644)
    with pytest.raises(BadConfiguration, match=f"{name}: {path}: accessible to other users .*mode 0644"):
        check_secrets(configuration)


def test_options_named_like_secrets_are_checked_as_secrets():
    named = {
        f"{section}.{option.name}"
        for section, options in SECTIONS.items()
        for option in fields(options)
        if option.name.endswith(("key", "password_file", "authority", "identity_file"))
    }
    assert named == set(SECRETS)


def test_missing_or_world_writable_key_directory_is_rejected(tmp_path: Path):
    for folder, mode, words in (
        (tmp_path / "none", 0, "no such folder"),
        (tmp_path, 0o777, "writable for other users"),
    ):
        if mode:
            folder.chmod(mode)
        with pytest.raises(BadConfiguration, match=f"keys.directory: .*{words}"):
            check_secrets(read_configuration(None, {"FAIRLEAD_KEYS_DIRECTORY": str(folder)}))
    tmp_path.chmod(0o750)
    check_secrets(read_configuration(None, {"FAIRLEAD_KEYS_DIRECTORY": str(tmp_path)}))


VALUES = (
    ("ovn.import_networks", "false", False),
    ("ovn.import_networks", '"no"', False),
    ("ovn.import_networks", '"TRUE"', True),
    ("network.mtu", "1400", 1400),
    ("network.mtu", "1400.0", 1400),
    ("network.mtu", '"1400"', 1400),
    ("quota.pool", "-1", -1),
    ("ovn.gateway_chassis", '["gw1", "gw2"]', ("gw1", "gw2")),
    ("ovn.gateway_chassis", '"gw1, gw2,"', ("gw1", "gw2")),
    ("ovn.gateway_chassis", "[]", ()),
)


@pytest.mark.parametrize(("name", "text", "value"), VALUES)
def test_toml_types_are_accepted_where_the_option_allows(tmp_path: Path, name: str, text: str, value: object):
    section, _, option = name.partition(".")
    path = tmp_path / "fairlead.toml"
    path.write_text(f"[{section}]\n{option} = {text}\n")
    assert getattr(getattr(read_configuration(path, {}), section), option) == value


def test_rendered_effective_options_parse_to_the_same_configuration(tmp_path: Path):
    given = {
        "FAIRLEAD_OVN_GATEWAY_CHASSIS": "gw2,gw1",
        "FAIRLEAD_OVN_IMPORT_NETWORKS": "no",
        "FAIRLEAD_QUOTA_POOL": "3",
    }
    configuration = read_configuration(None, given)
    shown = render_configuration(configuration)
    assert shown == '[ovn]\ngateway_chassis = ["gw2", "gw1"]\nimport_networks = false\n\n[quota]\npool = 3'
    path = tmp_path / "fairlead.toml"
    path.write_text(shown)
    assert read_configuration(path, {}) == configuration
    assert render_configuration(Configuration()) == ""


FORMER = """# Of region one.
[server]
listen = "[::1]:80" # dual stack
passwords_in_the_clear = "yes"

[probes] # by agents
by = "agents"
per_second = 7

# [providers]
# proxies = 3
# [probes]
# by = "agents"

[ovn]
# follow = "no"
gateway_chassis = [
    "gw1", # first
]
	follow='no'	# none
mark = "fairlead"
["agent"]
proxies = "/run/proxies"
"""
MIGRATED = """# Of region one.
[server]
listen = "[::1]:80" # dual stack
allow_insecure_auth = true

[health] # by agents
prober = "agents"
max_probes_per_second = 7

# [providers]
# max_proxies_per_network = 3
# [health]
# prober = "agents"

[ovn]
# import_networks = false
gateway_chassis = [
    "gw1", # first
]
	import_networks=false	# none
owner_tag = "fairlead"
["agent"]
proxy_directory = "/run/proxies"
"""


def test_file_with_renamed_options_is_migrated(tmp_path: Path):
    assert migrate(FORMER) == MIGRATED
    assert migrate(MIGRATED) == MIGRATED
    path = tmp_path / "fairlead.toml"
    path.write_text(MIGRATED)
    found = read_configuration(path, {})
    assert (found.health.prober, found.ovn.import_networks, found.ovn.gateways) == ("agents", False, ("gw1",))


@pytest.mark.parametrize(
    "text",
    ["probes.by = 'agents'\n", "probes = {by = 'agents'}\n", '[server]\nlisten = """\n[probes]\n"""\nhosts = "a:1"\n'],
)
def test_renamed_option_that_migrate_cannot_rewrite_is_an_error(text: str):
    with pytest.raises(ValueError, match=r"^(health|server)\..*: write each option as a line of its own"):
        migrate(text)


def test_every_renamed_option_has_a_successor():
    options = {f"{section}.{option.name}" for section, each in SECTIONS.items() for option in fields(each)}
    assert set(OPTIONS.values()) <= options
    assert not OPTIONS.keys() & options
    assert options >= FLAGS


def test_every_option_has_a_default_of_its_type():
    for section in SECTIONS.values():
        for option in fields(section):
            assert option.metadata["type"].parse(option.default) == option.default, option.name


def test_documentation_lists_every_renamed_option():
    text = (Path(__file__).parents[1] / "docs/reference/renamed-options.md").read_text()
    rows = dict(re.findall(r"^\| `(\S+)` \| `(\S+)` \|$", text, re.MULTILINE))
    assert rows == dict(OPTIONS)
