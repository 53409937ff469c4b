"""Each disturbance of three hosts, twice, while clients write. `benchmarks/killed.py` reports the pauses."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from harness.ha.disturbances import DISTURBANCES

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parents[2] / "benchmarks" / "killed.py"
TIMES = 2
RETRIES = 8  # 127 s with their pauses, longer than a slow machine takes to start a server
TIMEOUT = 1800  # seconds


def test_no_write_is_lost_or_doubled_while_one_of_three_hosts_fails():
    """Each step ends when all servers are ready and a write begun after that is acknowledged.

    At the end no acknowledged write is lost, none is duplicate, the observations of clients are linearizable, OVN has
    the model's rows, and no client with retries got an error.
    """
    if os.geteuid() != 0 or None in map(shutil.which, ("etcd", "ovsdb-server", "ovn-northd")):
        reason = "needs root, etcd and OVN: scripts/setup lab"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    words = (f"--steps={TIMES * len(DISTURBANCES)}", "--longest=1", "--quiet=0", f"--retries={RETRIES}", "--json")
    done = subprocess.run(
        [sys.executable, PROGRAM, *words], capture_output=True, text=True, check=False, timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    results = json.loads(done.stdout)
    times = Counter[str]()
    for title, table in results["by way"].items():
        times[title.removesuffix(", the leader")] += table["times"]
    assert times == {" ".join(way): TIMES for way in DISTURBANCES}
    assert results["failures"] == []
