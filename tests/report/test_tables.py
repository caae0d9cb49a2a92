"""Tables: text from outside is harmless in Markdown and HTML, CSV has all digits."""

import csv

import pytest

from timm_patchup.report.markdown import escape
from timm_patchup.report.pages import Block, as_html, as_markdown
from timm_patchup.report.tables import comma_separated, markdown_table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fashion_mini_hard_patchup", "fashion_mini_hard_patchup"),
        ("a|b", r"a\|b"),
        ("two\nlines", "two lines"),
        ("<script>alert(1)</script>", "&lt;script>alert(1)&lt;/script>"),
        ("[click](http://x)", r"\[click\](http\://x)"),
        ("gamma=[0.1, 0.2]", r"gamma=\[0.1, 0.2\]"),
        ("`code` *bold* _it_", r"\`code\` \*bold\* \_it\_"),
        ("# title", r"\# title"),
    ],
)
def test_names_and_titles_are_escaped(text: str, shown: str) -> None:
    assert escape(text) == shown


LINES = [("model", "error, %"), ("a|b<i>", "1.0"), ("none", "-")]


def test_cells_are_escaped_and_aligned() -> None:
    assert markdown_table(LINES).splitlines() == [
        "| model | error, % |",
        "| --- | ---: |",
        r"| a\|b&lt;i> | 1.0 |",
        "| none | - |",
    ]
    aligned = markdown_table(LINES, aligned=True).splitlines()
    assert aligned[1:3] == ["| ---------- | -------- |", r"| a\|b&lt;i> | 1.0      |"]
    assert len({len(line) for line in aligned}) == 1


def test_pages_have_the_same_tables() -> None:
    blocks = [Block("title", "Report"), Block("table", lines=tuple(LINES)), Block("small", "by <me>")]
    assert as_markdown(blocks) == f"# Report\n\n{markdown_table(LINES)}\n\nby &lt;me>\n"
    page = as_html(blocks, {})
    assert "<tr><th>model</th><th>error, %</th></tr><tr><td>a|b&lt;i&gt;</td><td>1.0</td></tr>" in page
    assert "<h1>Report</h1>" in page
    assert '<p class="small">by &lt;me&gt;</p>' in page


def test_csv_has_all_digits() -> None:
    text = comma_separated([("a", "b"), (0.1 + 0.2, None), ("x,y", 1)])
    assert [*csv.reader(text.splitlines())] == [["a", "b"], ["0.30000000000000004", ""], ["x,y", "1"]]
