"""The recipe for LiteLLM in use."""

from __future__ import annotations

from pathlib import Path

from recipes import check_chats


def test_a_chat_of_several_turns_is_continued_in_another_process(tmp_path: Path) -> None:
    check_chats("litellm", tmp_path)
