"""The waist: what a back-end must do, and the values that pass through it."""

__all__: list[str] = []
