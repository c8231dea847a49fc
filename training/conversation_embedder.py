"""Fine-tunes all-MiniLM-L6-v2 so that its vectors, added to recall's other signals, find what answers a question.

usage: conversation_embedder.py TEACHER TRAIN.npz OUT.safetensors

TEACHER is a folder with all-MiniLM-L6-v2 as transformers reads it, TRAIN a file that conversation_signals.py wrote.
Needs torch, transformers and a GPU, for some minutes. The same versions of these on the same kind of GPU write the same
file to the bit.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import AutoModel

from mnemic.models.static import StaticEmbedder

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it sums are taken in any order
torch.use_deterministic_algorithms(True)

Tensor = torch.Tensor
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEP = 20
"""How many steps a stored score has between two whole numbers."""
NEAR = {-2: 0.6, -1: 1.0, 1: 0.8, 2: 0.3}
"""Weights of neighboring turns, as in recall."""
UNRELATED, FARTHEST, SPREAD = 0.1, -0.5, 0.2
MAX_TOKENS = 256


class Settings(NamedTuple):
    """What a run of training varies."""

    rate: float = 4e-5
    passes: int = 1000
    """How many times one conversation is read."""
    at_once: int = 4
    """How many conversations make one step."""
    questions: int = 64
    alone: float = 1.5
    """How much it counts that the vectors find the answer without other signals."""
    keep: float = 0.5
    keep_long: float = 3.0
    """How much it counts that vectors stay where they were, of short turns and of long ones."""
    share: float = 0.64
    """Weight of the static vectors beside the transformer's."""
    trust: float = 1.6
    learned: float = 0.8
    """Share of the learned weights in the mean of them and the first ones, which know what the texts do not say."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """One model is trained with each, and their weights are averaged."""


class Scope:
    """A conversation on the GPU: tokens of the chunks of its turns, static vectors, neighbors, and questions."""

    def __init__(self, given: dict[str, Any], scores: np.ndarray[Any, Any], tokenizer: Tokenizer, static: Any) -> None:
        texts = [chunk for chunks in given["texts"] for chunk in chunks]
        self.turns = len(given["texts"])
        counts = np.array([len(chunks) for chunks in given["texts"]])
        firsts = np.cumsum(counts) - counts
        self.first = torch.tensor(firsts, device=DEVICE)
        # The chunks of each turn; where it has fewer, the one after the last chunk of all.
        each = np.arange(counts.max())
        self.chunks = torch.tensor(np.where(each < counts[:, None], firsts[:, None] + each, len(texts)), device=DEVICE)
        sessions = np.array(given["sessions"])
        places = np.arange(self.turns)
        self.near = {}
        for step in NEAR:
            other = np.clip(places + step, 0, self.turns - 1)
            inside = (places + step == other) & (sessions[other] == sessions)
            self.near[step] = torch.tensor(np.where(inside, other, self.turns), device=DEVICE)
        self.batches = Batches([one.ids for one in tokenizer.encode_batch(texts)])
        self.static = torch.tensor(static.embed(texts), device=DEVICE)
        self.weights: tuple[float, float] = tuple(given["weights"])
        asked = [text for text, _ in given["questions"]]
        self.asked = [one.ids for one in tokenizer.encode_batch(asked)]
        self.asked_static = torch.tensor(static.embed(asked), device=DEVICE)
        self.wanted = torch.zeros(scores.shape, device=DEVICE)
        for row, (_, evidence) in zip(self.wanted, given["questions"], strict=True):
            row[evidence] = 1.0
        self.scores = torch.tensor(scores.astype(np.float32) / STEP, device=DEVICE)
        self.was: Tensor | None = None
        """Vectors of the chunks before training."""


def load_scopes(path: str, tokenizer: Tokenizer) -> list[Scope]:
    """Read conversations."""
    static = StaticEmbedder()
    with np.load(path) as file:
        found = json.loads(file["conversations"].tobytes())
        return [Scope(given, file[f"scores{n}"], tokenizer, static) for n, given in enumerate(found)]


class Batches:
    """Texts on the GPU, those of about the same length together."""

    def __init__(self, tokens: list[list[int]], at_once: int = 32_768) -> None:
        order = sorted(range(len(tokens)), key=lambda n: len(tokens[n]))
        self.parts: list[tuple[Tensor, Tensor]] = []
        start = 0
        while start < len(order):
            count = 1
            while start + count < len(order) and (count + 1) * len(tokens[order[start + count]]) <= at_once:
                count += 1
            places = order[start : start + count]
            batch = np.zeros((count, len(tokens[places[-1]])), dtype=np.int64)
            for row, place in zip(batch, places, strict=True):
                row[: len(tokens[place])] = tokens[place]
            ids = torch.from_numpy(batch).to(DEVICE)
            self.parts.append((ids, (ids > 0).long()))
            start += count
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(order))
        self.back = back.to(DEVICE)


def embed(model: Any, batches: Batches) -> Tensor:
    """Return the vectors of texts, of length one."""
    rows = []
    for ids, mask in batches.parts:
        with torch.autocast(DEVICE, torch.bfloat16):
            hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        mean = (hidden.float() * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        rows.append(functional.normalize(mean))
    return torch.cat(rows)[batches.back]


def of_turns(scope: Scope, cosines: Tensor) -> Tensor:
    """Return the cosine of each turn's closest chunk, for each question."""
    if scope.turns == cosines.shape[1]:
        return cosines
    return functional.pad(cosines, (0, 1), value=-1.0)[:, scope.chunks].amax(2)


