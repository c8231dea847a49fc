"""A LangGraph agent with Mnemic as its store and its checkpointer, which asks a person before it books.

It needs `pip install "mnemic[langgraph]" langchain`. Offline it follows a script. With MNEMIC_MODEL set to a name that
LangChain knows, such as "openai:gpt-5-mini", a real model answers.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, dynamic_prompt
from langchain.tools import ToolRuntime, tool
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.types import Command, interrupt

import mnemic
from mnemic.adapters.langgraph import MnemicSaver, MnemicStore


@dataclass
class User:
    """Who is talking to the agent."""

    name: str

    @property
    def namespace(self) -> tuple[str, ...]:
        """Where the user's memories are: the scope users/NAME."""
        return ("users", self.name)


@dynamic_prompt
def prompt(request: ModelRequest[User]) -> str:
    """Tell the model what is known about the user that has to do with the last question."""
    runtime = request.runtime
    assert runtime.store is not None
    said = [str(message.content) for message in request.messages if isinstance(message, HumanMessage)]
    found = runtime.store.search(runtime.context.namespace, query=said[-1], limit=5)
    known = "".join(f"\n- {item.value['memory']}" for item in found)
    return f"Help the user to travel. What is known about the user:{known or ' nothing.'}"


@tool
def remember(text: str, runtime: ToolRuntime[User]) -> str:
    """Remember something about the user for later conversations."""
    assert runtime.store is not None
    runtime.store.put(runtime.context.namespace, runtime.tool_call_id or text, {"memory": text, "by": "agent"})
    return "Remembered."


@tool
def book(trip: str) -> str:
    """Book a trip, once a person has approved it."""
    return f"Booked: {trip}." if interrupt(f"Book {trip}?") == "yes" else "The user declined."


class Script(BaseChatModel):
    """Answers as a model would that reads what it is shown."""

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Any, **options: Any) -> Runnable[Any, AIMessage]:
        """Return the model: the script knows the tools."""
        return self

    def _generate(self, messages: Sequence[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        last, known = messages[-1], str(messages[0].content)
        if isinstance(last, ToolMessage):
            answer = AIMessage(f"{last.content} Anything else?")
        elif "seasick" in str(last.content):
            answer = _call("remember", text="Gets seasick on ferries")
        else:
            answer = _call("book", trip="the train to Naples" if "seasick" in known else "the ferry to Naples")
        return ChatResult(generations=[ChatGeneration(message=answer)])


def _call(name: str, **arguments: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"{name}-1", "type": "tool_call"}])


def talk(url: str, thread: str, said: str | Command[Any]) -> None:
    """Say something in a thread, or answer what the agent has asked, as one process would."""
    with mnemic.open(url) as memory:
        agent = create_agent(
            os.environ.get("MNEMIC_MODEL") or Script(),
            tools=[remember, book],
            middleware=[prompt],
            context_schema=User,
            store=MnemicStore(memory, fields=["memory"]),
            checkpointer=MnemicSaver(memory),
        )
        config: RunnableConfig = {"configurable": {"thread_id": thread}}
        given: Any = said if isinstance(said, Command) else {"messages": [HumanMessage(said)]}
        print(f"  user   {said.resume if isinstance(said, Command) else said}")
        answer = agent.invoke(given, config, context=User("alice"))
        asked = answer.get("__interrupt__")
        print(f"  agent  {asked[0].value if asked else answer['messages'][-1].content}")


def main() -> int:
    """Talk on Monday; on Friday, in another thread; and approve on Saturday. Each has nothing but the file."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'agent.db'}"
        print("Monday")
        talk(url, "monday", "By the way, I get seasick on ferries.")
        print("Friday, in another thread")
        talk(url, "friday", "Book me a ferry, or something better, to Naples.")
        print("Saturday, in the thread that waits")
        talk(url, "friday", Command(resume="yes"))
        print("What Mnemic has")
        with mnemic.open(url) as memory:
            for hit in memory.scope("users", "alice").recall("which ship would she take?"):
                print(f"  {hit.kind} {hit.text!r} in {hit.scope}")
            saver = MnemicSaver(memory)
            saver.prune(["monday", "friday"])
            for one in saver.list(None):
                messages = one.checkpoint["channel_values"]["messages"]
                print(f"  thread {one.config['configurable']['thread_id']} with {len(messages)} messages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
