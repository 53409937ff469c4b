"""`--check` opens each file that an option names, and says which option and file cannot be used, and why."""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.main import main
from fairlead.config.errors import BadConfiguration
from fairlead.config.option_fields import PathKind
from fairlead.config.option_files import AGENT_SECTIONS, SERVER_SECTIONS, check_files, option_files
from fairlead.config.options import SECTIONS, Configuration
from harness.certificates import Authority, key_pem, new_key

ANNOUNCED = {
    "server.authentication": "keystone",
    "keystone.url": "https://id.example.org:5000",
    "store.url": "etcd://127.0.0.1:2379/fairlead",
    "store.user": "fairlead",
    "agent.user": "node1",
}
"""Options without which some of the files would not be read."""
USERS = f"ops:$2b$04${'a' * 53}:ops:admin\n"
PATHS = {
    f"{section}.{option.name}": option.metadata["kind"]
    for section, options in SECTIONS.items()
    for option in fields(options)
    if "kind" in option.metadata
}


def make_files(folder: Path) -> dict[str, str]:
    """Option -> a good file, of each option that names one."""
    authority = Authority()
    issued = authority.issue("localhost")
    content = {
        PathKind.CERTIFICATE: issued.pem,
        PathKind.KEY: key_pem(issued.key),
        PathKind.IDENTITY: issued.certificate_and_key,
        PathKind.AUTHORITIES: authority.pem,
        PathKind.USERS: USERS,
        PathKind.PASSWORD: "secret\n",
        PathKind.FILE: "",
    }
    made = {}
    for option, kind in PATHS.items():
        path = folder / option
        if kind in content:
            path.touch(mode=0o600)
            path.write_text(content[kind])
        elif kind is PathKind.FOLDER:
            path.mkdir(mode=0o750)
        made[option] = str(path)
    return made


def give(monkeypatch: pytest.MonkeyPatch, options: Mapping[str, str]) -> None:
    for option, value in options.items():
        monkeypatch.setenv(f"FAIRLEAD_{option.replace('.', '_').upper()}", value)


def check(capsys: pytest.CaptureFixture[str], program: str = "server") -> tuple[int, str]:
    """Exit code, and all that was printed."""
    code = main([program, "--check"])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def program_of(option: str) -> str:
    return "agent" if option.startswith("agent.") else "server"


def test_options_that_look_like_paths_are_declared_as_paths():
    sounding = re.compile(r"^(file with|file that|folder)\b|\bPATH: a|\(PEM\)", re.IGNORECASE)
    names = re.compile(r"(_|^)(file|key|ca|certificate|authority|identity|path|dir|directory)$")
    found = {
        f"{section}.{option.name}"
        for section, options in SECTIONS.items()
        for option in fields(options)
        if names.search(option.name)
        or str(option.default).startswith("/")
        or sounding.search(option.metadata["description"].partition(".")[0])
    }
    assert found - PATHS.keys() == set()


def test_usable_option_files_pass_the_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    give(monkeypatch, {**make_files(tmp_path), **ANNOUNCED})
    assert check(capsys) == (0, "the configuration is valid\n")
    assert check(capsys, "agent") == (0, "the configuration is valid\n")
    assert {each.option for each in option_files(Configuration(), (*SERVER_SECTIONS, *AGENT_SECTIONS))} <= PATHS.keys()


@pytest.mark.parametrize("option", PATHS)
def test_unopenable_file_of_any_option_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str
):
    files = {**make_files(tmp_path), **ANNOUNCED}
    nowhere = f"{files['agent.state_file']}/below"
    files[option] = f"sqlite://{nowhere}" if PATHS[option] is PathKind.STORE else nowhere
    if PATHS[option] is PathKind.STORE:
        files = {each: value for each, value in files.items() if not each.startswith("store.") or each == option}
    give(monkeypatch, files)
    code, printed = check(capsys, program_of(option))
    assert (code, printed) == (2, printed)
    assert f"{option}: {nowhere}: " in printed


@pytest.mark.parametrize(
    "option", [each for each, kind in PATHS.items() if kind not in (PathKind.FILE, PathKind.STORE)]
)
def test_invalid_content_in_a_file_of_any_option_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str
):
    files = {**make_files(tmp_path), **ANNOUNCED}
    odd = tmp_path / "odd"
    odd.touch(mode=0o600)
    odd.write_bytes(b"\xff nothing that a program could use")
    give(monkeypatch, {**files, option: str(odd)})
    code, printed = check(capsys, program_of(option))
    assert (code, f"{option}: {odd}: " in printed) == (2, True), printed


@pytest.mark.parametrize(
    ("certificate", "key"),
    [
        ("server.tls_certificate", "server.tls_key"),
        ("lxd.certificate", "lxd.key"),
        ("store.certificate", "store.key"),
        ("ovn.certificate", "ovn.private_key"),
    ],
)
def test_certificate_that_does_not_match_its_key_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, certificate: str, key: str
):
    files = {**make_files(tmp_path), **ANNOUNCED}
    give(monkeypatch, files)
    Path(files[key]).write_text(key_pem(new_key()))
    assert check(capsys) == (
        2,
        f"fairlead: {certificate}: {files[certificate]}: the certificate does not match the key of {key}:"
        f" {files[key]}\n",
    )


def test_a_key_with_a_pass_phrase_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    files = {**make_files(tmp_path), **ANNOUNCED}
    give(monkeypatch, files)
    path = Path(files["ovn.private_key"])
    path.write_bytes(new_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"phrase")))
    code, printed = check(capsys)
    assert (code, f"ovn.private_key: {path}: the key has a pass phrase" in printed) == (2, True)


@pytest.mark.parametrize(
    "option",
    [each for each, kind in PATHS.items() if kind in (PathKind.CERTIFICATE, PathKind.IDENTITY, PathKind.AUTHORITIES)],
)
def test_certificate_outside_its_validity_period_is_reported(tmp_path: Path, option: str):
    files = {**make_files(tmp_path), **ANNOUNCED}
    section, _, name = option.partition(".")
    given: dict[str, Any] = {name: files[option]}
    if PATHS[option] is PathKind.CERTIFICATE:
        key = next(each.metadata["key"] for each in fields(SECTIONS[section]) if each.name == name)
        given[key] = files[f"{section}.{key}"]
    configuration = replace(Configuration(), **{section: replace(getattr(Configuration(), section), **given)})
    now = datetime.now(UTC)
    check_files(configuration, (section,), now)
    for days, words in ((2, "the certificate expired on 20"), (-2, "the certificate is not valid before 20")):
        with pytest.raises(BadConfiguration, match=f"{option}: {files[option]}: {words}"):
            check_files(configuration, (section,), now + timedelta(days=days))


def test_files_that_a_program_makes_may_be_absent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    made = {
        f"{section}.{option.name}": f"{tmp_path}/later/{option.name}"
        for section, options in SECTIONS.items()
        for option in fields(options)
        if option.metadata.get("may_be_absent") and option.metadata["kind"] is not PathKind.STORE
    }
    give(monkeypatch, made)
    assert check(capsys) == (0, "the configuration is valid\n")
    assert check(capsys, "agent") == (0, "the configuration is valid\n")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("FAIRLEAD_STORE_URL", f"sqlite://{tmp_path}/later/fairlead.db")
    assert check(capsys) == (0, "the configuration is valid\n")
