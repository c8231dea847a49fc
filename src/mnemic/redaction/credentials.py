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
    r"[^\s:/@\"'<>\[\]]{0,100}:((?=[^\s/\"'<>]{3})[^\s/@\"'<>]{1,200}(?:@[^\s/@\"'<>?#,;&=]{1,100}){0,5})@(?=[\w\[])"
)
"""User and password after the scheme of a URL."""
_AUTHORIZATION = re.compile(
    r"(?<![A-Za-z])(?:Bearer|Basic|Token|ApiKey)\s{1,3}([A-Za-z0-9+/=_.~\-]{16,4000})", re.IGNORECASE
)
_HEADER = re.compile(
    r"(?<![A-Za-z])(?:proxy-)?authorization[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:Bearer|Basic|Token|ApiKey)\s{1,3}"
    r"([A-Za-z0-9+/=_.~\-]{4,4000})",
    re.IGNORECASE,
)
_COOKIE = re.compile(
    r"(?:(?<!\w)(?:Set-)?Cookie|(?:\A|(?<=[\n\"']))(?:set-)?cookie):\s{0,3}([^\s=;,\"']{1,80}=[^\n\r\"'\\]{4,4000})"
)
_CURL = re.compile(r"(?<!\S)(?:-u|--user|--proxy-user)[ =]?[\"']?[^\s:\"']{1,100}:(?P<value>[^\s\"']{3,200})")
_BARE = re.compile(
    r"(?:word|wd|phrase|code|wort)(?P<sign>\s{1,2}(?:[\-–—]\s)?)(?P<value>[^\s\"'`“”«»,;:=()\[\]{}<>]{5,100})",
    re.IGNORECASE,
)
"""A value directly after the word, or after a dash."""
_PROSE = re.compile(
    r"(?:word|wd|phrase|code|wort)(?:\s(?:is|ist)|:)\s(?P<value>[a-z]{3,20}(?:[ \-][a-z]{3,20}){0,9})"
    r"(?=[.!]?\s*(?:\n|\Z))",
    re.IGNORECASE,
)
"""Words up to the end of the line."""
_OWNER = re.compile(
    r"(?:\b(?:my|his|her|our|their|mein|wi-?fi|root|admin|login)\s(?:[\w\-]{1,12}\s)?|\A|\n)\Z", re.IGNORECASE
)
_NO_PASSWORD = re.compile(
    r"(?:the|an|and|or|not|no|too|very|so|for|from|with|without|of|off|in|into|on|at|by|to|as|it|its|is|was|be|been|are|"
    r"you|your|they|we|he|she|must|should|can|cannot|will|would|has|have|had|if|when|then|that|this|these|those|only|also|"
    r"still|never|always|again|now|soon|yet|here|there|same|wrong|right|correct|weak|strong|secure|safe|long|short|"
    r"unique|simple|complex|empty|blank|null|none|nil|unknown|private|public|secret|default|optional|required|mandatory|"
    r"string|text|value|hash|plain|plaintext|case|sensitive|good|bad|fine|okay|lost|gone|old|new|one|two|first|last|what|"
    r"which|who|how|why|where|visible|hidden|invalid|valid|please|click|enter|type|see|ask|use|forgot|forgotten|reset|"
    r"change|\w+(?:ed|ing|able|ible|ly))",
    re.IGNORECASE,
)
_TECHNICAL = re.compile(
    r"(?:sha|md|utf|base|oauth|argon|bcrypt|pbkdf|scrypt|v|win|ipv)-?\d\w*|\d+[a-z]{0,3}", re.IGNORECASE
)
_PARAMETER = re.compile(r"&(?:amp;)?[\w.\-\[\]%]{1,40}=")
_WORDS = (
    "pass", "pwd", "pw", "kennwort", "contraseña", "clave", "mot de passe", "mdp", "senha", "wachtwoord", "secret",
    "token", "key", "credential", "пароль", "密码", "パスワード", "비밀번호",
)  # fmt: skip
_SIGN = r"=>|:=|==?|:|：|\s(?:is|ist|est|es|é|è|was|lautet|są|to)[\s:]|/"
_ASSIGNED = re.compile(
    r"(?P<more>word|wd|phrase|code|wort)?(?:[_\- ]?(?:access[_\- ]?)?key)?(?:[_\-](?:value|hash|\d))?"
    rf"[\"'`]?\s{{0,3}}(?P<sign>{_SIGN})\s{{0,3}}"
    r"(?:(?P<quote>[\"'`“«])(?P<quoted>[^\"'`“”«»\n]{4,300})|(?P<value>[^\s\"'`“”«»,;)}\]<>]{4,300}))",
    re.IGNORECASE,
)
"""The rest of a name after one of these words, a sign, and a value."""
_BEFORE_KEY = re.compile(
    r"(?:api|access|auth|private|signing|encryption|account|app|shared|secret)[_\- ]?\Z", re.IGNORECASE
)
_WHOLE = frozenset(
    ("pass", "pwd", "pw", "kennwort", "clave", "mdp", "senha", "wachtwoord", "credential", "mot de passe")
)
"""Words that are not the end of another one; `pass` unless more follows."""
_PASSWORDS = frozenset(
    ("contraseña", "senha", "kennwort", "wachtwoord", "mot de passe", "пароль", "密码", "パスワード")
)
_STARTS = (
    "sk-", "sk_", "rk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "gldt-", "glrt-", "glcbt-",
    "glptt-", "glft-", "glsoat-", "AKIA", "ASIA", "ABIA", "ACCA", "AIza", "GOCSPX-", "ya29.", "xox", "xapp-", "whsec_",
    "SG.", "npm_", "pypi-", "hf_", "dop_v1_", "shp", "lin_api_", "ntn_", "secret_", "r8_", "gsk_", "pplx-", "tvly-",
    "xai-", "mnk_", "AGE-SECRET", "sq0", "EAAA", "key-", "dapi", "dckr_pat_", "vercel_", "hvs.", "sntrys_", "PMAK-",
    "eyJ", ":AA",
)  # fmt: skip
"""Beginnings of known keys: looking for these first is faster than for all patterns."""
_FLAG = re.compile(
    r"(?<!\S)(?:--(?:password|passwd|token|api-key|secret|auth)|-p)[ =](?P<value>[^\s\"'-][^\s\"']{5,200})"
)
_SCHEMES = ("bearer ", "basic ", "token ", "apikey ")
_CODE = re.compile(
    r"\A(?:None|null|nil|undefined|true|false|str(?:ing)?|int|bytes|bool(?:ean)?|any|object|required|optional|self|this|"
    r"input|getpass|process|os|env|config|settings|args|kwargs|secrets?|vault|var|let|const|new|await|request|req|data|"
    r"x{3,}|\*{3,}|\.{3,}|•+|changeme\?|redacted|hidden|example|placeholder|todo|your[\w\-]*|my[_\-]?\w*|the|a|an|is|"
    r"enter|forgot|reset|change|incorrect|wrong|invalid|expired|missing|not|too|and|or|for|in|on|with|must|should|"
    r"field|hash|hashed|manager|policy|length|strength|generator|protected|less)\Z",
    re.IGNORECASE,
)
_CALL = re.compile(
    r"\A[$A-Za-z_][\w.\->:$]*(?:\(|\[)|\A[$%<{]|\A(?:[a-z_]+\.)+[a-z_]+\Z|\A[a-z]+(?:_[a-z]+)+\Z|\A/|\Ahttps?:"
)


