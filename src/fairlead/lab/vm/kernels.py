"""Kernels of distributions: packages fetched by apt with its own check of signatures, and unpacked into a cache.

Each kernel has an apt configuration of its own below the cache, so the machine's sources, lists and installed packages
are neither read nor changed. What is in the cache is used as it is: `forget` makes the next fetch take the newest.
"""

import fcntl
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fairlead.lab.errors import LabError, MissingTools
from fairlead.lab.processes import LabCommand, run

FETCH_TIMEOUT = 900.0  # seconds, for one package or list
KEYRINGS = Path("/usr/share/keyrings")
TOOLS = {"apt-get": "apt", "dpkg-deb": "dpkg", "depmod": "kmod"}
OWN_KERNEL = "own"
"""The name of the kernel that this machine runs."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A package archive: where it is, and whose signatures it bears."""

    mirror: str
    mirror_variable: str
    """The environment variable that names another mirror."""
    suite: str
    keyring: str
    keyring_package: tuple[str, str] | None = None
    """The kernel by whose archive the keyring is fetched if the machine lacks it, and the package."""

    @property
    def url(self) -> str:
        return os.environ.get(self.mirror_variable, self.mirror)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel that can be fetched."""

    name: str
    text: str
    archive: Archive
    package: str
    """A package that depends on the image of the newest kernel of this line."""
    has_modules_package: bool = False
    """Whether modules are in a package beside that of the image, which is named like it."""


def _debian(suite: str) -> Archive:
    return Archive(
        mirror="http://deb.debian.org/debian",
        mirror_variable="DEBIAN_MIRROR",
        suite=suite,
        keyring="debian-archive-keyring.gpg",
    )


def _ubuntu(suite: str) -> Archive:
    return Archive(
        mirror="http://archive.ubuntu.com/ubuntu",
        mirror_variable="UBUNTU_MIRROR",
        suite=suite,
        keyring="ubuntu-archive-keyring.gpg",
        keyring_package=("trixie", "ubuntu-keyring"),
    )


KERNELS = (
    Kernel(name="bookworm", text="Debian 12", archive=_debian("bookworm"), package="linux-image-amd64"),
    Kernel(name="trixie", text="Debian 13", archive=_debian("trixie"), package="linux-image-amd64"),
    Kernel(
        name="noble",
        text="Ubuntu 24.04",
        archive=_ubuntu("noble-updates"),
        package="linux-image-virtual",
        has_modules_package=True,
    ),
)
DEFAULT_KERNEL = "trixie"
NAMES = (*(kernel.name for kernel in KERNELS), OWN_KERNEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTree:
    """A kernel that is there: its image, and the folder of its modules."""

    version: str
    image: Path
    modules: Path


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "fairlead" / "kernels"


def fetch(name: str, progress: Progress) -> KernelTree:
    """Return the tree of a kernel, fetching it if the cache has none. Raises LabError."""
    if platform.machine() != "x86_64":
        raise LabError(f"--vm is supported on x86_64 only, not on {platform.machine()}")
    if name == OWN_KERNEL:
        return _machine_tree()
    kernel = _find(name)
    with _locked(kernel):
        if (found := _cached(kernel)) is not None:
            return found
        if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
            raise MissingTools(missing, [TOOLS[tool] for tool in missing])
        return _fetch(kernel, progress)


def remove_cached(name: str) -> None:
    """Remove a kernel from the cache."""
    with _locked(kernel := _find(name)):
        shutil.rmtree(_folder(kernel), ignore_errors=True)


def _find(name: str) -> Kernel:
    found = next((kernel for kernel in KERNELS if kernel.name == name), None)
    if found is None:
        raise LabError(f"unknown kernel {name!r}; expected one of {', '.join(NAMES)}")
    return found


def _folder(kernel: Kernel) -> Path:
    return cache_directory() / kernel.name


@contextmanager
def _locked(kernel: Kernel) -> Iterator[None]:
    cache_directory().mkdir(parents=True, exist_ok=True)
    with (cache_directory() / f"{kernel.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _machine_tree() -> KernelTree:
    version = platform.release()
    modules = Path("/lib/modules") / version
    images = [modules / "vmlinuz", Path("/boot") / f"vmlinuz-{version}"]
    image = next((each for each in images if each.exists()), None)
    if image is None or not (modules / "modules.dep").exists():
        raise LabError(f"kernel {version} has no image or no modules here: {', '.join(map(str, images))}")
    return KernelTree(version=version, image=image, modules=modules)


def _cached(kernel: Kernel) -> KernelTree | None:
    tree = _folder(kernel) / "tree"
    images = sorted(tree.glob("boot/vmlinuz-*"))
    if not images:
        return None
    version = images[-1].name.removeprefix("vmlinuz-")
    modules = (tree / "lib" / "modules" / version).resolve()
    return KernelTree(version=version, image=images[-1], modules=modules)


def _fetch(kernel: Kernel, progress: Progress) -> KernelTree:
    """The tree gets its name last, so one that is there is whole."""
    folder = _folder(kernel)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    progress(f"kernel {kernel.name}: downloading the kernel of {kernel.text} to {folder}")
    apt = _apt(kernel, folder, progress)
    _run(apt("apt-get", "update", "-qq"), folder)
    listed = _run(apt("apt-cache", "depends", "--no-recommends", kernel.package), folder)
    image = next((word for word in listed.split() if word.startswith("linux-image-") and word[12].isdigit()), None)
    if image is None:
        raise LabError(
            f"kernel {kernel.name}: {kernel.package} of {kernel.archive.url} does not depend on an image: {listed}"
        )
    packages = [image, *([image.replace("-image-", "-modules-")] if kernel.has_modules_package else [])]
    tree = folder / "part"
    _download(apt, packages, folder, tree)
    if not (tree / "lib").exists():
        (tree / "lib").symlink_to("usr/lib")
    version = image.removeprefix("linux-image-")
    _run(("depmod", "--basedir", str(tree), version), folder)
    shutil.rmtree(folder / "apt")
    tree.rename(folder / "tree")
    progress(f"kernel {kernel.name}: {version}")
    found = _cached(kernel)
    assert found is not None
    return found


def _download(apt: "_Apt", packages: Sequence[str], folder: Path, tree: Path) -> None:
    """Fetch packages and unpack them into one tree."""
    tree.mkdir(parents=True, exist_ok=True)
    _run(apt("apt-get", "download", "-qq", *packages), folder)
    for file in sorted(folder.glob("*.deb")):
        _run(("dpkg-deb", "--extract", str(file), str(tree)), folder)
        file.unlink()


_Apt = Callable[..., tuple[str, ...]]


def _apt(kernel: Kernel, folder: Path, progress: Progress) -> _Apt:
    """Return what makes commands of apt that know this kernel's archive alone."""
    archive, own = kernel.archive, folder / "apt"
    keyring = _keyring(archive, progress)
    for part in ("lists/partial", "cache/archives/partial"):
        (own / part).mkdir(parents=True)
    (own / "sources.list").write_text(f"deb [signed-by={keyring}] {archive.url} {archive.suite} main\n")
    options = {
        "APT::Sandbox::User": "",
        "APT::Architecture": "amd64",
        "Dir::Etc::SourceList": own / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": own / "lists",
        "Dir::State::Status": "/dev/null",
        "Dir::Cache": own / "cache",
    }
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    return lambda program, *rest: (program, *words, *rest)


def _keyring(archive: Archive, progress: Progress) -> Path:
    """The machine's, or one that a package of a known archive brings."""
    if (installed := KEYRINGS / archive.keyring).exists():
        return installed
    if archive.keyring_package is None:
        raise MissingTools([str(installed)], [archive.keyring.removesuffix(".gpg")])
    through, package = archive.keyring_package
    folder = cache_directory() / package
    if not (found := folder / "tree" / str(KEYRINGS / archive.keyring).lstrip("/")).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        apt = _apt(_find(through), folder, progress)
        _run(apt("apt-get", "update", "-qq"), folder)
        _download(apt, [package], folder, folder / "tree")
        shutil.rmtree(folder / "apt")
    return found


def _run(argv: Sequence[str], folder: Path) -> str:
    """In the folder, because `apt-get download` writes where it is."""
    words = ("env", "--chdir", str(folder), *argv)
    return run(LabCommand(argv=words, environment={"LC_ALL": "C"}), timeout=FETCH_TIMEOUT)
