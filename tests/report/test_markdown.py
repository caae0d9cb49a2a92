"""Names and titles in Markdown: a parser of CommonMark, with GitHub's tables and struck text, sees plain text."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from timm_patchup.report.markdown import code, escape

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
SPECIAL = st.text("\\`*_[]()<>!|~$#+-=.:;&/@\"'^{}%?,\n\t 019ahtpsw", max_size=24)
KNOWN = [
    "![a[b]](http:evil.example)",
    "[click](http://x)",
    "![](x)",
    "[a]: http://x",
    "[a][b]",
    "<http://x>",
    "<script>alert(1)</script>",
    "&lt;b&gt; &#91;x&#93;",
    "`` a ` b ``",
    "*a* __b__ _c_ a_b_c ~~d~~ ~e~",
    "a | b",
    "| a |\n| - |",
    "# title",
    "#",
    "> quote",
    ">quote",
    "- item",
    "+",
    "1. one",
    "2)",
    "---",
    "===",
    "___",
    "***",
    "~~~",
    "```",
    "    code",
    "[ ] task",
    "[^1]",
    "a\\",
    "\\[a](b)",
    "$x$",
]


def texts(tokens: list[Token]) -> str:
    """Return the text of tokens; raise if any of them is more than text."""
    kinds = {child.type for token in tokens for child in token.children or ()}
    assert kinds <= {"text"}, kinds
    return "".join(child.content for token in tokens for child in token.children or ())


def with_known(test):
    for text in KNOWN:
        test = example(text=text)(test)
    return test


@with_known
@given(text=SPECIAL)
def test_escaped_text_is_shown_as_it_is(text: str) -> None:
    expected = " ".join(text.split())
    for before, kinds in (("", "paragraph"), ("# ", "heading"), ("Its classes: ", "paragraph"), ("- ", "bullet_list")):
        tokens = PARSER.parse(f"{before}{escape(text)}\n\nnext")
        if expected:
            assert tokens[0].type == f"{kinds}_open"
        shown = texts(tokens).removesuffix("next")
        assert shown == (before.lstrip("#- ") + expected).strip()
    cells = PARSER.parse(f"| a | b |\n| --- | --- |\n| {escape(text)} | c |\n")
    assert [token.type for token in cells].count("td_open") == 2
    assert texts(cells) == f"ab{expected}c"


@with_known
@given(text=SPECIAL)
def test_code_has_any_backticks(text: str) -> None:
    expected = " ".join(text.split())
    if not expected:
        return
    (paragraph,) = (token for token in PARSER.parse(f"a {code(text)} b") if token.type == "inline")
    assert [child.type for child in paragraph.children or ()] == ["text", "code_inline", "text"]
    assert (paragraph.children or [])[1].content == expected


@pytest.mark.parametrize("text", ["http://evil.example", "see HTTPS://evil.example/x", "www.evil.example", "ftp://x.y"])
def test_addresses_do_not_become_links(text: str) -> None:
    """On GitHub they would without any brackets."""
    escaped = escape(text)
    assert not re.search(r"\w://|www\.", escaped, re.IGNORECASE)
    assert texts(PARSER.parse(escaped)) == text


@pytest.mark.parametrize(
    "text", ["fashion_mini_hard_patchup", "T-shirt/top", "8/255", "a.b (c)", "±0.5, 3 of 5", "R&B", "n01440764 tench"]
)
def test_plain_names_stay_readable_in_the_source(text: str) -> None:
    assert escape(text) == text
