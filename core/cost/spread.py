"""Work spread over devices in fractions: a bound, and the prices that prove it."""

from __future__ import annotations

import numpy as np

from dnnp.core.model.graph import Floats, totals

STEPS = 300
"""Steps towards the best weights of several classes; any weights give a bound."""


def spread(times: Floats, counts: Floats) -> tuple[float, Floats]:
    """Largest sum over units of min over classes of weight * time that was found.

    The weights of all devices add up to 1, so no split has a smaller largest load: weigh its
    loads, and move every unit to the class where it weighs least. This is the Lagrangian dual
    of spreading units over devices in fractions; one class needs no search.

    Parameters
    ----------
    times
        f64[C, g], seconds; inf: unsupported.
    counts
        f64[C], devices of each class.

    Returns
    -------
    (bound, weight of a device of each class: f64[C])
    """
    weights = np.full(len(counts), 1 / counts.sum())
    units = np.arange(times.shape[1])
    best, chosen = 0.0, weights
    for step in range(STEPS if len(counts) > 1 else 1):
        weighed = weights[:, None] * times
        place = weighed.argmin(axis=0)
        value = float(weighed[place, units].sum())
        if not np.isfinite(value):
            return value, weights
        if value > best:
            best, chosen = value, weights
        # A class that got more than its share should weigh more.
        loads = totals(place, times[place, units], len(counts)) / counts
        weights = weights * np.exp((loads / max(loads.max(), 1e-300) - 0.5) / (1 + step / 10))
        weights /= (weights * counts).sum()
    return best, chosen
