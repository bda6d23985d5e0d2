"""The options of a server: documented with their defaults, and unknown ones refused."""

from __future__ import annotations

import pytest

from rpcstream import Hub, Server
from rpcstream.server.options import DEFAULTS, ServerOptions


@pytest.mark.parametrize("kind", [Server, Hub])
def test_an_unknown_option_is_refused_with_the_nearest_name(kind: type[Server]) -> None:
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\(\) has no option 'limts'; did you mean 'limits'\?$"):
        kind(limts=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(("kind", "title"), [(Server, "rpcstream server"), (Hub, "rpcstream hub")])
def test_the_help_has_each_option_with_its_default(kind: type[Server], title: str) -> None:
    assert kind().title == title
    assert DEFAULTS.keys() == ServerOptions.__optional_keys__
    assert kind.__doc__ is not None
    for name, default in DEFAULTS.items():
        shown = {"limits": "Limits()", "title": repr(title)}.get(name, repr(default))
        assert f"    {name}={shown}: " in kind.__doc__
