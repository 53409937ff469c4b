"""Configuration: a mistake is told by name, and nothing listens to the world without asking who calls."""

import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest

import fairlead
from fairlead.config import BadConfiguration, check_secrets, is_local, read_configuration, render_template
from fairlead.model.quota import ProbeLimits
from fairlead.options import SECTIONS, Configuration, ServerOptions


def test_the_template_is_a_file_that_works(tmp_path: Path):
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


def test_who_probes_is_no_limit_of_probes():
    """A server with the defaults, and one whose agents probe, have the limits that the operator wrote."""
    for prober in ("ovn", "agents"):
        given = {"FAIRLEAD_PROBES_BY": prober, "FAIRLEAD_PROBES_PER_SECOND": "7"}
        assert read_configuration(None, given).probes.limits == ProbeLimits(per_second=7)


KEYSTONE = {
    "FAIRLEAD_SERVER_AUTHENTICATION": "keystone",
    "FAIRLEAD_KEYSTONE_URL": "http://127.0.0.1:5000/v3",
    "FAIRLEAD_KEYSTONE_PASSWORD_FILE": __file__,
}
"""What is needed, and no more."""
BARBICAN = {"FAIRLEAD_KEYS_BARBICAN": "https://192.0.2.1:9311/key-manager/v1"}
BAD = [
    ("[sever]\n", {}, "no section 'sever'"),
    ("[server]\nlissen = 'x'\n", {}, "no option server.lissen"),
    ("[server]\nlisten = 5\n", {}, "server.listen: 5 is not a text"),
    ("[server\n", {}, "fairlead.toml"),
    ("[network]\nmtu = 'big'\n", {}, "'big' is not a number"),
    ("", {"FAIRLEAD_NETWORK_MTU": "100"}, "network.mtu: from 1280"),
    ("", {"FAIRLEAD_NETWORK_MTU": "-1500"}, "network.mtu: from 1280"),
    ("[quota]\ntrunk = 1\n", {}, "no option quota.trunk"),
    ("", {"FAIRLEAD_QUOTA_POOL": "-2"}, "quota.pool: from -1"),
    ("[probes]\nby = 'me'\n", {}, "probes.by: 'me' is not ovn or agents"),
    ("[probes]\nleast_delay = 0\n", {}, "probes.least_delay: from 1 to 3600 seconds"),
    ("[probes]\nper_second = -2\n", {}, "probes.per_second: from -1"),
    ("[probes]\nper_second_of_port = -2\n", {}, "probes.per_second_of_port: from -1"),
    ("[agent]\nhaproxy_memory = 63\n", {}, "agent.haproxy_memory: from 64 to 65536 MB"),
    ("[providers]\nproxy_servers = -2\n", {}, "providers.proxy_servers: from -1"),
    ("", {"FAIRLEAD_QUOTA_POOL": "2000000001"}, "to 2000000000"),
    ("", {"FAIRLEAD_QUOTA_POOL": "1-1"}, "'1-1' is not a number"),
    ("", {"FAIRLEAD_PROVIDERS_HOST_PROXY_PORTS": "9100"}, "host_proxy_ports: '9100' is not FIRST-LAST, from 1024"),
    ("", {"FAIRLEAD_PROVIDERS_HOST_PROXY_PORTS": "1023-2000"}, "'1023-2000' is not FIRST-LAST"),
    ("", {"FAIRLEAD_PROVIDERS_HOST_PROXY_PORTS": "3000-2000"}, "'3000-2000' is not FIRST-LAST"),
    ("", {"FAIRLEAD_PROVIDERS_HOST_PROXY_PORTS": "60000-65536"}, "'60000-65536' is not FIRST-LAST"),
    ("", {"FAIRLEAD_PROVIDERS_HOST_PROXY_PORTS": "2000--3000"}, "'2000--3000' is not FIRST-LAST"),
    ("", {"FAIRLEAD_SERVER_LISTEN": "localhost"}, "is not HOST:PORT"),
    ("", {"FAIRLEAD_SERVER_LISTEN": "0.0.0.0:80"}, "can be reached from elsewhere"),
    ("", {"FAIRLEAD_SERVER_LISTEN": "[::]:80"}, "can be reached from elsewhere"),
    ("", {"FAIRLEAD_SERVER_LISTEN": "lb.example.org:80"}, "can be reached from elsewhere"),
    ("", {"FAIRLEAD_SERVER_AUTHENTICATION": "http_basic"}, "server.password_file"),
    ("", {"FAIRLEAD_SERVER_AUTHENTICATION": "ldap"}, "'ldap' is not one of none, http_basic, keystone"),
    ("", {"FAIRLEAD_SERVER_TLS_KEY": "x"}, "go together"),
    ("", {"FAIRLEAD_SERVER_CONNECTIONS": "0"}, "server.connections: from 1"),
    ("", {"FAIRLEAD_SERVER_CONNECTIONS_PER_ADDRESS": "-1"}, "server.connections_per_address: from 1"),
    (
        "",
        {"FAIRLEAD_SERVER_PROXIES": "10.0.0.1, lb.example.org"},
        "'lb.example.org' is not an address",
    ),
    ("", {"FAIRLEAD_SERVER_PASSWORDS_IN_THE_CLEAR": "maybe"}, "'maybe' is not yes or no"),
    (
        "[server]\nauthentication = 'http_basic'\npassword_file = '/x'\nlisten = '0.0.0.0:9876'\n",
        {},
        "passwords and tokens could be read on the way; set server.tls_certificate",
    ),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": ""}, "keystone.url: '' is not http://HOST:PORT"),
    ("", {"FAIRLEAD_KEYS_BARBICAN": "http://127.0.0.1:9311"}, "keystone.url: '' is not http://HOST:PORT"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYS_BARBICAN": "127.0.0.1:9311"}, "keys.barbican: '127.0.0.1:9311' is not http://"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYS_BARBICAN": "http://192.0.2.1:9311"}, "keys and tokens could be read on the way"),
    ("", {**KEYSTONE, **BARBICAN, "FAIRLEAD_KEYS_BARBICAN_CA": "/none"}, "keys.barbican_ca: /none: no such file"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "127.0.0.1:5000"}, "keystone.url: '127.0.0.1:5000' is not http://"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "http://:5000"}, "keystone.url: "),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "http://h:x"}, "keystone.url: "),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "http://[::1"}, "keystone.url: "),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "http://u:p@h:1/v3"}, "keystone.url: "),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "http://h:1/v3?x"}, "keystone.url: "),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "http://h:1/v 3"}, "keystone.url: "),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "http://" + "h" * 64}, "keystone.url: "),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_PUBLIC_URL": "here"}, "keystone.public_url: 'here' is not http://"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": "http://10.0.0.1:5000"}, "the password and all tokens could be read"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_USER": ""}, "keystone.user: it is needed"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_PASSWORD_FILE": ""}, "keystone.password_file: it is needed"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_PASSWORD_FILE": "/nothing"}, "keystone.password_file: /nothing: no such file"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_CA": "/nothing"}, "keystone.ca: /nothing: no such file"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_TOKEN_CACHE_SECONDS": "3601"}, "keystone.token_cache_seconds: from 0 to 3600"),
    ("", {**KEYSTONE, "FAIRLEAD_KEYSTONE_OUTAGE_SECONDS": "-1"}, "keystone.outage_seconds: from 0 to 86400"),
    ("", {**KEYSTONE, "FAIRLEAD_SERVER_LISTEN": "0.0.0.0:80"}, "passwords and tokens could be read on the way"),
    ("", {"FAIRLEAD_LXD_SOCKET": "unix.socket"}, "lxd.socket: 'unix.socket' is not unix:PATH"),
    ("", {"FAIRLEAD_LXD_SOCKET": "unix:here"}, "lxd.socket: 'unix:here' is not unix:PATH"),
    ("", {"FAIRLEAD_LXD_SOCKET_MODE": "0666"}, "lxd.socket_mode: '0666' is no mode such as 0660"),
    ("", {"FAIRLEAD_LXD_SOCKET_MODE": "rw"}, "lxd.socket_mode: 'rw' is no mode"),
    ("", {"FAIRLEAD_LXD_LISTEN": "8443"}, "lxd.listen: '8443' is not HOST:PORT"),
    ("", {"FAIRLEAD_LXD_ADDRESSES": "a:1,b"}, "lxd.addresses: 'b' is not HOST:PORT"),
    ("", {"FAIRLEAD_LXD_KEY": "/nothing"}, "lxd.certificate and lxd.key go together"),
    ("", {"FAIRLEAD_LXD_TOKEN_SECONDS": "59"}, "lxd.token_seconds: from 60 to"),
    ("", {"FAIRLEAD_OVN_NORTBOUND": "x"}, "FAIRLEAD_OVN_NORTBOUND: no such option"),
    ("", {"FAIRLEAD_OVN_NORTHBOUND": "foo"}, "ovn.northbound: "),
    ("", {"FAIRLEAD_OVN_NORTHBOUND": "ssl:10.0.0.1:6641"}, "ssl needs ovn.private_key"),
    ("", {"FAIRLEAD_OVN_SOUTHBOUND": "bar"}, "ovn.southbound: "),
    ("", {"FAIRLEAD_OVN_SOUTHBOUND": "ssl:10.0.0.1:6642"}, "ovn.southbound: ssl needs ovn.private_key"),
    ("", {"FAIRLEAD_OVN_CA": "/nothing"}, "go together"),
    ("", {"FAIRLEAD_OVN_COUNT_ANSWERS": "true"}, "ovn.count_answers: 'true' is not yes or no"),
    ("", {"FAIRLEAD_OVN_FOLLOW": "true"}, "ovn.follow: 'true' is not yes or no"),
    ("", {"FAIRLEAD_OVN_PROBE_INTERVAL": "0"}, "ovn.probe_interval: from 1 to 3600 seconds"),
    ("", {"FAIRLEAD_OVN_MARK": ""}, "ovn.mark: without a mark"),
    ("", {"FAIRLEAD_OVN_CHASSIS_PROBE_INTERVAL": "30"}, "ovn.chassis_probe_interval: 0, or from 1 to half"),
    ("", {"FAIRLEAD_OVN_CHASSIS_TIMEOUT": "9999"}, "ovn.chassis_timeout, which is at most 3600"),
    ("", {"FAIRLEAD_LOG_LEVEL": "loud"}, "log.level: 'loud'"),
    ("", {"FAIRLEAD_PROVIDERS_NAMES": "ovn"}, "providers: 'ovn' is not NAME=IMPLEMENTATION"),
    ("", {"FAIRLEAD_PROVIDERS_NAMES": "o/n=ovn"}, "providers: 'o/n=ovn' is not NAME=IMPLEMENTATION"),
    ("", {"FAIRLEAD_PROVIDERS_NAMES": "fairlead=octavia"}, "there is no 'octavia'; there is fairlead, ovn"),
    ("", {"FAIRLEAD_PROVIDERS_NAMES": "a=ovn,a=ovn"}, "'a' stands there twice"),
    ("", {"FAIRLEAD_PROVIDERS_NAMES": "amphora=ovn"}, "the default 'fairlead' is none of the names amphora"),
    ("", {"FAIRLEAD_PROVIDERS_DEFAULT": "gold"}, "the default 'gold' is none of the names fairlead, ovn"),
    ("", {"FAIRLEAD_AGENT_SERVERS": "127.0.0.1:9876"}, "agent.servers: '127.0.0.1:9876' is not http://"),
    ("", {"FAIRLEAD_AGENT_SERVERS": " , "}, "agent.servers: "),
    ("", {"FAIRLEAD_AGENT_USER": "u"}, "agent.user and agent.password_file go together"),
    ("", {"FAIRLEAD_AGENT_USER": "u", "FAIRLEAD_AGENT_PASSWORD_FILE": "/nothing"}, "/nothing: no such file"),
    ("", {"FAIRLEAD_AGENT_CA": "/nothing"}, "agent.ca: /nothing: no such file"),
    ("", {"FAIRLEAD_AGENT_INTERVAL": "0"}, "agent.interval: from 1"),
    ("", {"FAIRLEAD_AGENT_RENEWAL": "0"}, "agent.renewal: from 1 to 3600 seconds"),
    ("", {"FAIRLEAD_AGENT_MOST_CONNECTIONS": "-1"}, "agent.most_connections: 0 or more"),
    ("", {"FAIRLEAD_LOG_FORMAT": "xml"}, "log.format: 'xml' is not text or json"),
]


