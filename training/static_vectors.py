"""Trains the table of static vectors: a row for each piece of the vocabulary, whose sum stands for a text.

usage: static_vectors.py TEACHER TEXTS OUT

TEACHER is a folder with all-MiniLM-L6-v2 as transformers reads it, TEXTS a file that texts.py wrote, OUT the folder
for static_vectors.npy and static_vocabulary.txt. Needs torch, transformers and a GPU, for two minutes.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import AutoModel

from mnemic.models.static import WordPieces, words

PIECES = 36_000
"""How many rows the table has."""
DIMENSIONS = 256
SALADS = 400_000
"""How many texts of a few random words are added, so that rare words are learned too."""
BATCH = 2048
NEIGHBOURS = 16
"""How many consecutive texts a batch takes: they share a topic, as do the turns among which recall has to choose."""
STEPS = 16_000
RATE = 2e-3
LIKENESS = 3.0
"""How much the likenesses within a batch count beside the vectors themselves."""
TEMPERATURE = 0.05
"""Of the likenesses within a batch, as they are compared with the teacher's."""

Tensor = torch.Tensor


def vocabulary(teacher: Any, counts: Counter[str]) -> list[str]:
    """Return the teacher's Latin pieces, and the most frequent words of the texts that it would cut up."""
    pieces = sorted(teacher.get_vocab(), key=teacher.get_vocab().__getitem__)
    latin = [piece for piece in pieces if re.fullmatch(r"(##)?[a-z0-9]+", piece)]
    known = set(latin)
    more = [
        word for word, _ in counts.most_common() if word not in known and re.fullmatch(r"[a-z0-9]+('[a-z0-9]+)*", word)
    ]
    return latin + more[: PIECES - len(latin)]


def encode(model: Any, folder: str, texts: list[str]) -> Tensor:
    """Return the teacher's vectors of texts, of length one, in half precision."""
    with ProcessPoolExecutor(initializer=_begin_teacher, initargs=(folder,)) as pool:
        ids = list(pool.map(_teacher_ids, texts, chunksize=5_000))
    order = sorted(range(len(texts)), key=lambda n: len(ids[n]))
    found = torch.empty((len(texts), model.config.hidden_size), dtype=torch.float16, device="cuda")
    for start in range(0, len(order), 1024):
        places = order[start : start + 1024]
        batch = np.zeros((len(places), len(ids[places[-1]])), dtype=np.int64)
        for row, place in zip(batch, places, strict=True):
            row[: len(ids[place])] = ids[place]
        given = torch.from_numpy(batch).cuda()
        mask = (given > 0).long()
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
            hidden = model(input_ids=given, attention_mask=mask).last_hidden_state.float()
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        found[torch.tensor(places, device="cuda")] = functional.normalize(mean).half()
    return found


def principal(vectors: Tensor) -> Tensor:
    """Return the directions in which vectors differ most, as columns."""
    some = vectors[torch.randperm(len(vectors), device="cuda")[:200_000]].float()
    _, directions = torch.linalg.eigh(some.T @ some)
    return directions.flip(1)[:, :DIMENSIONS].contiguous()


