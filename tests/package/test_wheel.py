"""`pip install fairlead` from an index into an empty environment results in a working server.

The content of the archives is checked too: no tests, all files that the package needs, its licence and its README.
"""

import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import httpx
import pytest

from fairlead import __version__
from harness.etcd import etcd_cluster
from harness.package.archives import ROOT, Archives, pip_environment, run_ok
from harness.ports import free_port
from harness.waiting import DEADLINE, wait_until

pytestmark = pytest.mark.package
NEXT_TO_PACKAGE = f"fairlead-{__version__}.data"
SHARED = f"{NEXT_TO_PACKAGE}/data/share/fairlead"
ABOUT = f"fairlead-{__version__}.dist-info"


def metadata(archives: Archives) -> Message:
    with zipfile.ZipFile(archives.wheel) as wheel:
        return message_from_bytes(wheel.read(f"{ABOUT}/METADATA"))


def test_wheel_contains_only_the_package(archives: Archives):
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "fairlead").rglob("*")
        if path.suffix in (".py", ".pyi", ".typed") or path.name == "py.typed"
    }
    with zipfile.ZipFile(archives.wheel) as wheel:
        names = set(wheel.namelist())
    assert {name for name in names if name.startswith("fairlead/")} == sources
    units = {f"{SHARED}/systemd/{path.name}" for path in (ROOT / "packaging" / "systemd").iterdir()}
    assert {name for name in names if name.startswith(f"{SHARED}/systemd/")} == units
    assert {name.split("/")[0] for name in names} == {"fairlead", ABOUT, NEXT_TO_PACKAGE}
    assert f"{ABOUT}/licenses/LICENSE" in names


def test_source_archive_contains_the_sources_without_tests(archives: Archives):
    with tarfile.open(archives.source) as source:
        inside = {name.partition("/")[2] for name in source.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "constraints.txt", "src/fairlead/cli/main.py"} <= inside
    assert not [name for name in inside if name.startswith(("tests", "benchmarks", "scripts", "."))]


def test_package_metadata_is_complete(archives: Archives):
    about = metadata(archives)
    assert (about["Name"], about["Version"], about["Requires-Python"]) == ("fairlead", __version__, ">=3.11")
    assert about["Description-Content-Type"] == "text/markdown"
    shown = about.get_payload(decode=True)
    assert isinstance(shown, bytes)
    assert shown.decode().strip() == (ROOT / "README.md").read_text().strip()
    assert {"etcd", "clients"} <= set(about.get_all("Provides-Extra", []))
    needed = [each.split(">")[0] for each in about.get_all("Requires-Dist", []) if "extra" not in each]
    assert sorted(needed) == sorted(set(needed))


def test_octavia_driver_entry_points_are_declared(archives: Archives):
    with zipfile.ZipFile(archives.wheel) as wheel:
        text = wheel.read(f"{ABOUT}/entry_points.txt").decode()
    found = ConfigParser()
    found.read_string(text)
    assert found["console_scripts"]["fairlead"] == "fairlead.cli.main:main"
    assert found["octavia.api.drivers"]["fairlead"] == "fairlead.octavia_plugin.driver:FairleadDriver"
    assert {"octavia.driver_agent.provider_agents", "octavia.network.drivers"} <= set(found.sections())


@pytest.fixture(scope="module")
def installed(index: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the programs in a new environment with only the package."""
    folder = tmp_path_factory.mktemp("installed") / "env"
    run_ok([sys.executable, "-m", "venv", folder], env=pip_environment(index))
    run_ok([folder / "bin" / "pip", "install", "-q", "fairlead[etcd]"], env=pip_environment(index))
    return folder / "bin"


def test_package_installs_from_an_index_and_its_command_works(installed: Path, index: str, tmp_path: Path):
    environment = pip_environment(index)
    where = run_ok(
        [installed / "python", "-c", "import fairlead; print(fairlead.__file__)"], env=environment, cwd=tmp_path
    )
    assert Path(where).is_relative_to(installed.parent)
    assert run_ok([installed / "fairlead", "--version"], env=environment) == f"fairlead {__version__}\n"
    assert "fairlead store copy" in run_ok([installed / "fairlead", "--help"], env=environment)
    assert "No broken requirements found." in run_ok([installed / "pip", "check"], env=environment)
    assert (installed.parent / "share" / "fairlead" / "systemd" / "fairlead-server.service").is_file()


def test_installed_server_works_and_its_store_copies_to_etcd(installed: Path, index: str, tmp_path: Path):
    """It works on a SQLite store without OVN; then its documents are copied to a real etcd."""
    options, where = tmp_path / "fairlead.toml", f"127.0.0.1:{free_port()}"
    away = f'northbound = "unix:{tmp_path}/away"\nsouthbound = "unix:{tmp_path}/away"\n'
    store = f"sqlite://{tmp_path}/store.db"
    options.write_text(f'[server]\nlisten = "{where}"\n[store]\nurl = "{store}"\n[ovn]\n{away}')
    environment = {**pip_environment(index), "FAIRLEAD_CONFIG": str(options)}
    fairlead = installed / "fairlead"

    def is_alive() -> bool:
        return subprocess.run([fairlead, "alive"], env=environment, capture_output=True, check=False).returncode == 0

    assert run_ok([fairlead, "server", "--check"], env=environment) == "the configuration is valid\n"
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen([fairlead, "server"], env=environment, stderr=log)
    try:
        wait_until(lambda: is_alive() or server.poll() is not None, "the server to answer or to end")
        assert server.poll() is None, (tmp_path / "log").read_text()
        with httpx.Client(base_url=f"http://{where}", timeout=DEADLINE) as client:
            made = client.post("/network/v2.0/networks", json={"network": {"name": "n"}})
            assert made.status_code == 201, made.text
            assert [each["name"] for each in client.get("/network/v2.0/networks").json()["networks"]] == ["n"]
        server.terminate()
        assert server.wait(DEADLINE) == 0, (tmp_path / "log").read_text()
    finally:
        server.kill()
        server.wait()
    assert not is_alive()
    with etcd_cluster() as etcd:
        run_ok([fairlead, "store", "copy", store, f"{etcd.url}/moved"], env=environment)
        assert made.json()["network"]["id"] in etcd.ctl("get", "--prefix", "--keys-only", "moved/")
