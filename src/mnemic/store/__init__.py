"""The back-end interface: the Store protocol, and the values that it takes and returns."""

__all__: list[str] = []