@pytest.mark.parametrize(("text", "environment", "words"), BAD, ids=lambda value: str(value)[:40])
def test_a_mistake_is_told_by_name(tmp_path: Path, text: str, environment: dict[str, str], words: str):
    path = tmp_path / "fairlead.toml"
    path.write_text(text)
    with pytest.raises(BadConfiguration, match=words.replace("[", r"\[")):
        read_configuration(path, environment)


def test_what_other_parts_read_of_the_environment_is_no_mistake() -> None:
    """A server or an agent inherits what is for the lab, the demo or the command line."""
    sources = Path(fairlead.__file__).parent.rglob("*.py")
    words = {word for source in sources for word in re.findall(r"\bFAIRLEAD_[A-Z_]*[A-Z]\b", source.read_text())}
    assert "FAIRLEAD_LAB_ROOT" in words
    own = {word for word in words if not word.startswith(tuple(f"FAIRLEAD_{name.upper()}_" for name in SECTIONS))}
    assert Configuration() == read_configuration(None, dict.fromkeys(own, "x"))


def test_a_file_that_is_not_there_is_a_mistake(tmp_path: Path):
    with pytest.raises(BadConfiguration, match="No such file"):
        read_configuration(tmp_path / "nothing.toml", {})


@pytest.mark.parametrize(
    ("listen", "local"),
    [("127.0.0.1:1", True), ("localhost:1", True), ("[::1]:1", True), ("unix:/x", True), ("10.0.0.1:1", False)],
)
def test_what_only_this_machine_can_reach(listen: str, local: bool):
    assert is_local(listen) is local


