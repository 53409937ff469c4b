"""Run tests of tempest and its plug-ins, and print a line of JSON for each: [name, outcome, reason].

It is a separate program, so tempest has its own process, configuration and warnings. Arguments: names of tests, `--`,
tests to leave out.
"""

import json
import re
import sys
import traceback
import unittest
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from oslo_config import cfg
from tempest import config


class TempestReport(unittest.TestResult):
    def __init__(self, tests: list[Any]) -> None:
        super().__init__()
        self._tests = tests

    def print_outcome(self, test: Any, outcome: str, reason: str = "") -> None:
        """Print an outcome. That of a class (`setUpClass (module.Class)`) applies to each of its tests."""
        whole = re.fullmatch(r"\w+ \((.+)\)", str(test.id()))
        inside = [each for each in map(name, self._tests) if whole and each.rpartition(".")[0] == whole[1]]
        for each in inside or [name(test)]:
            print(json.dumps([each, outcome, reason]), flush=True)

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        self.print_outcome(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        self.print_outcome(test, "skipped", reason)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self.print_outcome(test, "failed", "".join(traceback.format_exception(*err)))

    addError = addFailure  # noqa: N815


def name(test: Any) -> str:
    """Name without the attributes that tempest appends: module.Class.method[id-...]"""
    return str(test.id()).partition("[")[0]


def single(suite: Any) -> Iterator[Any]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from single(item)
        else:
            yield item


def main(arguments: list[str]) -> None:
    wanted = list(takewhile(lambda argument: argument != "--", arguments))
    left_out = arguments[len(wanted) + 1 :]
    # The plug-in reads this option before it tests TLS; Barbican's own plug-in declares it.
    config.CONF.register_opt(cfg.BoolOpt("barbican", default=False), group="service_available")
    found = unittest.TestLoader().loadTestsFromNames(wanted)
    tests = [test for test in single(found) if name(test) not in left_out]
    unittest.TestSuite(tests).run(TempestReport(tests))


if __name__ == "__main__":
    main(sys.argv[1:])
