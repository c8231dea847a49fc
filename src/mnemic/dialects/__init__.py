"""The memory APIs of other agent frameworks over Mnemic, one thin file each: an import is all to change."""
