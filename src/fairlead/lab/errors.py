"""Errors of the lab, all of them subclasses of `LabError`. The CLI prints their text.

LabError
├── CommandFailed       a program of the lab failed; has its standard error
├── CommandTimedOut     a program of the lab did not end in time
├── ConditionTimedOut   the lab did not reach a state in time
├── ConnectionLost      a held connection ended, or was not established
├── InvalidWorkload     a record that cannot be plugged in
├── LabNotFound         no lab of that name runs
├── LabMismatch         a lab of that name runs with other properties than requested
├── MissingTools        the machine lacks programs or files
├── NotRoot             namespaces need root
├── Unreachable         no next hop with a known MAC address
├── UnknownNode         the name is not of a chassis, central or workload
└── WorkloadExists      a workload of that name runs already
"""

from collections.abc import Sequence


class LabError(Exception):
    """Base of all errors of the lab."""


class LabCommandFailed(LabError):
    def __init__(self, argv: Sequence[str], code: int, stderr: str) -> None:
        super().__init__(f"{' '.join(argv)}: exit code {code}: {stderr.strip()}")
        self.argv = tuple(argv)
        self.code = code
        self.stderr = stderr


class CommandTimedOut(LabError):
    def __init__(self, argv: Sequence[str], seconds: float) -> None:
        super().__init__(f"{' '.join(argv)}: timed out after {seconds:g} s")


class ConditionTimedOut(LabError):
    def __init__(self, condition: str, seconds: float) -> None:
        super().__init__(f"timed out after {seconds:g} s waiting for: {condition}")


class LabConnectionLost(LabError):
    """The kind of error is one of `clients.Failure`."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"held connection lost: {kind}")
        self.kind = kind


class InvalidWorkload(LabError):
    pass


class LabNotFound(LabError):
    def __init__(self, name: str) -> None:
        super().__init__(f"lab {name!r} is not running; start it with: fairlead lab up --name {name}")


class LabMismatch(LabError):
    def __init__(self, name: str, has: str, option: str) -> None:
        super().__init__(
            f"lab {name!r} runs with {has}, which {option} cannot change; omit {option}, or remove the lab and its"
            f" contents with `fairlead lab down --name {name}`"
        )


class MissingTools(LabError):
    def __init__(self, missing: Sequence[str], packages: Sequence[str]) -> None:
        super().__init__(f"not found: {', '.join(missing)}; install with: apt-get install {' '.join(packages)}")


class NotRoot(LabError):
    def __init__(self) -> None:
        super().__init__("the lab needs root for network namespaces; try: sudo fairlead lab ...")


class WorkloadUnreachable(LabError):
    pass


class UnknownNode(LabError):
    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"{name!r} is not in this lab; it has: {', '.join(known)}")


class WorkloadExists(LabError):
    def __init__(self, name: str) -> None:
        super().__init__(f"workload {name!r} exists already; remove it with: fairlead lab workload remove {name}")
