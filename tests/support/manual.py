"""The manual pages: their literal blocks, sections and words."""

from __future__ import annotations

import re

from support.project import ROOT

PAGES = sorted((ROOT / "man").glob("man[157]/*"))


def literal_blocks(page: str) -> list[str]:
    """The text between `.nf` and `.fi`, as a reader of the page sees it."""
    blocks = re.findall(r"^\.nf\n(.*?)^\.fi$", page, re.M | re.S)
    return [b.replace("\\&", "").replace("\\-", "-").replace("\\e", "\\") for b in blocks]


def section(page: str, heading: str) -> str:
    """The text of a section, with its requests; empty where there is none."""
    found = re.search(rf"^\.SH {heading}\n(.*?)(?=^\.SH |\Z)", page, re.M | re.S)
    return found[1] if found else ""


def tags(text: str) -> set[str]:
    """Words of tagged paragraphs: terms, or exit statuses."""
    return {tag.replace("\\-", "-") for tag in re.findall(r"^\.TP.*\n\.B (.*)$", text, re.M)}
