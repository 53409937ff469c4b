"""The container file is built and run unchanged by podman, on a Debian release made here in place of a registry.

The tests also check the image: its user, absent files, and that it works without privileges on a read-only file system
except for its data folder.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fairlead import __version__
from harness.package.archives import ROOT, run_ok
from harness.package.podman import Podman
from harness.ports import free_port
from harness.waiting import DEADLINE, wait_equal

pytestmark = pytest.mark.package
BASE = "docker.io/library/debian:bookworm-slim"
IMAGE = "localhost/fairlead:tested"
MEMORY = Path("/dev/shm")
CONFINED = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges")


@pytest.fixture(scope="module")
def podman(index: str) -> Iterator[Podman]:
    """podman with the built image."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "it needs root and podman: scripts/setup lab installs it"
        )
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the index on loopback has packages for this Python, and Debian 12 has 3.11")
    tree = run_ok([ROOT / "scripts" / "tree", "bookworm", "base"]).strip()
    podman = Podman(Path(tempfile.mkdtemp(prefix="fairlead-image-", dir=MEMORY if MEMORY.is_dir() else None)))
    try:
        podman.import_image(Path(tree), BASE)
        podman.build(ROOT / "packaging" / "container" / "Containerfile", ROOT, IMAGE, PIP_INDEX_URL=index)
        yield podman
    finally:
        podman.remove()


def test_image_declares_user_entrypoint_volume_and_health_check(podman: Podman):
    made = podman.inspect(IMAGE)
    assert made["Config"]["User"] == "10001:10001"
    assert (made["Config"]["Entrypoint"], made["Config"]["Cmd"]) == (["fairlead"], ["server"])
    assert list(made["Config"]["Volumes"]) == ["/var/lib/fairlead"]
    assert made["HealthCheck" if "HealthCheck" in made else "Healthcheck"]["Test"] == ["CMD", "fairlead", "alive"]
    assert not [each for each in made["Config"]["Env"] if "INDEX" in each]


def test_image_contains_no_build_tools_and_few_writable_folders(podman: Podman):
    assert podman.run(IMAGE, "--version") == f"fairlead {__version__}\n"
    tools = (
        "for each in cc gcc make pip pip3 git; do command -v $each; done; ls /source /wheels /tools /opt 2>&1; id -u"
    )
    assert podman.run(IMAGE, "-c", tools, entry="sh").split()[-2:] == ["fairlead", "10001"]
    held = podman.run(IMAGE, "-c", "find / -xdev -writable -type d 2>/dev/null; true", entry="sh").split()
    assert {"/var/lib/fairlead"} <= set(held) <= {"/var/lib/fairlead", "/tmp", "/var/tmp", "/run/lock"}
    assert "grpc" in podman.run(IMAGE, "-c", "import fairlead.store.etcd, sys; print(*sys.modules)", entry="python3")


def test_container_serves_without_privileges_and_stops_on_sigterm(podman: Podman, tmp_path: Path):
    where, log = f"127.0.0.1:{free_port()}", tmp_path / "log"
    away = ("FAIRLEAD_OVN_NORTHBOUND=unix:/tmp/away", "FAIRLEAD_OVN_SOUTHBOUND=unix:/tmp/away")
    options = [f"--env={each}" for each in (f"FAIRLEAD_SERVER_LISTEN={where}", *away)]
    with podman.running(IMAGE, log, "--name=it", *CONFINED, *options) as container:

        def health() -> int:
            assert container.poll() is None, log.read_text()
            return podman.health("it")

        wait_equal(health, 0)
        with httpx.Client(base_url=f"http://{where}", timeout=DEADLINE) as client:
            made = client.post("/network/v2.0/networks", json={"network": {"name": "n"}})
            assert made.status_code == 201, made.text
            assert client.get("/healthz").text == "well\n"
        container.terminate()
        assert container.wait(DEADLINE) == 0, log.read_text()
    assert "Traceback" not in log.read_text()
