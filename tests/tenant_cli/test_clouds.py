"""Server URL and credentials, configured as for the stock clients."""

from pathlib import Path

import pytest

from fairlead.cli.tenant.clouds import BadCloud, Cloud, find_cloud

CLOUDS = """
clouds:
  plain:
    auth_type: none
    auth: {endpoint: "http://127.0.0.1:9876"}
  guarded:
    auth_type: http_basic
    auth: {endpoint: "https://lb.example/", username: ann}
    network_endpoint_override: https://net.example/network/
    cacert: /etc/ca.pem
  keystone:
    auth: {auth_url: "https://keystone.example", username: ann, password: x}
    auth_type: password
  careless:
    auth_type: none
    auth: {endpoint: "https://lb.example"}
    verify: false
"""
PLAIN = {"network": "http://127.0.0.1:9876/network", "load_balancer": "http://127.0.0.1:9876/load-balancer"}


@pytest.fixture
def file(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "clouds.yaml").write_text(CLOUDS)
    (tmp_path / "secure.yaml").write_text("clouds: {guarded: {auth: {password: secret}}}")
    return {"OS_CLIENT_CONFIG_FILE": str(tmp_path / "clouds.yaml")}


def test_cloud_is_selected_by_option_or_environment(file: dict[str, str]):
    """The cloud is selected by option or by environment variable."""
    assert find_cloud("plain", file) == Cloud(endpoints=PLAIN)
    assert find_cloud("", {**file, "OS_CLOUD": "plain"}) == Cloud(endpoints=PLAIN)


def test_cloud_has_its_user_and_the_secret_of_a_separate_file(file: dict[str, str]):
    assert find_cloud("guarded", file) == Cloud(
        endpoints={"network": "https://net.example/network", "load_balancer": "https://lb.example/load-balancer"},
        user="ann",
        password="secret",
        ca="/etc/ca.pem",
    )


def test_environment_variables_override_the_cloud_file(file: dict[str, str]):
    found = find_cloud("guarded", {**file, "OS_PASSWORD": "newer", "OS_AUTH_TYPE": "http_basic"})
    assert (found.user, found.password) == ("ann", "newer")
    assert find_cloud("", {"OS_ENDPOINT": "http://127.0.0.1:9876/"}) == Cloud(endpoints=PLAIN)
    named = {"OS_ENDPOINT": "http://127.0.0.1:9876", "OS_USERNAME": "bob", "OS_PASSWORD": "x"}
    assert find_cloud("", named) == Cloud(endpoints=PLAIN, user="bob", password="x")
    assert find_cloud("", {**named, "OS_AUTH_TYPE": "none"}) == Cloud(endpoints=PLAIN)


@pytest.mark.parametrize(
    ("name", "variables", "words"),
    [
        ("", {}, "no server is configured"),
        ("nobody", {}, "no cloud 'nobody'"),
        (
            "keystone",
            {"OS_AUTH_TYPE": "v3kerberos"},
            "auth_type: expected one of none, http_basic, .*, got 'v3kerberos'",
        ),
        ("keystone", {"OS_AUTH_URL": "keystone.example"}, "auth_url: expected .*, got 'keystone.example'"),
        ("careless", {}, "verify: cannot be false"),
        ("", {"OS_ENDPOINT": "127.0.0.1:9876"}, "endpoint: expected http://"),
        ("plain", {"OS_CLIENT_CONFIG_FILE": "/nowhere/clouds.yaml"}, "No such file"),
    ],
)
def test_unusable_cloud_is_named_in_the_error(file: dict[str, str], name: str, variables: dict[str, str], words: str):
    with pytest.raises(BadCloud, match=words):
        find_cloud(name, {**file, **variables})


@pytest.mark.parametrize("text", ["clouds: [", "[]", "clouds: 1", "clouds: {plain: x}"])
def test_malformed_cloud_file_is_an_error(tmp_path: Path, text: str):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(BadCloud):
        find_cloud("plain", {"OS_CLIENT_CONFIG_FILE": str(tmp_path / "c.yaml")})
