"""What must not leave the machine: tokens, paths, the names of machine and user.

Text is cleaned of them before it is published. Then all files are searched, and one that still has any is refused.
"""

import getpass
import os
import re
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SECRET_NAME = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|(API|ACCESS|PRIVATE)_?KEY)$", re.IGNORECASE)
# Tokens by their form: of the Hub, GitHub, GitLab, Slack, and the APIs of models, whose names may have parts.
_TOKEN = re.compile(
    rb"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|gh[opsru]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    rb"|xox[abeoprs]-[\w-]{16,}|sk-[A-Za-z0-9]{16,}|sk-(?:admin|ant|or|proj|svcacct)-[\w-]{16,})"
)
_TOKEN_TEXT = re.compile(_TOKEN.pattern.decode(), re.ASCII)
_NO_ID = r"(?!/[gm]/[0-9][0-9a-z_]+(?![\w./-]))"  # /m/0k4j is a class of Open Images
# Two parts at least: /255 is a fraction, and / alone reveals nothing. Not after a word (a/b), a URL or a tag.
_PATH = re.compile(rf"(?<![\w/<.~-]){_NO_ID}(?:/[\w.@+~-]+){{2,}}/?")
# In a home, which begins with a letter (~5/10 is a number): ~/x, ~user/x.
_HOME_PATH = re.compile(r"(?<![\w/<.~-])~(?:[A-Za-z_][\w.-]+)?(?:/[\w.@+~-]+)+/?")
# Up from somewhere and down again: ../../home/x. One step and a name (../README.md) reveal nothing.
_RELATIVE_PATH = re.compile(r"(?<![\w/.@+~-])(?:[\w.@+~-]+/)*\.\.(?:/[\w.@+~-]+){2,}/?")
_FILE_URL = re.compile(r"\bfile:/[^\s\"'`<>|),;]*", re.IGNORECASE)
# In quotes, and as a whole value, a path may contain spaces.
_QUOTED_PATH = re.compile(rf"([\"'`])(?:file:/{{1,3}}|~[\w.-]*/|(?:\.\./)+|{_NO_ID}/)[^\"'`\n/]+/[^\"'`\n]*\1")
_WHOLE_PATH = re.compile(
    rf"~([a-z_][\w.-]+)?/[^/]|{_NO_ID}/[^/]|[a-z]:[\\/]|file:/|\.\.[\\/][^\\/]+[\\/]", re.IGNORECASE
)
_WINDOWS_PATH = re.compile(r"\b[A-Za-z]:\\[^\s\"'<>|]+")
# Names that many machines have reveal nothing and occur in any text.
_COMMON = frozenset({"admin", "docker", "home", "localhost", "root", "runner", "ubuntu", "user", "users", "worker"})
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_PIXELS = {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"sBIT", b"bKGD", b"pHYs"}


@dataclass(frozen=True)
class PrivateWords:
    """The private words of this machine, at the time of creation.

    Args:
        folders: folders whose paths are private, besides home.
        known: words that are kept although they are the user's name: results have a key ``test``.
    """

    folders: tuple[Path, ...] = ()
    known: frozenset[str] = frozenset()
    tokens: tuple[str, ...] = field(init=False)
    paths: tuple[str, ...] = field(init=False)
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        homes = [Path.home(), *self.folders]
        paths = {str(path) for home in homes for path in (home.absolute(), home.resolve())}
        names = {_user(), Path.home().name, socket.gethostname(), socket.gethostname().split(".")[0]}
        telling = {name for name in names if len(name) > 2 and name.lower() not in _COMMON and name not in self.known}
        object.__setattr__(self, "tokens", tuple(sorted(_tokens())))
        object.__setattr__(self, "paths", _longest_first(path for path in paths if len(path) > 4 and "/" in path[1:]))
        object.__setattr__(self, "names", _longest_first(telling))

    def clean(self, text: str) -> str:
        """Return the text with private words replaced."""
        for token in self.tokens:
            text = text.replace(token, "TOKEN")
        text = _TOKEN_TEXT.sub("TOKEN", text)
        text = _QUOTED_PATH.sub(r"\1LOCAL_PATH\1", text)
        for form in (_FILE_URL, _RELATIVE_PATH, _HOME_PATH):
            text = form.sub("LOCAL_PATH", text)
        for path in self.paths:
            text = re.sub(re.escape(path) + r"(?:/[\w.@+~-]*)*", "LOCAL_PATH", text)
        text = _WINDOWS_PATH.sub("LOCAL_PATH", _PATH.sub("LOCAL_PATH", text))
        for name in self.names:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "NAME", text)
        return text

    def clean_values(self, value: Any) -> Any:
        """Return JSON or YAML values with private words replaced; a value that is a path is replaced as a whole."""
        if isinstance(value, str):
            return "LOCAL_PATH" if _WHOLE_PATH.match(value) else self.clean(value)
        if isinstance(value, Mapping):
            return {self.clean_values(key): self.clean_values(item) for key, item in value.items()}
        return [self.clean_values(item) for item in value] if isinstance(value, (list, tuple)) else value

    def secret_in(self, content: bytes) -> bool:
        """Return whether bytes contain a token or a private path."""
        known = any(word.encode() in content for word in (*self.tokens, *self.paths))
        return known or _TOKEN.search(content) is not None

    def found_in(self, content: bytes) -> bool:
        """Return whether bytes contain a token, a private path, or a name too long to be there by chance."""
        return self.secret_in(content) or any(name.encode() in content for name in self.names if len(name) >= 8)


def without_comments(png: bytes) -> bytes:
    """Return a PNG file with only its pixels: comments may contain a path or an author.

    Raises:
        ValueError: it is not a PNG file, or truncated.
    """
    if not png.startswith(_PNG):
        raise ValueError("not a PNG file")
    kept, position = [_PNG], len(_PNG)
    while position < len(png):
        if position + 12 > len(png):
            raise ValueError("the PNG file is truncated")
        (length,) = struct.unpack(">I", png[position : position + 4])
        end = position + 12 + length
        if png[position + 4 : position + 8] in _PNG_PIXELS:
            kept.append(png[position:end])
        position = end
    return b"".join(kept)


def _tokens() -> set[str]:
    from huggingface_hub import get_token

    values = {value for name, value in os.environ.items() if _SECRET_NAME.search(name)}
    return {value.strip() for value in (*values, get_token() or "") if len(value.strip()) >= 8}


def _user() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container without an entry for its user
        return ""


def _longest_first(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(words, key=lambda word: (-len(word), word)))
