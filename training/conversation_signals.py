"""Adds to conversations what recall's signals other than vectors say about each turn, as the trainer wants them.

usage: conversation_signals.py SET.jsonl … OUT.npz

The embedder learns to add to these signals, so it need not learn what words and speakers tell already, and the turns
that recall takes for answers are what it has to tell apart.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from msgspec.structs import asdict, replace

import mnemic
from mnemic.layers.index import IndexLayer
from mnemic.recall.document_view import DocumentView
from mnemic.recall.index_entry import chunks
from mnemic.recall.question import analyze_question
from mnemic.recall.scoring import LONG, SHORT, Weights, signals
from mnemic.recallset import Conversation, read_recall_set
from mnemic.sync import Memory

STEP = 20
"""How many steps a score has between two whole numbers."""
ADVERSARIAL = "5"
WEIGHTS = Weights(
    lexical=2.6, coverage=1.0, dense=2.2, context=1.7, session=1.2, speaker=2.7, role=2.4, time=1.7, date=3.0,
    number=1.3, question=-0.5, length=0.4, recency=0.1, latest=1.0, importance=0.6, graph=0.8,
)  # fmt: skip
LONG_TURNS = {"length": -1.7, "question": 0.3, "dense": 1.2, "context": -1.1, "session": -1.2, "number": 0.25}
"""The weights that recall had when the model was trained; they stay, so that the model can be made again."""


def weights_of(view: DocumentView) -> Weights:
    """Return the weights for the length of a conversation's turns."""
    long = min(max((view.mean_length - SHORT) / (LONG - SHORT), 0.0), 1.0)
    return Weights(**{name: weight + long * LONG_TURNS.get(name, 0.0) for name, weight in asdict(WEIGHTS).items()})


def signals_of(
    memory: Memory, conversation: Conversation
) -> tuple[dict[str, Any], np.ndarray[Any, np.dtype[np.uint8]]]:
    """Return a conversation as the trainer reads it, and the scores of its turns for each of its questions."""
    space = memory.scope("training", conversation.id)
    for session, messages in conversation.sessions.items():
        space.session(session).add_many(messages)
    space.recall("nothing", 1)
    layer = memory._async._index
    assert isinstance(layer, IndexLayer)
    table = layer._cache._indexes[f"training/{conversation.id}"].table
    view = DocumentView(table)
    weights = weights_of(view)
    vectors = [weights.dense, weights.context]
    # The turns have no times but those at which this runs.
    weights = replace(weights, dense=0.0, context=0.0, recency=0.0, latest=0.0)
    places = {(table.ref(n).scope.name, table.keys[n]): n for n in range(len(table))}
    texts = [""] * len(table)
    for session, messages in conversation.sessions.items():
        for message in messages:
            if (place := places.get((session, str(message.id)))) is not None:
                texts[place] = message.text
    asked, rows = [], []
    for question in conversation.questions:
        evidence = [places[place] for place in question.evidence if place in places]
        if not evidence or str(question.category) == ADVERSARIAL:
            continue
        found = analyze_question(question.text, table.speakers)
        parts = signals(table, view, found, None, None, None, weights).parts
        total = sum(parts.values()) + np.zeros(len(table), dtype=np.float32)
        rows.append(np.clip(np.rint((total - total.min()) * STEP), 0, 255).astype(np.uint8))
        asked.append((found.masked, evidence))
    made = {
        "texts": [chunks(text) for text in texts],
        "sessions": table.session.values.tolist(),
        "questions": asked,
        "weights": vectors,
    }
    return made, np.stack(rows) if rows else np.zeros((0, len(table)), dtype=np.uint8)


def main(sources: list[str], into: str) -> None:
    """Write all sets into one file."""
    found: list[dict[str, Any]] = []
    arrays = {}
    for source in sources:
        with mnemic.open("memory://", embedder="none") as memory:
            for conversation in read_recall_set(source):
                made, scores = signals_of(memory, conversation)
                if len(scores):
                    arrays[f"scores{len(found)}"] = scores
                    found.append(made)
    np.savez(into, conversations=np.frombuffer(json.dumps(found).encode(), dtype=np.uint8), **arrays)


if __name__ == "__main__":
    main(sys.argv[1:-1], sys.argv[-1])