def test_gateway_chassis_are_names_with_commas():
    found = read_configuration(None, {"FAIRLEAD_OVN_GATEWAY_CHASSIS": "gw2, gw1,,gw1"})
    assert found.ovn.gateways == ("gw1", "gw2")
    assert Configuration().ovn.gateways == ()


def test_passwords_are_served_in_the_clear_only_if_that_is_said(tmp_path: Path):
    given = {"FAIRLEAD_SERVER_AUTHENTICATION": "http_basic", "FAIRLEAD_SERVER_PASSWORD_FILE": "/x"}
    assert read_configuration(None, given).server.listen == "127.0.0.1:9876"
    everywhere = {**given, "FAIRLEAD_SERVER_LISTEN": "0.0.0.0:9876"}
    for more in (
        {"FAIRLEAD_SERVER_PASSWORDS_IN_THE_CLEAR": "yes"},
        {"FAIRLEAD_SERVER_TLS_CERTIFICATE": "c", "FAIRLEAD_SERVER_TLS_KEY": "k"},
    ):
        assert read_configuration(None, {**everywhere, **more}).server.listen == "0.0.0.0:9876"


@pytest.mark.parametrize("url", ["http://127.0.0.1:5000", "http://127.0.0.1:5000/", "http://127.0.0.1:5000/v3/"])
def test_keystone_may_be_said_with_its_version_or_without(url: str):
    found = read_configuration(None, {**KEYSTONE, "FAIRLEAD_KEYSTONE_URL": url})
    assert found.keystone.root == "http://127.0.0.1:5000/v3"


