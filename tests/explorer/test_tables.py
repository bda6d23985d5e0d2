"""Tables and schemas that are damaged, hostile or unusual: they are refused, or read as they were meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpcstream import Server

from .test_explorer import X, given

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

#: Runs work to its end, and gives the place of each part of a stream of Arrow.
TOOLS = """
const { readTable } = await import("./docs/arrow.js")
const { COLUMNS, writeTable } = await import("./docs/arrow_out.js")
const run = (work) => { for (;;) { const { value, done } = work.next(); if (done) return value } }
const columnsOf = (columns) => Object.entries(columns).map(([name, cells]) => ({ name, type: "text", cells }))
const table = (columns) => run(writeTable(columnsOf(columns)))
const field = (view, at, number) => at + view.getUint16(at - view.getInt32(at, true) + 4 + 2 * number, true)
const root = (view, at) => at + 8 + view.getUint32(at + 8, true)
const behind = (view, at) => at + view.getUint32(at, true)
const second = (view) => 8 + view.getInt32(4, true)
"""


def in_page(explorer: Any, program: str, given: object = None) -> Any:
    """What a program with `TOOLS` returns in the page, which is opened; it has `given`."""
    explorer.page.goto(f"{explorer.url}/docs")
    explorer.serve_modules()
    return explorer.page.evaluate(f"async (given) => {{ {TOOLS} {program} }}", given)


def test_sizes_below_zero_in_a_stream_of_arrow_are_refused(explore) -> None:
    with explore(Server(docs=True), is_open=False) as explorer:
        said = in_page(
            explorer,
            """
            const refused = (change) => {
                const bytes = table({ a: ["x", "y"] })
                change(new DataView(bytes.buffer))
                try { return readTable(bytes).count } catch (error) { return error.message }
            }
            return [
                refused(() => {}),
                refused((view) => view.setBigInt64(field(view, root(view, 0), 3), BigInt(-second(view)), true)),
                refused((view) => {
                    const batch = behind(view, field(view, root(view, second(view)), 2))
                    view.setBigInt64(field(view, batch, 0), -5n, true)
                }),
            ]""",
        )
        assert said == [2, "a size in it is below 0", "a size in it is below 0"]


def test_columns_that_share_their_bytes_are_read_once_and_in_part(explore) -> None:
    with explore(Server(docs=True), is_open=False) as explorer:
        decoded, shown, whole = in_page(
            explorer,
            """
            const { tableView } = await import("./docs/table.js")
            const size = 100_000
            const names = Array.from({ length: 70 }, (_, at) => `c${at}`)
            const bytes = table(Object.fromEntries(names.map((name, at) => [name, [at ? "" : "x".repeat(size)]])))
            const view = new DataView(bytes.buffer)
            const buffers = behind(view, field(view, behind(view, field(view, root(view, second(view)), 2)), 2)) + 4
            for (let at = 3; at < 3 * names.length; at++) for (const half of [0, 8])
                view.setBigInt64(buffers + 16 * at + half, view.getBigInt64(buffers + 16 * (at % 3) + half, true), true)
            const decode = TextDecoder.prototype.decode
            let decoded = 0
            TextDecoder.prototype.decode = function (part, ...rest) {
                decoded += part.byteLength
                return decode.call(this, part, ...rest)
            }
            const cells = []
            const read = readTable(bytes)
            decoded = 0
            const node = tableView(read, (value) => (cells.push(value), document.createElement("td")))
            return [decoded, [cells.length, cells[0].length, cells[0].at(-1), node.querySelectorAll("th").length,
                node.querySelector("[role=status]").textContent], read.columns[69].at(0).length]""",
        )
        assert decoded == 60 * 10_000
        assert shown == [60, 10_001, "…", 60, f"1 rows {X} 70 columns, the first 60 are shown"]
        assert whole == 100_000


def test_references_are_followed_a_short_way(explore) -> None:
    with explore(Server(docs=True), is_open=False) as explorer:
        looked, types, resolved = in_page(
            explorer,
            """
            const { typeText } = await import("./docs/signature.js")
            const { resolve } = await import("./docs/schemas.js")
            const to = (name) => ({ $ref: `#/components/schemas/${name}` })
            const chain = Object.fromEntries(Array.from({ length: 1000 }, (_, at) => [`c${at}`, to(`c${at + 1}`)]))
            let looked = 0
            const watched = new Proxy({ ...chain, Photo: { properties: { $type: { const: "image" } } },
                Wide: { allOf: Array(200_000).fill({ type: "integer" }), title: "wide" },
                Loop: { allOf: [to("Loop"), to("Loop")] } },
                { get: (all, name) => (looked++, all[name]) })
            const text = typeText({ anyOf: Array(40).fill(to("c0")) }, watched)
            const before = looked
            const types = [text, ...["Photo", "Wide", "Loop"].map((name) => typeText(to(name), watched))]
            types.push(typeText({ allOf: [to("Photo")], description: "one" }, watched))
            const end = { ...chain, c1000: { type: "null" } }
            const resolved = [resolve(to("Wide"), watched), resolve(to("c998"), end), resolve(to("Loop"), watched)]
            return [before, types, resolved]""",
        )
        assert looked <= 40 * 8
        assert types == ["c0", "Image", "Wide", "Loop", "Image"]
        assert resolved == [{"type": "integer", "title": "wide"}, {"type": "null"}, {}]


def test_numbers_and_dates_of_a_column_are_exact_or_text(explore) -> None:
    texts = {
        "9223372036854775807": ["int"],
        "-9223372036854775808": ["int", "float"],
        "9223372036854775808": ["float"],
        "1234567890123456789": ["int"],
        "12345678901234567890": [],
        "+5": ["float"],
        "-2.5e3": ["float"],
        "1e999": [],
        "NaN": ["float"],
        "0001-01-01": ["date"],
        "0000-01-01": [],
        "2026-01-31T23:59": ["time"],
        "2026-01-31T24:00": [],
        "2026-01-31 24:00:00Z": [],
    }
    with explore(Server(docs=True), is_open=False) as explorer:
        kinds = in_page(
            explorer,
            "const kinds = Object.keys(COLUMNS).slice(0, -1);"
            "return given.map((text) => kinds.filter((kind) => COLUMNS[kind].is(text)))",
            list(texts),
        )
        assert dict(zip(texts, kinds, strict=True)) == texts


def table_server(taken: list[Any]) -> Server:
    """A server whose method `take` puts its optional table into a list, and tells the names and the rows."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    server = Server(docs=True)

    def take(frame=None):
        taken.append(frame)
        return None if frame is None else [list(frame.columns), *frame.fillna("-").astype(str).to_numpy().tolist()]

    take.__annotations__ = {"frame": pandas.DataFrame | None, "return": list[Any] | None}
    server.add(take)
    return server


