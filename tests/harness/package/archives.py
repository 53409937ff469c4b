"""The package's archives as an operator gets them, and an index on loopback with them and their requirements.

Requirements come from the registry for which this machine's pip is configured; later no other index is used.
"""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parents[3]
NOT_SOURCE = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist")
COMMAND_TIMEOUT = 600.0  # seconds; a registry may be far away


def run_ok(words: Sequence[str | Path], **options: object) -> str:
    """Output of a command that must succeed."""
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT, **options)  # type: ignore[call-overload]
    assert ended.returncode == 0, f"{words}: {ended.stdout[-3000:]}{ended.stderr[-3000:]}"
    return str(ended.stdout)


@dataclass(frozen=True)
class Archives:
    wheel: Path
    source: Path


def build(folder: Path) -> Archives:
    """Build the wheel from the source archive, so the wheel lacks any file that the source archive lacks."""
    shutil.copytree(ROOT, folder / "tree", ignore=NOT_SOURCE)
    run_ok([sys.executable, "-m", "build", "--outdir", folder, folder / "tree"])
    shutil.rmtree(folder / "tree")
    [wheel], [source] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Archives(wheel, source)


@contextmanager
def index_of(archives: Archives, folder: Path) -> Iterator[str]:
    """URL of a simple index (PEP 503) with the package, its requirements, and its build tools."""
    needs = [f"{archives.wheel}[etcd]", "pip", "setuptools", "wheel"]
    run_ok([sys.executable, "-m", "pip", "wheel", "-q", "-w", folder / "all", "-c", ROOT / "constraints.txt", *needs])
    for archive in list((folder / "all").iterdir()):
        name = archive.name.split("-")[0].replace("_", "-").replace(".", "-").lower()
        (folder / "simple" / name).mkdir(parents=True, exist_ok=True)
        archive.rename(folder / "simple" / name / archive.name)
    shutil.copy(archives.source, folder / "simple" / "fairlead")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple/"
        finally:
            server.shutdown()
            thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Suppress log lines in the output of the tests."""


def pip_environment(index: str) -> dict[str, str]:
    """Environment of a user whose pip is configured for this index alone."""
    mine = {name: text for name, text in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "FAIRLEAD_"))}
    return {**mine, "PIP_INDEX_URL": index, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
