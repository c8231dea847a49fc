"""Recipes of the pages in use: a chat of several turns with two users, which another process continues."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from environments import PAGES

RUNS = {
    "ag2": """
async def told(text, user, thread):
    config = TrackingConfig(TestConfig("Fine."))
    async with mnemic.open_async("sqlite:///agent.db") as memory:
        await ask(memory, config, text, user, thread)
    return [str(part.content) for part in config.mock.call_args_list[0].args[0].parts]
""",
    "autogen": """
async def told(text, user, thread):
    model = ReplayChatCompletionClient(["Fine."])
    async with mnemic.open_async("sqlite:///agent.db") as memory:
        await ask(memory, model, text, user, thread)
    return [str(message.content) for message in model.create_calls[0]["messages"]]
""",
    "dspy": """
memory = mnemic.open("sqlite:///agent.db")

async def told(text, user, thread):
    model = DummyLM([{"answer": "Fine."}])
    with dspy.context(lm=model):
        chat(question=text, user=user, thread=thread)
    return [message["content"] for message in model.history[0]["messages"]]
""",
    "haystack": """
memory = mnemic.open("sqlite:///agent.db")

async def told(text, user, thread):
    return [message.text for message in ask(text, user, thread)]
""",
    "smolagents": """
memory = mnemic.open("sqlite:///agent.db")

async def told(text, user, thread):
    model = Scripted(("final_answer", {"answer": "Fine."}))
    ask(model, text, user, thread)
    return model.asked
""",
    "litellm": """
memory = mnemic.open("sqlite:///chat.db")

async def told(text, user, thread):
    _, context = chat(user, thread, text, mock_response="Fine.")
    return [message.text for message in context.messages]
""",
}
"""By page: a function that asks with the recipe, and returns what the model was shown."""
TURNS = """
import asyncio, json, sys
print(json.dumps([asyncio.run(told(*turn)) for turn in json.loads(sys.argv[1])]))
"""


def shown(page: str, folder: Path, *turns: tuple[str, str, str]) -> list[str]:
    """Run the examples of a page in another process, then a chat; return what the model was shown at each turn."""
    code = [str(example.parsed) for example in Sybil(parsers=[PythonCodeBlockParser()]).parse(PAGES / f"{page}.md")]
    script = folder / "script.py"
    script.write_text("\n".join([*code, RUNS[page], TURNS]))
    command = [sys.executable, str(script), json.dumps(turns)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder, check=False)
    assert run.returncode == 0, run.stderr
    return ["\n".join(told) for told in json.loads(run.stdout.splitlines()[-1])]


def check_chats(page: str, folder: Path) -> None:
    """Fail unless the recipe of a page shows the model its thread, once, and nothing of another user."""
    first = shown(
        page,
        folder,
        ("My cat is called Minka.", "carol", "t1"),
        ("My dog is called Rex.", "dave", "t1"),
        ("She is seven.", "carol", "t1"),
        ("What is the name of my pet?", "carol", "t1"),
        ("What is the name of my pet?", "dave", "t1"),
        ("What is the name of my pet?", "carol", "t2"),
    )
    assert [one.count("Minka") for one in first] == [1, 0, 1, 1, 0, 1]
    assert [one.count("Rex") for one in first] == [0, 1, 0, 0, 1, 0]
    assert [one.count("She is seven.") for one in first][:5] == [0, 0, 1, 1, 0]
    again = shown(page, folder, ("Where were we?", "carol", "t1"), ("Where were we?", "dave", "t1"))
    assert [one.count("Minka") for one in again] == [1, 0]
    assert [one.count("She is seven.") for one in again] == [1, 0]
    assert [one.count("Rex") for one in again] == [0, 1]
