"""All tests follow the rules of tests/harness/rules.py, and each rule finds a violation."""

import ast

import pytest

from harness.rules import check_module, sources_of_tests

BROKEN = {
    "import time\ntime.sleep(1)": "uses time.sleep",
    "from time import monotonic": "imports time.monotonic",
    "import time\nassert time.process_time() < 3": "uses time.process_time",
    "async def test():\n    await asyncio.sleep(0.1)": "sleeps on a real event loop",
    "async def test():\n    while not ready():\n        await asyncio.sleep(0)": "waits by a loop of its own",
    "async def test():\n    assert loop.time() < 3": "looks at the time of a real event loop",
    "def test():\n    asyncio.run(story())": "runs an event loop by hand",
    "async def test():\n    async with asyncio.timeout(1):\n        await ready()": "gives a real program 1 s",
    "from lab.test_lab import machine": "imports from lab.test_lab",
    "import conftest": "imports from conftest",
}
KEPT = (
    "@pytest.mark.virtual_clock\nasync def test():\n    await asyncio.sleep(3600)\n    assert loop.time() == 3600",
    "pytestmark = pytest.mark.virtual_clock\nasync def test():\n    await asyncio.sleep(1)",
    "async def test():\n    await asyncio.sleep(0)",
    "from harness.lab.site import Site",
)


def test_all_test_modules_follow_the_rules():
    findings = [str(finding) for path, tree in sources_of_tests() for finding in check_module(path, tree)]
    assert findings == []


@pytest.mark.parametrize("source", BROKEN)
def test_violation_of_a_test_rule_is_found(source: str):
    found = [finding.text for finding in check_module("toy/test_toy.py", ast.parse(source))]
    assert any(text.startswith(BROKEN[source]) for text in found), found


@pytest.mark.parametrize("source", KEPT)
def test_allowed_code_passes_the_test_rules(source: str):
    assert [*check_module("toy/test_toy.py", ast.parse(source))] == []
