"""Results in Chromium: compared, zoomed, charted, sorted, searched and saved."""

from __future__ import annotations

import csv
import datetime
import json
import re
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rpcstream import RpcError

from .answers import make_server, sound
from .test_explorer import AXE, X, given, png, sketch, violations

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


def call_with_photo(explorer: Any, method: str) -> Any:
    """Call a method with the picture of the tests; the card, with its result."""
    explorer.choose(method)
    explorer.field("photo").set_input_files([given("photo.png", png(sketch()))])
    explorer.page.wait_for_selector("text=/photo.png · 160/")
    return explorer.call()


def accessible(explorer: Any) -> None:
    if AXE.is_file():
        assert violations(explorer.page) == []


def test_a_result_is_compared_with_the_sent_picture(explore) -> None:
    with explore(make_server()) as explorer:
        card = call_with_photo(explorer, "soften")
        card.get_by_label("Side by side").wait_for()
        images = card.locator(".sides .picture")
        assert images.count() == 2
        boxes = [images.nth(at).bounding_box() for at in (0, 1)]
        assert boxes[0]["width"] == pytest.approx(boxes[1]["width"], abs=1)
        assert card.locator(".sides figcaption").all_inner_texts() == ["photo", "result"]
        accessible(explorer)
        card.get_by_label("Slider").check()
        divider = card.get_by_label("Position of the divider")
        result = card.locator(".stack .picture").last
        before = result.evaluate("node => node.style.clipPath")
        divider.focus()
        for _ in range(20):
            explorer.page.keyboard.press("ArrowRight")
        assert result.evaluate("node => node.style.clipPath") != before
        accessible(explorer)
        card.get_by_label("Overlay").check()
        card.get_by_label("Opacity").fill("0.2")
        assert result.evaluate("node => node.style.opacity") == "0.2"
        card.get_by_label("Result", exact=True).check()
        assert card.locator(".compare .picture").count() == 1
        assert result.evaluate("node => node.style.opacity") == ""


def test_a_mask_of_classes_has_colours_and_a_legend(explore) -> None:
    with explore(make_server()) as explorer:
        card = call_with_photo(explorer, "segment")
        assert card.get_by_label("Overlay").is_checked()
        mask = np.asarray(sketch().convert("L")).astype(int) * 4 // 256
        pixels = explorer.pixels(card.locator("canvas"))
        assert np.array_equal(pixels[..., 3] > 0, mask > 0)
        assert len({tuple(each) for each in pixels[mask == 2]}) == 1
        legend = card.locator(".legend span", has_text="·").all_inner_texts()
        assert legend == [f"{part} · {(mask == part).sum():,}" for part in range(4)]
        assert card.locator("[title='0.0123456789']").inner_text() == "0.01235"
        assert card.locator("meter").count() == 4


@pytest.mark.parametrize("mode", ["1", "L"])
def test_an_image_of_black_and_white_is_a_mask_over_the_photo(explore, mode) -> None:
    server = make_server()
    bright = np.asarray(sketch().convert("L")) >= 128

    def mask(photo: Image.Image) -> Image.Image:
        return photo.convert("L").point(lambda value: 255 * (value >= 128)).convert(mode)

    def grey(photo: Image.Image) -> Image.Image:
        return photo.convert("L")

    server.add(mask)
    server.add(grey)
    with explore(server) as explorer:
        card = call_with_photo(explorer, "mask")
        assert card.get_by_label("Overlay").is_checked()
        canvas = card.get_by_label("mask, 160 by 120")
        explorer.until("document.querySelector('main .card canvas').width === 160")
        pixels = explorer.pixels(canvas)
        assert np.array_equal(pixels[..., 3] > 0, bright)
        assert len(set(pixels[bright][0][:3])) == 3  # a colour, neither white nor grey
        words = "black and white" if mode == "1" else "grey"
        card.get_by_text(f"160 {X} 120 · {words} · ").wait_for()
        with explorer.page.expect_download() as saved:
            card.get_by_role("button", name="Save").click()
        assert saved.value.suggested_filename == "mask.png"
        card = call_with_photo(explorer, "grey")
        assert card.get_by_label("Side by side").is_checked()


