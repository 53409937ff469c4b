"""The contracts between rooms are more than words: an import that breaks one is found."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fairlead

ROOT = Path(__file__).parent.parent
PLANTS = {
    "a model that knows a door": ("model/owner.py", "import fairlead.api.door", "Layers"),
    "a store that knows a driver": ("store/sqlite.py", "import fairlead.drivers.fake", "Layers"),
    "a door that knows another": ("api/octavia/errors.py", "import fairlead.api.network.errors", "Doors do not know"),
    "a compiler that asks who else there is": (
        "compilers/ovn/router.py",
        "import fairlead.compilers.providers",
        "Compilers do not know each other",
    ),
    "a compiler that knows another": (
        "compilers/another.py",
        "import fairlead.compilers.ovn.router",
        "Compilers do not know each other",
    ),
    "a driver that knows another": ("drivers/ovn/driver.py", "import fairlead.drivers.fake", "Drivers do not"),
    "a driver that another protocol knows": (
        "drivers/ovsdb/client.py",
        "import fairlead.drivers.ovn",
        "Drivers do not know",
    ),
    "a driver that nobody has declared": (
        "drivers/another.py",
        "import fairlead.drivers.interface",
        "Drivers do not know",
    ),
    "a server's loop that names a dataplane": (
        "server/central.py",
        "import fairlead.drivers.ovn",
        "no dataplane by its name",
    ),
    "a loop that names a dataplane": (
        "reconciler/queue.py",
        "import fairlead.dataplane.ovn",
        "no dataplane by its name",
    ),
    "a fake of one dataplane": ("drivers/fake.py", "import fairlead.dataplane.ovn", "no dataplane by its name"),
    "a node that knows the server": ("node/state.py", "import fairlead.server", "Layers"),
    "a compiler that looks at the clock": ("compilers/ovn/compiler.py", "import time", "The core is pure"),
}


@pytest.mark.parametrize(("file", "line", "contract"), PLANTS.values(), ids=list(PLANTS))
def test_a_planted_import_breaks_a_contract(tmp_path: Path, file: str, line: str, contract: str) -> None:
    copy = tmp_path / "fairlead"
    shutil.copytree(Path(str(fairlead.__file__)).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    planted = copy / file
    there = planted.read_text() if planted.exists() else ""
    planted.write_text(f"{there}\n\n{line}\n")
    command = [Path(sys.executable).parent / "lint-imports", "--no-cache", "--config", ROOT / "pyproject.toml"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    broken = [text for text in said.stdout.splitlines() if text.endswith("BROKEN")]
    assert said.returncode != 0, said.stdout
    assert any(contract in text for text in broken), said.stdout + said.stderr