def entropy(text: str) -> float:
    """Return the bits per character of a text, by the frequency of its characters."""
    return -sum(count / len(text) * log2(count / len(text)) for count in Counter(text).values())


def find_secrets(text: str) -> Iterator[Span]:
    """Yield keys, tokens and passwords, without the words that name them."""
    lower = text.lower()
    if len(lower) != len(text):  # some letters become two in lower case
        lower = "".join([low if len(low := one.lower()) == 1 else one for one in text])
    if any(start in text for start in _STARTS):
        for match in _KNOWN.finditer(text):
            if _is_random(match[0]):
                yield match.span()
    if "://" in text:
        if "hook" in lower:
            yield from (match.span() for match in _WEBHOOK.finditer(text))
        at = text.find("://")
        while at >= 0:
            login = _IN_URL.match(text, at + 3)
            if login is not None and not _is_placeholder(login[1]):
                yield login.span(1)
            at = text.find("://", at + 3)
    if "PRIVATE KEY" in text:
        first = _PEM.search(text)
        while first is not None:
            last = _PEM_END.search(text, first.end())
            end = last.end() if last is not None else _end_of_base64(text, first.end())
            yield first.start(), end
            first = _PEM.search(text, end)
    for match in _AUTHORIZATION.finditer(text) if any(word in lower for word in _SCHEMES) else ():
        if any(one.isdigit() for one in match[1]) and entropy(match[1]) > 3:
            yield match.span(1)
    if "authorization" in lower:
        yield from (match.span(1) for match in _HEADER.finditer(text) if not _is_plain(match[1]))
    if "cookie:" in lower:
        yield from (match.span(1) for match in _COOKIE.finditer(text))
    if "curl" in lower:
        for match in _CURL.finditer(text):
            if not (match["value"].isdigit() or _is_placeholder(match["value"])):
                yield match.span("value")
    for word in _WORDS:
        at = lower.find(word)
        while at >= 0:
            named = _ASSIGNED.match(text, at + len(word))
            found = None if named is None else _value_of(named, text, at, word)
            if found is None and word == "pass":
                found = _in_prose(text, at)
            if found is not None:
                yield found
            at = lower.find(word, at + len(word))
    for match in _FLAG.finditer(text) if "-p" in text or "--" in text or "-u" in text else ():
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


