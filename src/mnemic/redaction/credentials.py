"""Recognizer of secrets: keys of known services, tokens, private keys, and values that are called a password."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from math import log2

from .recognizer import Recognizer, Span

_KNOWN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-(?:proj-|svcacct-|admin-|ant-(?:api\d\d-|admin\d\d-)?|or-v1-|lf-)?[A-Za-z0-9_\-]{20,200}"  # model providers
    r"|gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255}"
    r"|glpat-[A-Za-z0-9_\-]{20,64}|gl(?:dt|rt|cbt|ptt|ft|soat)-[A-Za-z0-9_\-]{20,64}"
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?![A-Za-z0-9])"
    r"|AIza[A-Za-z0-9_\-]{35}|GOCSPX-[A-Za-z0-9_\-]{28}|ya29\.[A-Za-z0-9_\-]{20,300}"
    r"|xox[abeoprs]-[A-Za-z0-9\-]{10,250}|xapp-\d-[A-Za-z0-9\-]{20,200}"
    r"|(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,200}|whsec_[A-Za-z0-9+/=]{24,100}"
    r"|SG\.[A-Za-z0-9_\-]{16,32}\.[A-Za-z0-9_\-]{30,64}"
    r"|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_\-]{50,300}|hf_[A-Za-z0-9]{30,50}|dop_v1_[a-f0-9]{64}"
    r"|shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}|lin_api_[A-Za-z0-9]{32,64}|ntn_[A-Za-z0-9]{40,60}|secret_[A-Za-z0-9]{43}"
    r"|r8_[A-Za-z0-9]{37}|gsk_[A-Za-z0-9]{40,60}|pplx-[A-Za-z0-9]{40,64}|tvly-[A-Za-z0-9\-]{20,50}|xai-[A-Za-z0-9]{60,90}"
    r"|mnk_[a-f0-9]{16}_[a-f0-9]{64}|AGE-SECRET-KEY-1[A-Z0-9]{58}|sq0[a-z]{3}-[A-Za-z0-9_\-]{22,50}|EAAA[A-Za-z0-9_\-]{50,100}"
    r"|key-[a-f0-9]{32}(?![A-Za-z0-9])|dapi[a-f0-9]{32}|dckr_pat_[A-Za-z0-9_\-]{20,40}|vercel_[A-Za-z0-9]{24}"
    r"|hvs\.[A-Za-z0-9_\-]{24,200}|sntrys_[A-Za-z0-9+/=_\-]{30,250}|PMAK-[a-f0-9]{24}-[a-f0-9]{34}"
    r"|eyJ[A-Za-z0-9_\-]{8,4000}\.eyJ[A-Za-z0-9_\-]{8,8000}\.[A-Za-z0-9_\-]{0,2000}"  # JSON web tokens
    r"|\d{8,10}:AA[A-Za-z0-9_\-]{33}(?![A-Za-z0-9_\-])"  # bots of Telegram
    r"|[MNO][A-Za-z\d_\-]{23,25}\.[A-Za-z\d_\-]{6}\.[A-Za-z\d_\-]{27,40}"  # bots of Discord
    r")"
)
_WEBHOOK = re.compile(
    r"https://(?:hooks\.slack\.com/(?:services|workflows)/[\w/\-]{20,150}"
    r"|discord(?:app)?\.com/api/webhooks/\d{5,25}/[\w\-]{30,100}"
    r"|[\w.\-]{1,60}\.webhook\.office\.com/\w{1,20}/[\w@\-/]{30,250})"
)
_PEM = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_PEM_END = re.compile(r"-----END (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_IN_URL = re.compile(
    r"(?<![A-Za-z0-9])[A-Za-z][A-Za-z0-9+.\-]{1,20}://[^\s:/@\"'<>\[\]]{0,100}:([^\s/@\"'<>]{3,200})@(?=[\w\[])"
)
_AUTHORIZATION = re.compile(
    r"(?<![A-Za-z])(?:Bearer|Basic|Token|ApiKey)\s{1,3}([A-Za-z0-9+/=_.~\-]{16,4000})", re.IGNORECASE
)
_NAMED = re.compile(
    r"(?<![A-Za-z])(?P<name>(?:[A-Za-z0-9]{1,20}[_\-.]){0,4}"
    r"(?:pass(?:word|wd|phrase|code)?|pwd|passwort|kennwort|contraseña|clave|mot de passe|mdp|senha|wachtwoord|"
    r"secret(?:[_\- ]?(?:access)?[_\- ]?key)?|"
    r"(?:api|access|auth|private|signing|encryption|account|app|shared)[_\- ]?(?:key|token|secret)|"
    r"(?:access|auth|refresh|bearer|session|id|csrf|client)?[_\-]?token|client[_\-]?secret|credential|apikey|"
    r"пароль|密码|パスワード|비밀번호)(?:[_\-](?:key|value|hash|\d))?)"
    r"[\"'`]?\s{0,3}(?P<sign>=>|:=|==?|:|：|\s(?:is|ist|est|es|é|è|was|lautet|są|to)[\s:]|/)\s{0,3}"
    r"(?P<quote>[\"'`“«]?)(?P<value>[^\s\"'`“”«»,;)}\]<>]{4,300})",
    re.IGNORECASE,
)
_FLAG = re.compile(
    r"(?<!\S)(?:--(?:password|passwd|token|api-key|secret|auth)|-p)[ =](?P<value>[^\s\"'-][^\s\"']{5,200})"
)
_CODE = re.compile(
    r"\A(?:None|null|nil|undefined|true|false|str(?:ing)?|int|bytes|bool(?:ean)?|any|object|required|optional|self|this|"
    r"input|getpass|process|os|env|config|settings|args|kwargs|secrets?|vault|var|let|const|new|await|request|req|data|"
    r"x{3,}|\*{3,}|\.{3,}|•+|changeme\?|redacted|hidden|example|placeholder|todo|your[\w\-]*|my[_\-]?\w*|the|a|an|is|"
    r"enter|forgot|reset|change|incorrect|wrong|invalid|expired|missing|not|too|and|or|for|in|on|with|must|should|"
    r"field|hash|hashed|manager|policy|length|strength|generator|protected|less)\Z",
    re.IGNORECASE,
)
_CALL = re.compile(r"\A[$A-Za-z_][\w.\->:$]*(?:\(|\[)|\A[$%<{]|\A(?:[a-z_]+\.)+[a-z_]+\Z|\A/|\Ahttps?:")
_WEAK_WORD = re.compile(r"(?i)(?:token|credential|pass|clave|secret)\Z")


def entropy(text: str) -> float:
    """Return the bits per character of a text, by the frequency of its characters."""
    return -sum(count / len(text) * log2(count / len(text)) for count in Counter(text).values())


def find_secrets(text: str) -> Iterator[Span]:
    """Yield keys, tokens and passwords, without the words that name them."""
    for match in _KNOWN.finditer(text):
        if _is_random(match[0]):
            yield match.span()
    if "://" in text:
        for match in _WEBHOOK.finditer(text):
            yield match.span()
        for match in _IN_URL.finditer(text):
            if not _is_placeholder(match[1]):
                yield match.span(1)
    if "PRIVATE KEY" in text:
        at = _PEM.search(text)
        while at is not None:
            last = _PEM_END.search(text, at.end())
            yield at.start(), last.end() if last is not None else _end_of_base64(text, at.end())
            at = _PEM.search(text, last.end()) if last is not None else None
    for match in _AUTHORIZATION.finditer(text):
        if any(one.isdigit() for one in match[1]) and entropy(match[1]) > 3:
            yield match.span(1)
    for match in _NAMED.finditer(text):
        if _is_value(match):
            yield match.start("value"), match.start("value") + len(match["value"].rstrip(".?!:"))
    for match in _FLAG.finditer(text):
        if any(one.isdigit() for one in match["value"]) and not _is_placeholder(match["value"]):
            yield match.span("value")


def _is_random(token: str) -> bool:
    """Return whether a token of a known form is a real one, not a placeholder."""
    body = re.sub(r"\A[A-Za-z0-9]{1,9}[_\-.]", "", token)
    return len(set(body)) >= 8 and "example" not in body.lower()[:12] and "your" not in body.lower()[:8]


def _end_of_base64(text: str, start: int) -> int:
    found = re.compile(r"[\sA-Za-z0-9+/=:,\-\\]*").match(text, start)
    return start if found is None else found.end()


def _is_placeholder(value: str) -> bool:
    return _CODE.match(value) is not None or _CALL.match(value) is not None or len(set(value)) < 3


def _is_value(match: re.Match[str]) -> bool:
    """Return whether what follows a word for a password is one, and not code or prose."""
    value, sign = match["value"].rstrip(".?!:"), match["sign"].strip().lower()
    if len(value) < 4 or _is_placeholder(value):
        return False
    mixed = sum((any(map(str.isdigit, value)), any(map(str.isalpha, value)), not value.isalnum()))
    if (sign and sign[0].isalpha()) or sign == "/":
        return mixed >= 2 and (any(map(str.isdigit, value)) or bool(re.search(r"[!@#$%^&*?]", value)))
    if match["quote"]:
        weak = _WEAK_WORD.search(match["name"]) is not None
        return mixed >= 2 or (not weak and len(value) >= 6) or (len(value) >= 8 and entropy(value) > 2.5)
    return (any(map(str.isdigit, value)) and mixed >= 2) or (len(value) >= 16 and entropy(value) > 3.5)


SECRET_NAME = re.compile(
    r"(?:.*[_\-. ])?(?:pass(?:word|wd|phrase|code)|pwd|secret|api[_\-]?key|(?:auth|access|refresh)[_\-]?token|"
    r"(?:access|private)[_\-]?key|client[_\-]?secret|secret[_\-]?(?:access[_\-]?)?key|passwort|contraseña|senha|"
    r"authorization)",
    re.IGNORECASE,
)
"""Names of fields whose value is a secret whatever it looks like."""

SECRET = Recognizer("SECRET", find_secrets)
