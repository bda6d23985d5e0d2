"""What is given to a form of the explorer in Chromium: pictures, boxes and masks that are drawn, and lists."""

from __future__ import annotations

import datetime
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from .service import make_server
from .test_explorer import given, png, sketch, violations

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

X = "\N{MULTIPLICATION SIGN}"


def give_photo(explorer: Any, image: Image.Image | None = None) -> Any:
    """Give the parameter `photo` a picture of 160 by 120, and wait for the board; gives the canvas of the board."""
    explorer.field("photo").set_input_files([given("photo.png", png(image or sketch()))])
    canvas = explorer.page.locator(".board canvas").first
    canvas.wait_for()
    return canvas


def drag(canvas: Any, *points: tuple[float, float]) -> None:
    """Drag the pointer over places of the picture, in its pixels."""
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    width, height = canvas.evaluate("node => [node.width, node.height]")
    places = [(box["x"] + x / width * box["width"], box["y"] + y / height * box["height"]) for x, y in points]
    mouse = canvas.page.mouse
    mouse.move(*places[0])
    mouse.down()
    for place in places[1:]:
        mouse.move(*place, steps=4)
    mouse.up()


def test_a_box_is_drawn_on_the_picture_or_typed(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("cut")
        canvas = give_photo(explorer)
        drag(canvas, (20, 10), (100, 70))
        edges = [int(explorer.field(each).input_value()) for each in ("left", "top", "right", "bottom")]
        assert edges == pytest.approx([20, 10, 100, 70], abs=1)
        explorer.page.get_by_text(f"crop_box={edges}").wait_for()
        size = f"{edges[2] - edges[0]} by {edges[3] - edges[1]}"
        assert size in explorer.call().locator(".output").inner_text()
        # The same by keys: a new box, moved and made larger.
        canvas.focus()
        for key in ("Enter", "ArrowRight", "Shift+ArrowDown"):
            explorer.page.keyboard.press(key)
        edges = [int(explorer.field(each).input_value()) for each in ("left", "top", "right", "bottom")]
        assert edges == [42, 30, 122, 92]
        # What is typed is shown: the pixel in the middle of the box is tinted.
        for name, value in zip(("left", "top", "right", "bottom"), (0, 0, 8, 8), strict=True):
            explorer.field(name).fill(str(value))
        assert explorer.pixels(canvas)[100, 100, 3] == 0
        assert explorer.pixels(canvas)[4, 4, 3] > 0
        assert violations(explorer.page) == []


def test_without_a_picture_a_box_is_four_numbers(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("area")
        assert explorer.page.locator(".board").count() == 0
        for name, value in zip(("item 1", "item 2", "item 3", "item 4"), (1, 2, 4, 6), strict=True):
            explorer.field(name).fill(str(value))
        assert explorer.call().locator(".scalar").inner_text() == "12"


def test_many_boxes_are_objects_and_keep_their_other_members(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("label")
        canvas = give_photo(explorer)
        drag(canvas, (10, 10), (50, 50))
        drag(canvas, (80, 20), (140, 100))
        items = explorer.page.locator("fieldset fieldset")
        assert items.count() == 2
        items.nth(0).get_by_label("label", exact=True).fill("cat")
        drag(canvas, (30, 30), (40, 35))  # moves the first box
        read = "node => [...node.querySelectorAll('input')].map((each) => Number(each.value))"
        x, y, width, height = items.nth(0).evaluate(read)[:4]
        assert [x, y, width, height] == pytest.approx([20, 15, 40, 40], abs=1)
        assert items.nth(0).get_by_label("label", exact=True).input_value() == "cat"
        drag(canvas, (140, 100), (150, 110))  # drags a corner of the second one
        assert items.nth(1).evaluate(read)[:4] == pytest.approx([80, 20, 70, 90], abs=1)
        explorer.page.keyboard.press("Delete")
        assert items.count() == 1
        explorer.page.get_by_role("button", name="Add an item").click()
        explorer.page.get_by_role("button", name="Remove this").first.click()
        assert items.locator("> legend .name").all_inner_texts() == ["item 1"]
        explorer.page.get_by_role("button", name="Remove this").click()
        drag(canvas, (10, 10), (50, 50))
        items.nth(0).get_by_label("label", exact=True).fill("cat")
        assert "cat" in explorer.call().locator(".output").inner_text()


def test_a_mask_is_painted_as_an_array_or_a_picture(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("fill")
        canvas = give_photo(explorer)
        assert violations(explorer.page) == []
        drag(canvas, (20, 60), (140, 60))
        painted, second, height, width = numbers(explorer.call())
        assert (height, width, second) == (120, 160, 0)
        brush = 160 * 0.06
        assert painted == pytest.approx(120 * brush + np.pi * brush**2 / 4, rel=0.1)
        other = explorer.page.locator(".board canvas").nth(1)
        drag(other, (40, 20), (40, 100))
        tools = explorer.page.locator(".board").nth(1)
        tools.get_by_label("Erase").check()
        drag(other, (40, 80), (40, 110))
        erased = numbers(explorer.call())[1]
        assert erased == pytest.approx(60 * brush, rel=0.15)
        tools.get_by_role("button", name="Undo").click()
        assert numbers(explorer.call())[1] > erased + 10 * brush
        tools.get_by_role("button", name="Clear").click()
        explorer.page.get_by_role("button", name="Reset alpha_mask").click()
        assert numbers(explorer.call())[1] == 0
        # By keys: the brush starts in the middle.
        first = explorer.page.locator(".board").first
        first.get_by_role("button", name="Clear").click()
        first.locator("canvas").focus()
        for key in (" ", "ArrowRight", "ArrowRight"):
            explorer.page.keyboard.press(key)
        assert numbers(explorer.call())[0] == pytest.approx(brush**2 + np.pi * brush**2 / 4, rel=0.15)


def numbers(card: Any) -> list[int]:
    """The numbers in a result that is a list of them."""
    text = card.locator(".output .scalar").inner_text()
    return [int(each) for each in text.strip("[] \n").split(",")]


def turned_photo() -> bytes:
    """A JPEG file of 160 by 120, red at the top left, which EXIF turns: viewers show it as 120 by 160."""
    image = Image.new("RGB", (160, 120), "white")
    image.paste("red", (0, 0, 48, 32))
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    image.save(file, "jpeg", quality=95, exif=exif)
    return file.getvalue()


def test_a_photo_that_exif_turns_is_shown_as_the_method_gets_it(explore) -> None:
    server = make_server()

    @server
    def look(photo: Image.Image, crop_box: tuple[int, int, int, int], mask: NDArray[np.bool_]) -> list[int]:
        """The mean colour of a part, and the height and width of the mask."""
        part = np.asarray(photo.crop(crop_box)).mean(axis=(0, 1))
        return [*map(int, part), *mask.shape]

    @server
    def same(photo: Image.Image) -> Image.Image:
        return photo

    @server
    def pixels(image: NDArray[np.uint8]) -> list[int]:
        return [*image.shape, *map(int, image[16, 24])]

    file = given("turned.jpg", turned_photo(), "image/jpeg")
    with explore(server) as explorer:
        page = explorer.page
        explorer.choose("look")
        explorer.field("photo").set_input_files([file])
        page.get_by_text(f"160 {X} 120 · RGB").wait_for()
        page.get_by_text("not turned by EXIF").wait_for()
        box, mask = (page.locator(".board canvas").nth(at) for at in (0, 1))
        mask.wait_for()
        shape = box.bounding_box()
        assert shape["width"] / shape["height"] == pytest.approx(160 / 120, rel=0.02)
        drag(box, (8, 8), (40, 24))
        drag(mask, (20, 60), (140, 60))
        red, green, blue, *size = numbers(explorer.call())
        assert (red > 200, green < 60, blue < 60, size) == (True, True, True, [120, 160])
        page.get_by_role("button", name="Enlarge turned.jpg").click()
        large = page.locator("dialog.zoom[open]")
        large.get_by_text(f"160 {X} 120").wait_for()
        page.keyboard.press("Escape")
        # A result with the same EXIF is shown in the same way, so both fit each other.
        explorer.choose("same")
        explorer.field("photo").set_input_files([file])
        page.get_by_text("not turned by EXIF").wait_for()
        card = explorer.call()
        card.get_by_label("Overlay").check()
        assert (
            card.locator(".stack img").evaluate_all("all => all.map(each => [each.naturalWidth, each.naturalHeight])")
            == [[160, 120]] * 2
        )
        explorer.choose("pixels")
        page.locator(".drop input[type=file]").set_input_files([file])
        page.get_by_text("(120, 160, 3)").wait_for()
        height, width, channels, red, green, blue = numbers(explorer.call())
        assert (height, width, channels) == (120, 160, 3)
        assert (red > 200, green < 60, blue < 60) == (True, True, True)


def test_a_file_that_is_no_picture_of_the_web_is_refused_before_the_call(explore) -> None:
    with explore(make_server()) as explorer:
        page = explorer.page
        for method, field in (("negative", "photo"), ("collage", "photos")):
            explorer.choose(method)
            assert "PNG, JPEG, WebP or GIF" in page.locator(".drop").inner_text()
            explorer.field(field).set_input_files([given("scan.tiff", b"II*\0", "image/tiff")])
            page.get_by_text("scan.tiff: expected a PNG, JPEG, WebP or GIF file. Convert it").wait_for()
            assert page.locator(".thumb").count() == 0
        explorer.choose("negative")
        explorer.field("photo").set_input_files([given("service.py", b"import", "text/x-python")])
        page.get_by_text("service.py: expected").wait_for()
        page.locator("main form button.main").click()
        page.get_by_text("Not called: photo: a picture is expected").wait_for()
        explorer.field("photo").set_input_files([given("photo.png", png(sketch()))])
        explorer.until("document.querySelector('.ask > [role=alert]').textContent === ''")
        page.get_by_role("tab", name="Command line").click()
        command = page.get_by_label("the call as text").inner_text()
        assert command.startswith("rpcstream negative photo=photo.png ")
        assert command.strip().endswith(" -o negative.png")


def test_several_pictures_at_once_with_thumbnails(explore) -> None:
    with explore(make_server(), permissions=["clipboard-read", "clipboard-write"]) as explorer:
        page = explorer.page
        explorer.choose("collage")
        sizes = ((30, 20), (40, 50), (60, 10))
        files = [given(f"{width}.png", png(Image.new("RGB", (width, height)))) for width, height in sizes]
        explorer.field("photos").set_input_files(files)
        page.get_by_text("3 pictures · ").wait_for()
        page.get_by_role("button", name="Remove 40.png").click()
        explorer.until("document.querySelector('[role=tabpanel]').innerText.includes('Image.open(\"60.png\")')")
        assert explorer.page.locator(".thumb").count() == 2
        page.evaluate(
            """async (content) => {
                const blob = new Blob([new Uint8Array(content)], { type: "image/png" })
                await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })])
            }""",
            list(png(Image.new("RGB", (70, 71)))),
        )
        page.get_by_role("button", name="Paste a picture").click()
        page.get_by_text("3 pictures · ").wait_for()
        assert violations(page) == []
        text = explorer.call().locator(".output").inner_text()
        assert [text.index(each) for each in ("30 by 20", "60 by 10", "70 by 71")] == sorted(
            text.index(each) for each in ("30 by 20", "60 by 10", "70 by 71")
        )
        page.get_by_role("button", name="Enlarge 30.png").click()
        large = page.locator("dialog.zoom[open]")
        large.get_by_text("30 \N{MULTIPLICATION SIGN} 20").wait_for()
        page.keyboard.press("ArrowRight")
        large.get_by_text("x 16, y 10: 0, 0, 0").wait_for()
        page.keyboard.press("Escape")
        large.wait_for(state="detached")


def test_lists_are_lines_or_json_and_units_stand_at_the_field(explore) -> None:
    with explore(make_server()) as explorer:
        page = explorer.page
        explorer.choose("lists")
        explorer.field("words").fill("two words\n\nthree")
        explorer.field("sizes").fill("1, 2\n3")
        assert page.locator(".with-unit .unit").inner_text() == "s"
        said = explorer.call().locator(".output").inner_text()
        assert [said.index(each) for each in ("two words", "three")]
        code = page.get_by_label("the call as text")
        assert 'words=["two words", "three"], sizes=[1, 2, 3]' in code.inner_text()
        explorer.field("words").fill('["a\\nb", "[c"]')
        assert explorer.call().locator(".output").inner_text()
        assert 'words=["a\\nb", "[c"]' in code.inner_text()
        page.get_by_role("button", name="Copy a link").click()
        link = page.url
        page.goto("about:blank")
        page.goto(link)
        page.wait_for_selector("main h2 >> text=lists")
        assert explorer.field("words").input_value() == '["a\\nb","[c"]'
        explorer.field("sizes").fill("1, x")
        page.locator("main form button.main").click()
        assert "item 2: a whole number is expected" in explorer.error("sizes")
        explorer.field("sizes").fill("")  # the default again
        explorer.field("words").fill('["a", 5]')
        explorer.call("failed")
        assert explorer.error("words").startswith("item 2: ")


def test_a_list_of_objects_takes_pasted_json(explore) -> None:
    with explore(make_server()) as explorer:
        explorer.choose("label")
        explorer.field("photo").set_input_files([given("photo.png", png(sketch()))])
        explorer.page.get_by_role("button", name="Paste JSON").click()
        text = explorer.page.get_by_label("JSON array")
        text.fill("[{")
        explorer.page.get_by_text("Not JSON:").wait_for()
        text.fill(
            '[{"x": 1, "y": 2, "width": 30, "height": 40, "label": "dog"}, {"x": 5, "y": 6, "width": 7, "height": 8}]'
        )
        assert explorer.page.locator("fieldset fieldset").count() == 2
        assert explorer.call().locator("tbody tr").all_inner_texts()[0].split() == ["1", "2", "30", "40", "dog"]


CELLS = """city\tvisits\tshare\topen\tday\tat\tzoned\tcode
Oslo\t12\t0.5\ttrue\t2026-02-28\t2026-02-28 08:30\t2026-02-28T08:30:00+01:00\t007
"a ""b""\tc"\t\t-1e3\tFALSE\t2026-03-01\t2026-03-01T00:00:01.25\t2026-03-01T00:00:00Z\t12
\t9007199254740993\tNaN\t\t\t\t\t
"""


def paste(field: Any, text: str) -> None:
    """Paste a text. (To type long ones takes Chromium minutes.)"""
    field.page.evaluate("text => navigator.clipboard.writeText(text)", text)
    field.press("Control+v")


def test_a_table_is_pasted_from_a_spreadsheet(explore) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    server = make_server()
    frames: list[Any] = []

    def take(frame, other=None):
        frames.append(frame)
        return len(frame)

    take.__annotations__ = {"frame": pandas.DataFrame, "other": pandas.DataFrame | None, "return": int}
    server.add(take)

    with explore(server, permissions=["clipboard-read", "clipboard-write"]) as explorer:
        page = explorer.page
        explorer.choose("take")
        assert violations(page) == []
        page.locator("main form button.main").click()
        assert explorer.error("frame").startswith("a table is expected")
        paste(explorer.field("frame"), CELLS)
        preview = page.locator("main form table").first
        assert preview.locator("th").all_inner_texts() == [
            *("city text", "visits int64", "share float64", "open bool"),
            *("day date", "at time", "zoned time, UTC", "code text"),
        ]
        assert preview.locator("tbody tr").nth(1).locator("td").all_inner_texts() == [
            *('a "b" c', "null", "-1000", "false"),
            *("2026-03-01", "2026-03-01 00:00:01.250", "2026-03-01 00:00:00", "12"),
        ]
        page.get_by_text('frame=pd.read_csv("table.csv")').wait_for()
        assert violations(page) == []
        assert explorer.call().locator(".scalar").inner_text() == "3"
        page.get_by_label("type of visits").select_option("text")
        assert preview.locator("th").nth(1).inner_text() == "visits text"
        explorer.call()
        first, second = frames
        assert first["city"].tolist()[:2] == ["Oslo", 'a "b"\tc']
        assert first["share"].tolist()[:2] == [0.5, -1000]
        assert first["share"].isna().tolist() == [False, False, True]
        assert first["open"].tolist() == [True, False, None]
        assert first["day"].tolist()[:2] == [datetime.date(2026, 2, 28), datetime.date(2026, 3, 1)]
        assert first["at"][1] == pandas.Timestamp("2026-03-01 00:00:01.25")
        assert first["zoned"][0] == pandas.Timestamp("2026-02-28 07:30", tz="UTC")
        assert first["code"].tolist()[:2] == ["007", "12"]
        assert second["visits"].tolist()[::2] == ["12", "9007199254740993"]
        explorer.field("frame").fill("a,b\n1,2\n3,4,5\n")
        page.get_by_text("row 3 has 3 cells, the first row has 2").first.wait_for()
        explorer.field("frame").fill("")
        assert preview.count() == 0


def test_a_table_is_a_csv_file_and_exact_for_pyarrow(explore) -> None:
    pa = pytest.importorskip("pyarrow")
    polars = pytest.importorskip("polars")
    server = make_server()

    def mean(table, column):
        return float(table[column].mean())

    def describe(table):
        table.validate(full=True)
        return [f"{field.name}: {field.type}, {table[at].to_pylist()}" for at, field in enumerate(table.schema)]

    mean.__annotations__ = {"table": polars.DataFrame, "column": str, "return": float}
    describe.__annotations__ = {"table": pa.Table, "return": list[str]}
    server.add(mean)
    server.add(describe)

    with explore(server, permissions=["clipboard-read", "clipboard-write"]) as explorer:
        page = explorer.page
        explorer.choose("mean")
        text = "name;size;size;\r\nM\xfcller;1;5;\r\n;2;6;\r\n".encode("windows-1252")
        file = page.locator(".drop input[type=file]")
        file.set_input_files([given("people.xlsx", b"PK\3\4\0", "")])
        page.get_by_text("this is no text: save the table as CSV").wait_for()
        file.set_input_files([given("people.csv", text, "text/csv")])
        page.get_by_text("people.csv · ").wait_for()
        heads = page.locator("main form th").all_inner_texts()
        assert heads == ["name text", "size int64", "size_3 int64", "column_4 text"]
        explorer.field("column").fill("size_3")
        assert explorer.call().locator(".scalar").inner_text() == "5.5"
        explorer.choose("describe")
        rows = [f"{at},{at / 7},{'' if at % 3 else at % 2 == 0},x{at}" for at in range(1, 4501)]
        paste(explorer.field("table"), "\n".join(["__proto__,part,even,name \N{SNOWMAN}", *rows]))
        card = explorer.call()
        with page.expect_download() as saved:
            card.get_by_role("button", name="Save .json").click()
        columns = json.loads(Path(saved.value.path()).read_text())
        evens = [None if at % 3 else at % 2 == 0 for at in range(1, 4501)]
        assert columns == [
            f"__proto__: int64, {list(range(1, 4501))}",
            f"part: double, {[at / 7 for at in range(1, 4501)]}",
            f"even: bool, {evens}",
            f"name \N{SNOWMAN}: string, {[f'x{at}' for at in range(1, 4501)]}",
        ]


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_the_copied_code_of_a_table_runs_with_the_csv_file(explore, tmp_path, kind) -> None:
    library = pytest.importorskip(kind)
    pytest.importorskip("pyarrow")
    server = make_server()

    def names(table):
        return list(table.column_names if kind == "pyarrow" else table.columns)

    names.__annotations__ = {"table": library.Table if kind == "pyarrow" else library.DataFrame, "return": list[str]}
    server.add(names)
    (tmp_path / "table.csv").write_text("city,visits\nOslo,1\n")
    made = {}
    with explore(server) as explorer:
        explorer.choose("names")
        explorer.field("table").fill("city,visits\nOslo,1\n")
        explorer.page.locator("main form table").wait_for()
        for way in ("Python", "Command line", "curl"):
            explorer.page.get_by_role("tab", name=way).click()
            made[way] = explorer.page.get_by_label("the call as text").inner_text()
        commands = {
            "Python": [sys.executable, "-c", made["Python"]],
            "Command line": [
                "bash",
                "-c",
                made["Command line"].replace("rpcstream", f"{sys.executable} -m rpcstream", 1),
            ],
            "curl": ["bash", "-c", f"curl -s {made['curl'][5:]}"],
        }
        for way, command in commands.items():
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
            assert done.returncode == 0, (way, done.stderr)
            assert re.findall("city|visits", done.stdout) == ["city", "visits"], (way, done.stdout)
