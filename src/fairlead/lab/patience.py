"""How long a lab waits for programs that normally need moments: a factor, for machines that are emulated."""

import os

VARIABLE = "FAIRLEAD_LAB_PATIENCE"
"""The environment variable that multiplies every deadline of a lab."""
FACTOR = float(os.environ.get(VARIABLE) or 1)


def patient(seconds: float) -> float:
    """This deadline on this machine."""
    return seconds * FACTOR
