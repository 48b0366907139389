"""Options, messages and statuses that all commands share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from dnnp.cmds.shell.context import Context
from support.graphs import random_stream, to_bytes
from support.run import dnnp, dnnp_process, executable


def test_output_file_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "plan"
    target.write_text("old")
    stream = to_bytes(random_stream(1, 4))
    assert dnnp("partition", "-k", "2", "-o", target, stdin=stream[:-20]).status == 3
    assert target.read_text() == "old"
    assert dnnp("partition", "-k", "2", "-o", target, stdin=stream).status == 0
    assert target.read_bytes().startswith(b'{"type":"header"')
    assert os.listdir(tmp_path) == ["plan"]


def test_output_to_a_device_is_written_in_place():
    stream = to_bytes(random_stream(1, 4))
    assert dnnp("partition", "-k", "2", "-o", "/dev/null", stdin=stream).status == 0


def test_arguments_that_are_not_text(tmp_path):
    target = os.path.join(os.fsencode(tmp_path), b"\xff")
    stream = to_bytes(random_stream(1, 4))
    result = dnnp("partition", "-k", "2", "-o", os.fsdecode(target), stdin=stream)
    assert result.status == 0
    with open(target, "rb") as file:
        assert b"\\\\udcff" in file.readline()


def test_provenance_lists_every_command():
    first = dnnp("partition", "-k", "2", stdin=to_bytes(random_stream(1, 4)))
    second = dnnp("partition", "-k", "1", "-q", stdin=first.out)
    entries = second.one("header")["provenance"]
    assert [e["arguments"] for e in entries] == [["-k", "2"], ["-k", "1", "-q"]]
    assert {e["tool"] for e in entries} == {"dnnp-partition"}


def test_quiet_and_verbose():
    stream = to_bytes(random_stream(1, 4))
    assert dnnp("partition", "-k", "2", "-q", stdin=stream).err == ""
    assert "read the stream after" in dnnp("partition", "-k", "2", "-v", stdin=stream).err


def test_same_bytes_without_compiled_kernels():
    stream = to_bytes(random_stream(9, 30, params=True))
    plain = dnnp_process("partition", "-k", "3", stdin=stream, env={"NUMBA_DISABLE_JIT": "1"})
    compiled = dnnp_process("partition", "-k", "3", stdin=stream)
    assert plain.status == 0, plain.err
    assert plain.out == compiled.out


def test_kernel_cache_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    stream = to_bytes(random_stream(9, 30))
    result = dnnp_process(
        "partition", "-k", "3", stdin=stream, env={"NUMBA_CACHE_DIR": str(blocked / "cache")}
    )
    assert result.status == 0, result.err
    assert "Traceback" not in result.err


def test_a_file_keeps_its_mode_and_a_link_its_target(tmp_path):
    target, link = tmp_path / "plan", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    stream = to_bytes(random_stream(1, 4))
    assert dnnp("partition", "-k", "2", "-o", link, stdin=stream).status == 0
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert target.read_bytes().startswith(b'{"type":"header"')


def test_output_is_refused_before_any_work(tmp_path):
    result = dnnp("partition", "-o", tmp_path, stdin=b"never read")
    assert result.status == 1
    assert result.err == f"dnnp-partition: {tmp_path}: Is a directory\n"


def test_help_on_a_full_disk():
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, executable("partition"), "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr == "dnnp-partition: <stdout>: No space left on device\n"


def test_an_interrupted_search_writes_the_best_split_so_far(monkeypatch):
    read = Context.read

    def read_then_interrupt(context, path):
        stream = read(context, path)
        context.interrupted = True
        return stream

    with monkeypatch.context() as patch:
        patch.setattr(Context, "read", read_then_interrupt)
        result = dnnp("partition", "-k", "3", stdin=to_bytes(random_stream(5, 40)))
    assert result.status == 130
    assert result.one("plan")["status"] == "interrupted"
    assert dnnp("check", stdin=result.out).status == 0


def test_a_command_that_is_told_to_end_removes_its_unfinished_file(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from dnnp.cmds.shell import guardian\n"
        "from dnnp.formats.files import atomic_output\n"
        "signal.signal(signal.SIGTERM, lambda number, _: guardian.end_by(number))\n"
        "with atomic_output(sys.argv[1]) as file:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "out"])
    assert done.returncode == -signal.SIGTERM
    assert os.listdir(tmp_path) == []
