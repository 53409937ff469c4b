"""Where the server listens."""

import socket
import stat
from pathlib import Path

import pytest

from fairlead.server import _open_socket


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_an_address_with_a_port(listen: str):
    with _open_socket(listen) as listener:
        listener.listen()
        assert listener.getsockname()[1] > 0


def test_a_unix_socket_is_for_owner_and_group_and_a_dead_one_is_replaced(tmp_path: Path):
    path = tmp_path / "api.sock"
    _open_socket(f"unix:{path}").close()
    with _open_socket(f"unix:{path}") as listener:
        listener.listen()
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with pytest.raises(OSError, match=r"cannot listen on unix:.*another server listens there"):
            _open_socket(f"unix:{path}")


def test_an_address_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot listen on {listen}: Address already in use"):
            _open_socket(listen)
