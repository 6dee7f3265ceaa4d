"""The code blocks of the documents."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md")),
)
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One of them."""

    page: str
    number: int  # within its page, from 1
    language: str  # empty: none is named
    text: str

    def __str__(self):
        return f"{self.page}-{self.number}"


def blocks_of(*languages):
    """Return the blocks of these languages in all pages."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for number, (language, block) in enumerate(_BLOCK.findall(text), start=1):
            if language in languages:
                found.append(Block(page, number, language, block))
    return found