def scaled(values: Tensor) -> Tensor:
    """Scale cosines as recall does: the best is 1, unless it is poor, and the mean 0."""
    middle = (values.sum(1, keepdim=True) + 10 * UNRELATED) / (values.shape[1] + 10)
    best = values.amax(1, keepdim=True)
    return ((values - middle) / (best - middle).clamp_min(SPREAD)).clamp_min(FARTHEST)


def ranked(scope: Scope, some: Tensor, chunks: Tensor, asked: Tensor, share: float, trust: float) -> Tensor:
    """Return the scores that recall gives turns, from the vectors of their chunks and of some questions."""
    static = scope.asked_static[some] @ scope.static.T
    close = of_turns(scope, (asked @ chunks.T + share * static) / (1 + share))
    joined = torch.cat((chunks.detach(), share**0.5 * scope.static), 1)[scope.first] / (1 + share) ** 0.5
    total = joined.clone()
    around = close.clone()
    padded_rows = torch.cat((joined, torch.zeros_like(joined[:1])))
    padded = torch.cat((close, torch.zeros_like(close[:, :1])), 1)
    for step, weight in NEAR.items():
        total += weight * padded_rows[scope.near[step]]
        around = around + weight * padded[:, scope.near[step]]
    around = around / total.norm(dim=1).clamp_min(1e-3)
    dense, context = scope.weights
    return scope.scores[some] + trust * (dense * scaled(close) + context * scaled(around))


def surprise(logits: Tensor, wanted: Tensor) -> Tensor:
    """Return how unlikely each turn of the evidence is among the turns that are none."""
    others = logits.masked_fill(wanted > 0, -1e4).logsumexp(1, keepdim=True)
    return ((functional.softplus(others - logits) * wanted).sum(1) / wanted.sum(1)).mean()


def load_model(folder: str) -> Any:
    """Return the first model, its weights rounded to half precision, as they are written in the end."""
    return AutoModel.from_pretrained(folder, dtype=torch.float16).float().to(DEVICE).eval()


def train(folder: str, source: str, settings: Settings, seed: int) -> dict[str, Tensor]:
    """Return the weights of the fine-tuned model."""
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    scopes = load_scopes(source, tokenizer)
    chance = random.Random(seed)
    model, first = load_model(folder), load_model(folder)
    steps = settings.passes // settings.at_once
    slow = [p for name, p in model.named_parameters() if p.ndim < 2 or "embeddings" in name]
    fast = [p for name, p in model.named_parameters() if not (p.ndim < 2 or "embeddings" in name)]
    groups = [{"params": slow, "weight_decay": 0.0}, {"params": fast, "weight_decay": 0.01}]
    optimizer = torch.optim.AdamW(groups, lr=settings.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.rate, total_steps=steps, pct_start=0.1)
    chances = [min(len(scope.wanted), settings.questions) ** 0.7 for scope in scopes]
    began = time.monotonic()
    total = torch.zeros((), device=DEVICE)
    for step in range(steps):
        for scope in chance.choices(scopes, chances, k=settings.at_once):
            places = chance.sample(range(len(scope.asked)), min(len(scope.asked), settings.questions))
            some = torch.tensor(places, device=DEVICE)
            asked = embed(model, Batches([scope.asked[place] for place in places]))
            chunks, wanted = embed(model, scope.batches), scope.wanted[some]
            loss = surprise(ranked(scope, some, chunks, asked, settings.share, settings.trust), wanted)
            total += loss.detach()
            loss = loss + settings.alone * surprise(20 * of_turns(scope, asked @ chunks.T), wanted)
            if scope.was is None:
                with torch.no_grad():
                    scope.was = embed(first, scope.batches)
            keep = settings.keep_long if chunks.shape[0] > 1.5 * scope.turns else settings.keep
            loss = loss + keep * (1 - (chunks * scope.was).sum(1)).mean()
            (loss / settings.at_once).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 49:
            print(
                seed,
                step + 1,
                f"{total.item() / 50 / settings.at_once:.4f} {time.monotonic() - began:.0f} s",
                flush=True,
            )
            total.zero_()
    return {name: value.cpu() for name, value in model.state_dict().items()}


def averaged(first: dict[str, Tensor], learned: list[dict[str, Tensor]], share: float) -> dict[str, Tensor]:
    """Return a mean of weights: `share` of the learned ones' mean, the rest of the first ones."""
    return {
        name: (1 - share) * value + share * sum(one[name].double() for one in learned) / len(learned)
        for name, value in first.items()
        if value.is_floating_point()
    }


def main(folder: str, source: str, into: str) -> None:
    """Train, and write the weights."""
    settings = Settings()
    with ProcessPoolExecutor(len(settings.seeds), get_context("spawn")) as pool:
        learned = list(pool.map(partial(train, folder, source, settings), settings.seeds))
    first = {name: value.cpu().double() for name, value in load_model(folder).state_dict().items()}
    made = averaged(first, learned, settings.learned)
    save_file({name: value.half().contiguous() for name, value in made.items()}, into)


if __name__ == "__main__":
    main(*sys.argv[1:4])
