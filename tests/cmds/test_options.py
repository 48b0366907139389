"""The option table: what commands take, what `--set` does, and what is refused."""

from __future__ import annotations

import pytest

from dnnp.cmds.dnnp import command
from dnnp.core.model.errors import UsageError
from dnnp.options.table import Options, option
from support.run import dnnp

COMMON = "--help --output --print-completion --quiet --timings --verbose --version -h -o -q -v"
TAKEN = {
    "import": (
        "--dim --edges --from --inputs --loss --max-memory --mixed-precision --name --nodes "
        "--one-tensor --optimizer --ratio --reading --seed --set-input --shapes --stage-timeout "
        "--synthetic --training"
    ),
    "profile": (
        "--against --allow-fallback --beside --cache --costs --device --from --from-run "
        "--list-devices --max-memory --mode --model --no-cache --optimization --provider "
        "--provider-option --repeats --stage-timeout --tensor-parallel --threads --warmup"
    ),
    "coarsen": ("--chains --depth --layers --max-share --model --provider --rules --to"),
    "partition": (
        "--allow-replicas --bandwidth --bias --charge-io --cluster-size --comm --congestion "
        "--cpus --data-parallel --devices --effort --elite --episodes --eval --execution "
        "--generations --inner-bandwidth --invocations --link --list-devices --max-replicas "
        "--memory --memory-mode --memory-model --method --micro-batches --mutants --objective "
        "--order --overlap-sync --policy --population --priorities --recompute --reprice "
        "--samples --save-policy --seed --sequence --shared-stages --solver --tensor-parallel "
        "--time-limit --train-on --transfers --validity --weight-sync -k"
    ),
    "bound": (
        "--bandwidth --cluster-size --cpus --devices --effort --inner-bandwidth --link "
        "--list-devices --memory --method --seed --solver --time-limit -k"
    ),
    "export": ("--max-batch-size --model --to"),
    "schedule": (
        "--backward-time --chart --devices --eager --effort --forward-time --inference "
        "--latency --max-micro-batches --memory --method --micro-batches --pareto --placement "
        "--shape --shared-time --split-backward --svg --time-limit --transfer-time --transfers "
        "--unroll -n"
    ),
    "run": (
        "--allow-fallback --arrivals --atol --calibrate --choose --compare --duration "
        "--emulate-links --engine --inputs --keep-going --max-memory --model --no-pin --null "
        "--optimization --outputs --place --provider --provider-option --queue --random-weights "
        "--rate --ray-address --retries --rtol --samples --save-outputs --seed --stage-timeout "
        "--threads --trace --verify --warmup --workers -n"
    ),
    "view": ("--as --model --picture --plot --table"),
    "check": (
        "--certificate --json --max-gap --max-latency --max-memory --measured --min-throughput "
        "--schema"
    ),
}
"""Spellings that scripts may use: none of them goes."""


@pytest.mark.parametrize("name", TAKEN)
def test_every_spelling_is_taken(name: str) -> None:
    known = command(name).parser()._option_string_actions
    assert set(f"{COMMON} {TAKEN[name]}".split()) <= set(known)


@pytest.mark.parametrize("name", TAKEN)
def test_knobs_are_set_by_name_and_by_their_old_flags(name: str) -> None:
    parser = command(name).parser()
    for row in (row for table in command(name).tables for row in table.rows.values() if row.tuning):
        text = "true" if row.kind == "bool" else "0.5" if row.kind == "float" else "3"
        old = [row.flag] if row.kind == "bool" else [row.flag, text]
        found = [parser.parse_args(words) for words in (["--set", f"{row.key}={text}"], old)]
        assert found[0] == found[1] != parser.parse_args([]), row.name


REFUSED = {
    "near miss": (
        "popultion=3",
        "no tuning parameter is called 'popultion'; did you mean 'population'?",
    ),
    "no key": ("=3", "no tuning parameter is called ''"),
    "no value": ("population", "population: '' is not a whole number"),
    "out of range": ("population=0", "population: 0 is too small; at least 1"),
    "share": ("elite=2", "elite: '2' is not a number from 0 to 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_knob_that_makes_no_sense_is_refused(case: str) -> None:
    word, said = REFUSED[case]
    result = dnnp("partition", "-k", "2", "--set", word)
    assert result.status == 2
    assert result.err.count("\n") == 1
    assert said in result.err


class _Toy(Options):
    share: float | None = option(least=0, most=1, help="a share")
    way: str = option("up", choices=("up", "down"), several=True, apart="way", help="ways")
    files: object = option((), apart="way", help="files")


def test_a_table_makes_a_frozen_class() -> None:
    toy = _Toy(way=["up", "down"])
    assert (toy.way, toy.share, list(_Toy.rows)) == ("up,down", None, ["share", "way", "files"])
    assert toy.replaced(share=0.5).words() == ["--share", "0.5", "--way", "up,down"]
    with pytest.raises(AttributeError):
        toy.share = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError, match="shar"):
        _Toy(shar=1)  # type: ignore[call-arg]
    for given in ({"share": 2}, {"share": True}, {"way": "left"}, {"way": "down", "files": ["a"]}):
        with pytest.raises(UsageError):
            _Toy(**given).check()  # type: ignore[arg-type]
