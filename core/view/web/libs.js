// What the page takes of libraries; `make page-bundle` makes libs.min.js of it.
export { Graph, layout } from "@dagrejs/dagre";
export { hierarchy, treemap } from "d3-hierarchy";
export { scaleLinear } from "d3-scale";
export { select } from "d3-selection";
export { curveBasis, line } from "d3-shape";
export { zoom, zoomIdentity } from "d3-zoom";
