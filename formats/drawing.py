"""Attributes of nodes and edges that say nothing about costs, and are no reason for a warning."""

from __future__ import annotations

_NAMES = """
stage device
label fillcolor color class group
URL area arrowhead arrowsize arrowtail bgcolor colorscheme comment constraint decorate
description dir distortion edgeURL edgehref edgetarget edgetooltip fixedsize fontcolor fontname
fontsize gradientangle headURL head_lp headclip headhref headlabel headport headtarget
headtooltip height href id image imagepos imagescale key labelURL labelangle labeldistance
labelfloat labelfontcolor labelfontname labelfontsize labelhref labelloc labeltarget
labeltooltip len lhead lp ltail margin minlen nojustify ordering orientation penwidth
peripheries pin pos radius rank rects regular root samehead sametail samplepoints shape
shapefile showboxes sides skew sortv style tailURL tail_lp tailclip tailhref taillabel tailport
tailtarget tailtooltip target tooltip url vertices width x xlabel xlp y z
"""
"""What dnnp-view adds of a plan; then what Graphviz and editors draw by."""
DRAWING = frozenset(_NAMES.split())
