"""Recognizers of e-mail addresses, phone numbers and IP addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from .recognizer import Recognizer, Span, follows

# ---------------------------------------------------------------- e-mail addresses

_LOCAL = re.compile(r"(?:(?<=\\[nrt])|(?<![\w.!#$%&*+/=?^{|}~\-]))\w[\w.!#$%&'*+=?^{|}~\-]{0,63}\Z")
_QUOTED = re.compile(r'"[^"\n]{1,62}"\Z')
_DOMAIN = re.compile(
    r"(?:[^\W_](?:[\w\-]{0,61}[^\W_])?\.){1,8}(?:xn--[a-z0-9\-]{2,59}|[^\W\d_]{2,24})(?![\w\-]*@|\w)", re.I
)
_LITERAL = re.compile(r"\[(?:\d{1,3}\.){3}\d{1,3}\]")
_SPELLED = re.compile(
    r"(?<![\w.+\-])(\w[\w.+\-]{0,63})\s{0,3}(?:[\[({<]\s?(?:at|@|arroba|ät)\s?[\])}>]|\s(?:at|AT|arroba)\s)\s{0,3}"
    r"((?:[\w\-]{1,63}(?:\s{0,3}[\[({<]\s?(?:dot|\.|punkt|point|punto)\s?[\])}>]\s{0,3}|\s(?:dot|DOT|punkt|punto)\s|\.)){1,4}"
    r"[^\W\d_]{2,24})(?![\w\-])",
    re.I,
)
_DOT = re.compile(r"[\[({<]\s?(?:dot|\.|punkt|point|punto)\s?[\])}>]|\sdot\s|\spunkt\s|\spunto\s|\.", re.I)
_BRACKETED = re.compile(r"[\[({<]\s?(?:at|@|arroba|ät)", re.I)
_FILES = (
    "avif bat bmp c cfg conf cpp css csv dll doc docx exe gif gz h hpp htm html ico ini jpeg jpg js json jsx lock log "
    "mjs mp3 mp4 pdf php png ps1 psd py pyc rb rs scss so sql svg tar tiff toml ts tsx ttf txt vue wasm wav webp woff "
    "woff2 xls xlsx xml yaml yml"
)
_NOT_TLD = frozenset(_FILES.split())
"""Endings of files, as in `icon@2x.png`."""
_DOMAINS = (
    "ai app at be biz ca ch co com de dev dk edu es eu fi fr gov ie in info io it jp me mx net nl no nz org pl pt ru "
    "se tech uk us xyz"
)
_TLD = frozenset(_DOMAINS.split())
"""Domains that make words with `at` and `dot` an address."""


_AT_SIGNS = ("[at", "(at", "{at", "<at", "[ at", "( at", "{ at", "(@", "[@", "{@", "[ @", "( @", "ät", "arroba")


def find_emails(text: str) -> Iterator[Span]:
    """Yield e-mail addresses, also spelled out as in `ann [at] example [dot] com`."""
    at = text.find("@")
    while at >= 0:
        span = _email_at(text, at)
        if span is not None:
            yield span
        at = text.find("@", at + 1)
    lower = text.lower()
    if any(sign in lower for sign in _AT_SIGNS) or (" at " in lower and " dot " in lower):
        for match in _SPELLED.finditer(text):
            parts = [part for part in _DOT.split(match[2]) if part and part.strip()]
            if parts[-1].strip().lower() in _TLD and (_BRACKETED.search(match[0]) or not _DOT_PLAIN.search(match[2])):
                yield match.span()


_DOT_PLAIN = re.compile(r"\w\.\w")
"""A real dot after the word `at` is a place: `meet me at example.com`."""


_BEFORE_AT = frozenset("_+-!#$%&'*=?^{|}~\"")


def _email_at(text: str, at: int) -> Span | None:
    before = text[at - 1 : at]
    if not (before.isalnum() or before in _BEFORE_AT):
        return None
    domain = _DOMAIN.match(text, at + 1)  # first, since it is found out sooner
    literal = _LITERAL.match(text, at + 1) if domain is None else None
    if domain is None and literal is None:
        return None
    local = _LOCAL.search(text, max(0, at - 66), at) or _QUOTED.search(text, max(0, at - 66), at)
    if local is None or local[0].endswith(".") or (local[0].isdigit() and len(local[0]) < 3):
        return None
    if domain is None:
        return None if literal is None else (local.start(), literal.end())
    if domain[0].rpartition(".")[2].lower() in _NOT_TLD:
        return None
    if local[0] in ("git", "hg", "svn") and text[domain.end() : domain.end() + 1] in (":", "/"):
        return None  # the address of a repository
    if (
        text[max(0, local.start() - 1) : local.start()] == ":"
        and "://" in text[max(0, local.start() - 90) : local.start()]
    ):
        return None  # the password in a URL
    return local.start(), domain.end()


# ---------------------------------------------------------------- phone numbers

_SEPARATED = r"[ .\-‑–/\u00a0\u202f]"
_INTERNATIONAL = re.compile(
    rf"(?<![\w+])(?:\+|00(?=[1-9]))\(?[1-9]\d{{0,3}}\)?(?:{_SEPARATED}{{0,2}}\(?\d{{1,14}}\)?){{1,7}}(?![\d])"
)
_NORTH_AMERICA = re.compile(
    r"(?<![\w.+\-])(?:1[ .\-])?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}([ .\-‑]))[2-9]\d{2}(?(1)\1|[ .\-‑])\d{4}"
    r"(?: ?(?:x|ext\.?) ?\d{1,5})?(?![\w\-]|\.\d)"
)
_NATIONAL = re.compile(
    rf"(?<![\w.+,\-])(?<!\d{_SEPARATED})(?:\(0\d{{1,4}}\){_SEPARATED}?|0[1-9]\d{{0,3}}(?:{_SEPARATED}| ?/ ?))\d{{2,8}}"
    rf"(?:{_SEPARATED}\d{{2,8}}){{0,4}}(?![\w\-]|[.,]\d)"
)
"""A trunk prefix and groups, as in Europe: 030 1234567, 06 12 34 56 78, 020 7946 0958."""
_GROUPED_NINE = re.compile(r"(?<![\w.+,\-])[6789]\d{2}([ .\-])\d{3}\1\d{3}(?![\w\-]|[.,]\d)")
"""Nine digits, as in Spain."""
_ANY = re.compile(r"(?<![\w+])\(?\d(?:[ ().\-‑/]{0,2}\d){5,14}(?![\w\-]|\.\d)")
_PHONE_WORDS = re.compile(
    r"(?<!\w)(?:(?:tele)?phone|fono|fon|tel[eé]fono|telefon(?:nummer|o)?|tel|t[ée]l(?:[ée]phone)?|mobile|m[oó]vil|"
    r"mobil(?:e|nummer)?|cell(?:ular)?|celular|handy(?:nummer)?|portable|cellulare|fax|whats ?app|sms|signal|hotline|"
    r"phone_?number|callback|call(?: me| us| him| her| them| back)?(?: at| on)?|reach (?:me|us|him|her) (?:at|on)|"
    r"ring (?:me|us)|text me|(?:my|his|her|our|their) (?:new |old |own |work |home )?number|"
    r"numero di telefono|num[ée]ro|rufnummer|telefone|电话|手机|電話|携帯|전화|тел(?:ефон)?|"
    r"τηλ|هاتف)(?!\w)[^\w\n+(]{0,6}(?:(?:is|number|no|nr|ist|est|es|at|on|:|=)[^\w\n+(]{0,4}){0,2}\Z",
    re.IGNORECASE,
)
_PHONE_STEMS = (
    "phone", "fon", "tel", "tél", "mobil", "móvil", "movil", "cell", "celular", "handy", "portable", "fax", "app",
    "sms", "signal", "hotline", "call", "reach", "ring", "text me", "num", "电话", "手机", "電話", "携帯", "전화",
    "тел", "τηλ", "هاتف",
)  # fmt: skip
"""Parts of these words: looking for these first is faster."""
_NOT_PHONE = re.compile(
    r"(?<!\w)(?:order|invoice|ticket|tracking|serial|isbn|issn|ean|upc|sku|version|build|commit|part|model|"
    r"case|ref(?:erence)?|bestellung|rechnung|commande|factura|pedido|port|lat|lon|iban|account|konto|page|rfc|pid)"
    r"\b[^\n]{0,12}\Z",
    re.IGNORECASE,
)
_YEAR, _MONTH, _DAY = r"(?:19|20)\d{2}", r"(?:0?[1-9]|1[0-2])", r"(?:[0-2]?\d|3[01])"
_DATE = re.compile(
    rf"{_YEAR}([\-./ ]){_MONTH}\1{_DAY}(?!\d)|{_DAY}([\-./ ]){_MONTH}\2{_YEAR}(?!\d)|"
    rf"{_MONTH}([\-./ ]){_DAY}\3{_YEAR}(?!\d)"
)


_RUN = re.compile(r"[+(]?\d[\d ().\-‑–/\u00a0\u202f]{5,80}")
"""Where a phone number can be: digits and separators."""
_DIGIT = re.compile(r"\d")
REACH = 60
"""How many characters before a number tell that it is one."""
AFTER = 10
"""How many characters after a run of digits tell whether it is a phone number."""


def find_phones(text: str) -> Iterator[Span]:
    """Yield phone numbers: with a country code, in the forms of several countries, or after a word such as `tel`."""
    lower = text.lower()
    named = any(stem in lower for stem in _PHONE_STEMS)
    for run in _RUN.finditer(text):
        start, end = run.start(), min(run.end() + AFTER, len(text))
        bare = run[0].strip(" .-/")
        if bare[0] == "+" or (not bare.isdigit() and len(_DIGIT.findall(bare)) >= 9):
            for pattern in (_INTERNATIONAL, _NORTH_AMERICA, _NATIONAL, _GROUPED_NINE):
                for match in pattern.finditer(text, start, end):
                    if _is_phone(match[0]) and not follows(text, match.start(), _NOT_PHONE, 24):
                        yield match.span()
        if named:
            for match in _ANY.finditer(text, start, end):
                if _DATE.match(match[0]) is None and follows(text, match.start(), _PHONE_WORDS, REACH):
                    yield match.span()


def _is_phone(number: str) -> bool:
    digits = sum(map(str.isdigit, number))
    if not (8 if number[0] == "+" else 9) <= digits <= 16 or _DATE.match(number):
        return False
    # Digits alone are one only after a plus; columns of numbers with leading zeros are none.
    apart = number[0] == "+" or not number.isdigit()
    return apart and not all(part.startswith("0") for part in re.findall(r"\d+", number))


# ---------------------------------------------------------------- IP addresses

_V4 = re.compile(r"(?<![\w.\-])(?:\d{1,3}\.){3}\d{1,3}(?![\w\-]|\.\d)")
_V6 = re.compile(
    r"(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}(?:[0-9a-f]{1,4}|(?:\d{1,3}\.){3}\d{1,3}|(?<=::))(?:%\w{1,15})?(?![\w:])", re.I
)
_VERSION = re.compile(
    r"(?:\bv|version|release|section|chapter|clause|§|kapitel|abschnitt|oid|build|firmware|driver|==|>=|<=|~=|/)\s{0,2}[:=]?\s{0,2}\Z",
    re.I,
)


def find_addresses(text: str) -> Iterator[Span]:
    """Yield IPv4 and IPv6 addresses, except the loopback, unspecified and broadcast ones, and masks."""
    if text.count(".") >= 3:
        for match in _V4.finditer(text):
            if _is_v4(match[0]) and (not follows(text, match.start(), _VERSION, 14) or _in_url(text, match.start())):
                yield match.span()
    if "::" in text or text.count(":") >= 7:
        for match in _V6.finditer(text):
            if _is_v6(match[0].partition("%")[0]):
                yield match.span()


def _in_url(text: str, start: int) -> bool:
    return text[max(0, start - 3) : start] == "://" or text[max(0, start - 2) : start] == "//"


def _is_v4(text: str) -> bool:
    try:
        address = IPv4Address(text)
    except AddressValueError:
        return False
    first = int(text.partition(".")[0])
    return not (address.is_loopback or address.is_unspecified or first in (0, 255))


def _is_v6(text: str) -> bool:
    try:
        address = IPv6Address(text)
    except AddressValueError:
        return False
    # A group of four tells an address from a slice, 10::2, and from a name in code.
    four = any(len(group) == 4 for group in text.split(":"))
    return four and not (address.is_loopback or address.is_unspecified) and any(map(str.isdigit, text))


EMAIL = Recognizer("EMAIL", find_emails)
PHONE = Recognizer("PHONE", find_phones)
IP_ADDRESS = Recognizer("IP_ADDRESS", find_addresses)