def _is_plain(value: str) -> bool:
    """Return whether it is a word, such as in `Authorization: Bearer token`, or a placeholder."""
    return (value.isalpha() and value.islower()) or _is_placeholder(value)


def _value_of(match: re.Match[str], text: str, at: int, word: str) -> Span | None:
    """Return where the password is that follows a word for one; None if it is code or prose."""
    if word == "key" and _BEFORE_KEY.search(text, max(0, at - 12), at) is None:
        return None
    if word in _WHOLE and match["more"] is None and text[at - 1 : at].isalpha():
        return None
    group = "quoted" if match["quote"] else "value"
    value, sign = match[group], match["sign"].strip().lower()
    if group == "value":
        if value.count("=") > MOST_SIGNS:
            return None
        value = value.rstrip(".?:")
    if sign == "=" and (rest := _PARAMETER.search(value)) is not None:
        value = value[: rest.start()]  # of a URL
    if len(value) < 4 or _is_placeholder(value):
        return None
    digits = any(map(str.isdigit, value))
    mixed = digits + any(map(str.isalpha, value)) + (not value.isalnum())
    if sign == "/" or sign[:1].isalpha():  # prose
        likely = mixed >= 2 and (digits or re.search(r"[!@#$%^&*?]", value) is not None)
    elif group == "quoted":
        strong = match["more"] is not None or word in _PASSWORDS
        likely = (
            (strong and len(value) >= 6)
            or (mixed >= 2 and " " not in value)
            or (len(value) >= 8 and entropy(value) > 3)
        )
    else:
        likely = (digits and mixed >= 2) or (len(value) >= 16 and entropy(value[:JUDGED]) > 3.5)
        strong = match["more"] is not None or word in _PASSWORDS or _CLIENT.search(text, max(0, at - 8), at) is not None
        likely = likely or (strong and _is_word(match, text, value))
    return (match.start(group), match.start(group) + len(value)) if likely else None


def _is_word(match: re.Match[str], text: str, value: str) -> bool:
    """Return whether a value of letters stands where configuration and chat have passwords, and code has none."""
    end = match.start("value") + len(value)
    tight = match["sign"] == "=" and match.end("sign") == match.start("value")
    if (
        not (tight or match["sign"] in (":", "："))
        or re.match(r"[.!]?(?:[ \t]*(?:\r?\n|\Z)|&|\s(?=[\w.]{1,20}=))", text[end : end + 30]) is None
    ):
        return False
    return value.isalpha() and value.islower() and _NO_PASSWORD.fullmatch(value) is None and text[end : end + 1] != "("


def _in_prose(text: str, at: int) -> Span | None:
    """Return where a password is that stands after the word for it, as people write it."""
    at += len("pass")
    bare = _BARE.match(text, at)
    if bare is not None:
        value = bare["value"].rstrip(".?!")
        mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
        if mixed and len(value) >= 5 and not (_is_placeholder(value) or _TECHNICAL.fullmatch(value)):
            return bare.start("value"), bare.start("value") + len(value)
    prose = _PROSE.match(text, at)
    if prose is None or _OWNER.search(text, max(0, at - 40), at - len("pass")) is None:
        return None
    words = re.split(r"[ \-]", prose["value"])
    ordinary = [word for word in words if _NO_PASSWORD.fullmatch(word) or _CODE.match(word)]
    if len(words) >= 4:  # words by dice may be ordinary ones
        return prose.span("value") if len(ordinary) <= 1 else None
    return prose.span("value") if not ordinary and len(words) == 1 else None


_CLIENT = re.compile(r"(?:client|app)[_\-]\Z", re.IGNORECASE)
MOST_SIGNS = 6
"""With more signs of equality, it is not one value."""
JUDGED = 80
"""How many characters of a value tell whether it is random."""
SECRET_NAME = re.compile(
    r".*(?:password|passwd|passphrase|passcode|secret|api[_\- ]?key|(?:auth|access|refresh)[_\-]?token|"
    r"(?:access|private)[_\-]?key|client[_\-]?secret|passwort|contraseña|senha)|pwd|authorization",
    re.IGNORECASE,
)
"""Names of fields whose value is a secret whatever it looks like."""

SECRET = Recognizer("SECRET", find_secrets)
