"""Images: what they cost, when their files are read, and when they never are."""

from __future__ import annotations

import json
import os
import struct
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

import mnemic
from mnemic import ImageInfo, Message
from mnemic.images import MAX_IMAGE_BYTES, image_info
from mnemic.tokens import IMAGE_RULES, count_message, encoding


def png(width: int, height: int, more: int = 0) -> bytes:
    return b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + struct.pack(">II", width, height) + b"\x08\x06" + b"\0" * more


def jpeg(width: int, height: int, exif: int = 0) -> bytes:
    found = b"\xff\xd8"
    while exif > 0:
        found += b"\xff\xe1" + struct.pack(">H", 60_002) + b"\0" * 60_000
        exif -= 60_000
    found += b"\xff\xc4\x00\x04\x00\x00" + b"\xff\xff\xc2\x00\x11\x08" + struct.pack(">HH", height, width)
    return found + b"\x03" * 20


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0" * 10


def webp(form: bytes, width: int, height: int) -> bytes:
    head = b"RIFF\x00\x01\x00\x00WEBP" + form + b"\x10\x00\x00\x00"
    if form == b"VP8X":
        return head + b"\0" * 4 + struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    if form == b"VP8L":
        return head + b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + b"\0" * 8
    return head + b"\0" * 3 + b"\x9d\x01\x2a" + struct.pack("<HH", width, height)


def as_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{b64encode(data).decode()}"


@pytest.mark.parametrize(
    "data",
    [
        png(1800, 2400),
        gif(1800, 2400),
        jpeg(1800, 2400),
        jpeg(1800, 2400, exif=300_000),
        webp(b"VP8X", 1800, 2400),
        webp(b"VP8L", 1800, 2400),
        webp(b"VP8 ", 1800, 2400),
    ],
)
def test_a_header_tells_the_size(data: bytes) -> None:
    assert image_info(as_url(data)) == ImageInfo(width=1800, height=2400)


@pytest.mark.parametrize(
    "image",
    [
        None,
        "https://example.org/a.png",
        "data:image/svg+xml,<svg/>",
        "data:image/png;base64,####",
        as_url(b""),
        as_url(b"\x89PNG\r\n\x1a\n"),
        as_url(png(0, 5)),
        as_url(b"\xff\xd8\xff\xe0\x00\x00" * 100),
        as_url(b"\xff\xd8" + b"\xff" * 500),
        as_url(b"RIFF    WEBPVP9 " + b"\0" * 40),
    ],
)
def test_a_size_that_cannot_be_known_costs_the_most(image: str | None) -> None:
    assert image_info(image) == ImageInfo()
    for name, cost in IMAGE_RULES.items():
        sizes = [(w, h) for w in (1, 600, 2048, 9000) for h in (1, 700, 2048, 20_000)]
        most = max(cost(ImageInfo(width=w, height=h)) for w, h in sizes)
        assert cost(ImageInfo()) == most, name


