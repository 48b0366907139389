"""The page of a graph of 50,000 nodes: its size, how long it takes to make, to appear, to obey.

    make bench BENCH=page                    NODES=50000: size

Needs the package playwright and Chromium. Times are medians of RUNS, of a click until what it asked
for is drawn: wall time, and beside it processor time of all of the browser's processes together.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

import dnnp
from support.bench import table
from support.layers import CHROMIUM, layered

NODES = int(os.environ.get("NODES", "50000"))
RUNS = 5
MOST_BYTES, MOST_FIRST_MS, MOST_CLICK_MS = 6e6, 1000, 100
"""The targets."""
CLICKS = {
    "open a stage": "() => graph.toggle(kidsOf(graph.root)[2], true)",
    "open a part of it": "() => graph.toggle(kidsOf(kidsOf(graph.root)[2])[1], true)",
    "open a layer": "() => graph.toggle(kidsOf(kidsOf(kidsOf(graph.root)[2])[1])[3], true)",
    "choose a stage": "() => choose(kidsOf(graph.root)[1])",
    "choose an operator": "() => graph.reveal(M.count - 5)",
    "search": "() => {byId('search').value = 'softmax'; find();}",
    "go to what was found": "() => next(1)",
}
"""Name of a click -> the call that it makes."""
TIMED = """async (script) => {
  const start = performance.now();
  await eval(script)();
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
}"""


def spent_ms() -> float:
    """Processor time so far of all that this process has started, without itself."""
    parents, times = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, rest = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
            parents[pid], times[pid] = int(rest[1]), int(rest[11]) + int(rest[12])
    ours, found = {os.getpid()}, 0
    while len(ours) > found:
        found = len(ours)
        ours |= {pid for pid, parent in parents.items() if parent in ours}
    return 1e3 * sum(times[pid] for pid in ours - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


def measured(page: str, kept: dict[str, list[tuple[float, float]]]) -> None:
    """Open a page once, and time all that is done in it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True)
        tab = opened.new_page()
        before = spent_ms()
        tab.goto(page)
        tab.wait_for_selector("html[data-shown]", state="attached")
        used = spent_ms() - before
        first = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
        kept.setdefault("first paint", []).append((tab.evaluate(first), math.nan))
        shown = float(tab.evaluate("() => document.documentElement.dataset.shown"))
        kept.setdefault("graph is there", []).append((shown, used))
        for name, script in CLICKS.items():
            before = spent_ms()
            wall = tab.evaluate(TIMED, script)
            kept.setdefault(name, []).append((wall, spent_ms() - before))
        browser.close()


def main() -> None:
    """Measure and print a table."""
    graph = layered(NODES, k=8)
    start = time.process_time()
    data = dnnp.view(graph, as_="html")
    made = time.process_time() - start
    kept: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_bytes(data)
        for _ in range(RUNS):
            measured(path.as_uri(), kept)
    print(
        f"Page of a graph of {NODES:,} nodes, medians of {RUNS}. Targets: {MOST_BYTES / 1e6:g} MB, "
        f"first paint after {MOST_FIRST_MS} ms, a click {MOST_CLICK_MS} ms.\n"
    )
    rows = [("size", f"{len(data) / 1e6:.2f} MB", ""), ("made in", "", f"{1e3 * made:.0f} ms")]
    for name, found in kept.items():
        wall, used = (statistics.median(column) for column in zip(*found, strict=True))
        rows.append((name, f"{wall:.0f} ms", "" if math.isnan(used) else f"{used:.0f} ms"))
    print(table(("what", "wall", "processor"), rows))


if __name__ == "__main__":
    main()
