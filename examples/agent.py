"""An agent with tools and a memory, in two processes' worth of conversation.

Offline it follows a script. With MNEMIC_MODEL set to a name that pydantic-ai knows, or with a key of OpenAI
or Anthropic in the environment and `pip install "pydantic-ai-slim[openai,anthropic]"`, a real model answers.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import mnemic
from mnemic.agents import Agent, open_journal

KEYS = {"OPENAI_API_KEY": "openai:gpt-5-mini", "ANTHROPIC_API_KEY": "anthropic:claude-haiku-4-5"}


def model() -> Any:
    """Return the model that the environment asks for, or the script."""
    named = os.environ.get("MNEMIC_MODEL")
    return named or next((name for key, name in KEYS.items() if os.environ.get(key)), FunctionModel(script))


async def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer as a model would that reads what it is shown."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        done = {"write_note": "Noted: you like degrees in Celsius.", "remember": "I will remember that."}
        return _says(done.get(last.tool_name, f"{last.content}."))
    asked = str(getattr(last, "content", ""))
    shown = str([part for message in messages for part in message.parts])
    if "Celsius" in asked:
        return _calls("write_note", key="preferences", value={"unit": "celsius"}, description="How Alice likes things")
    if "allergic" in asked and "?" not in asked:
        return _calls("remember", text="Alice's sister is allergic to shellfish", importance=5)
    if city := re.search(r"weather in (\w+)", asked):
        unit = "celsius" if "preferences" in shown else "fahrenheit"
        return _calls("get_weather", city=city[1], unit=unit)
    found = re.search(r"allergic to (\w+)", shown)
    return _says(f"Your sister is allergic to {found[1]}." if found else "I do not know.")


def _says(text: str) -> ModelResponse:
    return ModelResponse([TextPart(text)])


def _calls(tool: str, **arguments: Any) -> ModelResponse:
    return ModelResponse([ToolCallPart(tool, arguments)])


def get_weather(city: str, unit: str) -> str:
    """Tell the weather in a city, in a unit, celsius or fahrenheit."""
    return f"{city} has 18 degrees Celsius" if unit == "celsius" else f"{city} has 64 degrees Fahrenheit"


def talk(url: str, session: str, *prompts: str) -> None:
    """Hold a conversation, as one process would."""
    with mnemic.open(url) as memory:
        alice = memory.scope("acme", "alice")
        instructions = "Help the user. Remember what they prefer."
        with Agent("Assistant", instructions, [get_weather], model=model(), memory=alice, session=session) as agent:
            for prompt in prompts:
                print(f"  user       {prompt}")
                print(f"  assistant  {agent.run_sync(prompt).output}")


def main() -> int:
    """Talk on Monday, and again on Friday; then see what the agent wrote, and take back the last of it."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'agent.db'}"
        print("Monday")
        talk(url, "monday", "Hi, I'm Alice. Celsius, please.", "By the way, my sister is allergic to shellfish.")
        print("Friday, with nothing but the file")
        talk(url, "friday", "What's the weather in Lisbon?", "And what was my sister allergic to?")
        print("What the agent wrote, and why")
        with mnemic.open(url) as memory:
            journal = open_journal(memory.scope("acme", "alice"))
            for act in journal.history():
                print(f"  {act.what:<10} by {act.by.agent} in {act.by.session}: {act.changes[0].key[:12]}")
            for act in journal.undo_last():
                print(f"  {act.what:<10} by {act.by.agent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