def test_an_array_of_bool_is_saved_as_a_picture(explore) -> None:
    server = make_server()
    wanted = np.arange(35 * 21).reshape(21, 35) % 3 == 0
    server.add(wanted.copy, name="thirds")
    with explore(server) as explorer:
        explorer.choose("thirds")
        card = explorer.call()
        with explorer.page.expect_download() as saved:
            card.get_by_role("button", name="Save .png").click()
        assert saved.value.suggested_filename == "thirds.png"
        with Image.open(saved.value.path()) as file:
            assert np.array_equal(np.asarray(file), wanted * np.uint8(255))


def test_numbers_of_very_different_size_have_no_bars_and_members_of_tuples_have_types(explore) -> None:
    server = make_server()
    values = {"share": 0.42, "pixels": 28948}
    server.add(lambda: values, name="different")
    server.add(lambda: {"a": 0, "b": 3, "c": 290}, name="similar")
    server.add(lambda: (sketch(), {"share": 0.42}), name="pair")
    with explore(server) as explorer:
        explorer.choose("different")
        card = explorer.call()
        card.get_by_text("28948").wait_for()
        assert card.locator("meter").count() == 0
        explorer.choose("similar")
        assert explorer.call().locator("meter").count() == 3
        explorer.choose("pair")
        assert explorer.call().locator(".record .key").all_inner_texts()[:2] == ["1: image", "2: object"]


def test_older_answers_are_one_line_each(explore) -> None:
    server = make_server()

    def half(number: int) -> float:
        if number < 0:
            raise RpcError(17, "too small", {"least": 0})
        return number / 2

    server.add(half)
    with explore(server) as explorer:
        page = explorer.page
        older = page.locator(".older > summary")
        explorer.choose("half")
        explorer.field("number").fill("-1")
        card = explorer.call("failed")
        assert card.get_by_text("least").count() == 0 or not card.get_by_text("least").first.is_visible()
        card.get_by_text("Details").click()
        card.get_by_text("least").first.wait_for()
        explorer.field("number").fill("two")
        page.locator("main form button.main").click()
        alert = page.locator(".ask > [role=alert]")
        alert.get_by_text("Not called: number: a whole number is expected").wait_for()
        assert re.fullmatch(r"\d\d:\d\d:\d\d number=-1 failed", older.inner_text())
        assert not card.is_visible()
        explorer.field("number").fill("4")
        assert alert.inner_text() == ""
        assert explorer.call().locator(".scalar").inner_text() == "2"
        explorer.field("number").fill("6")
        assert explorer.call().locator(".scalar").inner_text() == "3"
        assert [each.split()[1:] for each in older.all_inner_texts()] == [["number=4", "done"], ["number=-1", "failed"]]
        older.last.click()
        page.locator(".older .card[data-state=failed]").get_by_text("too small").wait_for()
        accessible(explorer)


def test_the_value_under_the_pointer_is_told(explore) -> None:
    with explore(make_server()) as explorer:
        card = call_with_photo(explorer, "segment")
        card.locator("canvas").hover(position={"x": 8, "y": 8})
        card.locator(".pixel", has_text=re.compile(r"x \d, y \d: 0$")).wait_for()
        explorer.choose("depth")
        card = explorer.call()
        card.locator("canvas").hover()
        card.get_by_text(re.compile(r"x (199|200), y (149|150): (1|0\.9)")).wait_for()


