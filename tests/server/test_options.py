"""The options of a server: documented with their defaults, and unknown ones refused."""

from __future__ import annotations

import ast
import re

import pytest

from rpcstream import Hub, Server


@pytest.mark.parametrize("kind", [Server, Hub])
def test_an_unknown_option_is_refused_with_the_nearest_name(kind: type[Server]) -> None:
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\(\) has no option 'limts'; did you mean 'limits'\?$"):
        kind(limts=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(("kind", "title"), [(Server, "rpcstream server"), (Hub, "rpcstream hub")])
def test_the_help_has_each_option_with_its_default(kind: type[Server], title: str) -> None:
    assert kind().title == title
    assert kind.__doc__ is not None
    shown = dict(re.findall(r"^    (\w+)=(.+?): ", kind.__doc__, re.MULTILINE))
    assert (shown.pop("limits"), shown["title"]) == ("Limits()", repr(title))
    assert len(shown) > 15
    for name, default in shown.items():
        kind(**{name: ast.literal_eval(default)})
