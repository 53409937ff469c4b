"""Run the tests marked `kernel` on kernels of distributions, each in a virtual machine, and compare what they count.

    python scripts/kernels.py [KERNEL ...] [-- PYTEST WORDS]
        bookworm (6.1), trixie (6.12), noble (6.8), own (this machine's); without a name the first three. `here`
        is no virtual machine: the tests run on this machine, in user space if its kernel has no Open vSwitch.
        One boot runs all tests. Results are in .kernels/KERNEL: pytest.log, junit.xml, console (kernel messages).
    python scripts/kernels.py --table       print the counts of all runs, side by side
Exit code: 0, or 1 if a test or a guest failed. Where KVM does not work the processor is emulated, and a run takes an
hour instead of minutes.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from xml.etree import ElementTree

from fairlead.lab.errors import LabError
from fairlead.lab.timeouts import FACTOR_VARIABLE
from fairlead.lab.vm import kernels
from fairlead.lab.vm.initramfs import JOB_DIRECTORY
from fairlead.lab.vm.machine import Accelerator, Job, VirtualMachine, choose_accelerator, run_job
from fairlead.lab.vm.up import EMULATED_TIMEOUT_FACTOR

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / ".kernels"
THIS_KERNEL = "here"
COMPILED = ("src", "tests", ".venv/lib")
PYTEST = (
    ".venv/bin/python",
    "-m",
    "pytest",
    "-p",
    "no:cacheprovider",
    "-m",
    "kernel",
    "-vv",
    "-s",
    "--color=no",
    "--maxfail=3",
)
COUNTS = re.compile(r"counts\t(.*)$", re.MULTILINE)
SNAPSHOT = "for part in src tests; do cp -a $part $part.copy && rm -rf $part && mv $part.copy $part; done; exec "
"""What the guest does first: it keeps its own copy of what may be edited here while it runs."""


def main() -> int:
    words, _, rest = " ".join(sys.argv[1:]).partition("--")
    names = words.split()
    if sys.argv[1:] == ["--table"]:
        show_table()
        return 0
    chosen = names or [kernel.name for kernel in kernels.KERNELS]
    if unknown := [name for name in chosen if name not in (*kernels.NAMES, THIS_KERNEL)]:
        print(
            f"unknown kernel {', '.join(unknown)}: choose from {', '.join((*kernels.NAMES, THIS_KERNEL))}",
            file=sys.stderr,
        )
        return 2
    failed = [name for name in chosen if not passes(name, rest.split())]
    show_table()
    print(f"failed on: {', '.join(failed)}" if failed else "passed on all kernels")
    return int(bool(failed))


def passes(name: str, words: Sequence[str]) -> bool:
    folder = RESULTS / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    started = monotonic()
    try:
        code = run_here(folder, words) if name == THIS_KERNEL else run_on(name, folder, words)
    except LabError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    print(f"{name}: {summary(folder)}, {(monotonic() - started) / 60:.0f} minutes", flush=True)
    if code:
        print((folder / "pytest.log").read_text(errors="replace")[-4000:])
    return code == 0


def run_here(folder: Path, words: Sequence[str]) -> int:
    with (folder / "pytest.log").open("wb") as log:
        command = [*PYTEST, *report(folder), *(words or find_marked())]
        return subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, check=False).returncode


def run_on(name: str, folder: Path, words: Sequence[str]) -> int:
    tree = kernels.fetch(name, lambda line: print(line, flush=True))
    accelerator = choose_accelerator(tree)
    print(f"{name}: kernel {tree.version}, {accelerator.value}", flush=True)
    compile_all()
    environment = {"CI": "yes", "PYTHONUNBUFFERED": "1"}
    if accelerator is Accelerator.TCG:
        environment[FACTOR_VARIABLE] = str(EMULATED_TIMEOUT_FACTOR)
    argv = [*PYTEST, *report(Path(JOB_DIRECTORY)), *(words or find_marked())]
    job = Job(
        argv=["sh", "-c", SNAPSHOT + shlex.join(argv)],
        folder=ROOT,
        environment=environment,
        shared=folder,
    )
    with (folder / "pytest.log").open("wb") as log:
        return run_job(VirtualMachine(tree=tree, accelerator=accelerator), job, log)


def find_marked() -> list[str]:
    """The modules with such tests: to import all others takes an emulated machine minutes."""
    modules = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(module.relative_to(ROOT)) for module in modules if "pytest.mark.kernel" in module.read_text()]


def report(folder: Path) -> list[str]:
    return [f"--junitxml={folder / 'junit.xml'}"]


def compile_all() -> None:
    """The guest cannot keep bytecode, and would compile everything at each start of Python."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    folders = [str(ROOT / folder) for folder in COMPILED]
    command = [ROOT / ".venv/bin/python", "-m", "compileall", "-qq", *folders]
    subprocess.run(command, env=environment, check=False)


def summary(folder: Path) -> str:
    report_file = folder / "junit.xml"
    if not report_file.exists():
        return "no report"
    suite = ElementTree.parse(report_file).getroot().find("testsuite")
    assert suite is not None
    return ", ".join(f"{suite.get(name)} {name}" for name in ("tests", "failures", "errors", "skipped"))


def parse_counts(folder: Path) -> dict[str, str]:
    """What was counted, by what it is."""
    log = folder / "pytest.log"
    text = log.read_text(errors="replace") if log.exists() else ""
    lines = (line.strip().split("\t") for line in COUNTS.findall(text))
    return {" ".join(words): value for *words, value in lines}


def show_table() -> None:
    """A row for each count, a column for each run."""
    runs = {folder.name: parse_counts(folder) for folder in sorted(RESULTS.glob("*")) if parse_counts(folder)}
    rows = dict.fromkeys(what for found in runs.values() for what in found)
    print("| | " + " | ".join(runs) + " |\n|---|" + "---|" * len(runs))
    for what in rows:
        print(f"| {what} | " + " | ".join(found.get(what, "") for found in runs.values()) + " |")


if __name__ == "__main__":
    sys.exit(main())
