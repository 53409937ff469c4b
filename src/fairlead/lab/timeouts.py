"""How long a lab waits for programs that normally need moments: a factor, for machines that are emulated."""

import os

FACTOR_VARIABLE = "FAIRLEAD_LAB_PATIENCE"
"""The environment variable that multiplies every deadline of a lab."""
TIMEOUT_FACTOR = float(os.environ.get(FACTOR_VARIABLE) or 1)


def scale_timeout(seconds: float) -> float:
    """This deadline on this machine."""
    return seconds * TIMEOUT_FACTOR