def test_the_zoom_goes_down_to_pixels_by_keys_and_wheel(explore) -> None:
    photo = np.asarray(sketch())
    with explore(make_server(), may_say=("willReadFrequently",)) as explorer:
        page = explorer.page
        card = call_with_photo(explorer, "soften")
        card.get_by_role("button", name="Zoom").click()
        dialog = page.locator("dialog.zoom[open]")
        said = dialog.get_by_role("status")
        said.get_by_text("160").wait_for()
        assert page.evaluate("document.activeElement.tagName") == "CANVAS"
        accessible(explorer)
        dialog.get_by_label("photo").check()  # what was sent, at the same place
        dialog.locator("canvas").focus()
        page.keyboard.press("ArrowRight")
        red, green, blue = photo[60, 81]
        said.get_by_text(f"x 81, y 60: {red}, {green}, {blue}").wait_for()
        for _ in range(20):
            page.keyboard.press("+")
        page.keyboard.press("ArrowDown")
        said.get_by_text("x 81, y 61: ").wait_for()
        canvas = dialog.locator("canvas")
        # The pixel fills more than a hundred pixels of the screen, with one colour: it is not smoothed.
        box = canvas.bounding_box()
        middle = explorer.pixels(canvas)[
            int(box["height"] / 2) - 60, int(box["width"] / 2) - 60 : int(box["width"] / 2) - 30
        ]
        assert len({tuple(each) for each in middle}) == 1
        assert tuple(middle[0][:3]) == tuple(photo[61, 81])
        page.keyboard.press("0")
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        for _ in range(12):
            page.mouse.wheel(0, -300)
        page.mouse.move(box["x"] + box["width"] / 2 + 300, box["y"] + box["height"] / 2)
        explorer.until("/^x 8\\d, y \\d+/.test(document.querySelector('dialog output').textContent)")
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        assert "Zoom" in page.evaluate("document.activeElement.innerText")