def test_a_csv_file_is_read_as_it_was_meant(explore) -> None:
    files = {
        "a,b": [["a", "b"]],
        '\r\n\n"x;y;z",b\n1,"2\n3"\n': [["x;y;z", "b"], ["1", "2\n3"]],
        '"one;\ntwo";b\n1,5;2\n': [["one;\ntwo", "b"], ["1,5", "2"]],
        "SEP=|\r\na;b|c,d\r\n1|2\r\n": [["a;b", "c,d"], ["1", "2"]],
        "a, a,a_2,,column_4\n1,2,3,4,5\n": [["a", "a_2", "a_2_3", "column_4", "column_4_5"], ["1", "2", "3", "4", "5"]],
        'a,b\n"x"y,"\n': [["a", "b"], ['"x"y', '"']],
        'a,b\n"",""""\n,x\n': [["a", "b"], ["-", '"'], ["-", "x"]],
    }
    with explore(table_server([])) as explorer:
        explorer.choose("take")
        for number, (text, rows) in enumerate(files.items()):
            name = f"table{number}.csv"
            explorer.page.locator(".drop input[type=file]").set_input_files([given(name, text.encode(), "text/csv")])
            explorer.page.get_by_text(f"{name} · ").wait_for()
            card = explorer.call()
            with explorer.page.expect_download() as saved:
                card.get_by_role("button", name="Save .json").click()
            assert json.loads(Path(saved.value.path()).read_text()) == rows, text


