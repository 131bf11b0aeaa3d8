"""Objects without a truth value, which ``and``, ``or``, ``not`` and ``if`` would take as True."""


class NoTruth:
    """Base of objects that combine by other operators: ``a and b`` would return b, and drop a."""

    combine = ""  # how to combine such objects

    def __bool__(self) -> bool:
        name = type(self).__name__
        raise TypeError(f"{name} objects have no truth value: {self.combine}, and compare with None by `is`")
