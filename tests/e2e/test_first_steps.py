"""A person's first steps, typed into a shell as README and `gapless init` have them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import gapless
from doc_blocks import blocks_of

ROOT = Path(__file__).parents[2]
END = "\nkill -TERM %1 && wait %1\n"  # the daemon that was put into the background


def type_in(folder, lines):
    """Run lines in a shell in which `gapless` is this one; return what they said."""
    place = folder / ".venv" / "bin"
    place.mkdir(parents=True)
    (place / "gapless").write_text(f'#!/bin/sh\nexec {sys.executable} -m daemon.cli "$@"\n')
    (place / "gapless").chmod(0o755)
    environment = os.environ | {"PATH": f"{place}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["/bin/bash", "-m", "-e", "-c", lines], cwd=folder, env=environment, capture_output=True, text=True, timeout=250,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.model
@pytest.mark.timeout(300)
def test_the_readme_with_a_file_of_ones_own(embedded_model, tmp_path):
    """Word for word; only the port of the copied configuration is free to choose."""
    del embedded_model
    (block,) = [block for block in blocks_of("sh") if block.page == "README.md" and "story.jsonl" in block.text]
    (tmp_path / "configs").mkdir()
    text = (ROOT / "configs" / "demo.yaml").read_text()
    assert "port: " in text
    (tmp_path / "configs" / "demo.yaml").write_text(re.sub(r"port: \d+", "port: 0", text))
    said = type_in(tmp_path, block.text + END)
    answer = json.loads(said.splitlines()[-1])
    assert answer["response"]["body"]["choices"][0]["text"].strip()


def test_what_init_says_comes_next(tmp_path):
    """Each command that it prints, in that order, the daemon in the background."""
    code, said = gapless("init", "--model", "fake:", "--folder", "./spool", cwd=tmp_path)
    assert code == 0
    doctor, run, submit = [line.strip().partition("    ")[0] for line in said.splitlines()[1:]]
    config = tmp_path / "gapless.yaml"
    config.write_text(config.read_text().replace("port: 9400", "port: 0"))
    (tmp_path / "FILE").write_text('{"prompt": "Once upon a time", "max_tokens": 5}\n')
    (tmp_path / "FILE").rename(tmp_path / "FILE.jsonl")
    submit = submit.replace("FILE", "FILE.jsonl")
    said = type_in(tmp_path, f"{doctor}\n{run} &\n{submit}\ncat spool/chat/outbox/FILE.output.jsonl{END}")
    assert json.loads(said.splitlines()[-1])["response"]["status_code"] == 200
