"""What all errors of ours have in common that a user can mend."""


class OneLineError(ValueError):
    """An error whose message says all; in a notebook it is shown without the traceback."""

    def _render_traceback_(self) -> list[str]:  # IPython asks for it
        return [f"{type(self).__name__}: {self}"]
