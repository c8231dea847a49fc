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
from msgspec.structs import replace

import mnemic
from mnemic.layers.index import IndexLayer
from mnemic.recall.document_view import DocumentView
from mnemic.recall.index_entry import chunks
from mnemic.recall.question import analyze_question
from mnemic.recall.scoring import signals, weights_for
from mnemic.recallset import Conversation, read_recall_set
from mnemic.sync import Memory

STEP = 20
"""How many steps a score has between two whole numbers."""
ADVERSARIAL = "5"


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
    weights = weights_for(view, 1.0)
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
        parts = signals(table, view, found, None, None, None, replace(weights, dense=0.0, context=0.0)).parts
        total = sum(parts.values()) + np.zeros(len(table), dtype=np.float32)
        rows.append(np.clip(np.rint((total - total.min()) * STEP), 0, 255).astype(np.uint8))
        asked.append((found.masked, evidence))
    made = {
        "texts": [chunks(text) for text in texts],
        "sessions": table.session.values.tolist(),
        "questions": asked,
        "weights": [weights.dense, weights.context],
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
