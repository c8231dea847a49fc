"""Drop-in replacements for the documented memory APIs of other agent frameworks."""

__all__: list[str] = []
