"""Real LangGraph graphs and LangChain agents on Mnemic's store and checkpointer, with scripted models."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.tools import ToolRuntime, tool
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.types import Send

import mnemic
from mnemic.adapters.langgraph import MnemicSaver, MnemicStore

INTERRUPTED = """
import sys
from typing import TypedDict
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from mnemic.adapters.langgraph import MnemicSaver

class State(TypedDict, total=False):
    order: str
    approved: bool

graph = StateGraph(State)
graph.add_node("ask", lambda state: {"approved": interrupt({"ship?": state["order"]})})
graph.add_edge(START, "ask")
graph.add_edge("ask", END)
saver = MnemicSaver(sys.argv[1])
app = graph.compile(checkpointer=saver)
config = {"configurable": {"thread_id": "order/17"}}
if sys.argv[2] == "start":
    print(app.invoke({"order": "two teapots"}, config)["__interrupt__"][0].value)
else:
    print(app.get_state(config).next, app.invoke(Command(resume=True), config), app.get_state(config).next)
saver.close()
"""


def test_a_graph_that_waits_for_a_person_is_resumed_in_another_process(file_url: str) -> None:
    def run(step: str) -> str:
        command = [sys.executable, "-c", INTERRUPTED, file_url, step]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout.strip()

    assert run("start") == "{'ship?': 'two teapots'}"
    assert run("resume") == "('ask',) {'order': 'two teapots', 'approved': True} ()"


class Counted(TypedDict):
    total: Annotated[int, operator.add]
    seen: Annotated[list[str], operator.add]


def counting(saver: BaseCheckpointSaver[Any] | None, store: BaseStore | None = None) -> Any:
    """A graph with parallel tasks, a subgraph and a loop."""
    inner = StateGraph(Counted)
    inner.add_node("inside", lambda state: {"total": 1, "seen": ["inside"]})
    inner.add_edge(START, "inside")
    graph = StateGraph(Counted)
    graph.add_node("each", lambda n: {"total": n["n"], "seen": [f"each {n['n']}"]})
    graph.add_node("sub", inner.compile(checkpointer=True))
    graph.add_conditional_edges(START, lambda state: [Send("each", {"n": n}) for n in range(3)])
    graph.add_edge("each", "sub")
    graph.add_conditional_edges("sub", lambda state: END if state["total"] > 20 else "sub")
    return graph.compile(checkpointer=saver, store=store)


def history(app: Any, config: RunnableConfig) -> list[Any]:
    return [(one.values, one.next, one.metadata) for one in app.get_state_history(config)]


def test_a_graph_has_the_same_history_as_on_the_own_saver_of_langgraph(file_url: str) -> None:
    saver, oracle = MnemicSaver(file_url), InMemorySaver()
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    states = []
    for one in (saver, oracle):
        app = counting(one)
        app.invoke({"total": 0, "seen": []}, config)
        first = app.get_state(config)
        middle = next(state for state in app.get_state_history(config) if state.next == ("sub",))
        app.update_state(middle.config, {"total": 100, "seen": ["edited"]}, as_node="each")
        app.invoke(None, config)
        states.append((first.values, history(app, config)))
    assert _without_ids(states[0]) == _without_ids(states[1])
    assert states[0][1][0][0]["total"] > 100
    saver.close()


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_ids(inner) for key, inner in value.items() if key not in ("parents",)}
    return [_without_ids(inner) for inner in value] if isinstance(value, list | tuple) else value


@pytest.mark.asyncio
async def test_graphs_run_on_event_loops(file_url: str) -> None:
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    async with mnemic.open_async(file_url) as memory:
        app = counting(MnemicSaver(memory), MnemicStore(memory))
        values = await app.ainvoke({"total": 0, "seen": []}, config)
        assert (await app.aget_state(config)).values == values
        assert len([state async for state in app.aget_state_history(config)]) > 4
    saver = MnemicSaver(file_url)
    assert counting(saver).get_state(config).values == values
    saver.close()


def join(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(text for write in writes for text in write)]


class Log(TypedDict):
    log: Annotated[list[str], DeltaChannel(join, list, snapshot_frequency=4)]


def test_a_delta_channel_outlives_pruning(file_url: str) -> None:
    graph = StateGraph(Log)
    graph.add_node("add", lambda state: {"log": [f"{len(state['log'])}"]})
    graph.add_edge(START, "add")
    saver = MnemicSaver(file_url)
    app = graph.compile(checkpointer=saver)
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    for turn in range(7):
        values = app.invoke({"log": ["in"]}, config)
        before = len(list(saver.list(config)))
        saver.prune(["t"])
        assert len(list(saver.list(config))) <= min(before, 12)
        assert app.get_state(config).values == values
        assert len(values["log"]) == 2 * (turn + 1)
    saver.close()


class Scripted(GenericFakeChatModel):
    """A model that says what a script says."""

    def bind_tools(self, tools: Any, **options: Any) -> Runnable[Any, Any]:
        return self


def scripted(*answers: str | AIMessage) -> Scripted:
    return Scripted(messages=iter([one if isinstance(one, AIMessage) else AIMessage(one) for one in answers]))


def call(name: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call {name}", "type": "tool_call"}])


@dataclass
class User:
    name: str


@tool
def save(text: str, runtime: ToolRuntime[User]) -> str:
    """Remember a text about the user."""
    assert runtime.store is not None
    runtime.store.put(("users", runtime.context.name), text[:8], {"memory": text})
    return "saved"


@tool
def find(query: str, runtime: ToolRuntime[User]) -> str:
    """Find what is known about the user."""
    assert runtime.store is not None
    found = runtime.store.search(("users", runtime.context.name), query=query)
    return "\n".join(item.value["memory"] for item in found) or "nothing"


def agent(model: Scripted, memory: mnemic.Memory | mnemic.AsyncMemory) -> Any:
    return create_agent(
        model, tools=[save, find], store=MnemicStore(memory), checkpointer=MnemicSaver(memory), context_schema=User
    )


def ask(app: Any, text: str, *, thread: str, user: str) -> list[AnyMessage]:
    config: RunnableConfig = {"configurable": {"thread_id": thread}}
    found: list[AnyMessage] = app.invoke({"messages": [HumanMessage(text)]}, config, context=User(user))["messages"]
    return found


def test_an_agent_remembers_in_another_thread_and_another_opening(file_url: str) -> None:
    with mnemic.open(file_url) as memory:
        app = agent(scripted(call("save", text="Alice is allergic to shellfish"), "Noted."), memory)
        assert ask(app, "No shellfish for me!", thread="monday", user="alice")[-1].content == "Noted."
    with mnemic.open(file_url) as memory:
        app = agent(scripted(call("find", query="what can she not eat?"), "No shellfish.", "Yes."), memory)
        told = ask(app, "What should I avoid?", thread="friday", user="alice")
        assert told[-2].content == "Alice is allergic to shellfish"
        assert [one.content for one in ask(app, "Sure?", thread="friday", user="alice")][-2:] == ["Sure?", "Yes."]
        app = agent(scripted(call("find", query="what can she not eat?"), "No idea."), memory)
        assert ask(app, "And me?", thread="bob's", user="bob")[-2].content == "nothing"
        assert [hit.text for hit in memory.scope("users", "alice").recall("allergies")] == [
            "Alice is allergic to shellfish"
        ]
        state = app.get_state({"configurable": {"thread_id": "friday"}})
        assert [message.type for message in state.values["messages"]] == ["human", "ai", "tool", "ai", "human", "ai"]


@pytest.mark.asyncio
async def test_a_sync_tool_of_an_async_agent_uses_the_store(file_url: str) -> None:
    """LangGraph runs such a tool in a thread, while the event loop of the memory goes on."""
    async with mnemic.open_async(file_url) as memory:
        app = agent(scripted(call("save", text="Alice drinks tea"), call("find", query="tea"), "Tea."), memory)
        config: RunnableConfig = {"configurable": {"thread_id": "t"}}
        told = await app.ainvoke({"messages": [HumanMessage("I drink tea")]}, config, context=User("alice"))
        assert [one.content for one in told["messages"] if one.type == "tool"] == ["saved", "Alice drinks tea"]


def test_a_node_gets_the_store_of_its_graph(file_url: str) -> None:
    def node(state: MessagesState, runtime: Runtime[None]) -> dict[str, Any]:
        assert runtime.store is not None
        runtime.store.put(("seen",), f"{len(state['messages'])}", {"text": str(state["messages"][-1].content)})
        return {"messages": [AIMessage(f"{len(runtime.store.search(('seen',)))}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    with mnemic.open(file_url) as memory:
        app = graph.compile(checkpointer=MnemicSaver(memory), store=MnemicStore(memory))
        config: RunnableConfig = {"configurable": {"thread_id": "t"}}
        for turn in range(3):
            said = app.invoke({"messages": [HumanMessage(f"turn {turn}")]}, config)["messages"]
            assert said[-1].content == f"{turn + 1}"
        assert memory.scope("seen").stats().memories == 3


def test_the_example_asks_before_it_books() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MNEMIC_MODEL"}
    command = [sys.executable, str(Path(__file__).parents[2] / "examples" / "langgraph_agent.py")]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240, env=environment)
    assert "agent  Book the train to Naples?" in run.stdout
    assert "agent  Booked: the train to Naples." in run.stdout
    assert "memory 'Gets seasick on ferries' in users/alice" in run.stdout
    assert "thread friday with 4 messages" in run.stdout


def test_another_version_of_langgraph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from mnemic.adapters import foreign

    monkeypatch.setattr(foreign, "version", lambda name: "5.0.1")
    monkeypatch.delitem(sys.modules, "mnemic.adapters.langgraph")
    with pytest.raises(ImportError, match=r"langgraph-checkpoint>=4\.3,<5, and 5\.0\.1 is installed"):
        import mnemic.adapters.langgraph  # noqa: F401
