"""What an operator installs: archives built once, and an index on loopback that has them and what they need.

What is needed comes from the registry that pip is told of on this machine; after that no index but ours is asked.
"""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_SOURCE = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist")
LONGEST = 300.0
"""Seconds for one of these programs; a registry may be far away."""


def done(words: Sequence[str | Path], **options: object) -> str:
    """What it prints; it has to succeed."""
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LONGEST, **options)  # type: ignore[call-overload]
    assert ended.returncode == 0, f"{words}: {ended.stdout[-3000:]}{ended.stderr[-3000:]}"
    return str(ended.stdout)


@dataclass(frozen=True)
class Archives:
    wheel: Path
    source: Path


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    """The wheel is made of the source archive: what that forgets is not in it."""
    folder = tmp_path_factory.mktemp("archives")
    shutil.copytree(ROOT, folder / "tree", ignore=NOT_SOURCE)
    done([sys.executable, "-m", "build", "--outdir", folder, folder / "tree"])
    shutil.rmtree(folder / "tree")
    [wheel], [source] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Archives(wheel, source)


@pytest.fixture(scope="session")
def index(archives: Archives, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a simple index (PEP 503): ours and whatever it needs, and what builds it."""
    folder = tmp_path_factory.mktemp("index")
    tools = ("pip", "setuptools", "wheel")
    needs = [f"{archives.wheel}[etcd]", *tools]
    done([sys.executable, "-m", "pip", "wheel", "-q", "-w", folder / "all", "-c", ROOT / "constraints.txt", *needs])
    for archive in list((folder / "all").iterdir()):
        name = archive.name.split("-")[0].replace("_", "-").replace(".", "-").lower()
        (folder / "simple" / name).mkdir(parents=True, exist_ok=True)
        archive.rename(folder / "simple" / name / archive.name)
    shutil.copy(archives.source, folder / "simple" / "fairlead")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/simple/"
        server.shutdown()
        thread.join()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Not into the tests' output."""


def newcomer(index: str) -> dict[str, str]:
    """The environment of somebody whose pip knows this index alone."""
    mine = {name: text for name, text in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "FAIRLEAD_"))}
    return {**mine, "PIP_INDEX_URL": index, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
