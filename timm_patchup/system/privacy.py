"""What must stay at home: tokens, paths, the names of machine and user.

Text that goes out is cleaned of them; afterwards every file is searched, and what still holds one is not let out.
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
_HUB_TOKEN = re.compile(rb"\bhf_[A-Za-z0-9]{16,}")
# Two parts at least: /255 is a number over 255 and / alone tells nothing. Not behind a word (a/b), a URL or a tag.
_PATH = re.compile(r"(?<![\w/<.~-])~?(?:/[\w.@+~-]+){2,}/?")
# Between quotes, and where it is all of a value, a path may hold spaces.
_QUOTED_PATH = re.compile(r"([\"'`])~?/[^\"'`\n/]+/[^\"'`\n]*\1")
_WHOLE_PATH = re.compile(r"~?/[^/]|[A-Za-z]:[\\/]")
_WINDOWS_PATH = re.compile(r"\b[A-Za-z]:\\[^\s\"'<>|]+")
# Names that half of all machines have tell nothing, and would be found in any text.
_COMMON = frozenset({"admin", "docker", "home", "localhost", "root", "runner", "ubuntu", "user", "users", "worker"})
_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_PIXELS = {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"sBIT", b"bKGD", b"pHYs"}


@dataclass(frozen=True)
class Private:
    """The secrets of this machine, as they are now.

    Args:
        folders: folders whose paths are not to be seen, besides home.
        known: words that text is full of anyway: a user called ``test`` must not cost the results their keys.
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
        """Return text without anything private."""
        for token in self.tokens:
            text = text.replace(token, "TOKEN")
        text = re.sub(_HUB_TOKEN.pattern.decode(), "TOKEN", text)
        text = _QUOTED_PATH.sub(r"\1LOCAL_PATH\1", text)
        for path in self.paths:
            text = re.sub(re.escape(path) + r"(?:/[\w.@+~-]*)*", "LOCAL_PATH", text)
        text = _WINDOWS_PATH.sub("LOCAL_PATH", _PATH.sub("LOCAL_PATH", text))
        for name in self.names:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "NAME", text)
        return text

    def clean_values(self, value: Any) -> Any:
        """Return values as JSON and YAML hold them without anything private: what is a path goes as a whole."""
        if isinstance(value, str):
            return "LOCAL_PATH" if _WHOLE_PATH.match(value) else self.clean(value)
        if isinstance(value, Mapping):
            return {self.clean_values(key): self.clean_values(item) for key, item in value.items()}
        return [self.clean_values(item) for item in value] if isinstance(value, (list, tuple)) else value

    def secret_in(self, content: bytes) -> bool:
        """Whether bytes hold a token or a private path."""
        known = any(word.encode() in content for word in (*self.tokens, *self.paths))
        return known or _HUB_TOKEN.search(content) is not None

    def found_in(self, content: bytes) -> bool:
        """Whether bytes hold a token, a private path or, long enough not to be there by chance, a name."""
        return self.secret_in(content) or any(name.encode() in content for name in self.names if len(name) >= 8)


def without_comments(png: bytes) -> bytes:
    """Return a PNG picture with its pixels alone: comments may hold the path or the author of the program.

    Raises:
        ValueError: not a PNG, or cut off.
    """
    if not png.startswith(_PNG):
        raise ValueError("not a PNG picture")
    kept, position = [_PNG], len(_PNG)
    while position < len(png):
        if position + 12 > len(png):
            raise ValueError("the PNG picture is cut off")
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
