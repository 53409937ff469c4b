"""The parts of `make test-all`: run them, or tell which ones a change needs.

    python scripts/parts.py                  all parts with what they cover
    python scripts/parts.py run [PART ...]   run these, or all; each prints how long it takes
    python scripts/parts.py needed [--base REVISION]
                                             the parts that the files changed since REVISION need (default: origin/main,
                                             or main); --json for a list
Exit code: 0, or 1 if a part failed, or 2 if there is no such part.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str
    text: str
    targets: tuple[str, ...]
    """Targets of the Makefile, in their order."""
    covers: tuple[str, ...]
    """Prefixes of paths relative to the root."""


OVN = (
    "src/fairlead/compilers/ovn/",
    "src/fairlead/dataplane/",
    "src/fairlead/drivers/ovn/",
    "src/fairlead/drivers/ovsdb/",
)
LAB = (*OVN, "src/fairlead/lab/", "src/fairlead/node/", "src/fairlead/server/", "tests/lab/", "tests/harness/lab/")
CORE = ("src/fairlead/model/", "src/fairlead/changes/", "src/fairlead/compilers/", "src/fairlead/dataplane/")

PARTS = (
    Part(
        name="long",
        text="longer tests of what `make test` covers, rare topologies, kills, upgrades",
        targets=("test-long",),
        covers=(*LAB, "src/fairlead/compilers/", "src/fairlead/drivers/", "src/fairlead/cli"),
    ),
    Part(name="ovn", text="the lab on a second OVN (OVN=trixie)", targets=("test-ovn",), covers=OVN),
    Part(
        name="ovn-sid",
        text="the lab's tests of OVN's rows and flows on the newest OVN that Debian has",
        targets=("test-ovn-sid",),
        covers=OVN,
    ),
    Part(
        name="kernels",
        text="the kernel's datapath: tests marked kernel on kernels of distributions, in virtual machines",
        targets=("test-kernels",),
        covers=(*OVN, "src/fairlead/lab/", "scripts/kernels.py", "tests/lab/test_keys_on_a_datapath.py"),
    ),
    Part(
        name="random",
        text="property tests with many random examples, and the pure tests on the newest Python",
        targets=("test-random", "newest"),
        covers=(*CORE, "src/fairlead/store/", "src/fairlead/reconciler/", "tests/"),
    ),
    Part(
        name="mutants",
        text="every planted bug has to be killed by the tests",
        targets=("mutants",),
        covers=(
            *CORE,
            "src/fairlead/node/",
            "src/fairlead/store/",
            "tests/cases/",
            "tests/native/",
            "scripts/mutate.py",
        ),
    ),
    Part(
        name="fuzz",
        text="every operation of the API documents with good and bad input",
        targets=("fuzz",),
        covers=("src/fairlead/api/", "tests/fuzz/", "tests/harness/fuzz/"),
    ),
    Part(
        name="siege",
        text="all attacks on one server while a tenant works",
        targets=("siege",),
        covers=(
            *("src/fairlead/api/", "src/fairlead/server/", "src/fairlead/reconciler/", "src/fairlead/drivers/haproxy/"),
            *("tests/siege/", "tests/harness/siege/"),
        ),
    ),
    Part(
        name="soak",
        text="agents, servers, etcd and OVN killed, frozen and cut off while clients write and connect",
        targets=("ha", "killed-nodes"),
        covers=("src/fairlead/store/", "src/fairlead/reconciler/", "src/fairlead/server/", "src/fairlead/node/"),
    ),
    Part(
        name="package",
        text="the wheel, the image and the example of three hosts, as an operator has them",
        targets=("test-package",),
        covers=(
            "packaging/",
            "examples/",
            "pyproject.toml",
            "src/fairlead/server/",
            "src/fairlead/node/",
            "tests/package/",
        ),
    ),
    Part(
        name="tempest",
        text="OpenStack's own tests of Octavia's API and of Local IPs, and through a real Octavia",
        targets=("tempest",),
        covers=(
            "src/fairlead/api/octavia/",
            "src/fairlead/api/network/",
            "src/fairlead/octavia_plugin/",
            "tests/conformance/",
        ),
    ),
    Part(
        name="octavia-api",
        text="Octavia's own functional tests of its API, against Fairlead",
        targets=("octavia-api",),
        covers=(
            "src/fairlead/api/octavia/",
            "src/fairlead/changes/",
            "constraints-octavia.txt",
            "tests/conformance/",
            "tests/harness/conformance/functional",
        ),
    ),
    Part(
        name="neutron",
        text="a real Keystone, Neutron (ML2/OVN) and Octavia in the lab",
        targets=("test-neutron",),
        covers=(*OVN, "src/fairlead/octavia_plugin/", "src/fairlead/api/plugin", "tests/neutron_lab/"),
    ),
    Part(
        name="octavia",
        text="the provider driver in a real Octavia, and 200 operations while everything around it is killed",
        targets=("test-octavia", "killed"),
        covers=("src/fairlead/octavia_plugin/", "src/fairlead/api/plugin", "tests/octavia_plugin/"),
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    running = commands.add_parser("run", help="run parts")
    running.add_argument("part", nargs="*")
    needed = commands.add_parser("needed", help="the parts that a change needs")
    needed.add_argument("--base", default="")
    needed.add_argument("--json", action="store_true")
    options = parser.parse_args()
    match options.command:
        case "run":
            return run(options.part)
        case "needed":
            return print_needed(options.base or default_base(), as_json=options.json)
        case _:
            show(PARTS)
            return 0


def run(names: Sequence[str]) -> int:
    known = {part.name: part for part in PARTS}
    if unknown := [name for name in names if name not in known]:
        print(f"there is no part {', '.join(unknown)}: choose from {', '.join(known)}", file=sys.stderr)
        return 2
    failed = []
    for part in [known[name] for name in names] or PARTS:
        for target in part.targets:
            command = [ROOT / "scripts" / "timed", f"{part.name}: {target}", "make", "--no-print-directory", target]
            if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
                failed.append(f"{part.name}: {target}")
    print(f"failed: {', '.join(failed)}" if failed else "all parts passed")
    return int(bool(failed))


def print_needed(base: str, *, as_json: bool) -> int:
    changed = changed_files(base)
    parts = needed_by(changed)
    if as_json:
        print(json.dumps([part.name for part in parts]))
    elif parts:
        print(f"{len(changed)} files changed since {base}:")
        show(parts)
    else:
        print(f"{len(changed)} files changed since {base}: `make test` covers them")
    return 0


def needed_by(changed: Iterable[str]) -> list[Part]:
    paths = tuple(changed)
    return [part for part in PARTS if any(path.startswith(part.covers) for path in paths)]


def changed_files(base: str) -> list[str]:
    """Files that differ from the common ancestor with `base`, and untracked ones."""
    ancestor = git("merge-base", base, "HEAD").strip()
    return sorted({*git("diff", "--name-only", ancestor).split(), *git("ls-files", "-o", "--exclude-standard").split()})


def default_base() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "origin/main"], cwd=ROOT, capture_output=True, check=False
    )
    return "origin/main" if found.returncode == 0 else "main"


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def show(parts: Iterable[Part]) -> None:
    for part in parts:
        print(f"  make test-all PART={part.name:11} {part.text}")


if __name__ == "__main__":
    sys.exit(main())
