"""Recognizers of national identification numbers, by their form and check digits; some only after a word for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator

from msgspec import Struct

from .payment import luhn
from .recognizer import Recognizer, Span, follows

_AFTER = r"(?![\w]|[\-.]\d)"


_OTHER_NUMBER = re.compile(
    r"(?<!\w)(?:order|part|invoice|ticket|serial|tracking|sku|model|item|product|article|catalog(?:ue)?|rma|batch|lot)"
    r"(?:[ _\-]?(?:id|no\.?|nr\.?|number|code|#))?[^\w\n]{0,4}(?:is |was )?\Z",
    re.IGNORECASE,
)
"""Words before numbers of things, which can have the form of one."""


class NationalId(Struct, frozen=True):
    """The digits that a number begins with at least, its form, its validity, and the words that it must follow.

    What has the form `always` needs no words.
    """

    name: str
    digits: int
    form: re.Pattern[str]
    valid: Callable[[str], bool]
    words: re.Pattern[str] | None = None
    always: re.Pattern[str] | None = None

    def at(self, text: str, start: int) -> Span | None:
        """Return the number that begins at a position; None if there is none."""
        match = self.form.match(text, start)
        if match is None or not self.valid(_compact(match[0])):
            return None
        if self.words is not None and (self.always is None or self.always.fullmatch(match[0]) is None):
            return match.span() if follows(text, start, self.words, 60) else None
        if self.always is not None and follows(text, start, _OTHER_NUMBER, 32):
            return None
        return match.span()


_LETTERS = ("UK_NINO", "ES_DNI", "IT_CODICE_FISCALE")
"""Those that can begin with letters."""
FORMS: dict[str, NationalId] = {}
"""All of them by name."""
_START = re.compile(
    r"(?<![\w.+\-])(?=\d(?:[ .\-/+\u00a0]{0,3}\d){5}|[A-Za-z]{1,2}[ \-]?\d|[A-Za-z]{6} ?[0-9L-NP-Vl-np-v]{2})"
)
"""Where one can begin: with six digits, or with one, two or six letters before digits."""


_RUN = re.compile(r"[\d .\-/+\u00a0]*")
_DIGIT = re.compile(r"\d")
_CORSICA = tuple("ABab")
"""Letters in the numbers of those born there."""
_SINGLE = re.compile(r"\d(?:[ .\-/+\u00a0]{1,3}\d){2}(?!\d)")
"""Single digits, which no number begins with."""
FEWEST = 8
"""How many digits a number has at least, if it begins with one."""
LONGEST = 28
"""How many characters a number has with its separators."""


def find_national_ids(text: str, names: Container[str]) -> Iterator[tuple[str, Span]]:
    """Yield the numbers of these names, each with its name: one search for all of them."""
    wanted = [one for one in FORMS.values() if one.name in names]
    after_letters = [one for one in wanted if one.name in _LETTERS]
    after_digits = sorted((one for one in wanted if one.digits), key=lambda one: one.digits)
    for begin in _START.finditer(text):
        start = begin.start()
        if _SINGLE.match(text, start):
            continue
        run = _RUN.findall(text, start, start + LONGEST)[0]
        digits = len(_DIGIT.findall(run))
        if 0 < digits < FEWEST and text[start + len(run) : start + len(run) + 1] not in _CORSICA:
            continue
        for one in after_digits if digits else after_letters:
            if one.digits > digits > 0:
                break
            if (span := one.at(text, start)) is not None:
                yield one.name, span


def _numbers(
    name: str, digits: int, form: str, valid: Callable[[str], bool], words: str = "", *, always: str | None = None
) -> Recognizer:
    """Return a recognizer of what has this form and is valid without its separators."""
    FORMS[name] = NationalId(
        name,
        digits,
        re.compile(f"(?:{form}){_AFTER}", re.IGNORECASE),
        valid,
        re.compile(rf"(?<![^\W_])(?:{words})(?![^\W\d_])[^\n]{{0,24}}\Z", re.IGNORECASE) if words else None,
        None if always is None else re.compile(always, re.IGNORECASE),
    )
    return Recognizer(name, lambda text: (span for _, span in find_national_ids(text, (name,))))


def _compact(number: str) -> str:
    return re.sub(r"[ .\-/\u00a0]", "", number).upper()


def _ssn(digits: str) -> bool:
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    if len(set(digits)) == 1:
        return False
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"


def _weighted(digits: str, weights: tuple[int, ...]) -> int:
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=False))


def _nino(text: str) -> bool:
    return text[:2] not in ("BG", "GB", "KN", "NK", "NT", "TN", "ZZ")


def _nir(text: str) -> bool:
    number = text[:13].replace("2A", "19").replace("2B", "18")
    return number.isdigit() and 97 - int(number) % 97 == int(text[13:])


def _german_tax_id(digits: str) -> bool:
    # One digit occurs twice or three times among the first ten, the others at most once.
    counts = sorted(digits[:10].count(digit) for digit in set(digits[:10]))
    if counts[-1] not in (2, 3) or counts[-2] != 1 or digits[0] == "0":
        return False
    product = 10
    for digit in digits[:10]:
        total = (int(digit) + product) % 10 or 10
        product = 2 * total % 11
    return (11 - product) % 10 == int(digits[10])


def _dni(text: str) -> bool:
    number = text[:-1].translate(str.maketrans("XYZ", "012"))
    return "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23] == text[-1]


_ODD = dict(zip("0123456789", (1, 0, 5, 7, 9, 13, 15, 17, 19, 21), strict=True)) | dict(
    zip(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23),
        strict=True,
    )
)


def _codice_fiscale(text: str) -> bool:
    total = sum(_ODD[one] for one in text[0:15:2])
    total += sum(int(one) if one.isdigit() else ord(one) - ord("A") for one in text[1:15:2])
    return ord("A") + total % 26 == ord(text[15])


def _bsn(digits: str) -> bool:
    return (
        len(set(digits)) > 1
        and (_weighted(digits, (9, 8, 7, 6, 5, 4, 3, 2)) - int(digits[8])) % 11 == 0
        and len(digits) == 9
    )


def _day_and_month(month: str, day: str) -> bool:
    return 1 <= int(month) % 20 <= 12 and 1 <= int(day) <= 31


def _pesel(digits: str) -> bool:
    check = -_weighted(digits, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3)) % 10
    return check == int(digits[10]) and _day_and_month(digits[2:4], digits[4:6])


def _cpf(digits: str) -> bool:
    if len(set(digits)) == 1:
        return False
    for length in (9, 10):
        check = _weighted(digits, tuple(range(length + 1, 1, -1))) * 10 % 11 % 10
        if check != int(digits[length]):
            return False
    return True


def _ahv(digits: str) -> bool:
    return -_weighted(digits[:12], (1, 3) * 6) % 10 == int(digits[12])


def _personnummer(text: str) -> bool:
    digits = text.replace("+", "")[-10:]
    return luhn(digits) and 1 <= int(digits[2:4]) <= 12 and 1 <= int(digits[4:6]) % 60 <= 31


_TIMES = (
    "0123456789", "1234067895", "2340178956", "3401289567", "4012395678",
    "5987604321", "6598710432", "7659821043", "8765932104", "9876543210",
)  # fmt: skip
_TURNED = (
    "0123456789", "1576283094", "5803796142", "8916043527", "9453126870", "4286573901", "2793806415", "7046913258",
)  # fmt: skip


def _verhoeff(digits: str) -> bool:
    check = 0
    for place, digit in enumerate(reversed(digits)):
        check = int(_TIMES[check][int(_TURNED[place % 8][int(digit)])])
    return check == 0 and len(set(digits)) > 1


def _rijksregister(digits: str) -> bool:
    number, check = int(digits[:9]), int(digits[9:])
    born_later = int("2" + digits[:9])
    return check in (97 - number % 97, 97 - born_later % 97) and _day_and_month(digits[2:4], digits[4:6])


US_SSN = _numbers(
    "US_SSN",
    9,
    r"\d{3}-\d{2}-\d{4}|\d{3} \d{2} \d{4}|\d{9}",
    _ssn,
    r"ssn|social[ _]?security|soc[. ]sec|itin|tax ?(?:payer)? ?id",
    always=r"\d{3}-\d{2}-\d{4}",
)
UK_NINO = _numbers("UK_NINO", 0, r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]", _nino)
FR_NIR = _numbers(
    "FR_NIR",
    6,
    r"[12378][ .]?\d{2}[ .]?(?:0[1-9]|1[0-2]|[2-9]\d)[ .]?(?:\d{2}|2[AB])[ .]?\d{3}[ .]?\d{3}[ .\-/]{0,3}\d{2}",
    _nir,
)
DE_TAX_ID = _numbers(
    "DE_TAX_ID",
    11,
    r"\d{2} \d{3} \d{3} \d{3}|\d{11}",
    _german_tax_id,
    r"steuer[\- ]?id(?:ent\w*)?\w*(?:[\- ]?n\w*)?|idnr|identifikationsnummer|tin|tax[ _\-]?(?:id|number)|steuernummer",
    always=r"\d{2} \d{3} \d{3} \d{3}",
)
ES_DNI = _numbers("ES_DNI", 8, r"(?:\d{8}|\d{2}\.\d{3}\.\d{3}|[XYZ][\- ]?\d{7})[\- ]?[A-HJ-NP-TV-Z]", _dni)
IT_CODICE_FISCALE = _numbers(
    "IT_CODICE_FISCALE",
    0,
    r"[A-Z]{6} ?[0-9L-NP-V]{2}[A-EHLMPRST][0-9L-NP-V]{2} ?[A-Z][0-9L-NP-V]{3}[A-Z]",
    _codice_fiscale,
)
NL_BSN = _numbers(
    "NL_BSN", 9, r"\d{9}|\d{4}\.\d{2}\.\d{3}|\d{3} \d{3} \d{3}", _bsn, r"bsn|burgerservicenummer|sofi(?:nummer)?"
)
PL_PESEL = _numbers("PL_PESEL", 11, r"\d{11}", _pesel, r"pesel\w*")
BR_CPF = _numbers(
    "BR_CPF", 11, r"\d{3}\.\d{3}\.\d{3}-\d{2}|\d{11}", _cpf, r"cpf|contribuinte", always=r"\d{3}\.\d{3}\.\d{3}-\d{2}"
)
CH_AHV = _numbers("CH_AHV", 13, r"756[. ]?\d{4}[. ]?\d{4}[. ]?\d{2}", _ahv)
SE_PERSONNUMMER = _numbers(
    "SE_PERSONNUMMER",
    10,
    r"(?:19|20)?\d{6}[\-+]?\d{4}",
    _personnummer,
    r"person(?:al )?(?:nummer|nr|number)|pnr|personal identity number|samordningsnummer",
    always=r"(?:19|20)?\d{6}[\-+]\d{4}",
)
IN_AADHAAR = _numbers(
    "IN_AADHAAR",
    12,
    r"[2-9]\d{3}([ \-]?)\d{4}\1\d{4}",
    _verhoeff,
    r"aadhaar|aadhar|uidai|uid|आधार",
    always=r"[2-9]\d{3} \d{4} \d{4}",
)
CA_SIN = _numbers(
    "CA_SIN", 9, r"[1-79]\d{2}([ \-]?)\d{3}\1\d{3}", luhn, r"sin|social insurance(?: number)?|nas|assurance sociale"
)
BE_NATIONAL_NUMBER = _numbers(
    "BE_NATIONAL_NUMBER",
    11,
    r"\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}|\d{11}",
    _rijksregister,
    r"rijksregister\w*|registre national|national number|nrn|insz|niss",
    always=r"\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}",
)
NATIONAL_IDS = (
    US_SSN,
    UK_NINO,
    FR_NIR,
    DE_TAX_ID,
    ES_DNI,
    IT_CODICE_FISCALE,
    NL_BSN,
    PL_PESEL,
    BR_CPF,
    CH_AHV,
    SE_PERSONNUMMER,
    IN_AADHAAR,
    CA_SIN,
    BE_NATIONAL_NUMBER,
)
