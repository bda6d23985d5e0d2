"""Paths with parameters."""

from __future__ import annotations

import pytest

from rpcstream import RegistrationError
from rpcstream.web.paths import PathPattern


@pytest.mark.parametrize(
    ("pattern", "path", "places"),
    [
        ("/", "/", {}),
        ("/a", "/a", {}),
        ("/a", "/a/", None),
        ("/a", "/ab", None),
        ("/a.b", "/axb", None),
        ("/ü ber", "/ü ber", {}),
        ("/users/{name}", "/users/ann", {"name": "ann"}),
        ("/users/{name}", "/users/", None),
        ("/users/{name}", "/users/a/b", None),
        ("/users/{name:str}", "/users/a\nb", {"name": "a\nb"}),
        ("/{a}/{b}", "/x/y", {"a": "x", "b": "y"}),
        ("/v{n:int}.png", "/v12.png", {"n": "12"}),
        ("/v{n:int}.png", "/v-1.png", {"n": "-1"}),
        ("/v{n:int}.png", "/vx.png", None),
        ("/v{n:int}", "/v\N{ARABIC-INDIC DIGIT ONE}", None),
        ("/v{n:int}", "/v" + 31 * "1", None),
        ("/files/{rest:path}", "/files/a/b", {"rest": "a/b"}),
        ("/files/{rest:path}", "/files/", {"rest": ""}),
        ("/files/{rest:path}", "/files", None),
        ("/{rest:path}", "/a\nb", {"rest": "a\nb"}),
    ],
)
def test_which_paths_match(pattern: str, path: str, places: dict[str, str] | None) -> None:
    assert PathPattern(pattern).match(path) == places


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("", "begins with '/'"),
        ("a", "begins with '/'"),
        (b"/a", "begins with '/'"),
        ("/a?b=1", "the query is no part of it"),
        ("/a#b", "the query is no part of it"),
        ("/a%20b", "with the characters themselves"),
        ("/a\nb", "control character"),
        ("/{a}{b}", "one place at most"),
        ("/{a}-{b}", "one place at most"),
        ("/{a}/{a}", "stands there twice"),
        ("/{}", "a place is a name"),
        ("/{1}", "a place is a name"),
        ("/{a b}", "a place is a name"),
        ("/{a:float}", "must be one of str, int, path"),
        ("/{a", "without its other half"),
        ("/a}", "without its other half"),
        ("/{rest:path}/x", "nothing can stand behind it"),
        ("/{rest:path}.x", "nothing can stand behind it"),
        ("/{a:path}/{b:path}", "nothing can stand behind it"),
    ],
)
def test_a_path_that_is_none_is_refused(path: str, text: str) -> None:
    with pytest.raises(RegistrationError, match=text):
        PathPattern(path)


def test_a_long_path_is_not_tried_for_long() -> None:
    """A pattern that could be matched in many ways would keep this from ending."""
    pattern = PathPattern("/a{x}b/c{y}d/{rest:path}")
    assert pattern.match("/a" + "b" * 1_000_000 + "/c" + "d" * 1_000_000) is None
