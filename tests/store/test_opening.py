"""Parsing of store URLs: each means one store, or an error with the remedy."""

import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.store.etcd_access import Access
from fairlead.store.opening import check_url, open_store
from fairlead.store.sqlite import SqliteStore


async def test_a_url_opens_its_store(tmp_path: Path):
    for url in (f"sqlite://{tmp_path}/one.db", f"sqlite:///{tmp_path}/one.db"):  # another common spelling
        store = await open_store(url)
        assert isinstance(store, SqliteStore)
        await store.close()
    assert [path.name for path in tmp_path.glob("*.db")] == ["one.db"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "must begin with one of sqlite://"),
        ("/var/lib/fairlead.db", "must begin with one of sqlite://"),
        ("mysql://localhost/x", "must begin with one of sqlite://"),
        ("mysql://fairlead:secret@host/x", r"'mysql://\.\.\.@host/x' must begin with one of sqlite://"),
        ("sqlite://fairlead.db", "sqlite:///var/lib/fairlead/fairlead.db"),
        ("sqlite:///var/lib/", "absolute path of a file"),
        ("etcd://127.0.0.1:2379", "key prefix of this deployment is missing"),
        ("etcd://127.0.0.1:2379/a//b", "prefix"),
        ("etcd://127.0.0.1/fairlead", "not HOST:PORT; example: etcd://192.0.2.1:2379,"),
        ("etcd://::1:2379/fairlead", "needs brackets"),
        ("etcd://h1:2379,h1:2379/fairlead", "duplicate member"),
        ("etcd://fl:secret@h1:2379/fairlead", "set store.user and store.password_file"),
    ],
)
def test_invalid_store_url_is_rejected_with_the_remedy(url: str, words: str):
    with pytest.raises(ValueError, match=words) as refused:
        check_url(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("access", "words"),
    [
        (Access(ca="ca", certificate="c"), "store.certificate and store.key must be set together"),
        (Access(ca="ca", user="fl"), "store.user and store.password_file must be set together"),
        (Access(user="fl", password_file="p"), "require TLS"),
        (Access(certificate="c", key="k"), "require TLS"),
    ],
)
def test_store_access_options_are_complete_and_for_etcd_only(access: Access, words: str):
    url = "etcd://h1:2379,[2001:db8::1]:2379/fairlead/one"
    check_url(url, Access(ca="ca", certificate="c", key="k"))
    with pytest.raises(ValueError, match=words):
        check_url(url, access)
    with pytest.raises(ValueError, match="are for etcd, not for a file"):
        check_url("sqlite:///var/lib/fairlead.db", access)


def test_grpc_is_imported_only_for_etcd():
    script = "import sys, fairlead.server.process; sys.exit('grpc' in sys.modules or 'google.protobuf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