@pytest.mark.parametrize(
    "more",
    [
        {"FAIRLEAD_KEYSTONE_URL": "https://id.example.org/identity"},
        {"FAIRLEAD_KEYSTONE_URL": "http://[::1]:5000"},
        {"FAIRLEAD_KEYSTONE_URL": "http://localhost:5000"},
        {"FAIRLEAD_KEYSTONE_URL": "http://10.0.0.1:5000", "FAIRLEAD_SERVER_PASSWORDS_IN_THE_CLEAR": "yes"},
    ],
)
def test_tokens_go_to_a_keystone_of_this_machine_or_by_https_or_if_that_is_said(more: dict[str, str]):
    assert read_configuration(None, {**KEYSTONE, **more}).server.authentication == "keystone"


@pytest.mark.parametrize("option", ["SERVER_PASSWORD_FILE", "KEYSTONE_PASSWORD_FILE"])
def test_passwords_beside_keystone_are_secrets_too(tmp_path: Path, option: str):
    path = tmp_path / "password"
    path.touch(mode=0o600)
    right = tmp_path / "right"
    right.touch(mode=0o600)
    given = {**KEYSTONE, "FAIRLEAD_KEYSTONE_PASSWORD_FILE": str(right), f"FAIRLEAD_{option}": str(path)}
    configuration = read_configuration(None, given)
    check_secrets(configuration)
    path.chmod(0o644)
    with pytest.raises(BadConfiguration, match=f"{path}: everybody"):
        check_secrets(configuration)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o601])
