"""Recognizers of payment cards and IBANs, by their check digits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .recognizer import Recognizer, Span, follows

_CARD = re.compile(
    r"(?<![\w.,+\-])(?:\d{4}([ .\-\u00a0])\d{4}\1\d{4}\1\d{4}(?:\1\d{1,3})?|3\d{3}([ .\-])\d{6}\2\d{4,5}|\d{14,19})"
    r"(?![\d]|[.,\-]\d|[A-Za-z_])"
)
_FOURTEEN = re.compile(r"\d(?:[ .\-\u00a0]?\d){13}")
_SPACED = re.compile(r"(?<![\w.,+\-])\d(?: \d){13,18}(?! ?\d)")
_OTHER_NUMBER = re.compile(
    r"(?<!\w)(?:order|invoice|tracking|shipment|parcel|ticket|serial|imei|isbn|ean|gtin|sku|timestamp|ts|seq|offset|"
    r"build|bestell\w*|rechnung\w*|sendung\w*|commande|factura|pedido|transaction|trace|span|snowflake|tweet|"
    r"message|user|request|session|event|job|row|record|channel|guild|post|item|product|run|build|batch|device|meter)"
    r"(?:[ _\-]?(?:id|no|nr|nummer|number|#))?[^\w\n]{0,4}(?:is |: ?)?\Z",
    re.I,
)
BRANDS: tuple[tuple[re.Pattern[str], tuple[int, ...]], ...] = (
    (re.compile("4"), (16, 19)),  # Visa
    (re.compile("5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720"), (16,)),  # Mastercard
    (re.compile("3[47]"), (15,)),  # American Express
    (re.compile("6011|65|64[4-9]"), (16, 19)),  # Discover
    (re.compile("35(?:2[89]|[3-8])"), (16, 17, 18, 19)),  # JCB
    (re.compile("3(?:0[0-5]|095|[689])"), (14, 16)),  # Diners Club
    (re.compile("62|81"), (16, 17, 18, 19)),  # UnionPay
    (re.compile("50[1-9]|5[6-9]|6(?:304|7|39)"), (16, 18, 19)),  # Maestro
)
"""First digits of the brands, and their lengths."""


def luhn(digits: str) -> bool:
    """Return whether the last digit is the check digit of the others, by Luhn's rule."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit)
        if place % 2:
            value = value * 2 - 9 if value > 4 else value * 2
        total += value
    return total % 10 == 0


def is_card(digits: str) -> bool:
    """Return whether digits are the number of a card of a known brand."""
    return (
        len(set(digits)) > 1
        and any(len(digits) in lengths and start.match(digits) for start, lengths in BRANDS)
        and luhn(digits)
    )


def find_cards(text: str) -> Iterator[Span]:
    """Yield the numbers of payment cards."""
    if _FOURTEEN.search(text) is None:
        return
    for pattern in (_CARD, _SPACED):
        for match in pattern.finditer(text):
            digits = re.sub(r"\D", "", match[0])
            if is_card(digits):
                plain = len(digits) == len(match[0])
                if not (plain and follows(text, match.start(), _OTHER_NUMBER, 32)):
                    yield match.span()


_LENGTHS = (
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29 "
    "ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 "
    "LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 "
    "QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 "
)
IBAN_LENGTHS: dict[str, int] = {one[:2]: int(one[2:]) for one in _LENGTHS.split()}
"""Length of an IBAN by country."""
_IBAN = re.compile(r"(?<![\w])[A-Z]{2}\d{2}(?:[ \-\u00a0]?[A-Z0-9]){10,30}", re.I)


def find_ibans(text: str) -> Iterator[Span]:
    """Yield IBANs, whose length fits the country and whose check digits are right."""
    match = _IBAN.search(text)
    while match is not None:
        end = _iban_end(text, match)
        if end is not None:
            yield match.start(), end
        # The match can reach into the next one.
        match = _IBAN.search(text, end or match.start() + 1)


def _iban_end(text: str, match: re.Match[str]) -> int | None:
    length = IBAN_LENGTHS.get(match[0][:2].upper())
    if length is None:
        return None
    end, count = match.start(), 0
    while end < match.end() and count < length:
        count += text[end].isalnum()
        end += 1
    if count < length or (end < len(text) and (text[end].isalnum() or text[end] == "_")):
        return None
    compact = re.sub(r"[ \-\u00a0]", "", text[match.start() : end]).upper()
    return end if compact.isascii() and _mod_97(compact[4:] + compact[:4]) == 1 else None


def _mod_97(text: str) -> int:
    return int("".join(str(int(character, 36)) for character in text)) % 97


PAYMENT_CARD = Recognizer("PAYMENT_CARD", find_cards)
IBAN = Recognizer("IBAN", find_ibans)
