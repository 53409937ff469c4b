"""Rewrite the expected rows of every case file from the compilers. Review the diff before it is committed."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from fairlead.compilers.haproxy import HAPROXY  # noqa: E402
from fairlead.compilers.native import NATIVE  # noqa: E402
from harness.case import PRODUCT_DATAPLANES, read_case, write_case  # noqa: E402 - the harness is not installed
from harness.toy import TOYS  # noqa: E402

if __name__ == "__main__":
    DATAPLANES_BY_FOLDER = {
        "cases": PRODUCT_DATAPLANES,
        "toy": TOYS,
        "haproxy": (HAPROXY,),
        "native": (NATIVE, HAPROXY),
    }
    for folder, dataplanes in DATAPLANES_BY_FOLDER.items():
        for path in sorted((ROOT / "tests" / folder).glob("*.txt")):
            write_case(read_case(path, dataplanes))
            print(path.relative_to(ROOT))