def train(table: Tensor, tokens: Tensor, offsets: Tensor, targets: Tensor, directions: Tensor) -> Tensor:
    """Fit the table: sums of rows are to point where the teacher's vectors do, and to be alike where those are."""
    table = table.clone().requires_grad_()
    optimizer = torch.optim.Adam([table], lr=RATE, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS, pct_start=0.05)
    began = time.monotonic()
    for step in range(STEPS):
        first = torch.randint(len(targets) - NEIGHBOURS, (BATCH // NEIGHBOURS, 1), device="cuda")
        places = (first + torch.arange(NEIGHBOURS, device="cuda")).flatten()
        starts, sizes = offsets[places], offsets[places + 1] - offsets[places]
        ends = sizes.cumsum(0)
        inside = torch.arange(int(ends[-1]), device="cuda") - (ends - sizes).repeat_interleave(sizes)
        found = tokens[starts.repeat_interleave(sizes) + inside]
        student = functional.normalize(functional.embedding_bag(found, table, ends - sizes, mode="sum"))
        teacher = targets[places].float()
        near = functional.normalize(teacher @ directions)
        loss = (1 - (student * near).sum(1)).mean()
        itself = torch.eye(BATCH, device="cuda", dtype=torch.bool)
        likely = ((teacher @ teacher.T) / TEMPERATURE).masked_fill(itself, -1e4).softmax(1)
        guess = ((student @ student.T) / TEMPERATURE).masked_fill(itself, -1e4).log_softmax(1)
        likeness = functional.kl_div(guess, likely, reduction="batchmean")
        (loss + LIKENESS * likeness).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 1000 == 999:
            print(step + 1, f"{loss.item():.4f} {likeness.item():.4f} {time.monotonic() - began:.0f} s", flush=True)
    return table.detach()


def quantize(table: Tensor) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Return the table in eight bits, on one scale; the few values beyond it are cut."""
    values = table.cpu().numpy()
    scale = np.quantile(np.abs(values), 0.9999) / 127
    return np.clip(np.rint(values / scale), -127, 127).astype(np.int8)


_cut: WordPieces
_teacher: Tokenizer


def _begin_teacher(folder: str) -> None:
    global _teacher
    _teacher = Tokenizer.from_file(f"{folder}/tokenizer.json")
    _teacher.no_padding()
    _teacher.enable_truncation(256)


def _teacher_ids(text: str) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(_teacher.encode(text).ids, dtype=np.int32)


def _begin(pieces: list[str]) -> None:
    global _cut
    _cut = WordPieces(pieces)


def _bag(text: str) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(_cut.cut(text), dtype=np.int32)


def main(teacher: str, source: str, out: str) -> None:
    """Train and write the file."""
    random.seed(1)
    torch.manual_seed(1)
    began = time.monotonic()
    model = AutoModel.from_pretrained(teacher).float().cuda().eval()
    texts = Path(source).read_text(encoding="utf-8").splitlines()
    with ProcessPoolExecutor() as pool:
        counts = Counter(chain.from_iterable(pool.map(words, texts, chunksize=10_000)))
    pieces = vocabulary(Tokenizer.from_file(f"{teacher}/tokenizer.json"), counts)
    whole = [piece for piece in pieces if not piece.startswith("##")]
    texts += [" ".join(random.sample(whole, random.choice((1, 2, 3, 3)))) for _ in range(SALADS)]
    with ProcessPoolExecutor(initializer=_begin, initargs=(pieces,)) as pool:
        found = list(pool.map(_bag, texts, chunksize=10_000))
    kept = [n for n, bag in enumerate(found) if len(bag)]
    texts, found = [texts[n] for n in kept], [found[n] for n in kept]
    tokens = torch.tensor(np.concatenate(found), device="cuda", dtype=torch.long)
    offsets = torch.tensor(np.cumsum([0, *map(len, found)]), device="cuda")
    print(len(texts), "texts,", len(tokens), "pieces,", f"{time.monotonic() - began:.0f} s", flush=True)
    targets = encode(model, teacher, texts)
    print("encoded", f"{time.monotonic() - began:.0f} s", flush=True)
    directions = principal(targets)
    alone = encode(model, teacher, [piece.removeprefix("##") for piece in pieces]).float() @ directions
    share = torch.bincount(tokens, minlength=len(pieces)).float() / len(tokens)
    start = functional.normalize(alone) * (1e-4 / (1e-4 + share))[:, None]
    table = train(start, tokens, offsets, targets, directions)
    np.save(f"{out}/static_vectors.npy", quantize(table))
    Path(out, "static_vocabulary.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="ascii")


if __name__ == "__main__":
    main(*sys.argv[1:])
