"""Map devices of a plan to providers, GPUs and cores of this machine.

Also how tensors get from one stage to another, which follows from that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dnnp.core.model.errors import UsageError
from dnnp.core.model.plan import Stage
from dnnp.core.model.text import instead
from dnnp.core.runtime.model.providers import Target, provider_name, short_name
from dnnp.core.runtime.model.session import Place, SessionConfig, places


def parse_places(words: Sequence[str]) -> dict[str, Target]:
    """Rules such as `t4=cuda` or `t4/1=cuda:0`: a class, or a device, and where it is.

    Raises
    ------
    UsageError
        A rule is malformed or there twice, or ONNX Runtime has never heard of the provider.
    """
    rules: dict[str, Target] = {}
    for word in words:
        name, equals, where = word.partition("=")
        provider, colon, number = where.partition(":")
        if not (name and equals and provider) or (colon and not number.isdecimal()):
            raise UsageError(f"--place {word}: write CLASS=PROVIDER or CLASS=PROVIDER:NUMBER")
        if name in rules:
            raise UsageError(f"--place {word}: '{name}' is there twice")
        try:
            provider = short_name(provider_name(provider))
        except UsageError as error:
            raise UsageError(f"--place {word}: {error}") from None
        target = Target(provider, int(number) if colon else None)
        if target.number is not None and not target.is_numbered:
            raise UsageError(
                f"--place {word}: nothing is known of numbers of devices of {provider}; "
                "--provider-option may choose one"
            )
        rules[name] = target
    return rules


def parse_options(words: Sequence[str], providers: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Options of providers, such as `use_tf32=0`.

    Raises
    ------
    UsageError
        One is malformed or there twice, or all providers are the CPU's, which has none.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise UsageError(f"--provider-option {word}: write NAME=VALUE")
        if name in found:
            raise UsageError(f"--provider-option {word}: '{name}' is there twice")
        found[name] = value
    if found and all(provider == "cpu" for provider in providers):
        raise UsageError(f"--provider-option {words[0]}: the provider 'cpu' has no options")
    return tuple(found.items())


def may_use_tf32(homes: Sequence[Sequence[Place]], config: SessionConfig) -> bool:
    """True if CUDA may compute products of float32 as TF32."""
    return "cuda" in providers_of(homes, config) and ("use_tf32", "0") not in config.options


def homes_of(
    stages: Sequence[Stage], config: SessionConfig
) -> tuple[list[tuple[Place, ...]], list[str]]:
    """Places of each stage, one a replica; and notices about what is shared.

    Stages of one device have the same. What `config.targets` says of a device counts before what it
    says of its class; devices that it does not name are those of `config.provider`.

    Raises
    ------
    UsageError
        A target is for a class or device that the stages do not use.
    UnavailableError
        There is no such GPU.
    """
    rules = config.targets
    targets: dict[str, Target] = {}
    used: dict[str, None] = {}
    for stage in stages:
        kind = stage.device_class
        for one in stage.homes:
            used |= {kind: None, one: None}
            targets[one] = rules.get(one) or rules.get(kind) or Target(config.provider)
    for name in rules:
        if name not in used:
            raise UsageError(f"--place {name}: the plan does not use it{instead(name, used)}")
    count = sum(stage.replicas for stage in stages)
    what = "stage replica" if count > len(stages) else "stage"
    spots, notices = places(
        len(targets), config, what if count == len(targets) else "device", list(targets.values())
    )
    place = dict(zip(targets, spots, strict=True))
    return [tuple(place[one] for one in stage.homes) for stage in stages], notices


def copied_outputs(
    targets: Mapping[str, Sequence[int]], homes: Sequence[Sequence[Place]], *, overlap: bool
) -> tuple[list[str], dict[str, tuple[str, int]]]:
    """Outputs of a stage that it brings to the host, and those that it brings to a GPU.

    The first are for stages on a GPU, and are read by the host alone; the second, each with its
    memory and number, for stages on the CPU. With `overlap` stages on the CPU copy by themselves
    what comes from a GPU.

    Parameters
    ----------
    targets
        Output -> stages that read it; below 0 is the end.
    homes
        Places of each stage.
    """
    host: list[str] = []
    ahead: dict[str, tuple[str, int]] = {}
    for name, readers in targets.items():
        places = [place for i in readers if i >= 0 for place in homes[i]]
        memories = {(place.memory, place.device_id) for place in places}
        at_end = any(i < 0 for i in readers)
        if not any(memory for memory, _ in memories):
            if at_end or not overlap:
                host.append(name)
        elif overlap and len(memories) == 1 and not at_end:
            ahead[name] = memories.pop()
    return host, ahead


def providers_of(homes: Sequence[Sequence[Place]], config: SessionConfig) -> tuple[str, ...]:
    """The providers that places name, without repetition; the configuration's where none does."""
    found = dict.fromkeys(p.provider or config.provider for spots in homes for p in spots)
    return tuple(found) or (config.provider,)


def reference_config(homes: Sequence[Sequence[Place]], config: SessionConfig) -> SessionConfig:
    """The configuration for a whole model to compare outputs with: the CPU's for a mixed run."""
    providers = providers_of(homes, config)
    return replace(config, provider=providers[0] if len(providers) == 1 else "cpu")


def main_config(homes: Sequence[Sequence[Place]], config: SessionConfig) -> SessionConfig:
    """The configuration for the whole model beside a pipeline: that of its first GPU, if any."""
    providers = providers_of(homes, config)
    return replace(config, provider=next((p for p in providers if p != "cpu"), providers[0]))
