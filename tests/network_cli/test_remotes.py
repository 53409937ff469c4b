"""Which server is meant by what is typed, by the environment, and by the client's folder."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from fairlead.network_cli.failure import Failure
from fairlead.network_cli.remotes import DEFAULT_SOCKET, Https, Socket, find, split


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """A folder as `incus remote add` leaves it."""
    (tmp_path / "servercerts").mkdir()
    (tmp_path / "servercerts" / "city.crt").write_text("")
    (tmp_path / "config.yml").write_text(
        "default-remote: city\nremotes:\n"
        "  city: {addr: 'https://192.0.2.1:8443', protocol: incus, project: shop}\n"
        "  local: {addr: 'unix://', protocol: incus}\n"
        "  six: {addr: 'https://[2001:db8::1]:8443'}\n"
        "  images: {addr: 'http://example.org'}\n"
    )
    return {"FAIRLEAD_CLIENT": str(tmp_path)}


def test_nothing_said_is_this_machine(tmp_path: Path):
    assert find("", {"HOME": str(tmp_path)}) == Socket(path=DEFAULT_SOCKET)
    assert find("local", {"HOME": str(tmp_path)}) == Socket(path=DEFAULT_SOCKET)


def test_a_name_of_the_folder(environment: Mapping[str, str]):
    folder = Path(environment["FAIRLEAD_CLIENT"])
    city = Https(
        host="192.0.2.1",
        port=8443,
        certificate=folder / "client.crt",
        key=folder / "client.key",
        pinned=folder / "servercerts" / "city.crt",
        project="shop",
    )
    assert find("city", environment) == city
    assert find("", environment) == city, "its default"
    assert find("local", environment) == Socket(path=DEFAULT_SOCKET)
    six = find("six", environment)
    assert isinstance(six, Https)
    assert (six.host, six.port, six.pinned) == ("2001:db8::1", 8443, None)


def test_an_address(environment: Mapping[str, str]):
    assert find("unix:/run/a.socket", environment) == Socket(path="/run/a.socket")
    assert find("unix:///run/a.socket", environment) == Socket(path="/run/a.socket")
    assert find("", {**environment, "FAIRLEAD_REMOTE": "unix:/run/b.socket"}) == Socket(path="/run/b.socket")
    elsewhere = find("https://example.org", environment)
    assert isinstance(elsewhere, Https)
    assert (elsewhere.host, elsewhere.port, elsewhere.pinned) == ("example.org", 443, None)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ("nope", 'The remote "nope" doesn\'t exist'),
        ("images", "the remote 'http://example.org' is neither unix:/PATH nor https://HOST:PORT"),
        ("https://example.org:x", "the remote 'https://example.org:x' is neither unix:/PATH nor https://HOST:PORT"),
    ],
)
def test_what_is_no_remote(environment: Mapping[str, str], said: str, complaint: str):
    with pytest.raises(Failure) as refused:
        find(said, environment)
    assert str(refused.value) == complaint


def test_a_folder_that_cannot_be_read(environment: Mapping[str, str]):
    (Path(environment["FAIRLEAD_CLIENT"]) / "config.yml").write_text("a: [")
    with pytest.raises(Failure, match=r"config.yml: "):
        find("", environment)


def test_a_remote_stands_before_its_network():
    assert [split(text) for text in ("net1", "city:net1", "city:", ":net1")] == [
        ("", "net1"),
        ("city", "net1"),
        ("city", ""),
        ("", "net1"),
    ]
