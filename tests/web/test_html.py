"""Text in HTML: what is quoted, and where values may not stand."""

from __future__ import annotations

import datetime
import pickle
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcstream.web import Html, escape, html

DATE = datetime.date(2026, 1, 2)
NASTY = """<script>alert("x")</script> & 'y'"""
QUOTED = "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt; &amp; &#39;y&#39;"


def test_values_are_quoted_in_text_and_attributes() -> None:
    page = html("<a title=\"{name}\" rel='{name}'>{name}</a>", name=NASTY)
    assert page == f"<a title=\"{QUOTED}\" rel='{QUOTED}'>{QUOTED}</a>"
    assert type(page) is Html


class Reader(HTMLParser):
    """What a browser makes of it: the tags with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(alphabet="<>&\"'={}/! abc;#\n"))
def test_a_browser_reads_what_was_put_in(text: str) -> None:
    seen = Reader(html('<p title="{text}">{text}</p>', text=text))
    assert seen.tags == [("p", [("title", text)])]
    assert seen.text == text


def test_what_is_html_stays_as_it_is_and_lists_are_put_one_behind_the_other() -> None:
    class Widget:
        def __html__(self) -> str:
            return "<hr>"

    inner = html("<b>{x}</b>", x="1 < 2")
    assert html("<script>{code}</script>", code=Html("f(1 < 2)")) == "<script>f(1 < 2)</script>"
    assert html("<p>{inner}{widget}</p>", inner=inner, widget=Widget()) == "<p><b>1 &lt; 2</b><hr></p>"
    assert escape(inner) is inner
    rows = [html("<li>{each}</li>", each=each) for each in ("a", "<b>")]
    assert html("<ul>{rows}</ul>", rows=rows) == "<ul><li>a</li><li>&lt;b&gt;</li></ul>"
    assert html("{each}", each=iter("<>")) == "&lt;&gt;"
    assert escape(("<", html("<br>"), Widget(), None, 3)) == "&lt;<br><hr>3"


def test_formats_and_braces() -> None:
    made = html("{{{price:.2f}}} {name!r:>6} {when:%Y}", price=1.5, name="<", when=DATE)
    assert made == "{1.50}    &#39;&lt;&#39; 2026"
    assert html("{x!s}", x=html("<b>")) == "&lt;b&gt;"


@pytest.mark.parametrize(
    ("text", "templates"),
    [
        ("no value 'a'", ["{a}"]),
        ("no place for 'b'", ["{x}"]),
        ("expected '}'", ["{x"]),
        ("a place in a template is a name", ["{}", "{0}", "{x.__class__}", "{x[0]}"]),
        ("places of its own", ["{x:{b}}"]),
        ("a conversion is one of", ["{x!x}"]),
        ("without quotes round it", ["<a href={x}>", "<a {x}>", "<{x}>", "</{x}>", "<a title='>' href={x}>"]),
        ("without quotes round it", ["<script>if (a < 'b') it's();</script><a href={x}>"]),
        ("without quotes round it", ['<!-- <p " --><a href={x}>']),
        ("quoting does not protect", ["<script>let x = '{x}'</script>", "<SCRIPT type='module'>{x}"]),
        ("quoting does not protect", ["<style>{x}</style>", "<p onclick=\"f('{x}')\">"]),
    ],
)
def test_a_place_that_cannot_be_filled_safely_is_refused(text: str, templates: list[str]) -> None:
    for template in templates:
        values = {"x": 1} | ({"b": 2} if "b'" in text or "{b}" in template else {})
        with pytest.raises((TypeError, ValueError), match=text):
            html(template, **values)


@pytest.mark.parametrize(
    ("template", "made"),
    [
        ("a = {a}", "a = &lt;"),
        ("<p title='it is > {a}'>{a}", "<p title='it is > &lt;'>&lt;"),
        ("<script>let x = '<p ';</script><b>{a}</b>", "<script>let x = '<p ';</script><b>&lt;</b>"),
        ("<!-- <p it's --><b>{a}</b>", "<!-- <p it's --><b>&lt;</b>"),
        ('<script src="{a}"></script>{a}', '<script src="&lt;"></script>&lt;'),
        ('<p> say onx="{a}"', '<p> say onx="&lt;"'),
    ],
)
def test_places_that_are_safe_are_taken(template: str, made: str) -> None:
    assert html(template, a="<") == made


def test_what_is_joined_with_html_is_quoted() -> None:
    start = Html("<b>")
    assert start + "<" == "<b>&lt;"
    assert "<" + start == "&lt;<b>"
    assert start + start == "<b><b>"
    assert start * 2 == "<b><b>" == 2 * start
    assert Html("<br>").join(["<", start]) == "&lt;<br><b>"
    assert Html("<i>{x}</i>").format(x="<") == "<i>&lt;</i>"
    assert Html("<i>{x}</i>").format_map({"x": "<"}) == "<i>&lt;</i>"
    for made in (start + "<", "<" + start, start * 2, start.join("ab"), start.format()):
        assert type(made) is Html
    assert Html("<i>%s</i>") % "<" == "<i>&lt;</i>"
    with pytest.raises(TypeError):
        start + 1
    with pytest.raises(TypeError, match="by name"):
        html("{a}", 1)
    there = pickle.loads(pickle.dumps(start))
    assert (there, type(there)) == ("<b>", Html)