def test_two_fingers_zoom(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("depth")
        explorer.call().get_by_role("button", name="Zoom").click()
        canvas = explorer.page.locator("dialog.zoom[open] canvas")
        canvas.hover()
        # A pixel that is right of the middle moves away from the finger that rests, when the other one goes.
        explorer.page.locator("dialog output", has_text=re.compile("x (199|200)")).wait_for()
        canvas.evaluate(
            """node => {
                node.setPointerCapture = () => {}
                const box = node.getBoundingClientRect()
                const send = (kind, pointerId, dx) => node.dispatchEvent(new PointerEvent(kind, {
                    pointerId, clientX: box.left + box.width / 2 + dx, clientY: box.top + box.height / 2 }))
                send("pointerdown", 1, -100)
                send("pointerdown", 2, 5)
                send("pointermove", 2, 320)
                send("pointerup", 2, 320)
                send("pointerup", 1, -100)
            }"""
        )
        box = canvas.bounding_box()
        explorer.page.mouse.move(box["x"] + box["width"] / 2 + 100, box["y"] + box["height"] / 2)
        explorer.page.locator("dialog output", has_text=re.compile("x (1[0-8])[0-9]")).wait_for()


def test_a_large_picture_is_shown(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("soften")
        explorer.field("radius").fill("0")
        image = Image.effect_noise((2000, 1500), 60).convert("RGB")
        explorer.field("photo").set_input_files([given("large.png", png(image))])
        explorer.page.wait_for_selector("text=/large.png · 2000/")
        card = explorer.call()
        card.get_by_role("button", name="Zoom").click()
        explorer.page.locator("dialog.zoom[open]").get_by_text("2000").wait_for()
        for _ in range(3):
            explorer.page.keyboard.press("ArrowLeft")
        red = image.getpixel((997, 750))[0]
        explorer.page.locator("dialog output", has_text=f"x 997, y 750: {red}").wait_for()


#: A clock that ticks when it is read, the largest piece of a picture that is drawn at once, and how often work pauses.
CLOCK = """
let now = 0
performance.now = () => now++
Object.assign(window, { pauses: 0, largest: 0 })
const wait = setTimeout
window.setTimeout = (work, time, ...rest) => {
    if (!time) window.pauses++
    return wait(work, time, ...rest)
}
for (const { prototype } of [CanvasRenderingContext2D, OffscreenCanvasRenderingContext2D]) {
    const put = prototype.putImageData
    prototype.putImageData = function (image, ...rest) {
        window.largest = Math.max(window.largest, image.width * image.height)
        return put.call(this, image, ...rest)
    }
}
"""


def test_the_page_pauses_often_while_it_works_on_large_results(explore) -> None:
    server = make_server()
    server.add(lambda: Image.effect_noise((3000, 2000), 60).convert("RGB"), name="large")
    server.add(lambda: np.random.default_rng(3).normal(size=(1000, 1000)).astype(np.float32), name="wide")
    with explore(server, is_open=False) as explorer:
        page = explorer.page
        page.add_init_script(CLOCK)
        explorer.open()
        explorer.choose("large")
        card = explorer.call()
        card.get_by_text(f"3000 {X} 2000 · RGB").wait_for()
        assert page.evaluate("window.largest") <= 32_768
        before = page.evaluate("window.pauses")
        assert before >= 15  # 200 strips, and at most 12 ticks of the clock before a pause
        with page.expect_download() as saved:
            card.get_by_role("button", name="Save").click()
        assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")
        assert page.evaluate("window.pauses") - before >= 200  # 2000 rows, 275 blocks, and twice as many parts
        explorer.choose("wide")
        before = page.evaluate("window.pauses")
        card = explorer.call()
        card.get_by_label("heat map, 1000 by 1000").wait_for()
        explorer.until(f"window.pauses - {before} >= 80")  # statistics of 31 parts, and 1000 rows
        page.get_by_role("link", name="Wire").click()
        page.get_by_role("button", name="wide").click()
        assert "binary frame" in page.locator(".wire > li").last.inner_text()  # no base64, not even the first time


def test_raw_pixels_are_drawn_as_they_are_and_saved_as_png(explore) -> None:
    gray = np.arange(35 * 21).reshape(21, 35)
    images = {
        "L": Image.fromarray((gray % 256).astype(np.uint8)),
        "LA": Image.fromarray(np.dstack([gray % 256, np.full_like(gray, 255)]).astype(np.uint8)),
        "RGB": sketch().crop((40, 40, 75, 61)),
        "RGBA": sketch().crop((40, 40, 75, 61)).convert("RGBA"),
        "deep": Image.fromarray((gray * 89).astype(np.uint16)),
    }
    server = make_server()
    for name, image in images.items():
        server.add(image.copy, name=f"raw.{name}")
    with explore(server) as explorer:
        for name, image in images.items():
            explorer.choose(f"raw.{name}")
            card = explorer.call()
            canvas = card.get_by_label("picture, 35 by 21")
            canvas.wait_for()
            wanted = Image.fromarray((gray * 89 >> 8).astype(np.uint8)) if name == "deep" else image
            assert np.array_equal(explorer.pixels(canvas), np.asarray(wanted.convert("RGBA"))), name
            with explorer.page.expect_download() as saved:
                card.get_by_role("button", name="Save").click()
            with Image.open(saved.value.path()) as file:
                assert (file.format, file.mode) == ("PNG", image.mode)
                assert np.array_equal(np.asarray(file), np.asarray(image)), name


def test_arrays_are_lines_points_histograms_and_values(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("numbers")
        card = explorer.call()
        assert card.get_by_role("radio", name="Line").is_checked()
        card.get_by_label("Histogram").check()
        bars = card.locator(".histogram rect")
        heights = bars.evaluate_all("all => all.map(each => each.height.baseVal.value > 0)")
        assert sum(heights) == 5
        card.locator(".histogram svg").hover(position={"x": 2, "y": 20})
        card.locator(".scale-marks", has_text="1 to 1.169: 1").wait_for()
        accessible(explorer)
        card.get_by_label("Values").check()
        assert "1, 2, 2, 3, 3, 3, 4, 9.123" in card.locator("pre").inner_text()
        assert card.locator("pre [title='9.123456789']").count() == 1
        explorer.choose("embed")
        card = explorer.call()
        assert card.get_by_role("radio", name="Scatter").is_checked()
        card.get_by_label("scatter chart of 200 points").wait_for()
        accent = card.locator("canvas").evaluate("node => getComputedStyle(node).color.match(/\\d+/g).map(Number)")
        pixels = explorer.pixels(card.locator("canvas"))
        shown = np.abs(pixels[pixels[..., 3] > 150][:, :3].astype(int) - accent).max(axis=1) < 6
        assert shown.sum() > 1000  # the points have the accent's colour
        accessible(explorer)
        explorer.choose("depth")
        card = explorer.call()
        assert card.locator(".scale-marks").inner_text().split()[-1] == "1"
        assert "std 0." in card.locator("figcaption").inner_text()


def test_bars_keep_the_order_of_the_server_until_they_are_sorted(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("labels")
        card = explorer.call()
        bars = card.locator(".bars")
        assert bars.inner_text().split("\n") == ["lynx", "25.1 %", "cat", "73.1 %", "sofa", "1.8 %"]
        assert card.get_by_text("25.1 %").last.get_attribute("title") == "0.251234"
        card.get_by_label("Sort by value").check()
        assert bars.inner_text().split("\n")[::2] == ["cat", "lynx", "sofa"]


def test_a_table_has_types_and_is_sorted_and_saved(explore) -> None:
    with explore(make_server()) as explorer:
        page = explorer.page
        explorer.choose("rows")
        card = explorer.call()
        heads = card.locator("th").all_inner_texts()
        assert heads == ["city text", "degrees float", "visits int", "open bool"]
        assert card.locator("tbody tr").count() == 50
        assert card.get_by_text("120 rows").is_visible()
        cells = card.locator("tbody tr:first-child td")
        card.get_by_role("button", name="visits").click()
        assert card.locator("th[aria-sort=ascending]").inner_text().startswith("visits")
        assert cells.nth(2).inner_text() == "0"
        card.get_by_role("button", name="visits").click()
        assert cells.nth(2).inner_text() == "49"
        accessible(explorer)
        card.get_by_role("button", name="visits").click()
        assert cells.all_inner_texts() == ["Oslo", "-20", "0", "true"]
        assert card.locator("tbody tr").nth(1).locator(".value").first.get_attribute("title") == str(1.23456789 - 20)
        region = card.get_by_role("region")
        region.evaluate("node => (node.scrollTop = 400)")
        tops = region.evaluate("node => [node.querySelector('th'), node].map(each => each.getBoundingClientRect().top)")
        assert tops[0] == pytest.approx(tops[1], abs=2)  # the head stays
        with page.expect_download() as saved:
            card.get_by_role("button", name="Save .csv").click()
        with Path(saved.value.path()).open(newline="") as file:
            lines = list(csv.DictReader(file))
        assert len(lines) == 120
        assert lines[3] == {"city": 'Say "a, b"', "degrees": str(3 * 1.23456789 - 20), "visits": "21", "open": "true"}
        with page.expect_download() as saved:
            card.get_by_role("button", name="Save .json").click()
        assert json.loads(Path(saved.value.path()).read_text())[2]["city"] == "Lima"


def test_a_data_frame_is_a_table(explore) -> None:
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    server = make_server()
    columns = {
        "name": ["a", None, "c"],
        "amount": [1.5, 2.5, float("nan")],
        "whole": [1, 2**60, -3],
        "flag": [True, False, True],
        "day": [datetime.date(2024, 2, 29)] * 3,
        "at": [datetime.datetime(2024, 2, 29, 12, 30)] * 3,
    }
    server.add(lambda: pandas.DataFrame(columns, index=["x", "y", "z"]).astype({"flag": "category"}), name="frame")
    server.add(lambda: polars.DataFrame({**columns, "parts": [[1, 2], [], [3]]}), name="polar")
    expected = ["a", "1.5", "1", "true", "2024-02-29", "2024-02-29 12:30:00"]
    with explore(server) as explorer:
        explorer.choose("frame")
        card = explorer.call()
        assert card.locator("tbody tr").first.locator("td").all_inner_texts() == [*expected, "x"]
        assert card.locator("tbody tr").nth(1).locator("td").nth(0).inner_text() == "null"
        assert card.locator("tbody tr").nth(1).locator("td").nth(2).inner_text() == str(2**60)
        assert "flag category" in card.locator("th").all_inner_texts()
        explorer.choose("polar")
        card = explorer.call()
        assert card.locator("tbody tr").first.locator("td").all_inner_texts() == [*expected, "[1,2]"]


def test_a_damaged_stream_of_arrow_is_an_error_and_nothing_else(explore) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table(
        {
            "a": [1, 2, 3],
            "b": ["x", None, "z"],
            "c": [[[1]], [[2, 3]], []],
            "d": pa.array(["q"] * 3).dictionary_encode(),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    good = np.frombuffer(sink.getvalue(), np.uint8)
    random = np.random.default_rng(5)
    streams = [good.tolist(), good[:-200].tolist(), []]
    for _ in range(150):
        bad = good.copy()
        bad[random.integers(0, len(bad), 4)] = random.integers(0, 256, 4)
        streams.append(bad.tolist())
    with explore(make_server()) as explorer:
        explorer.serve_modules()
        outcomes = explorer.page.evaluate(
            """async (streams) => {
                const { readTable } = await import("./docs/arrow.js")
                return streams.map((stream) => {
                    try {
                        const { count, columns } = readTable(new Uint8Array(stream))
                        return [count, columns.map(({ at }) => JSON.stringify(at(0))?.length > 1e6)]
                    } catch (error) {
                        return error instanceof Error
                    }
                })
            }""",
            streams,
        )
        assert outcomes[0] == [3, [False] * 4]
        assert len(outcomes) == len(streams)
        assert all(each is True or True not in each[1] for each in outcomes)


def test_a_stream_of_pictures_plays_in_one_place(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("film")
        card = explorer.call()
        image = card.locator("figure .picture")
        image.wait_for()
        colour = """async image => {
            const bitmap = await createImageBitmap(image)
            const context = new OffscreenCanvas(1, 1).getContext("2d")
            context.drawImage(bitmap, 0, 0)
            return [...context.getImageData(0, 0, 1, 1).data]
        }"""
        for _ in range(100):
            if image.evaluate(colour)[0] == 220:
                break
            explorer.page.wait_for_timeout(50)
        assert image.count() == 1
        assert image.evaluate(colour) == [220, 10, 30, 255]


def test_a_tree_is_searched_and_gives_paths(explore) -> None:
    with explore(make_server(), permissions=["clipboard-read", "clipboard-write"]) as explorer:
        page = explorer.page
        explorer.choose("tree")
        card = explorer.call()
        search = card.get_by_label("Search the result")
        search.fill("part 203")
        card.get_by_text("1 of 1").wait_for()
        chosen = card.locator("[aria-selected=true] > .tree-row")
        assert chosen.inner_text() == 'name "part 203"'
        accessible(explorer)
        card.get_by_role("button", name="Copy path").click()
        card.get_by_text("Copied").wait_for()
        path = page.evaluate("navigator.clipboard.readText()")
        assert path == 'result["log"][1][203]["name"]'
        result = make_server().methods["tree"].function()
        assert eval(path, {"result": result}) == "part 203"
        search.fill("units")
        card.get_by_text("1 of 1").wait_for()
        card.locator("[aria-selected=true]").focus()
        page.keyboard.press("ArrowLeft")
        assert chosen.inner_text() == "first {1}"
        page.keyboard.press("ArrowLeft")
        assert card.locator("[aria-selected=true]").get_attribute("aria-expanded") == "false"
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert chosen.inner_text() == "units 64"
        search.fill("nothing like this")
        card.get_by_text("not found").wait_for()
        with page.expect_download() as saved:
            card.get_by_role("button", name="Save .json").click()
        assert json.loads(Path(saved.value.path()).read_text()) == result


def test_texts_bytes_and_sounds_are_saved_as_files(explore) -> None:
    with explore(make_server()) as explorer:
        page = explorer.page
        explorer.choose("text")
        card = explorer.call()
        wrapped = card.locator("pre").evaluate("node => node.scrollWidth > node.clientWidth")
        card.get_by_label("Wrap lines").uncheck()
        assert [wrapped, card.locator("pre").evaluate("node => node.scrollWidth > node.clientWidth")] == [False, True]
        files = [("text", "Save .txt"), ("tone", "Save .wav"), ("data", "Save .bin"), ("numbers", "Save .csv")]
        saved = {}
        for method, button in files:
            explorer.choose(method)
            card = explorer.call()
            if method == "tone":
                explorer.until("document.querySelector('main .card audio').duration > 0.09")
            if method == "data":
                assert "0040  40 41" in card.locator("pre").inner_text()
                assert "@ABCDEFG" in card.locator("pre").inner_text()
            with page.expect_download() as download:
                card.get_by_role("button", name=button).click()
            saved[method] = Path(download.value.path()).read_bytes()
        assert saved["tone"] == sound()
        assert saved["data"] == bytes(at % 256 for at in range(300))
        assert saved["text"].startswith(b"line 0 word")
        assert saved["numbers"].split() == [b"1", b"2", b"2", b"3", b"3", b"3", b"4", b"9.123456789"]


def test_an_array_is_played_and_saved_as_a_sound(explore) -> None:
    server = make_server()
    times = np.arange(16_000) / 16_000
    stereo = np.stack([20_000 * np.sin(440 * 2 * np.pi * times), 32_767 * np.ones(16_000)], axis=1).astype("<i2")
    server.add(lambda: {"samples": stereo, "sample_rate": 16_000}, name="stereo")
    server.add(lambda: np.float32(4) * np.sin(440 * 2 * np.pi * times, dtype=np.float32), name="loud")
    server.add(lambda: stereo.T.astype(np.float64) / 32_768, name="rows_of_channels")

    def saved(card: Any) -> tuple[int, int, np.ndarray]:
        explorer.until("document.querySelector('main .card audio')?.duration > 0")
        with explorer.page.expect_download() as download:
            card.get_by_role("button", name="Save .wav").click()
        with wave.open(str(download.value.path())) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
            return file.getframerate(), file.getnchannels(), samples.reshape(-1, file.getnchannels())

    with explore(server) as explorer:
        explorer.choose("stereo")
        card = explorer.call()
        card.get_by_label("Sound").check()
        assert card.get_by_label("Samples per second").input_value() == "16000"
        rate, channels, samples = saved(card)
        assert (rate, channels) == (16_000, 2)
        assert np.abs(samples.astype(int) - stereo).max() <= 1
        accessible(explorer)
        explorer.choose("loud")
        card = explorer.call()
        card.get_by_label("Sound").check()
        rate = card.get_by_label("Samples per second")
        assert rate.input_value() == "44100"
        rate.fill("8000")
        rate.blur()
        explorer.until("document.querySelector('main .card audio')?.duration === 2")
        rate, channels, samples = saved(card)
        assert (rate, channels, samples.max(), len(samples)) == (8000, 1, 32_767, 16_000)
        explorer.choose("rows_of_channels")
        card = explorer.call()
        card.get_by_label("Sound").check()
        rate, channels, samples = saved(card)
        assert (rate, channels) == (8000, 2)
        assert np.abs(samples.astype(int) - stereo).max() <= 2
        explorer.choose("numbers")  # too few
        card = explorer.call()
        card.get_by_label("Histogram").wait_for()
        assert card.get_by_label("Sound").count() == 0
