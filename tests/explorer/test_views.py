"""The views beside the methods in Chromium: the wire, the command palette, the token dialog and the map of a hub."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .service import make_server
from .test_explorer import violations

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


def cells(page: Any, method: str) -> list[str]:
    """The texts of a call in the wire view."""
    row = page.locator("main tbody tr").filter(has=page.get_by_role("button", name=method)).first
    return [each.strip() for each in row.locator("td").all_inner_texts()]


def test_the_wire_shows_each_call_with_its_messages_sizes_and_times(explore) -> None:
    with explore(make_server()) as explorer:
        page = explorer.page
        explorer.choose("losses")
        explorer.field("epochs").fill("100")
        explorer.call()
        explorer.choose("fail")
        explorer.field("text").fill("oh no")
        explorer.call("failed")
        explorer.choose("erase")
        explorer.field("name").fill("x")
        explorer.start()
        page.locator("#asked").get_by_role("button", name="Yes (true)").click()
        explorer.until("document.querySelector('main .card').dataset.state")
        page.get_by_role("link", name="Wire").click()
        _, at, state, messages, sent, received, time = cells(page, "losses")[:7]
        assert re.fullmatch(r"\d\d:\d\d:\d\d", at)
        assert (state, int(messages) >= 102) == ("done", True)
        assert re.fullmatch(r"[\d.]+ k?B", sent)
        assert re.fullmatch(r"[\d.]+ kB", received)
        assert re.fullmatch(r"[\d.]+ m?s", time)
        assert cells(page, "fail")[2:4] == ["failed", "2"]
        assert cells(page, "confirm from the server")[2:4] == ["done", "2"]
        assert page.locator("tr", has_text="losses").locator(".receiving").bounding_box()["width"] > 10
        page.get_by_role("button", name="losses").click()
        items = page.locator(".wire > li")
        assert re.match(r"→ sent \d+ B after 0.0 ms\n", items.nth(0).inner_text())
        assert '"method":"losses"' in items.nth(0).inner_text()
        assert "messages are not kept" in items.nth(10).inner_text()
        assert '"result":null' in items.last.inner_text()
        assert violations(page) == []
        page.get_by_label("Filter by method").fill("FAIL")
        assert page.locator("main tbody tr:visible").count() == 1
        page.get_by_label("Pause").check()
        page.get_by_role("button", name="Clear").click()
        page.get_by_text("No messages yet.").wait_for()
        explorer.choose("people")
        explorer.call()
        page.get_by_role("link", name="Wire").click()
        page.get_by_text("No messages yet.").wait_for()


def test_the_line_of_a_long_stream_is_thinned_and_says_so(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("count")
        explorer.field("to").fill("2500")
        card = explorer.call()
        card.get_by_text("One of 2 values is drawn").wait_for()
        assert "1250 numbers from -0.99" in card.locator("canvas").get_attribute("aria-label")


def test_the_palette_finds_methods_and_actions(explore) -> None:
    with explore(make_server()) as explorer:
        page = explorer.page
        page.keyboard.press("Control+k")
        palette = page.get_by_role("dialog", name="Command palette")
        options = palette.get_by_role("option")
        assert options.first.inner_text().strip() == "Start page"
        page.keyboard.type("TABLE")
        assert options.all_inner_texts()[0].split("\n")[0] == "people"  # by its summary
        assert violations(page) == []
        page.keyboard.press("Enter")
        page.wait_for_selector("main h2 >> text=people")
        explorer.field("count").fill("2")
        page.keyboard.press("Control+k")
        assert options.first.inner_text().startswith("Call people")
        page.keyboard.press("Enter")
        page.wait_for_selector(".card[data-state=done]")
        page.keyboard.press("Control+k")
        page.keyboard.type("reset form")
        page.keyboard.press("Enter")
        explorer.until("!document.querySelector('main .card')")
        assert explorer.field("count").input_value() == ""
        page.get_by_role("button", name="Find a method or an action").click()
        page.keyboard.type("no such thing")
        palette.get_by_text("Nothing has this name.").wait_for()
        page.get_by_label("Method or action").fill("wire")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        page.wait_for_selector("main h2 >> text=Wire")
        page.keyboard.press("Control+k")
        page.keyboard.type("dark theme")
        page.keyboard.press("Enter")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.keyboard.press("Control+k")
        page.keyboard.press("Escape")
        palette.wait_for(state="hidden")


def test_the_token_dialog_says_what_a_token_is_for(explore) -> None:
    with explore(make_server(token="horse"), is_open=False) as explorer:
        page = explorer.page
        page.goto(f"{explorer.url}/docs")
        dialog = page.get_by_role("dialog", name="Token")
        text = dialog.inner_text()
        assert "which methods you may call" in text
        assert f"sends the token to {explorer.url.removeprefix('http://')} only" in text
        assert not dialog.get_by_role("button", name="Forget it").is_visible()
        assert violations(page) == []
        page.get_by_label("Token of this server").fill("horse")
        page.get_by_label("Show the token").check()
        assert page.get_by_label("Token of this server").get_attribute("type") == "text"
        page.get_by_role("button", name="Use it").click()
        page.wait_for_selector("#list a")
        page.get_by_role("button", name="Token").click()
        dialog.get_by_role("button", name="Forget it").click()
        dialog.get_by_role("alert").filter(has_text=re.compile(".")).wait_for()  # the server refuses, and says why
        assert page.evaluate("sessionStorage.getItem('rpc-token')") == ""
