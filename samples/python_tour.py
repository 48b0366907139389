"""A model from its file to a verified run over two devices, in Python.

Cells begin with `# %%`, as editors with notebooks know them; `python -m dnnp.samples.python_tour`
runs all of them.
"""

# %% A model, and its graph
import tempfile
from pathlib import Path

import dnnp
from dnnp.samples import build

place = tempfile.TemporaryDirectory()
folder = Path(place.name)
graph = dnnp.load(build.write("two-tower-small", folder))
print(graph)

# %% Group what ONNX Runtime fuses, and price it by a roofline
graph = dnnp.profile(dnnp.coarsen(graph), device=["cpu-core"])
print(len(graph.nodes), "nodes in", len(graph.groups), "groups")

# %% Split it over two devices, and prove how good that is
graph = dnnp.bound(dnnp.split(graph, k=2))
print(graph.plan, graph.bound)
for stage in graph.stages:
    print(stage.device, len(stage.nodes), "nodes", stage.load, "s")

# %% Somebody else recomputes all of it
print(dnnp.check(graph, certificate=True).described())

# %% When does each stage run each of eight samples?
scheduled = dnnp.schedule(graph, micro_batches=8, method="inference")
print(scheduled.schedule)

# %% A split that somebody else made, and a placement from the literature without any model
middle = len(graph.groups) // 2
halves = [
    [node for group in groups for node in group["nodes"]]
    for groups in (graph.groups[:middle], graph.groups[middle:])
]
print(dnnp.split(graph, k=2, eval=halves).plan)
print(dnnp.schedule(None, shape="V", devices=4, micro_batches=8, method="1f1b").schedule)

# %% The stages as ONNX models
dnnp.export(graph, folder / "stages")
print(sorted(path.name for path in (folder / "stages").iterdir()))

# %% Run the pipeline, and compare it with the whole model
ran = dnnp.run(graph, samples=8, verify=True)
print("verified:", ran.runs[0]["verified"])

# %% A stream is what the commands read and write
ran.save(folder / "two-tower.dnnp")
print(dnnp.load(folder / "two-tower.dnnp"))
