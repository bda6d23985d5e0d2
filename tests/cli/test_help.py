"""`--help` of both commands and `rpcstream help TOPIC` fit a terminal; a method called help can be called."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator

import pytest

from rpcstream import Server
from rpcstream.cli import call_options, serve_options
from rpcstream.cli.call import main
from rpcstream.cli.help_topics import TOPICS
from rpcstream.testing import serve_in_thread

PARSERS = [call_options.make_parser, serve_options.make_parser]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = Server(drain_timeout=0.1)

    @server
    def help(what: str = "nothing") -> str:
        return f"no help for {what}"

    with serve_in_thread(server) as where:
        yield where


@pytest.mark.parametrize("columns", ["80", "200", "100", ""])
@pytest.mark.parametrize("make_parser", PARSERS)
def test_the_help_of_options_fits_a_terminal(
    make_parser: Callable[[], argparse.ArgumentParser], columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = make_parser().format_help().splitlines()
    assert len(lines) <= 60
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("make_parser", PARSERS)
def test_every_option_is_in_it_or_in_a_page_that_it_names(make_parser: Callable[[], argparse.ArgumentParser]) -> None:
    text = make_parser().format_help()
    for topic in re.findall(r"help ([a-z-]+)[,)]", text):
        text += TOPICS[topic][1]
    named = [action.option_strings[-1] for action in make_parser()._actions if action.option_strings]  # noqa: SLF001
    assert [name for name in named if name not in text] == []


@pytest.mark.parametrize("topic", TOPICS)
def test_a_page_fits_a_terminal(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", topic]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 3 < len(lines) <= 40
    assert [line for line in lines if len(line) > 80] == []


def test_topics_are_listed_and_named_by_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    listed = re.findall(r"^  ([a-z-]+)  +\S", capsys.readouterr().out, re.MULTILINE)
    assert listed == list(TOPICS)
    named = re.findall(r"help ([a-z-]+)[,)]", call_options.make_parser().format_help())
    assert set(named) <= set(listed)


def test_an_unknown_topic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "value"]) == 2
    assert "no help about 'value' (did you mean 'values'?)" in capsys.readouterr().err


def test_options_of_the_pages_exist() -> None:
    actions = [*call_options.make_parser()._actions, *serve_options.make_parser()._actions]  # noqa: SLF001
    known = {name for action in actions for name in action.option_strings}
    for _, text in TOPICS.values():
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= known


def test_a_method_called_help(address: str, capfd: pytest.CaptureFixture[str]) -> None:
    for argv in (["--uri", address, "--", "help"], ["help", "--uri", address], ["help", "what=me", "--uri", address]):
        assert main(argv) == 0
    assert capfd.readouterr().out == '"no help for nothing"\n"no help for nothing"\n"no help for me"\n'
