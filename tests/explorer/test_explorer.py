"""The explorer in Chromium: forms, pictures, arrays, streams, events, questions, errors, tokens, and bad documents."""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from rpcstream import Client, Http, Hub, Info, RpcError, Server
from rpcstream.testing import serve_in_thread

from ..kit import until_in_thread
from .service import make_server

AXE = Path(__file__).parent / "axe" / "node_modules" / "axe-core" / "axe.min.js"
#: The machine may be busy: axe alone looks at a dozen views.
pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

X = "\N{MULTIPLICATION SIGN}"
STOPS = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]])


def heat_map(values: np.ndarray) -> np.ndarray:
    """What the explorer draws for a 2-D array: red, green, blue and alpha of each item."""
    items = values.astype(float)
    least, greatest = np.nanmin(items), np.nanmax(items)
    place = np.nan_to_num((items - least) / (greatest - least) * 4)
    stop = np.minimum(3, np.floor(place)).astype(int)
    colours = np.floor(STOPS[stop] + (STOPS[stop + 1] - STOPS[stop]) * (place - stop)[..., None] + 0.5)
    return np.where(np.isnan(items)[..., None], 0, np.dstack([colours, np.full(items.shape, 255)])).astype(int)


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()


def sketch() -> Image.Image:
    y, x = np.mgrid[0:120, 0:160]
    parts = [x * 255 // 159, y * 255 // 119, (np.hypot(x - 80, y - 60) < 40) * 255]
    return Image.fromarray(np.stack(parts, axis=-1).astype(np.uint8))


def given(name: str, content: bytes, kind: str = "image/png") -> dict[str, Any]:
    return {"name": name, "mimeType": kind, "buffer": content}


def test_methods_are_grouped_and_found_and_the_keyboard_is_enough(explore) -> None:
    with explore(make_server()) as explorer:
        page = explorer.page
        assert page.locator("#list h2").all_inner_texts() == ["Methods", "Trouble", "files", "Built-in methods"]
        assert not page.locator("#list a", has_text="rpc.ping").is_visible()  # folded
        assert page.locator("main h2").inner_text() == "Pictures & numbers"
        assert "Try them." in page.locator("main").inner_text()
        page.keyboard.press("/")
        page.keyboard.type("table")
        assert page.locator("#list a").all_inner_texts() == ["people"]  # by its summary
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_selector("main h2 >> text=people")
        for _ in range(12):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.matches('main input')"):
                break
        page.keyboard.type("3")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("main table")
        rows = page.locator("main tr").all_inner_texts()
        assert rows[0].split("\t") == ["name text", "age int", "tags list"]
        assert rows[3].split() == ["person", "2", "22", '["a","b"]']
        assert explorer.page.title() == "Pictures & numbers"


def test_a_form_has_dates_lists_objects_choices_and_optional_values(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("plan")
        explorer.field("title").fill("Monday")
        explorer.field("when").fill("2024-02-29")
        explorer.page.get_by_role("button", name="Add an item").first.click()
        explorer.field("x").fill("3")
        explorer.field("y").fill("-4")
        explorer.field("colour").select_option(label="green")
        explorer.page.get_by_role("button", name="Set size").click()
        explorer.page.locator("fieldset", has_text="size").get_by_label("type").first.select_option(label="integer")
        explorer.page.locator("fieldset", has_text="size").get_by_label("value").press_sequentially("12", delay=150)
        explorer.field("urgent").select_option(label="true")
        card = explorer.call()
        first = explorer.page.locator(".answer > :first-child")
        assert first.get_attribute("aria-label") == "results"  # before the code
        said = card.inner_text()
        for part in ('"Monday"', '"2024-02-29"', '"green"', "size 12", "urgent true"):
            assert part in said, said
        assert {"3", "-4"} <= set(said.split())


def test_the_start_page_has_signatures_and_ways_to_connect(explore) -> None:
    info = Info(
        title="Vision", version="2.1", description="**Bold**, `code`, [a link](https://example.org) <b>\n\n* one\n* two"
    )
    with explore(make_server(info=info)) as explorer:
        main = explorer.page.locator("main")
        assert main.locator("strong").inner_text() == "Bold"
        assert main.locator(".text code").inner_text() == "code"
        assert main.locator(".text a").get_attribute("href") == "https://example.org"
        assert main.locator(".text li").all_inner_texts() == ["one", "two"]
        assert "<b>" in main.inner_text()
        shown = dict(
            zip(main.locator(".sig-name").all_inner_texts(), main.locator(".signature").all_inner_texts(), strict=True)
        )
        assert shown["scores"] == "scores(photo: Image, top: int = 3) → dict[str, float]"
        assert shown["losses"] == "losses(epochs: int = 60, pause: float = 0.001) → stream of dict[str, float]"
        assert shown["scale"] == "scale(values: ndarray[float64], factor: float = 2.0) → ndarray[float64]"
        assert shown["plan"].startswith("plan(title: str, when: date, boxes: list[Box], colour: ")
        assert "size: " in shown["plan"]
        assert "*, urgent: bool = False)" in shown["plan"]
        assert not main.get_by_text("rpc.discover").first.is_visible()  # folded away
        for way in ("Command line", "curl", "JavaScript", "Python"):
            main.get_by_role("tab", name=way).click()
            assert explorer.url.removeprefix("http://") in main.get_by_label("how to connect").inner_text()
        explorer.page.keyboard.press("/")
        explorer.page.keyboard.type("training")
        assert main.locator(".method-card:visible").count() == 1  # cards follow the search
        main.locator(".method-card").click()
        explorer.page.wait_for_selector("main h2 >> text=losses")


def test_the_code_follows_the_form_and_an_empty_field_is_the_default(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("scores")
        code = explorer.page.get_by_label("the call as text")
        assert 'client.scores(photo=Image.open("photo.png"))' in code.inner_text()
        top = explorer.field("top")
        assert top.get_attribute("placeholder") == "3"
        assert "int, 1 to 3 default 3" in explorer.page.locator(".head", has_text="top").inner_text().replace("\n", " ")
        same = "node => getComputedStyle(node, '::placeholder').color === getComputedStyle(node).color"
        assert top.evaluate(same)  # a default is a value, and looks like one
        assert explorer.field("top").input_value() == ""
        explorer.page.get_by_label("slider").fill("2")
        assert explorer.field("top").input_value() == "2"
        explorer.field("photo").set_input_files([given("cat.png", png(sketch()))])
        explorer.page.wait_for_selector("pre >> text=cat.png")
        assert 'client.scores(photo=Image.open("cat.png"), top=2)' in code.inner_text()
        explorer.page.get_by_role("tab", name="Command line").click()
        address = explorer.url.removeprefix("http://")
        assert code.inner_text().strip() == f"rpcstream scores photo=cat.png top=2 --uri {address}"
        explorer.page.get_by_role("tab", name="Python").click()
        card = explorer.call()
        assert card.locator(".bars").inner_text().split("\n") == ["cat", "73.1 %", "lynx", "25.0 %"]
        assert re.search(r"25\.0 %\s+\d+\.\d ms · [\d.]+ kB sent", card.inner_text())  # the sizes come last
        assert card.locator("meter").first.evaluate("node => node.value") == 0.7312
        explorer.page.get_by_role("button", name="Reset top").click()
        explorer.until("!document.querySelector('[role=tabpanel]').innerText.includes('top=')")
        explorer.field("top").fill("9")
        explorer.call("failed")
        assert "3" in explorer.error("top")
        explorer.field("top").fill("")
        assert explorer.call().locator("meter").count() == 3


def test_a_stream_of_numbers_by_name_is_a_chart(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("losses")
        card = explorer.call()
        card.locator(".items li").nth(59).wait_for()
        assert card.locator(".legend").inner_text().split() == ["loss", "validation"]
        said = card.locator("canvas").get_attribute("aria-label")
        assert said.startswith("lines of loss, validation, 60 numbers from 0.0523")
        before = explorer.pixels(card.locator("canvas"))
        card.get_by_label("Log scale").check()
        assert (explorer.pixels(card.locator("canvas")) != before).any()
        explorer.choose("huge")
        explorer.field("number").fill("41")
        assert explorer.call().locator(".scalar").inner_text() == "42"


def test_an_error_stands_at_the_field_that_its_path_names(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("plan")
        explorer.field("title").fill("a title of more than twenty characters")
        explorer.field("when").fill("2024-02-29")
        explorer.call("failed")
        assert "20" in explorer.error("title")
        assert explorer.field("title").get_attribute("aria-invalid") == "true"
        assert explorer.page.evaluate("document.activeElement.closest('.field').innerText").startswith("title")
        explorer.field("title").fill("short")
        assert explorer.error("title") == ""
        # One of the server in an item of a list.
        explorer.page.get_by_role("button", name="Add an item").first.click()
        explorer.field("x").fill("-101")
        explorer.field("y").fill("4")
        explorer.call("failed")
        assert "-100" in explorer.error("x")
        assert explorer.error("title") == explorer.error("y") == ""
        # One that the form finds itself: nothing is sent.
        explorer.field("x").fill("three")
        explorer.page.locator("main form button.main").click()
        assert "a whole number is expected" in explorer.page.locator(".field .error:visible").inner_text()
        assert explorer.page.locator("main .card").count() == 2
        assert "boxes.0.x" in explorer.page.locator("main .ask > .error").inner_text()


def test_examples_progress_trees_and_numbers_of_any_size(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("fail")
        assert "Errors\n17 No good" in explorer.page.locator("main").inner_text()
        explorer.page.get_by_role("button", name="Example: simple").click()
        assert explorer.field("text").input_value() == "oh"
        assert "code 17" in explorer.call("failed").inner_text()
        explorer.choose("work")
        explorer.field("steps").fill("40")
        card = explorer.start()
        explorer.page.wait_for_selector("progress[value]:not([hidden])")
        explorer.page.get_by_text(re.compile(r"^\d+ of 40$")).wait_for()
        explorer.until(r"/^\d[\d.]*\/s, \d+ s left$/.test(document.querySelector('.card .left').textContent)")
        explorer.page.wait_for_selector(".card[data-state=done]")
        assert "ready" in card.inner_text()
        explorer.choose("grow")
        explorer.field("name").fill("root")
        explorer.page.get_by_role("button", name="Set branches").click()
        explorer.page.get_by_role("button", name="Add an item").first.click()
        explorer.page.locator("fieldset fieldset").get_by_label("name", exact=True).first.fill("leaf")
        assert "2" in explorer.call().locator(".output").inner_text()
        explorer.choose("huge")
        explorer.field("number").fill("123456789012345678901234567890")
        assert "123456789012345678901234567891" in explorer.call().inner_text()


def test_a_picture_is_dropped_pasted_or_taken_by_a_camera(explore) -> None:
    with explore(make_server(), permissions=["camera"]) as explorer:
        explorer.choose("negative")
        content = list(png(sketch()))
        for event, member in (("drop", "dataTransfer"), ("paste", "clipboardData")):
            explorer.page.evaluate(
                """([kind, member, content]) => {
                    const given = new DataTransfer()
                    given.items.add(new File([new Uint8Array(content)], `${kind}.png`, { type: "image/png" }))
                    const Kind = kind === "drop" ? DragEvent : ClipboardEvent
                    const event = new Kind(kind, { bubbles: true, cancelable: true, [member]: given })
                    document.querySelector(kind === "drop" ? ".drop" : "body").dispatchEvent(event)
                }""",
                [event, member, content],
            )
            explorer.page.wait_for_selector(f"text={event}.png · 160 {X} 120 · RGB")
        explorer.page.get_by_role("button", name="Camera").click()
        explorer.page.get_by_role("button", name="Take the picture").click()
        explorer.page.wait_for_selector(f"text=/camera.png · \\d+ {X} \\d+ · RGBA?/")
        card = explorer.call()
        card.locator("figcaption", has_text=f"{X}").wait_for()
        assert card.locator(".picture").last.evaluate("image => image.width") > 100


def test_a_mask_lies_over_the_picture(explore) -> None:
    photo = sketch()
    with explore(make_server()) as explorer:
        explorer.choose("bright")
        explorer.field("photo").set_input_files([given("photo.png", png(photo))])
        explorer.page.wait_for_selector(f"text=160 {X} 120 · RGB")
        card = explorer.call()
        assert card.get_by_label("Overlay").is_checked()
        assert card.locator(".stack img").count() == 1
        assert card.locator("canvas").evaluate("node => getComputedStyle(node).opacity") == "0.5"
        mask = explorer.pixels(card.locator("canvas"))[..., 3]
        assert np.array_equal(mask > 0, np.asarray(photo.convert("L")) >= 128)  # what is not in it is transparent
        boxes = [card.locator(each).bounding_box() for each in ("canvas", ".stack img")]
        assert boxes[0] == pytest.approx(boxes[1], abs=1)
        explorer.keep("explorer-mask.png")


def test_arrays_are_drawn_pixel_by_pixel_as_numpy_has_them(explore) -> None:
    server = make_server()
    waves = server.methods["waves"].function()
    gradient = server.methods["gradient"].function()
    with explore(server) as explorer:
        explorer.choose("waves")
        card = explorer.call()
        assert np.array_equal(explorer.pixels(card.locator("canvas")), heat_map(waves))
        assert card.locator("figcaption").inner_text().startswith("float32 (48, 64) · ")
        explorer.choose("gradient")
        pixels = explorer.pixels(explorer.call().locator("canvas"))
        assert np.array_equal(pixels[..., :3], gradient)
        assert (pixels[..., 3] == 255).all()


def test_an_array_is_typed_or_a_file(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("scale")
        explorer.field("values").fill("[[1, NaN], [3, 4.5]]")
        card = explorer.call()
        assert "float64 (2, 2)" in card.inner_text()
        assert "2 to 9 · mean 5.667 · std 2.867 · 1 NaN" in card.inner_text()
        file = io.BytesIO()
        sent = np.asfortranarray(np.arange(6.0).reshape(2, 3))
        np.save(file, sent)
        explorer.page.locator(".drop input[type=file]").set_input_files([given("sent.npy", file.getvalue(), "")])
        explorer.page.wait_for_selector("text=sent.npy <f8 (2, 3)")
        with explorer.page.expect_download() as saved:
            explorer.call().get_by_role("button", name="Save .npy").click()
        assert np.array_equal(np.load(saved.value.path()), 2 * sent)


def test_a_stream_is_stopped_midway(explore) -> None:
    server = make_server()
    with explore(server) as explorer:
        explorer.choose("count")
        explorer.field("pause").fill("0.005")
        card = explorer.start()
        explorer.until("document.querySelectorAll('.items li').length >= 40")
        explorer.keep("explorer-stream.png")
        assert re.search(r"\d+ items · [\d,.]+ items/s", card.inner_text())
        card.get_by_role("button", name="Stop").click()
        explorer.page.wait_for_selector("main .card[data-state=stopped]")
        until_in_thread(lambda: server.state.cancelled)
        (items,) = server.state.cancelled
        assert 40 <= items < 1000
        explorer.field("pause").fill("0")
        card = explorer.call()
        assert "0.99999" in card.locator("canvas").get_attribute("aria-label")
        assert re.search(r"1,000 items · \S+ items/s · the last 100 are listed", card.inner_text())


def test_a_question_of_the_server_is_asked_of_the_person(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("erase")
        explorer.field("name").fill("everything")
        for answer, outcome in (("Yes (true)", "is gone"), ("No (false)", "stays")):
            card = explorer.start()
            asked = explorer.page.locator("#asked")
            asked.get_by_text("The server calls confirm").wait_for()
            assert "Erase everything?" in asked.inner_text()
            asked.get_by_role("button", name=answer).click()
            explorer.until("document.querySelector('main .card').dataset.state")
            assert f"everything {outcome}" in card.inner_text()
        explorer.start()
        explorer.page.locator("#asked").get_by_role("button", name="Refuse").click()
        explorer.page.wait_for_selector(".card[data-state=failed]")


def test_events_are_kept_in_a_log(explore) -> None:
    server = make_server()
    with explore(server) as explorer:
        page = explorer.page
        page.get_by_role("link", name="Events").click()
        page.get_by_label("Topic or pattern").fill("news.>")
        page.get_by_role("button", name="Subscribe").click()
        page.get_by_role("button", name="Stop news.>").wait_for()
        with Client(explorer.url.replace("http", "ws")) as client:
            until_in_thread(lambda: client.announce("news.weather", {"rain": True}))
            page.wait_for_selector("td >> text=news.weather")
            page.get_by_role("button", name="Stop news.>").click()
            explorer.until("!document.querySelector('.plain li')")
        explorer.choose("people")
        page.get_by_role("link", name="Events").click()
        page.get_by_text("1 events in the log").wait_for()
        with page.expect_download() as saved:
            page.get_by_role("button", name="Save the log").click()
        (line,) = Path(saved.value.path()).read_text().splitlines()
        assert json.loads(line)["value"] == {"rain": True}


def test_messages_links_and_history_of_calls_at_another_path(explore) -> None:
    with explore(make_server(http=Http(path=["/a&b/rpc"]))) as explorer:
        page = explorer.page
        explorer.choose("people")
        explorer.field("count").fill("2")
        assert re.search(r"\d+\.\d ms · \d+ B sent · \d+ B received · 2 messages", explorer.call().inner_text())
        page.get_by_role("button", name="Copy a link").click()
        link = page.url
        page.get_by_role("link", name="Wire").click()
        page.get_by_role("button", name="people").click()
        assert '"method":"people"' in page.locator("main").inner_text()
        page.get_by_role("link", name="History").click()
        assert page.locator("main li").count() == 1
        page.goto("about:blank")
        page.goto(link)
        page.wait_for_selector("main h2 >> text=people")
        assert explorer.field("count").input_value() == "2"
        assert page.locator("main .card").count() == 0  # a link calls nothing by itself


def test_two_calls_of_the_history_are_compared(explore) -> None:
    with explore(make_server()) as explorer:
        page = explorer.page
        for count in ("2", "3", "2"):
            explorer.choose("people")
            explorer.field("count").fill(count)
            explorer.call()
        page.get_by_role("link", name="History").click()
        boxes = page.locator("main li input")
        assert boxes.count() == 3
        boxes.nth(0).check()
        assert page.locator(".diff").count() == 0  # one call alone
        boxes.nth(1).check()
        rows = page.locator(".diff tbody tr")
        first = rows.nth(0).locator("td").all_inner_texts()
        assert first == ["params.count", "3", "2"]  # the older call is on the left
        others = rows.locator("td:first-child").all_inner_texts()[1:]
        assert others
        assert all(each.startswith("result[2]") for each in others)
        assert violations(page) == []
        boxes.nth(2).check()  # releases the call that was chosen first
        assert [boxes.nth(at).is_checked() for at in range(3)] == [False, True, True]
        boxes.nth(1).uncheck()
        boxes.nth(0).check()
        page.get_by_text("No differences found.").wait_for()
        explorer.choose("waves")
        explorer.call()
        explorer.call()
        explorer.choose("fail")
        for text in ("one", "two"):
            explorer.field("text").fill(text)
            explorer.call("failed")
        page.get_by_role("link", name="History").click()
        for at in (0, 1):  # two that failed
            boxes.nth(at).check()
        assert ["result.message", "one", "two"] in [
            [each.strip('"') for each in row.locator("td").all_inner_texts()] for row in rows.all()
        ]
        for at in (2, 3):  # two arrays of one shape
            boxes.nth(at).check()
        page.get_by_text("compared by type and size only").wait_for()
        page.reload()
        page.wait_for_selector("main li input")
        assert boxes.count() == 7  # they are kept for the tab
        page.get_by_role("button", name="Clear").click()
        page.get_by_text("No calls yet.").wait_for()


@pytest.mark.parametrize("method", ["count", "plan"])
def test_a_call_is_copied_as_python_command_line_curl_and_javascript(explore, tmp_path, method) -> None:
    with explore(make_server()) as explorer:
        explorer.choose(method)
        if method == "count":
            explorer.field("to").fill("3")
        else:
            explorer.field("title").fill('it\'s "$HOME"')
            explorer.field("when").fill("2024-02-29")
        made = {}
        for way in ("Python", "Command line", "curl", "JavaScript"):
            explorer.page.get_by_role("tab", name=way).click()
            made[way] = explorer.page.get_by_label("the call as text").inner_text()
    server = make_server()
    port = int(explorer.url.rpartition(":")[2])
    with serve_in_thread(server, port=port):
        python = subprocess.run([sys.executable, "-c", made["Python"]], capture_output=True, text=True, timeout=30)
        line = made["Command line"].replace("rpcstream ", f"{sys.executable} -m rpcstream ", 1)
        command = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30)
        curl = subprocess.run(["bash", "-c", f"curl -s {made['curl'][5:]}"], capture_output=True, text=True, timeout=30)
    for each in (python, command, curl):
        assert each.returncode == 0, each.stderr
        assert ("0.0998" if method == "count" else "$HOME") in each.stdout
    assert f'"{method}"' in made["JavaScript"]


def test_names_that_a_provider_chose_are_no_options_of_the_copied_command(explore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere, explore(Hub(docs=True)) as explorer:
        elsewhere.settimeout(0.1)
        option = f"--uri=http://127.0.0.1:{elsewhere.getsockname()[1]}/?"
        names = [option, "a:bytes=@/etc/passwd", "-f", "plain"]
        params = [{"name": name, "required": True, "schema": {"type": "string"}} for name in names]
        host, _, port = explorer.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), 30) as provider, provider.makefile("rw") as lines:
            offer = {"name": "evil", "methods": [{"name": "shown", "params": params}]}
            register = {"jsonrpc": "2.0", "id": 1, "method": "rpc.register", "params": offer}
            print(json.dumps(register), file=lines, flush=True)
            assert "result" in json.loads(lines.readline())
            explorer.choose("shown")
            for name in names:
                explorer.field(name).fill("it's \\n x")
            explorer.page.get_by_role("tab", name="Command line").click()
            line = explorer.page.get_by_label("the call as text").inner_text()
            line = line.replace("rpcstream ", f"{sys.executable} -m rpcstream --no-schema ", 1)
            with subprocess.Popen(["sh", "-c", line], stdout=subprocess.PIPE, text=True) as command:
                asked = json.loads(lines.readline())
                assert asked["params"] == dict.fromkeys(names, "it's \\n x")
                print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": "seen"}), file=lines, flush=True)
                assert command.stdout is not None
                assert command.stdout.read() == '"seen"\n'
            with pytest.raises(TimeoutError):
                elsewhere.accept()


def test_a_server_with_a_token_shows_nothing_without_it(explore) -> None:
    with explore(make_server(token="horse", info=Info(title="Secret title")), is_open=False) as explorer:
        page = explorer.page
        page.goto(f"{explorer.url}/docs")
        page.locator("dialog[open]").wait_for()
        assert "Secret" not in page.content()
        assert page.locator("#list a").count() == 0
        page.get_by_label("Token of this server").fill("wrong")
        page.get_by_role("button", name="Use it").click()
        page.get_by_text("the token is not accepted").first.wait_for()
        page.get_by_label("Token of this server").fill("horse")
        page.keyboard.press("Enter")
        page.wait_for_selector("#list a")
        assert page.title() == "Secret title"
        explorer.choose("people")
        explorer.call()
        page.get_by_role("link", name="Wire").click()
        for row in page.locator("main tbody button").all():
            row.click()
        assert "rpc.authenticate" in page.locator("main").inner_text()
        assert "horse" not in page.locator("main").inner_text()
        page.reload()  # which keeps the token
        page.wait_for_selector("#list a")


def test_the_page_connects_again_to_a_server_that_was_restarted(explore) -> None:
    with explore(make_server(), may_say=("WebSocket connection", "ERR_CONNECTION_REFUSED")) as explorer:
        port = int(explorer.url.rpartition(":")[2])
        with Client(explorer.url.replace("http", "ws")) as client:
            client.halt()
        explorer.until("document.querySelector('#state').textContent !== 'open'")
        banner = explorer.page.get_by_role("alert")
        banner.get_by_text("The connection to the server is lost.").wait_for()
        explorer.until("document.querySelector('#lost').textContent.includes('Next attempt in ')")
        other = Server(docs=True, info=Info(title="another"))
        other.add(lambda: "new", name="fresh")
        with serve_in_thread(other, port=port):
            explorer.choose("fresh")
            assert "new" in explorer.call().locator(".output").inner_text()
            assert explorer.page.title() == "another"
            banner.wait_for(state="hidden")


def test_a_hub_shows_its_clients_live(explore) -> None:
    hub = Hub(docs=True)
    with explore(hub) as explorer:
        page = explorer.page
        page.get_by_role("link", name="Hub", exact=True).click()
        with Client(explorer.url.replace("http", "ws"), name="gpu-1") as provider:

            @provider
            def vectorize(text: str) -> list[int]:
                """Lengths of words."""
                return [len(word) for word in text.split()]

            provider.offer()
            page.wait_for_selector("td >> text=gpu-1")
            page.wait_for_selector("td >> text=vectorize")
            explorer.choose("vectorize")
            assert "Offered by gpu-1" in page.locator("main").inner_text()
            explorer.field("text").fill("one three")
            assert "3" in explorer.call().locator(".output").inner_text()

            begun, let_go = threading.Event(), threading.Event()

            @provider
            def slow() -> str:
                begun.set()
                return str(let_go.wait(60))

            provider.offer()
            explorer.choose("slow")  # the list is made anew
            explorer.start()
            begun.wait(60)
            page.get_by_role("link", name="Hub", exact=True).click()
            page.get_by_text("1 calls in flight").wait_for()
            page.locator("tr", has_text="gpu-1").get_by_text("busy").wait_for()
            page.get_by_role("img", name="map of the hub: 1 callers and 1 providers").wait_for()
            page.locator(".map-box.busy", has_text="gpu-1").get_by_text("1 in flight").wait_for()
            explorer.keep("explorer-hub.png")
            let_go.set()
        explorer.until("!document.querySelector('#list').innerText.includes('vectorize')")
        assert "left" in page.locator(".items").inner_text()


# -- bad documents ----------------------------------------------------------------------------------------------------

HTML = '<img src=x onerror="window.broken=1"><script>window.broken=2</script>'


def hostile() -> Server:
    server = make_server(info=Info(title=HTML, version="</title><script>window.broken=3</script>"))

    def bad(value: str = HTML, other: Any = None) -> dict[str, Any]:
        return {HTML: value, "list": [{HTML: HTML}], "__proto__": {"polluted": 1}}

    bad.__doc__ = f"{HTML}\n\njavascript:window.broken=4 </pre> {HTML}"
    for name in (HTML, "__proto__", "constructor", "a\u202egnp.exe", "toString", "x" * 200, "'; alert(1) //"):
        try:
            server.add(bad, name=name)
        except ValueError:  # not one that a server may offer
            continue
    return server


def test_names_docstrings_results_errors_and_events_are_text(explore) -> None:
    server = hostile()
    with explore(server) as explorer:
        page = explorer.page
        names = [name for name in server.methods if server.methods[name].function.__name__ == "bad"]
        assert len(names) >= 4, names
        for name in names:
            page.goto(f"{explorer.url}/docs#/method/{quote(name, safe='')}")
            page.wait_for_selector("main form")
            explorer.call()
            for way in ("Python", "Command line", "curl", "JavaScript"):
                page.get_by_role("tab", name=way, exact=True).click()
            page.get_by_role("button", name="Copy a link").click()
        explorer.choose("fail")
        explorer.field("text").fill(HTML)
        assert HTML in explorer.call("failed").inner_text()
        page.get_by_role("link", name="Events").click()
        page.get_by_role("button", name="Subscribe").click()
        with Client(explorer.url.replace("http", "ws")) as client:
            until_in_thread(lambda: client.announce("news.<b onclick=alert(1)", HTML))
        page.wait_for_selector("td >> text=news")
        for view in ("Wire", "History"):
            page.get_by_role("link", name=view).click()
        page.goto(f"{explorer.url}/docs#/method/{HTML}?{HTML}")
        page.wait_for_timeout(100)
        made = "[window.broken, ({}).polluted, document.querySelectorAll('script, img, [onclick], [onerror]').length]"
        assert page.evaluate(made) == [None, None, 1]


def test_markup_cannot_be_made_by_scripts_of_the_page_either(explore) -> None:
    with explore(make_server(), may_say=("TrustedHTML", "Content Security Policy", "violates")) as explorer:
        thrown = explorer.page.evaluate(
            "() => { try { document.body.innerHTML = '<b>x</b>'; return '' } catch (error) { return error.name } }"
        )
        assert thrown == "TypeError"


def test_thousands_of_methods_and_a_docstring_of_a_megabyte(explore) -> None:
    server = Server(docs=True, info=Info(title="many"))

    def long(value: int = 0) -> int:
        return value

    long.__doc__ = "word " * 200_000
    server.add(long, name="long")
    for number in range(3000):
        server.add(lambda: None, name=f"group{number % 50}.method{number}")
    with explore(server) as explorer:
        page = explorer.page
        assert "3," in page.locator("#found").inner_text()
        assert page.locator("#list a").count() == 200
        page.get_by_role("button", name="More (2,").click()
        assert page.locator("#list a").count() == 400
        page.get_by_label("Search methods").fill("method2999")
        assert page.locator("#list a").all_inner_texts() == ["group49.method2999"]
        page.goto(f"{explorer.url}/docs#/method/long")
        page.wait_for_selector("main form")
        assert page.evaluate("document.querySelector('main').innerText.length") < 10_000
        explorer.call()


def violations(page: Any) -> list[tuple[str, str]]:
    """The rules of WCAG and of good practice that the page breaks, with the first element that does."""
    if page.evaluate("!window.axe"):
        page.evaluate(f"() => {{ {AXE.read_text()}; window.axe = axe }}")
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    found = page.evaluate("tags => axe.run({ runOnly: tags })", tags)
    return [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]]


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not there (npm install --prefix tests/explorer/axe)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(explore, scheme) -> None:
    server = make_server()
    with explore(server, color_scheme=scheme) as explorer:
        page = explorer.page

        def check(where: str) -> None:
            assert [(where, *each) for each in violations(page)] == []

        check("start")
        for method in ("waves", "people", "count"):
            explorer.choose(method)
            explorer.call()
            check(method)
        if scheme == "dark":  # has other colours only
            return
        explorer.choose("bright")
        explorer.field("photo").set_input_files([given("photo.png", png(sketch()))])
        explorer.call().get_by_label("Opacity").wait_for()
        check("bright")
        explorer.choose("plan")
        page.locator("main form button.main").click()
        page.wait_for_selector(".error:visible")
        check("plan")
        explorer.choose("erase")
        explorer.field("name").fill("x")
        explorer.start()
        page.wait_for_selector("#asked .card")
        check("question")
        page.locator("#asked").get_by_role("button", name="Refuse").click()
        for view in ("Events", "Wire", "History"):
            page.get_by_role("link", name=view).click()
            check(view)
        page.get_by_role("button", name="Token").click()
        check("token")


JUNK = [None, 5, "x" * 5000, [], [5], {}, {"a": 5}, True, {"$ref": "#/components/schemas/Loop"}, [None]]
KEYS = [
    *("type", "properties", "required", "items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"),
    *("enum", "const", "$ref", "format", "title", "minimum", "pattern", "default", "description"),
    *("x-ndarray", "x-rest", "contentEncoding"),
]
MEMBERS = ["params", "tags", "examples", "summary", "description", "errors", "x-stream", "x-clients", "deprecated"]


def junk_methods() -> list[dict[str, Any]]:
    """Descriptions in which each member is something else than it should be, and references that have no end."""
    schemas = [{key: junk} for key in KEYS for junk in JUNK]
    schemas += [{"type": kind, key: junk} for kind in ("object", "array", "string") for key in KEYS for junk in JUNK]
    schemas += [{"$ref": f"#/components/schemas/{name}"} for name in ("Loop", "All", "Wide", "__proto__", "None")]
    methods: list[dict[str, Any]] = []
    for at in range(0, len(schemas), 40):
        some = enumerate(schemas[at : at + 40])
        params = [{"name": f"p{number}", "schema": schema, "required": True} for number, schema in some]
        methods.append({"name": f"schemas{at}", "params": params})
    for key in MEMBERS:
        methods += [{"name": f"{key}{number}", key: junk} for number, junk in enumerate(JUNK)]
    return methods


COMPONENTS = {
    "Loop": {"$ref": "#/components/schemas/Loop"},
    "All": {"allOf": [{"$ref": "#/components/schemas/All"}, {"$ref": "#/components/schemas/Loop"}] * 20},
    "Wide": {
        "type": "object",
        "properties": {f"m{number}": {"$ref": "#/components/schemas/Wide"} for number in range(20)},
        "required": [f"m{number}" for number in range(20)],
    },
}


def test_a_client_of_a_hub_cannot_break_the_page(explore) -> None:
    with explore(Hub(docs=True)) as explorer:
        page = explorer.page
        with Client(explorer.url.replace("http", "ws")) as client:
            for method in junk_methods():
                try:
                    client.call("rpc.register", methods=[method], components=COMPONENTS)
                except RpcError:  # the hub itself does not take it
                    continue
            names = [each["name"] for each in client.call("rpc.methods")]
            assert len(names) > 20
            explorer.until(f"document.querySelector('#list').innerText.includes({names[-1]!r})")
            cards, listed = (page.locator(each).count() for each in ("main .method-card", "#list a"))
            assert cards == listed
            assert page.locator("#state").inner_text() == "open"
            for name in names[::4]:
                explorer.choose(name)
                page.wait_for_selector("main form button.main")
