"""The error of a compiler that lacks a feature, in terms of the model; each API front end words it for its clients."""

from fairlead.model.documents.abilities import Feature


class Unsupported(Exception):
    """The provider lacks the requested feature: a Feature, or a phrase for all front ends if none fits.

    `remedy` is advice for the operator.
    """

    def __init__(self, asked: Feature | str, provider: str, remedy: str = "") -> None:
        super().__init__(f"{provider} does not support {asked}")
        self.feature = asked
        self.provider = provider
        self.remedy = remedy

    @property
    def advice(self) -> str:
        """Suffix for the message of a front end."""
        return f" ({self.remedy})" if self.remedy else ""
