"""Find tests that fail by chance: run every test module that waits for something many times, on a machine that is busy.

    python scripts/flaky.py                      20 rounds of all modules beside four busy processes, then a report
    python scripts/flaky.py --rounds 3 tests/node tests/lab/test_near.py
    python scripts/flaky.py --list               only print the modules
    python scripts/flaky.py --report             only print what was found so far; --json

A module waits for something if it imports harness.waiting, itself or through the harness. Every run is a line of
.flaky/runs.jsonl, so a run that was ended goes on where it was: what ran on the same sources is not run again. All
modules run once before one runs twice. Exit code 1 if a test failed.
"""

import argparse
import ast
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
FOLDER = ROOT / ".flaky"
RUNS = FOLDER / "runs.jsonl"
ROUNDS, BUSY_PROCESSES = 20, 4
MAX_SECONDS = 3600  # limit for one run of one module
WAITING_MODULE = "harness.waiting"
BUSY_PROGRAM = "while True:\n    pass"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--busy", type=int, default=BUSY_PROCESSES, help="busy processes")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("paths", nargs="*", help="modules or folders; default: all")
    options = parser.parse_args()
    modules = [path for path in waiting_modules() if is_below(path, options.paths)]
    if options.list:
        print("\n".join(modules))
        return 0
    if not options.report:
        with busy(options.busy):
            run_rounds(modules, options.rounds)
    return report(modules, as_json=options.json)


def run_rounds(modules: Sequence[str], rounds: int) -> None:
    FOLDER.mkdir(exist_ok=True)
    done = Counter((row["module"], row["sources"]) for row in rows())
    sources = digest()
    for number in range(1, rounds + 1):
        for place, module in enumerate(modules, 1):
            if done[module, sources] >= number:
                continue
            row = {"module": module, "sources": sources, "round": number, "failed": run(module)}
            with RUNS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            said = f"{len(row['failed'])} failed" if row["failed"] else "passed"
            print(f"round {number} of {rounds}, {place} of {len(modules)}: {module}: {said}", flush=True)


def run(module: str) -> dict[str, str]:
    """Failed tests of the module, with the end of each failure."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", module]
        try:
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=MAX_SECONDS)
        except subprocess.TimeoutExpired:
            return {module: f"did not end within {MAX_SECONDS} s"}
        if not report.exists():
            return {module: (ended.stdout + ended.stderr)[-2000:]}
        return dict(failures(report))


def failures(report: Path) -> Iterator[tuple[str, str]]:
    for case in ElementTree.parse(report).iter("testcase"):
        for found in (*case.iter("failure"), *case.iter("error")):
            yield f"{case.get('classname')}::{case.get('name')}", (found.text or "")[-2000:]


@contextmanager
def busy(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", BUSY_PROGRAM]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []


def report(modules: Sequence[str], *, as_json: bool) -> int:
    """Print how often each module ran, with any sources, and each failed test with the end of its last failure."""
    ran, failed, texts = Counter[str](), Counter[str](), dict[str, str]()
    tests: dict[str, set[str]] = defaultdict(set)
    for row in rows():
        ran[row["module"]] += 1
        failed.update(row["failed"].keys())
        texts |= row["failed"]
        tests[row["module"]] |= row["failed"].keys()
    known = {module: ran[module] for module in modules}
    if as_json:
        print(json.dumps({"runs": known, "failed": {name: [failed[name], texts[name]] for name in failed}}))
    else:
        print(f"{len(known)} modules, {sum(known.values())} runs, at least {min(known.values(), default=0)} of each")
        for name, times in failed.most_common():
            print(f"\n{name}: failed {times} times\n{texts[name]}")
    return int(any(tests[module] for module in modules))


def digest() -> str:
    """Hash of all sources that a test runs: runs with other sources do not count."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "src", "tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = hashlib.sha256()
    for name in sorted(listed.stdout.split()):
        path = ROOT / name
        found.update(name.encode() + (path.read_bytes() if path.is_file() else b""))
    return found.hexdigest()[:16]


def is_below(module: str, paths: Sequence[str]) -> bool:
    wanted = [os.path.relpath(Path(path).resolve(), ROOT) for path in paths]
    return not wanted or any(module == path or module.startswith(f"{path}/") for path in wanted)


def waiting_modules() -> list[str]:
    """Paths relative to the root."""
    found = (path for path in TESTS.rglob("test_*.py") if "harness" not in path.parts and waits(path))
    return sorted(str(path.relative_to(ROOT)) for path in found)


@cache
def waits(path: Path) -> bool:
    imported = set(imports(path))
    return WAITING_MODULE in imported or any(
        waits(module) for name in imported if (module := path_of(name)) is not None
    )


def imports(path: Path) -> Iterator[str]:
    """Modules of the harness that a module imports, including those named in `from package import module`."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ImportFrom(module=str(module), level=0) if module.partition(".")[0] == "harness":
                yield module
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.partition(".")[0] == "harness")


def path_of(name: str) -> Path | None:
    path = TESTS / f"{name.replace('.', '/')}.py"
    return path if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