def test_ten_megabytes_of_quotes_are_one_cell(explore) -> None:
    taken: list[Any] = []
    with explore(table_server(taken)) as explorer:
        explorer.choose("take")
        text = 'a\n"' + '""' * 5_000_000 + '"\n'
        explorer.page.locator(".drop input[type=file]").set_input_files(
            [given("quotes.csv", text.encode(), "text/csv")]
        )
        explorer.page.locator("main form table").wait_for()
        explorer.call()
        assert taken[0]["a"][0] == '"' * 5_000_000


def test_a_file_that_is_not_read_is_not_left_out_of_the_call(explore) -> None:
    taken: list[Any] = []
    with explore(table_server(taken)) as explorer:
        page = explorer.page
        explorer.choose("take")
        assert explorer.field("frame").get_attribute("placeholder").startswith("Paste cells")
        page.evaluate(
            """() => {
                const read = File.prototype.arrayBuffer
                File.prototype.arrayBuffer = function () {
                    return new Promise((done) => (window.go = () => done(read.call(this))))
                }
            }"""
        )
        file = page.locator(".drop input[type=file]")
        button = page.locator("main form button.main")
        file.set_input_files([given("slow.csv", b"a\n1\n", "text/csv")])
        explorer.until("Boolean(window.go)")
        button.click()
        assert explorer.error("frame") == "the table is still being read"
        page.evaluate("window.go()")
        page.locator("main form table").wait_for()
        explorer.call()
        page.evaluate("delete window.go")
        file.set_input_files([given("bad.csv", b"a,b\n1,2,3\n", "text/csv")])
        explorer.until("Boolean(window.go)")
        page.evaluate("window.go()")
        page.get_by_text("row 2 has 3 cells, the first row has 2").first.wait_for()
        button.click()
        assert explorer.error("frame") == "row 2 has 3 cells, the first row has 2"
        explorer.field("frame").fill("b\n2\n")
        page.locator("main form th").get_by_text("b").wait_for()
        explorer.field("frame").fill("")
        explorer.call()
        assert [None if each is None else each.to_dict("list") for each in taken] == [{"a": [1]}, None]


def test_work_on_a_table_stops_when_other_text_is_given(explore) -> None:
    with explore(table_server([])) as explorer:
        steps = in_page(
            explorer,
            """
            const { tableEditor } = await import("./docs/tables_in.js")
            const editor = tableEditor({ properties: { $type: { const: "pandas" } } })
            const type = (text) => {
                editor.input.value = text
                editor.input.dispatchEvent(new Event("input"))
            }
            const is = COLUMNS.int.is
            let steps = 0
            let now = 0
            performance.now = () => (now += 20) // each step is a slice
            COLUMNS.int.is = (text) => (steps++, is(text))
            const cells = Array.from({ length: 20_000 }, (_, at) => at)
            type(`first\\n${cells.join("\\n")}\\n`)
            while (!steps) await new Promise((done) => setTimeout(done))
            type("other\\nx\\n")
            while (editor.isBlank() || !editor.node.querySelector("td")) await new Promise((done) => setTimeout(done))
            for (let pause = 0; pause < 60; pause++) await new Promise((done) => setTimeout(done))
            return steps""",
        )
        assert steps < 5000


def test_a_sound_with_infinite_samples_is_heard_and_the_last_one_is_let_go(explore) -> None:
    server = Server(docs=True)
    samples = np.full(2000, 2.0, np.float32)
    samples[[5, 6, 7]] = [np.inf, -np.inf, np.nan]
    server.add(lambda: samples, name="infinite")
    with explore(server) as explorer:
        page = explorer.page
        explorer.choose("infinite")
        card = explorer.call()
        page.evaluate(
            """() => {
                const revoke = URL.revokeObjectURL
                window.revoked = []
                URL.revokeObjectURL = (url) => (window.revoked.push(url), revoke.call(URL, url))
            }"""
        )
        card.get_by_label("Sound").check()
        audio = card.locator("audio")
        audio.wait_for()
        first = audio.get_attribute("src")
        with page.expect_download() as saved:
            card.get_by_role("button", name="Save .wav").click()
        values = np.frombuffer(Path(saved.value.path()).read_bytes()[44:], "<i2")
        assert values[[0, 4, 8, -1]].tolist() == [32_767] * 4
        rate = card.get_by_label("Samples per second")
        rate.fill("8000")
        rate.blur()
        explorer.until(f"window.revoked.includes({json.dumps(first)})")
