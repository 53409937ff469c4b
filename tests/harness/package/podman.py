"""Images built and run by podman as root, with its storage in the test's folder, independent of the machine's storage.

Containers have no control group, because a test machine may not be allowed to create one.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.package.archives import run_ok
from harness.waiting import DEADLINE

LIMITS = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=1024:1024")
"""Limits that need no privilege."""
MOUNT_WRAPPER = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'umount -R /sys/fs/cgroup; mount -t tmpfs none /sys/fs/cgroup; exec "$@"',
    "-",
)
"""Hides the cgroup hierarchies: podman and its runtime reject a mix of versions, even without control groups."""


class Podman:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "config").mkdir(parents=True)
        (folder / "config" / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')

    def _command(self, *words: str | Path) -> list[str]:
        options = (
            f"--root={self._folder}/storage",
            f"--runroot={self._folder}/run",
            f"--tmpdir={self._folder}/tmp",
            "--storage-driver=overlay",
            "--cgroup-manager=cgroupfs",
            "--events-backend=none",
        )
        return [*MOUNT_WRAPPER, "podman", *options, *map(str, words)]

    def __call__(self, *words: str | Path) -> str:
        return run_ok(self._command(*words))

    def import_image(self, tree: Path, name: str) -> None:
        """Import a folder as the image that a registry would have under this name."""
        archive = self._folder / "tree.tar"
        run_ok(["tar", "-C", tree, "-cf", archive, "."])
        self("import", archive, name)
        archive.unlink()

    def build(self, file: Path, context: Path, name: str, **arguments: str) -> None:
        """Build an image from imported images only."""
        told = [f"--build-arg={key}={text}" for key, text in arguments.items()]
        how = ("--pull=never", "--format=docker", "--isolation=chroot", "--network=host", "--layers=false")
        self("build", *how, *told, "-f", file, "-t", name, context)

    def inspect(self, image: str) -> dict[str, Any]:
        [found] = json.loads(self("image", "inspect", image))
        return dict(found)

    @contextmanager
    def running(self, image: str, log: Path, *options: str) -> "Iterator[subprocess.Popen[bytes]]":
        """Run a container in the foreground, and end it with the context."""
        words = self._command("run", "--rm", "--network=host", "--cgroups=disabled", *LIMITS, *options, image)
        with log.open("wb") as stream:
            process = subprocess.Popen(words, stdout=stream, stderr=stream, env=dict(os.environ))
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()  # podman forwards the signal
            process.wait(DEADLINE)

    def run(self, image: str, *words: str, entry: str = "fairlead") -> str:
        return self(
            "run", "--rm", "--network=host", "--cgroups=disabled", *LIMITS, f"--entrypoint={entry}", image, *words
        )

    def health(self, container: str) -> int:
        """Exit code of the container's health check."""
        words = self._command("exec", container, "fairlead", "alive")
        return subprocess.run(words, capture_output=True, check=False).returncode

    def remove(self) -> None:
        subprocess.run(self._command("rmi", "--all", "--force"), capture_output=True, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)
