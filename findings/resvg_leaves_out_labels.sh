#!/usr/bin/env bash
# Libraries: resvg-py 0.5.0 (the SVG renderer resvg, from Python), with the fonts that matplotlib 3.10.7 carries, pillow 12.0.0 to look at
#            pixels (Python 3.11).
# Expected:  a label whose font family is not there is drawn in a font that is, as browsers do, above all where the family is the generic
#            `serif` or `sans-serif` that pictures of graphs end their lists with; or else there is an error.
# Happens:   the generic names stand for fixed families (Times New Roman and Arial): where these are not installed, as in most containers,
#            the picture comes without any label, status and return value are those of success, and nothing is printed, although fonts
#            with and without serifs are loaded. `font_family`, by its documentation the "default (generic) font family", changes nothing;
#            `serif_family` and `sans_serif_family` do. Only families that are named exactly are drawn.
# Matters:   drawings of model graphs as Graphviz writes them ("Times,serif") become boxes without names in a report that is rendered in
#            CI, and no check of status or size of the picture sees it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q --only-binary :all: resvg-py==0.5.0 matplotlib==3.10.7 pillow==12.0.0 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import io
from pathlib import Path

import matplotlib
from PIL import Image
from resvg_py import svg_to_bytes

folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
fonts = {"skip_system_fonts": True, "font_files": [str(folder / f"{name}.ttf") for name in ("DejaVuSans", "DejaVuSerif")]}


def ink(family, **more):
    """Dark pixels of a box's label."""
    svg = (f'<svg xmlns="http://www.w3.org/2000/svg" width="120" height="40">'
           f'<text x="8" y="26" font-family="{family}" font-size="14">MatMul_12</text></svg>')
    image = Image.open(io.BytesIO(bytes(svg_to_bytes(svg, background="white", **fonts, **more)))).convert("L")
    return sum(count for value, count in enumerate(image.histogram()) if value < 128)


named = {family: ink(family) for family in ("DejaVu Sans", "DejaVu Serif", "Helvetica, DejaVu Sans")}
assert all(found > 100 for found in named.values()), named
print("dark pixels of a label whose family is loaded:", named)
lost = {family: ink(family) for family in ("Times,serif", "serif", "Helvetica,sans-serif", "sans-serif", "monospace")}
assert not any(lost.values()), lost
print("of one that ends with a generic family:", lost)
assert ink("Times,serif", font_family="DejaVu Serif") == 0
assert ink("Times,serif", serif_family="DejaVu Serif") == named["DejaVu Serif"]
assert ink("sans-serif", sans_serif_family="DejaVu Sans") == named["DejaVu Sans"]
print("with font_family: 0; with serif_family and sans_serif_family: as where it is named")
print("as stated")
PY
