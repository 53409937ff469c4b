"""All tests of this folder run in a lab."""

from harness.lab.fixtures import lab, machine, native, native_machine, tidy

__all__ = ["lab", "machine", "native", "native_machine", "tidy"]
