"""An option of a server is declared in one place: one that is added there is known everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import contextlib
import importlib.util
import io
import json
import pydoc
import sys
from pathlib import Path

import rpcstream

PATH = Path(rpcstream.__file__).parent / "server" / "options.py"
CHANGES = {
    "        token: a secret that": "        patience: seconds between two tries.\\n        token: a secret that",
    "    token: Annotated[": "    patience: Annotated[float, Option(1.5, SECONDS)]\\n    token: Annotated[",
}


class Changed:
    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_loader(name, self) if name == "rpcstream.server.options" else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        source = PATH.read_text(encoding="utf-8")
        for old, new in CHANGES.items():
            assert source.count(old) == 1, old
            source = source.replace(old, new)
        exec(compile(source, str(PATH), "exec"), module.__dict__)


sys.meta_path.insert(0, Changed())
from rpcstream import Hub, Server
from rpcstream.cli.serve import main


def told_by_command(*argv):
    with contextlib.redirect_stderr(io.StringIO()) as text:
        status = main([*argv, "app.py"])
    return [status, text.getvalue()]


Server(patience=3)
Hub.from_config({"patience_ms": 500})
print(json.dumps({
    "help": pydoc.render_doc(Server, renderer=pydoc.plaintext) + pydoc.render_doc(Hub, renderer=pydoc.plaintext),
    "flag": told_by_command("--set", "patience=long"),
    "file": told_by_command("--config", "server.toml"),
}))
"""


def test_an_option_that_is_added_to_the_declaration_is_in_help_files_and_flags(tmp_path: Path) -> None:
    """The page has it as well: else `test_reference_has_every_option_with_its_default` fails."""
    (tmp_path / "server.toml").write_text("patience = -1\n")
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["help"].count("patience=1.5: seconds between two tries.") == 2
    assert found["flag"] == [2, "rpcstream-server: --set patience: expected a number, got a string\n"]
    assert found["file"] == [2, "rpcstream-server: server.toml: patience: expected a number of at least 0, got -1.0\n"]
