"""HTTP basic: who is right gets in, who is not learns nothing."""

import asyncio
import base64
from pathlib import Path

import bcrypt
import pytest

from fairlead.api.auth import BadPasswordFile, HttpBasic, anybody, read_password_file

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()


def basic(credentials: bytes) -> str:
    return "Basic " + base64.b64encode(credentials).decode()


@pytest.fixture
def users(tmp_path: Path):
    path = tmp_path / "users"
    path.write_text(
        f"# people\n\nann:{HASH}:shop:member,reader\nroot:{HASH}:ops:admin\n"
        f"bob:{HASH}:shop:load-balancer_observer,service\n"
    )
    return read_password_file(path)


def test_a_right_password_is_a_user_with_project_and_roles(users):
    check = HttpBasic(users)
    for _ in range(2):
        ann = asyncio.run(check(basic(b"ann:secret"), "other"))
        assert ann is not None
        assert (ann.user, ann.project_id, ann.roles) == ("ann", "shop", frozenset({"member", "reader"}))
        assert not ann.is_admin
    bob = asyncio.run(check(basic(b"bob:secret"), None))
    assert bob is not None
    assert bob.roles == {"load-balancer_observer", "service"}


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer x", "Basic", "Basic ???", basic(b"ann"), basic(b"ann:wrong"), basic(b"eve:secret"),
     basic(b"ann:"), basic(b"\xff:x"), "Basic \x80", basic(b"ann:secret\0"), basic(b"ann:" + b"x" * 500)],
)  # fmt: skip
def test_anything_else_is_nobody(users, header):
    assert asyncio.run(HttpBasic(users)(header, None)) is None


@pytest.mark.parametrize(
    "line",
    ["ann", "ann:x:p:admin", f"ann:{HASH}:p", f"ann:{HASH}:p:king", f"ann:{HASH}:p:"],
    ids=["no hash", "no bcrypt", "no roles", "no such role", "empty role"],
)
def test_a_bad_line_is_told_with_its_number_and_without_its_hash(tmp_path: Path, line: str):
    path = tmp_path / "users"
    path.write_text(f"\n{line}\n")
    with pytest.raises(BadPasswordFile, match="users:2: a line is") as caught:
        read_password_file(path)
    assert HASH not in str(caught.value)


def test_without_authentication_everybody_is_administrator_of_the_project_he_names():
    who = asyncio.run(anybody(None, "p1"))
    assert who is not None
    assert (who.project_id, who.is_admin) == ("p1", True)
    for header, project in ((None, "default"), ("\0\x85", "default"), ("p\0" * 40, "p" * 36)):
        who = asyncio.run(anybody(None, header))
        assert who is not None
        assert who.project_id == project
