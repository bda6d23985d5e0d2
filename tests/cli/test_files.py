"""Files as people type them: parameters that are paths, and results and their members in files."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import csv, parquet

from rpcstream import Server
from rpcstream.testing import serve_in_thread

from .conftest import Run, Stranger, ended


def files_server() -> Server:
    server = Server(drain_timeout=0.1)

    @server
    def photo(photo: Image.Image | None) -> Any:
        return None if photo is None else photo.size

    @server
    def data(data: bytes) -> int:
        return len(data)

    @server
    def array(array: np.ndarray) -> Any:
        return [str(array.dtype), *array.shape]

    @server
    def frame(table: pd.DataFrame) -> Any:
        return table.to_dict("list")

    @server
    def polars(table: pl.DataFrame) -> Any:
        return table.to_dict(as_series=False)

    @server
    def arrow(table: pa.Table) -> Any:
        return table.to_pydict()

    @server
    def mixed(value: np.ndarray | Image.Image | bytes) -> str:
        return "image" if isinstance(value, Image.Image) else type(value).__name__

    @server
    def together(values: list[int], number: int) -> int:
        return sum(values) + number

    @server
    def text(path: str, number: int = 0) -> str:
        return path

    @server
    def either(path: str | bytes) -> str:
        return repr(path)

    @server
    def anything(value: Any) -> Any:
        return value

    @server
    def photos(photos: list[Image.Image]) -> Any:
        return [each.size[0] for each in photos]

    @server
    async def frames(frames: AsyncIterator[Image.Image]) -> Any:
        return [each.size[0] async for each in frames]

    @server
    async def chunks(data: AsyncIterator[bytes]) -> int:
        return sum([len(each) async for each in data])

    @server
    async def lines(lines: AsyncIterator[str]) -> Any:
        return [each async for each in lines]

    @server
    async def total(numbers: AsyncIterator[int]) -> int:
        return sum([each async for each in numbers])

    return server


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve_in_thread(files_server()) as where:
        yield where


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (3, 2)).save("cat.png")
    np.save("a.npy", np.zeros((2, 3), np.float32))
    table = pa.table({"n": [1, 2], "s": ["x", "y"]})
    np.savez("two.npz", np.zeros(2), np.zeros(3))
    csv.write_csv(table, "t.csv")
    parquet.write_table(table, "t.parquet")
    Path("data.bin").write_bytes(b"\0" * 200_000)
    Path("lines.txt").write_text("one\n\u00e9\n", encoding="utf-8")
    Path("n.jsonl").write_text("1\n\n2\n")
    Path("bad.jsonl").write_text("1\n{\n")
    Path("frames").mkdir()
    for width in (1, 2):
        Image.new("RGB", (width, 1)).save(f"frames/{width}.png")
    Path("frames/.hidden").write_text("no image")
    return tmp_path


TABLE = {"n": [1, 2], "s": ["x", "y"]}


@pytest.mark.parametrize(
    ("argv", "result"),
    [
        (["photo", "photo=cat.png"], [3, 2]),
        (["photo", "--positional", "./cat.png"], [3, 2]),
        (["photo", "photo=null"], None),
        (["data", "data=data.bin"], 200_000),
        (["array", "array=a.npy"], ["float32", 2, 3]),
        (["array", "array=cat.png"], ["uint8", 2, 3, 3]),
        (["array", "array:ndarray=@cat.png"], ["uint8", 2, 3, 3]),
        *(
            ([name, f"table=t.{ending}"], TABLE)
            for name in ("frame", "polars", "arrow")
            for ending in ("csv", "parquet")
        ),
        (["mixed", "value=a.npy"], "ndarray"),
        (["mixed", "value=cat.png"], "image"),
        (["photos", "photos=frames/"], [1, 2]),
        (["photos", "photos=cat.png"], [3]),
        (["frames", "frames=./frames"], [1, 2]),
        (["frames", "frames=cat.png"], [3]),
        (["chunks", "data=data.bin"], 200_000),
        (["lines", "lines=lines.txt"], ["one", "\u00e9"]),
        (["total", "numbers=n.jsonl"], 3),
        # Text stays text, whatever there is under that name.
        (["text", "path=cat.png"], "cat.png"),
        (["text", "path=-"], "-"),
        (["text", "path=cat.png", "number=1"], "cat.png"),
        (["either", "path=cat.png"], "'cat.png'"),
        (["anything", "value=cat.png"], "cat.png"),
    ],
)
def test_a_path_is_the_file_where_the_parameter_takes_one(run: Run, argv: list[str], result: Any) -> None:
    status, out, err = run(*argv)
    assert (status, err) == (0, "")
    assert json.loads(out) == result


@pytest.mark.parametrize(
    ("argv", "typed", "result"),
    [
        (["total", "numbers=-"], "1\n2\n", 3),
        (["lines", "lines=-"], "a\nb", ["a", "b"]),
        (["chunks", "data=-"], "x" * 100_000, 100_000),
        (["data", "data=-"], "xy", 2),
        (["frame", "table=-"], "n,s\n1,x\n2,y\n", TABLE),
    ],
)
def test_standard_input_is_such_a_file(argv: list[str], typed: str, result: Any, address: str) -> None:
    status, out, err = ended(*argv, "--uri", address, input=typed)
    assert (status, err) == (0, "")
    assert json.loads(out) == result


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["photo", "photo=cta.png"], "'photo=cta.png': there is no file 'cta.png', and this parameter takes an image"),
        (["photo", "photo=t.csv"], "'photo=t.csv': not an image"),
        (["photo", "photo=frames/"], "cannot read 'frames/'"),
        (["array", "array=t.csv"], "not a .npy file"),
        (["array", "array=two.npz"], "an .npz file contains several arrays: pass the .npy file of one"),
        (["frame", "table=data.bin"], "'table=data.bin': not a table"),
        (["frame", "table=cat.png"], "'table=cat.png': not a table that can be read"),
        (["array", "array=[1.5,2]"], "this parameter takes an array; for JSON give array:=[1.5,2]"),
        (["total", "numbers=bad.jsonl"], "not JSON"),
        (["photo", "photo=cat.png", "--no-schema"], "error -32602: Invalid params: photo: "),
        (["photo", "photo:str=cat.png"], "error -32602: Invalid params: photo: "),
    ],
)
def test_a_file_that_cannot_be_sent_is_one_error(run: Run, argv: list[str], words: str) -> None:
    status, out, err = run(*argv)
    assert (status, out, err.count("\n")) == (1 if "error" in words else 2, "", 1)
    assert words in err


@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        (["text", "path=a"], 0),
        (["text", "path=1.5.x"], 0),
        (["text", "path=no/such"], 0),
        (["text", "path:str=cat.png"], 0),
        (["photo", "-i", "photo=cat.png"], 0),
        (["text", "path=cat.png"], 1),
        (["photo", "photo=cat.png"], 1),
    ],
)
def test_the_server_is_asked_once_and_only_about_a_file_that_exists(run: Run, argv: list[str], asked: int) -> None:
    err = run(*argv, "-v")[2]
    assert err.count('"method":"rpc.discover"') == asked
    assert err.count(f'"method":"{argv[0]}"') == 1


@pytest.mark.parametrize(
    ("argv", "advice"),
    [
        (["array", "array=[1,2]"], "array:=[1,2]"),
        (["array", "--positional", "[1,2]"], ":=[1,2]"),
        (["together", "values=[1,2]", "number=3"], "values:=[1,2]"),
        (["together", 'values={"a": 1}', "number:int=3"], 'values:={"a": 1}'),
    ],
)
def test_a_refused_text_that_looks_like_json_is_advised_to_be_it(run: Run, argv: list[str], advice: str) -> None:
    status, out, err = run(*argv)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.endswith(f"; for JSON give {advice}\n")


def test_no_advice_for_an_item_that_is_not_what_was_refused(run: Run) -> None:
    for argv in (["text", "path=[1", "number:str=x"], ["text", "path=[1", "number:=[1]"], ["text", "nothing=[1"]):
        status, _, err = run(*argv)
        assert (status, "for JSON" in err) == (1, False)


def test_a_server_that_is_not_there_is_reported_for_the_called_method(run: Run) -> None:
    for argv in (["boom", "photo=cat.png"], ["boom", "a=1"]):
        status, _, err = run(*argv, uri="127.0.0.1:1")
        assert (status, "(method 'boom' at 127.0.0.1:1)" in err) == (3, True)


def test_a_stream_goes_with_one_call(run: Run) -> None:
    for option in (["--notify"], ["--repeat", "2"]):
        status, out, err = run("total", "numbers=n.jsonl", *option)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert "numbers=n.jsonl" in err
    assert run("photo", "photo=cat.png", "--notify") == (0, "", "")
    status, out, _ = run("photo", "photo=cat.png", "--repeat", "3", "--format", "json")
    assert (status, json.loads(out)["failed"]) == (0, 0)


# -- results --------------------------------------------------------------------------------------------------------

SCORES = np.arange(3, dtype=np.float32)
PICTURE = np.zeros((2, 3, 3), np.uint8)


def opened(path: str) -> tuple[str, tuple[int, int]]:
    with Image.open(path) as image:
        return image.mode, image.size


def all_kinds() -> dict[str, Any]:
    table = pa.table({"n": [1]})
    return {"scores": SCORES, "overlay": Image.new("RGB", (4, 1)), "table": table, "note": "hi", "n": [1], "raw": b"\0"}


def test_a_file_for_each_member(run: Run, stranger: Stranger, folder: Path) -> None:
    assert run("m", "-o", "out/", uri=stranger.giving(all_kinds())) == (0, "", "")
    names = sorted(path.name for path in (folder / "out").iterdir())
    assert names == ["n.json", "note.txt", "overlay.png", "raw.bin", "scores.npy", "table.parquet"]
    assert np.load("out/scores.npy").tolist() == [0, 1, 2]
    assert parquet.read_table("out/table.parquet").to_pydict() == {"n": [1]}
    assert Path("out/n.json").read_text() == "[1]\n"
    assert Path("out/note.txt").read_text() == "hi\n"
    assert run("m", "-o", "list/", uri=stranger.giving([SCORES, 1])) == (0, "", "")
    assert sorted(path.name for path in (folder / "list").iterdir()) == ["0001.npy", "0002.json"]
    assert run("m", "-o", "one/", uri=stranger.giving(SCORES)) == (0, "", "")
    assert [path.name for path in (folder / "one").iterdir()] == ["result.npy"]


def test_a_folder_with_files_is_refused_before_the_call(run: Run, stranger: Stranger, folder: Path) -> None:
    (folder / "empty").mkdir()
    address = stranger.giving({"cat": 1})
    for options in ([], ["--stream"]):
        status, out, err = run("m", "-o", "./", *options, uri=address)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert "cannot write './': the folder is not empty" in err
    assert stranger.heard == []
    assert run("m", "-o", "empty/", uri=address) == (0, "", "")
    assert Path("empty/cat.json").read_text() == "1\n"


def test_items_of_a_stream_in_a_folder(run: Run, stranger: Stranger, folder: Path) -> None:
    assert run("m", "--stream", "-o", "out/", uri=stranger.giving({"a": 1})) == (0, "", "")
    assert Path("out/0001.json").read_text() == '{"a":1}\n'


@pytest.mark.parametrize(
    "name", ["../x", "..", "/etc/x", ".bashrc", "a/b", "a\\b", "a\0b", "x" * 300, "", "\u202ea", "C:x", "a\nb", "-rf"]
)
def test_names_of_members_stay_in_the_folder(run: Run, stranger: Stranger, folder: Path, name: str) -> None:
    before = sorted(folder.rglob("*"))
    assert run("m", "-o", "out/", uri=stranger(result={name: 1}))[0] == 0
    made = sorted(path for path in folder.rglob("*") if path not in before and path.is_file())
    assert len(made) == 1
    assert made[0].parent == folder / "out"
    assert not made[0].name.startswith(".")
    assert made[0].name.isprintable()
    assert len(made[0].name) < 120


@pytest.mark.parametrize("members", [{"a/b": 1, "a_b": 2}, {"a": 1, "A": 2}, [0] * 10_001])
def test_members_without_a_file_each(run: Run, stranger: Stranger, folder: Path, members: Any) -> None:
    status, out, err = run("m", "-o", "out/", uri=stranger(result=members))
    assert (status, json.loads(out), err.count("\n")) == (2, members, 1)
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("value", "path", "check"),
    [
        (PICTURE, "a.png", lambda: opened("a.png") == ("RGB", (3, 2))),
        (PICTURE[:, :, 0], "a.png", lambda: opened("a.png") == ("L", (3, 2))),
        (np.zeros((2, 3, 4), np.uint8), "a.png", lambda: opened("a.png") == ("RGBA", (3, 2))),
        *(
            (table, f"a.{ending}", lambda: list(pd.read_csv("a.csv")["n"]) == [1, 2])
            if ending == "csv"
            else (table, "a.parquet", lambda: parquet.read_table("a.parquet").to_pydict()["n"] == [1, 2])
            for table in (pd.DataFrame({"n": [1, 2]}), pl.DataFrame({"n": [1, 2]}), pa.table({"n": [1, 2]}))
            for ending in ("csv", "parquet")
        ),
    ],
)
def test_arrays_as_images_and_tables_as_files(run: Run, stranger: Stranger, value: Any, path: str, check: Any) -> None:
    assert run("m", "-o", path, uri=stranger.giving(value)) == (0, "", "")
    assert check()


def test_an_array_that_no_npy_file_can_contain(run: Run, stranger: Stranger) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    address = stranger.giving({"a": np.zeros(2, bfloat16)})
    status, _, err = run("m", "--select", "a", "-o", "a.npy", uri=address)
    assert (status, "a .npy file cannot contain an array of bfloat16" in err) == (2, True)
    assert run("m", "-o", "out/", uri=address) == (0, "", "")
    assert json.loads(Path("out/a.json").read_text())["dtype"] == "bfloat16"


def test_raw_tables_are_parquet(run: Run, stranger: Stranger) -> None:
    assert run("m", "-o", "t", "--format", "raw", uri=stranger.giving(pa.table({"n": [1]}))) == (0, "", "")
    assert parquet.read_table(io.BytesIO(Path("t").read_bytes())).to_pydict() == {"n": [1]}


def test_a_package_that_is_missing_is_told_before_the_call(
    run: Run, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    address = stranger.giving(1)
    status, _, err = run("m", "-o", "a.parquet", uri=address)
    assert (status, err) == (2, "rpcstream: cannot write 'a.parquet': pyarrow is not installed\n")
    assert stranger.heard == []


NESTED = {"a": {"b": [10, {"c": "x"}]}, "overlay": PICTURE}


@pytest.mark.parametrize(
    ("path", "out"),
    [("a.b.0", "10"), ("a.b.1.c", '"x"'), ("a", '{"b":[10,{"c":"x"}]}')],
)
def test_one_member_is_selected(run: Run, stranger: Stranger, path: str, out: str) -> None:
    assert run("m", "--select", path, uri=stranger.giving(NESTED)) == (0, f"{out}\n", "")
    assert run("m", "--stream", "--select", path, uri=stranger.giving(NESTED)) == (0, f"{out}\n", "")


def test_a_selected_member_is_saved(run: Run, stranger: Stranger) -> None:
    assert run("m", "--select", "overlay", "-o", "o.png", uri=stranger.giving(NESTED)) == (0, "", "")
    assert opened("o.png") == ("RGB", (3, 2))
    assert run("m", "--select", "a.b.1", "-o", "o/", uri=stranger.giving(NESTED)) == (0, "", "")
    assert Path("o/c.txt").read_text() == "x\n"


@pytest.mark.parametrize("path", ["x", "a.b.2", "a.b.-1", "a.b.x", "a.b.0.x", "overlay.$type", ""])
def test_a_member_that_is_not_there(run: Run, stranger: Stranger, path: str) -> None:
    status, out, err = run("m", "--select", path, uri=stranger.giving(NESTED))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"rpcstream: --select {path}: the result has no ")


@pytest.mark.parametrize("option", ["--list", "--notify", "--repeat=2", "--publish=t"])
def test_select_is_for_results(run: Run, option: str) -> None:
    method = [] if option == "--list" else ["m"]
    status, _, err = run(*method, option, "--select", "a")
    assert (status, f"{option.partition('=')[0]} takes no --select" in err) == (2, True)


def test_the_names_of_a_hostile_result_are_escaped(run: Run, stranger: Stranger) -> None:
    err = run("m", "--select", "x", uri=stranger(result={"\x1b[2J": 1}))[2]
    assert "\x1b" not in err


def test_progress_in_a_pipe_has_each_percent_once(run: Run, stranger: Stranger) -> None:
    values = [[done, 1000] for done in range(1001)]
    err = run("m", "--progress", uri=stranger(*values, result=1))[2]
    lines = err.splitlines()
    assert len(lines) == 101
    assert lines[-1].endswith("100% 1,000 of 1,000")