@pytest.mark.parametrize(
    ("rule", "width", "height", "cost"),
    [
        ("gpt-4o", 1024, 1024, 765),
        ("gpt-4o", 2048, 4096, 1105),
        ("gpt-4o", 512, 512, 255),
        ("gpt-4o", 1, 1, 255),
        ("gpt-5", 1024, 1024, 630),
        ("gpt-4.1-mini", 1024, 1024, 1659),
        ("gpt-4.1-mini", 4000, 1474, 2489),
        ("claude", 200, 200, 54),
        ("claude", 1000, 1000, 1334),
        ("claude", 4000, 4000, 1600),
    ],
)
def test_the_rules_are_those_of_the_providers(rule: str, width: int, height: int, cost: int) -> None:
    tokens: Any = mnemic.token_counter(images=rule)
    assert tokens.count_image(ImageInfo(width=width, height=height)) == cost
    url = as_url(png(width, height))
    shown = [
        Message("user", images=[url]),
        Message("user", [{"type": "image_url", "image_url": {"url": url}}]),
        Message("user", [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": url[22:]}}]),
    ]
    for message in shown:
        assert count_message(message, tokens) == 4 + cost


def test_low_detail_costs_the_base() -> None:
    block = {"type": "image_url", "image_url": {"url": as_url(png(2000, 2000)), "detail": "low"}}
    assert count_message(Message("user", [block]), encoding()) == 4 + 85


def test_an_image_in_an_answer_of_a_tool_is_counted_as_one() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": b64encode(png(512, 512, 90_000)).decode()}
    content = [{"type": "text", "text": "Here:"}, {"type": "image", "source": source}]
    block = {"type": "tool_result", "tool_use_id": "t1", "content": content}
    assert 255 < count_message(Message("user", [block]), encoding()) < 300


def test_a_window_really_holds(alice: mnemic.Scope, tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(png(1024, 1024, 200_000))
    chat = alice.session("s")
    for n in range(5):
        chat.add("user", f"Look at this, number {n}", images=[str(tmp_path / "large.png")])
    assert len(chat.window(1000)) == 1
    assert len(chat.window(1700)) == 2
    assert all(message.images[0].startswith("data:image/png;base64,") for message in chat.messages())
    with pytest.raises(mnemic.BudgetError):
        chat.window(500)


def test_a_rule_of_ones_own() -> None:
    def by_area(image: ImageInfo) -> int:
        return (image.width or 1000) * (image.height or 1000) // 1000

    with mnemic.open("memory://", tokens=mnemic.token_counter("cl100k_base", images=by_area)) as memory:
        chat = memory.scope("a").session("s")
        chat.add("user", images=[as_url(png(100, 200)), "https://example.org/a.png"])
        info = chat.info()
        assert info is not None
        assert info.tokens == 4 + 20 + 1000
    with pytest.raises(mnemic.InvalidValueError, match=r"gpt-4o, .*claude"):
        mnemic.token_counter(images="gpt-2")


def test_a_file_is_read_when_it_is_added(chat: mnemic.Session, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png(10, 20))
    expected = as_url(png(10, 20))
    added = chat.add("user", "one", images=[str(path)])
    assert added.images == [expected]
    chat.add_many([Message("user", "two", images=[str(path), "https://example.org/b.png"])])
    path.unlink()
    assert [message.images for message in chat.messages()] == [[expected], [expected, "https://example.org/b.png"]]
    assert mnemic.to_openai(chat.messages())[0]["content"][1]["image_url"]["url"] == expected


def refused(tmp_path: Path) -> list[tuple[str, type[Exception], str]]:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "text.png").write_bytes(b"root:x:0:0")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "large.png").write_bytes(png(9, 9, MAX_IMAGE_BYTES))
    return [
        (str(tmp_path / "gone.png"), mnemic.NotFoundError, "no image at"),
        (str(tmp_path / "pipe.png"), mnemic.InvalidValueError, "not a regular file"),
        ("/dev/zero", mnemic.InvalidValueError, "not a regular file"),
        (str(tmp_path), mnemic.InvalidValueError, "cannot be read"),
        (str(tmp_path / "text.png"), mnemic.InvalidValueError, "PNG, JPEG, GIF or WebP"),
        (str(tmp_path / "empty.png"), mnemic.InvalidValueError, "PNG, JPEG, GIF or WebP"),
        (str(tmp_path / "large.png"), mnemic.TooLargeError, "more than 5,242,880 bytes"),
        ("", mnemic.MnemicError, "image"),
        ("a\0b", mnemic.InvalidValueError, "cannot be read"),
    ]


def test_a_file_that_is_no_image_is_refused_when_it_is_added(chat: mnemic.Session, tmp_path: Path) -> None:
    for path, error, told in refused(tmp_path):
        message = Message("user", "look", images=[path])
        for send in (chat.add, lambda m: chat.add_many([m]), lambda m: chat.prefill([m])):
            with pytest.raises(error, match=told):
                send(message)
    assert chat.messages() == []


def test_what_a_loaded_file_names_is_never_opened(chat: mnemic.Session, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(png(10, 20))
    os.mkfifo(tmp_path / "pipe")
    chat.add("user", "look", images=["https://example.org/a.png"])
    saved = tmp_path / "foreign.json"
    chat.save(saved, plain=True)
    foreign = json.loads(saved.read_text())
    for path in (str(secret), str(tmp_path / "pipe"), "/dev/zero", "/etc/passwd"):
        foreign["messages"][0]["images"] = [path]
        saved.write_text(json.dumps(foreign))
        assert chat.load(saved) == 1
        assert [message.images for message in chat.messages()] == [[path]]
        for write in (mnemic.to_openai, mnemic.to_anthropic):
            with pytest.raises(mnemic.InvalidValueError, match="never opened"):
                write(chat.window(5000))
        chat.fork(f"copy of {os.path.basename(path)}")  # noqa: PTH119
        assert chat.info() is not None
