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
        ("/a?b=1", "the query is not part of a path"),
        ("/a#b", "the query is not part of a path"),
        ("/a%20b", "the characters themselves"),
        ("/a\nb", "control character"),
        ("/{a}{b}", "one parameter between two slashes"),
        ("/{a}-{b}", "one parameter between two slashes"),
        ("/{a}/{a}", "is there twice"),
        ("/{}", "a parameter is a name"),
        ("/{1}", "a parameter is a name"),
        ("/{a b}", "a parameter is a name"),
        ("/{a:float}", "must be one of str, int, path"),
        ("/{a", "without its counterpart"),
        ("/a}", "without its counterpart"),
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
