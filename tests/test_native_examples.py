"""Example files for operators of plain hosts equal the lab's: the output of `./render` is what its hosts read."""

import subprocess
from pathlib import Path

import pytest

from fairlead.lab.native import routing
from fairlead.lab.native.plan import plan_hosts

EXAMPLE = Path(__file__).parents[1] / "examples" / "native"


@pytest.mark.parametrize("file", ["frr.conf", "bird.conf"])
def test_rendered_example_equals_the_first_lab_host(file: str) -> None:
    written = subprocess.run([EXAMPLE / "render", file], check=True, capture_output=True, text=True).stdout
    assert "@" not in written
    assert written == routing.render_host(plan_hosts(1)[0], file)


def test_custom_host_file_is_rendered_from_any_directory(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text((EXAMPLE / "host").read_text().replace("AS=65101", "AS=65200"))
    written = subprocess.run([EXAMPLE / "render", "frr.conf", mine], check=True, capture_output=True, text=True)
    assert "router bgp 65200" in written.stdout
