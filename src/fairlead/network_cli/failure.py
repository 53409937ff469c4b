"""Why a command failed, in one place, because every file of it may say so."""


class Failure(Exception):
    """The command failed; the message is what the caller reads behind `Error: `."""


class Misuse(Failure):
    """The words are not those of the command: how it is said is shown as well."""
