"""The recipes in use: chats of several turns with two users, which another process continues."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes import check_chats


@pytest.mark.parametrize("page", ["ag2", "autogen", "dspy", "haystack", "smolagents"])
def test_a_chat_of_several_turns_is_continued_in_another_process(page: str, tmp_path: Path) -> None:
    check_chats(page, tmp_path)
