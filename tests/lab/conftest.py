"""Fixtures for the tests of this folder, all of which run in a lab."""

from harness.lab.fixtures import lab, machine, native, native_machine, tidy

__all__ = ["lab", "machine", "native", "native_machine", "tidy"]
