#!/usr/bin/env python3
"""Effect on clients of a Local IP when the replica on their chassis is live-migrated to another one.

    python benchmarks/moves.py
    python benchmarks/moves.py --moves 20 --mode passthrough

It needs root, OVN and Open vSwitch. Of three nodes, the replica moves between the first two, and the owner is on the
third. Clients on the first two, on the replica's network and behind a router, open ten connections per second each to
the address of each IP version. They also have connections that are open from the beginning, and send on them after each
move. A new connection is lost if it has no answer for five seconds, and slow if its SYN was sent again.
"""

import argparse
import sys
import warnings
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path

from fairlead.lab import LabError

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
warnings.simplefilter("ignore")

from harness.lab.local_ips import open_local_ip_site  # noqa: E402 - the tests are not installed
from harness.lab.moving import move_under_load, table  # noqa: E402

LAB = "benchmoves"
MODES = ("translate", "passthrough")


def main() -> int:
    parser = argparse.ArgumentParser(description="What a move of a replica costs the clients of a Local IP.")
    parser.add_argument("--moves", type=int, default=10, metavar="N", help="how often it moves (10)")
    parser.add_argument("--mode", choices=MODES, action="append", help="of the Local IP; repeat for more (both)")
    options = parser.parse_args()
    try:
        with open_local_ip_site(LAB) as wood:
            for mode in options.mode or MODES:
                with ExitStack() as stack:
                    local_ips = stack.enter_context(wood.owner_local_ips("one", ip_mode=mode))
                    stack.enter_context(wood.assign_addresses(local_ips, *(["one"] if mode == "passthrough" else [])))
                    moves = move_under_load(wood, local_ips, [*islice(cycle(["chassis2", "chassis1"]), options.moves)])
                print(f"{mode}\n\n{table(moves)}\n")
                print(f"{moves.broken} of {moves.held} connections broke that were there from the beginning\n")
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
