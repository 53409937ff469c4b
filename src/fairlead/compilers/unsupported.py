"""The one refusal: what a compiler cannot do is said by the compiler, so no list of capabilities can drift from it."""


class Unsupported(Exception):
    """`option`, in words of the API, cannot be done by `provider`."""

    def __init__(self, option: str, provider: str) -> None:
        super().__init__(f"{provider} does not support {option}")
        self.option = option
        self.provider = provider
