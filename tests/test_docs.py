"""Links and code of the documentation: files exist, commands parse, Python compiles."""

import ast
import re
import shlex
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tests.conftest import REPOSITORY, run_cli

DOCS = sorted((REPOSITORY / "docs").glob("*.md"))
BLOCK = re.compile(r"^([ ]*)```(\w*)\n(.*?)^[ ]*```", flags=re.DOTALL | re.MULTILINE)


def blocks(path: Path, language: str) -> list[str]:
    found = BLOCK.findall(path.read_text(encoding="utf-8"))
    return [textwrap.dedent(code) for _, name, code in found if name == language]


def commands() -> list[tuple[str, list[str]]]:
    """Command lines of the program in the pages, with the page's name."""
    found = []
    for path in DOCS:
        for block in blocks(path, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:2] == ["python", "main.py"]:
                    found.append((path.name, words[2:]))
    return found


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_files_that_are_named_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:configs|scripts|tests|attacks)/[\w./]*)`", text):
        assert (REPOSITORY / name).exists(), name


@pytest.mark.parametrize(("page", "words"), commands(), ids=lambda value: str(value)[:40])
def test_commands_parse(page: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is run: stages print their config, tools say that their files are missing."""
    if words[0] in ("fit", "validate", "test", "predict"):
        with pytest.raises(SystemExit) as stop:
            run_cli(*words, "--print_config")
        assert stop.value.code == 0
        printed = yaml.safe_load(capsys.readouterr().out)
        assert printed["model"]["class_path"]
    elif words[0] == "pipeline":
        configs = [word for before, word in pairwise(words) if before == "--config"]
        assert configs
        for config in configs:
            # docs/own_photos.md edits a copy of the folder.
            config = config.replace("configs/mine/", "configs/photos/")
            content = yaml.safe_load((REPOSITORY / config).read_text(encoding="utf-8"))
            assert content.keys() <= {"run", "stages", "grid", "scale"}
    else:
        assert words[0] in ("merge", "report", "table")
        assert run_cli(*words) == 1
        message = capsys.readouterr().err
        assert re.search(
            "no files? match|no (metrics|table) file|no finished|a mean needs", message
        )


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_python_compiles(path: Path) -> None:
    for block in blocks(path, "python"):
        ast.parse(block)


def test_every_page_is_in_the_contents() -> None:
    listed = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert {path.name for path in DOCS} == set(listed)
    index = (REPOSITORY / "docs/index.md").read_text(encoding="utf-8")
    assert all(f"({name})" in index for name in listed if name != "index.md")
