"""Images in messages: read from files that callers name, measured by their headers, never opened later."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from .checks import shown
from .errors import InvalidValueError, NotFoundError, StoreError, TooLargeError
from .event_loop import off_loop
from .files import read_file
from .messages import Message
from .records import Value

MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""Maximum size of an image file: providers accept it, and a message can hold it in base64."""
HEADER = 64 * 1024
"""How many bytes are inspected first for the size; only in a JPEG can it come later."""

_URL = re.compile(r"https?://|data:", re.IGNORECASE)
_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,", re.IGNORECASE)
_MAGIC = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
}


class ImageInfo(Value, frozen=True, kw_only=True):
    """Image properties for a token rule; the size is None if unknown, as for a remote URL.

    `detail` is "low", "high" or "auto", as in OpenAI's API.
    """

    width: int | None = None
    height: int | None = None
    detail: str = "auto"


def is_url(image: str) -> bool:
    """Return whether an image is an http(s) or data: URL, not a path."""
    return _URL.match(image) is not None


def data_url(path: str) -> str:
    """Return an image file as a data: URL.

    Raises NotFoundError if there is no such file, TooLargeError if it is over MAX_IMAGE_BYTES, and
    InvalidValueError if it is not a regular file with a PNG, JPEG, GIF or WebP image.
    """
    try:
        data = read_file(path, MAX_IMAGE_BYTES + 1)
    except NotFoundError:
        raise NotFoundError(f"no image at {shown(path)}, nor is it an http(s) or data: URL") from None
    except (StoreError, ValueError) as error:
        raise InvalidValueError(f"image cannot be read: {shown(path)}: {error}") from None
    if len(data) > MAX_IMAGE_BYTES:
        raise TooLargeError(f"image {shown(path)} has more than {MAX_IMAGE_BYTES:,} bytes")
    for media_type, magic in _MAGIC.items():
        if magic.match(data):
            return f"data:{media_type};base64,{b64encode(data).decode()}"
    raise InvalidValueError(f"image must be a PNG, JPEG, GIF or WebP file: {shown(path)}")


def with_data(message: Message, skip: Collection[str] = ()) -> Message:
    """Return a message with its image files as data: URLs, except those in `skip`.

    Raises as `data_url` does.
    """
    if all(is_url(image) or image in skip for image in message.images):
        return message
    images = [image if is_url(image) or image in skip else data_url(image) for image in message.images]
    return replace(message, images=images)


def split_data_url(url: str) -> tuple[str, str] | None:
    """Return the media type and the base64 text of a data: URL; None if it is not one in base64."""
    found = _DATA_URL.match(url)
    return None if found is None else (found[1], url[found.end() :])


def image_in(block: Any) -> str | None:
    """Return the URL of an image block in OpenAI's or Anthropic's format; None for any other block.

    Blocks that name an image in another way, such as by a path, are ignored: a conversation can come from
    anywhere and must not make this machine read its files.
    """
    match block:
        case {"type": "image", "source": {"type": "base64", "media_type": str(kind), "data": str(data)}}:
            return f"data:{kind};base64,{data}"
        case {"type": "image", "source": {"type": "url", "url": str(url)}} if is_url(url):
            return url
        case {"type": "image_url", "image_url": {"url": str(url)}} if is_url(url):
            return url
        case {"type": "input_image", "image_url": str(url)} if is_url(url):
            return url
    return None


def image_info(image: str | None, detail: object = None) -> ImageInfo:
    """Return the known properties of an image, without fetching or opening anything."""
    level = detail if isinstance(detail, str) else "auto"
    parts = None if image is None or image[:5].lower() != "data:" else split_data_url(image)
    size = None if parts is None else _size_in(parts[1])
    width, height = size or (None, None)
    return ImageInfo(width=width, height=height, detail=level)


def _size_in(text: str) -> tuple[int, int] | None:
    for part in (text[:HEADER], text) if len(text) > HEADER else (text,):
        try:
            data = b64decode(part)
        except (Base64Error, ValueError):
            return None
        if (size := _size_of(data)) is not None:
            return size
    return None


def _size_of(data: bytes) -> tuple[int, int] | None:
    """Return the width and height in an image's header; None if there are none."""
    size = None
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        size = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    elif data[:4] == b"GIF8" and len(data) >= 10:
        size = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    elif data[:2] == b"\xff\xd8":
        size = _size_of_jpeg(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP" and len(data) >= 30:
        size = _size_of_webp(data)
    return size if size is not None and all(size) else None


def _size_of_jpeg(data: bytes) -> tuple[int, int] | None:
    place = 2
    while place + 9 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:
            place += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = data[place + 5 : place + 7], data[place + 7 : place + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        else:
            place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return None


def _size_of_webp(data: bytes) -> tuple[int, int] | None:
    if data[12:16] == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if data[12:16] == b"VP8 ":
        width, height = data[26:28], data[28:30]
        return int.from_bytes(width, "little") & 0x3FFF, int.from_bytes(height, "little") & 0x3FFF
    return None


async def read_images(messages: list[Message], skip: Collection[str] = ()) -> list[Message]:
    """Return messages with their image files read, except those in `skip`; raises as `data_url` does."""
    if not any(message.images for message in messages):
        return messages
    return await off_loop(lambda: [with_data(message, skip) for message in messages])
