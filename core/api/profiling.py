"""Learn what every operator costs, by formula or by measuring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dnnp.choices import DEFAULT_DEVICE, MEASURED, OPTIMIZATIONS, PROFILE_MODES
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
    provider: str = option("cpu")
    """Execution provider of ONNX Runtime that runs the model, by any name that it has."""
    provider_option: Sequence[str] = option(())
    """Options of the provider, such as `use_tf32=0`."""
    allow_fallback: bool = option(False)
    """Time nodes that the provider cannot run on the CPU, which is an error otherwise."""
    threads: int = option(1, least=1)
    """Of ONNX Runtime."""
    optimization: str = option("all", choices=OPTIMIZATIONS)
    """ONNX Runtime's graph optimization level of the run."""
    beside: int | None = option(least=0, most=4096)
    """Parts of the model that run beside each, as other stages will; None: one fewer than the
    devices of the graph, or one, as far as there are cores."""
    repeats: int = option(10, least=1)
    """Rounds, and runs of nodes and groups alone, of which the median counts; more rounds follow
    until the time of the model is known to 2 %, but none after 20 seconds."""
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
    costs: Sequence[str] = option(())
    """Files of costs that other programs found: a table, a profile of ONNX Runtime, or layers of
    trtexec; nodes that they do not name stay priced as they were."""
    from_run: Sequence[str] = option(())
    """Files of dnnp-run --calibrate, or streams with a run: what they measured corrects costs."""
    tensor_parallel: int | None = option(least=2, most=1024)
    """Besides, what nodes take on 2, 4, 8, ... up to so many devices at once."""

    def check(self) -> None:
        """Refuse what makes no sense, and devices that are not known."""
        super().check()
        for flag, value in (("--from", self.source), ("--against", self.against)):
            if value is not None and self.mode != "scaled":
                raise UsageError(f"{flag} needs --mode scaled")
        if isinstance(self.costs, str):
            raise UsageError(f"--costs {self.costs!r}: give a list of files")
        if self.costs and self.mode != "analytic":
            raise UsageError(f"--costs takes the place of --mode {self.mode}; give one of them")
        if isinstance(self.from_run, str):
            raise UsageError(f"--from-run {self.from_run!r}: give a list of files")
        if self.from_run and self.mode == "scaled":
            raise UsageError("--from-run needs --mode analytic or measure, or --costs")
        if not self._on_cpu and self.mode != "measure":
            raise UsageError("--provider needs --mode measure")
        if isinstance(self.provider_option, str):
            raise UsageError(f"--provider-option {self.provider_option!r}: give a list")
        for flag, is_given in (
            ("--provider-option", bool(self.provider_option)),
            ("--allow-fallback", self.allow_fallback),
        ):
            if is_given and self._on_cpu:
                raise UsageError(f"{flag} needs --provider: another than that of the CPU")
        if isinstance(self.device, str):
            raise UsageError(f"--device {self.device!r}: give a list of names")
        if self.mode == "scaled" and not self.device:
            raise UsageError("--mode scaled needs --device: the class to carry times to")
        if not self.costs:  # which may be for a class that only the stream knows
            self._check_devices([device.name for device in self.devices])

    def _check_devices(self, names: Sequence[str]) -> None:
        from dnnp.formats.devices import device_names

        if len(set(names)) < len(names):
            raise UsageError(f"--device: a class is there twice: {', '.join(names)}")
        if self.mode == "measure" and len(names) > 1:
            raise UsageError(
                "--mode measure times one class, such as this machine's CPU; give one --device"
            )
        if self.mode == "measure" and not self._on_cpu:
            if not self.device:
                raise UsageError(
                    f"--provider {self.provider} needs --device: the class that it runs on"
                )
            return
        if self.mode == "measure" and names[0] in device_names() and names[0] != DEFAULT_DEVICE:
            raise UsageError(
                f"--mode measure times this machine's CPU, which is no {names[0]}; "
                f"leave out --device, or give a device file of the CPU"
            )

    @property
    def _on_cpu(self) -> bool:
        """Whether the provider is that of this machine's CPU, by any name."""
        return self.provider.lower() in ("cpu", "cpuexecutionprovider")

    @cached_property
    def devices(self) -> list[DeviceSpec]:
        """The devices to price."""
        from dnnp.formats.devices import load_device

        return [load_device(name) for name in self.device or [DEFAULT_DEVICE]]


def profile_stream(stream: Stream, options: ProfileOptions) -> None:
    """Learn what every operator and every group costs.

    Costs that the graph already has are replaced, those in `costs` apart, which leave others alone;
    what was made from them is dropped.

    Raises
    ------
    UsageError
        Options that make no sense, or a graph with costs in an unknown unit.
    FormatError
        A device file, or the graph, is malformed; the model is not the one that was imported.
    InputFileError
        A file cannot be read.
    """
    from dnnp.priced import describe_costs

    if options.costs:
        from dnnp.given_costs import price_given

        price_given(stream, options.costs, options.device, options.model, options.caller)
    elif options.mode == "analytic":
        from dnnp.costs import price_analytic

        price_analytic(stream, options.devices, options.caller)
    elif options.mode == "scaled":
        from dnnp.scaling import price_scaled

        start = options.source or MEASURED
        price_scaled(stream, options.devices, start, options.against, options.caller)
    else:
        from dnnp.core.runtime.placing import parse_options
        from dnnp.measuring import Timing, price_measured

        o = options
        timing = Timing(
            model=o.model,
            provider=o.provider,
            options=parse_options(o.provider_option, [o.provider]),
            allow_fallback=o.allow_fallback,
            threads=o.threads,
            optimization=o.optimization,
            beside=o.beside,
            repeats=o.repeats,
            warmup=o.warmup,
            cache=o.cache,
            no_cache=o.no_cache,
        )
        price = price_measured
        if any(record.get("backward") for record in stream.get("node")):
            from dnnp.measuring_training import price_training as price
        price(stream, options.devices[0], timing, options.caller)
    if options.from_run:
        from dnnp.calibrating import price_by_runs

        price_by_runs(stream, options.from_run, options.caller)
    if options.tensor_parallel is not None:
        from dnnp.sharding import price_shards

        price_shards(stream, options.devices, options.tensor_parallel)
    describe_costs(stream, options.caller)


profile = step("dnnp-profile", ProfileOptions)(profile_stream)
