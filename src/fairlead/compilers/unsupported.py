"""The one refusal of a compiler. It speaks in the words of the model; a door says it in its own."""

from fairlead.model.abilities import Feature


class Unsupported(Exception):
    """`provider` does not have what is asked for: a feature, or where none fits, a sentence's part for every door.
    `remedy` is what an operator may do about it."""

    def __init__(self, asked: Feature | str, provider: str, remedy: str = "") -> None:
        super().__init__(f"{provider} does not support {asked}")
        self.asked = asked
        self.provider = provider
        self.remedy = remedy

    @property
    def advice(self) -> str:
        """Behind what a door says."""
        return f" ({self.remedy})" if self.remedy else ""