def test_secrets_that_everybody_can_open_are_refused(tmp_path: Path, mode: int):
    path = tmp_path / "users"
    path.touch()
    given = {"FAIRLEAD_SERVER_AUTHENTICATION": "http_basic", "FAIRLEAD_SERVER_PASSWORD_FILE": str(path)}
    configuration = read_configuration(None, given)
    path.chmod(mode)
    with pytest.raises(BadConfiguration, match=f"server.password_file: {path}: everybody .*mode {mode:04o}"):
        check_secrets(configuration)
    path.chmod(0o640)
    check_secrets(configuration)


SECRETS = (
    "agent.identity",
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
def test_each_secret_file_is_refused_if_everybody_can_open_it(tmp_path: Path, name: str):
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    section, _, option = name.partition(".")
    server = replace(ServerOptions(), authentication="http_basic")
    given = replace(Configuration(), server=server)
    configuration = replace(given, **{section: replace(getattr(given, section), **{option: str(path)})})
    check_secrets(configuration)
    path.chmod(0o644)
    with pytest.raises(BadConfiguration, match=f"{name}: {path}: everybody .*mode 0644"):
        check_secrets(configuration)


def test_an_option_that_sounds_secret_is_one():
    named = {
        f"{section}.{option.name}"
        for section, options in SECTIONS.items()
        for option in fields(options)
        if option.name.endswith(("key", "password_file", "authority", "identity"))
    }
    assert named == set(SECRETS)


def test_keys_are_in_a_folder_into_which_not_everybody_writes(tmp_path: Path):
    for folder, mode, words in ((tmp_path / "none", 0, "no such folder"), (tmp_path, 0o777, "everybody can write")):
        if mode:
            folder.chmod(mode)
        with pytest.raises(BadConfiguration, match=f"keys.directory: .*{words}"):
            check_secrets(read_configuration(None, {"FAIRLEAD_KEYS_DIRECTORY": str(folder)}))
    tmp_path.chmod(0o750)
    check_secrets(read_configuration(None, {"FAIRLEAD_KEYS_DIRECTORY": str(tmp_path)}))
