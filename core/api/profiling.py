"""Learn what every operator costs, by formula or by measuring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dnnp.choices import DEFAULT_DEVICE, MEASURED, PROFILE_MODES
from dnnp.core.model.errors import UsageError
from dnnp.step import Options, option, step

if TYPE_CHECKING:
    from dnnp.formats.devices import DeviceSpec
    from dnnp.formats.stream import Stream


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(Options):
    """What the costs are, and how they are found."""

    mode: str = option("analytic", choices=PROFILE_MODES)
    """`analytic`: a roofline over work and traffic; `measure`: time the model with ONNX Runtime on
    this machine's CPU; `scaled`: carry the times of one class to others."""
    device: Sequence[str] = option(())
    """Device classes to price, by name or by device file; none: `cpu-core`."""
    model: str | None = option()
    """The ONNX model to measure, if it is not where the graph says."""
    threads: int = option(1, least=1)
    """Of ONNX Runtime."""
    repeats: int = option(10, least=1)
    """Runs of which the median counts."""
    warmup: int = option(3, least=0)
    """Runs before them."""
    cache: str | None = option()
    """Folder where measured costs are kept; None: `dnnp` in the user's folder for caches."""
    no_cache: bool = option(False)
    """Always measure, keep nothing."""
    source: str | None = option(flag="--from")
    """Class whose times are carried over; None: the only one that the graph prices."""
    against: str | None = option()
    """A stream of the same model that was measured on the device, to say how far off times are."""
    from_run: Sequence[str] = option(())
    """Files of dnnp-run --calibrate, or streams with a run: what they measured corrects costs."""

    def check(self) -> None:
        """Refuse what makes no sense, and devices that are not known."""
        super().check()
        for flag, value in (("--from", self.source), ("--against", self.against)):
            if value is not None and self.mode != "scaled":
                raise UsageError(f"{flag} needs --mode scaled")
        if isinstance(self.from_run, str):
            raise UsageError(f"--from-run {self.from_run!r}: give a list of files")
        if self.from_run and self.mode == "scaled":
            raise UsageError("--from-run needs --mode analytic or measure")
        if isinstance(self.device, str):
            raise UsageError(f"--device {self.device!r}: give a list of names")
        if self.mode == "scaled" and not self.device:
            raise UsageError("--mode scaled needs --device: the class to carry times to")
        self._check_devices([device.name for device in self.devices])

    def _check_devices(self, names: Sequence[str]) -> None:
        from dnnp.formats.devices import device_names

        if len(set(names)) < len(names):
            raise UsageError(f"--device: a class is there twice: {', '.join(names)}")
        if self.mode == "measure" and len(names) > 1:
            raise UsageError(
                "--mode measure times one class, this machine's CPU; give one --device"
            )
        if self.mode == "measure" and names[0] in device_names() and names[0] != DEFAULT_DEVICE:
            raise UsageError(
                f"--mode measure times this machine's CPU, which is no {names[0]}; "
                f"leave out --device, or give a device file of the CPU"
            )

    @cached_property
    def devices(self) -> list[DeviceSpec]:
        """The devices to price."""
        from dnnp.formats.devices import load_device

        return [load_device(name) for name in self.device or [DEFAULT_DEVICE]]


def profile_stream(stream: Stream, options: ProfileOptions) -> None:
    """Learn what every operator and every group costs.

    Costs that the graph already has are replaced, and what was made from them is dropped.

    Raises
    ------
    UsageError
        Options that make no sense, or a graph with costs in an unknown unit.
    FormatError
        A device file, or the graph, is malformed; the model is not the one that was imported.
    InputFileError
        A file cannot be read.
    """
    if options.mode == "analytic":
        from dnnp.costs import price_analytic

        price_analytic(stream, options.devices, options.caller)
    elif options.mode == "scaled":
        from dnnp.scaling import price_scaled

        start = options.source or MEASURED
        price_scaled(stream, options.devices, start, options.against, options.caller)
    else:
        from dnnp.measuring import Timing, price_measured

        o = options
        timing = Timing(o.model, o.threads, o.repeats, o.warmup, o.cache, o.no_cache)
        price_measured(stream, options.devices[0], timing, options.caller)
    if options.from_run:
        from dnnp.calibrating import price_by_runs

        price_by_runs(stream, options.from_run, options.caller)


profile = step("dnnp-profile", ProfileOptions)(profile_stream)
