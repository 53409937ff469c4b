"""Import contracts between packages: an import that violates one is found."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fairlead

ROOT = Path(__file__).parent.parent
PLANTS = {
    "a model that knows a door": ("model/documents/owner.py", "import fairlead.api.http.front_end", "Layers"),
    "a document that knows a query": ("model/documents/owner.py", "import fairlead.model.queries.probes", "Model:"),
    "HTTP that knows a front end": ("api/http/listing.py", "import fairlead.api.operator.rows", "API:"),
    "a reader of OVN that knows a network's importer": (
        "drivers/ovn/southbound/reader.py",
        "import fairlead.drivers.ovn.unmanaged.rows",
        "OVN driver",
    ),
    "a store that knows a driver": ("store/sqlite.py", "import fairlead.drivers.fake", "Layers"),
    "a door that knows another": ("api/octavia/errors.py", "import fairlead.api.network.errors", "Doors do not know"),
    "a door that knows the one for plug-ins": (
        "api/octavia/errors.py",
        "import fairlead.api.plugin.feed",
        "Octavia's door",
    ),
    "a door for plug-ins that knows another": (
        "api/plugin/feed.py",
        "import fairlead.api.network.errors",
        "Other doors",
    ),
    "a plug-in that needs a server's packages": (
        "octavia_plugin/api_client.py",
        "import fairlead.model.documents.owner",
        "Layers",
    ),
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
    "a driver that knows another": (
        "drivers/ovn/northbound/driver.py",
        "import fairlead.drivers.fake",
        "Drivers do not",
    ),
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
    "a tenants' command that knows the model": (
        "cli/tenant/resources.py",
        "import fairlead.model.documents.owner",
        "speaks to doors as any client",
    ),
    "a compiler that looks at the clock": ("compilers/ovn/compiler.py", "import time", "The core is pure"),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the report of each broken contract, after all violations are planted in one copy of the source."""
    folder = tmp_path_factory.mktemp("planted")
    copy = folder / "fairlead"
    shutil.copytree(Path(str(fairlead.__file__)).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for file, line, _ in PLANTS.values():
        with (copy / file).open("a") as planted:
            planted.write(f"\n\n{line}\n")
    command = [Path(sys.executable).parent / "lint-imports", "--no-cache", "--config", ROOT / "pyproject.toml"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    said = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert said.returncode != 0, said.stdout + said.stderr
    _, _, broken = said.stdout.partition("Broken contracts")
    _, *parts = re.split(r"^(\S.*)\n-{3,}\n", broken, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize(("file", "line", "contract"), PLANTS.values(), ids=list(PLANTS))
def test_forbidden_import_breaks_its_contract(told: dict[str, str], file: str, line: str, contract: str) -> None:
    """The report names the import, or the undeclared module."""
    (said,) = (text for title, text in told.items() if contract in title)
    module = "fairlead." + file.removesuffix(".py").replace("/", ".")
    imported = line.removeprefix("import ")
    assert re.search(rf"- +{module}( -> {imported} |$)", said, re.MULTILINE), said
