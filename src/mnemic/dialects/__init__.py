"""The documented memory APIs of other agent frameworks over Mnemic: what uses those changes its imports."""

__all__: list[str] = []
