"""Closed pipes, Ctrl-C and terminals, with real processes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dnnp.cmds.shell.context import CLEAR
from support import seeds
from support.run import PATIENCE_S, SAMPLES, dnnp, executable, interrupted_at_terminal

INTERRUPTED = 130


def start(name: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start `dnnp-NAME` with pipes around it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, executable(name), *arguments], **(pipes | options))


def large() -> bytes:
    """A stream that no pipe buffer holds."""
    records = [seeds.header(), seeds.tensor(0, "input", 4)]
    records += [seeds.tensor(i, "activation", 4) for i in range(1, 3001)]
    records += [seeds.node(i, [i], [i + 1], 1.0) for i in range(3000)]
    return seeds.encode(records)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("coarsen", "--rules none"), ("partition", "-k 2"), ("bound", "--method simple")],
)
def test_closed_pipe_ends_quietly(name: str, arguments: str, tmp_path: Path) -> None:
    data = large()
    if name == "bound":
        data = dnnp("partition", "-k", "3", "--method", "slice", stdin=data).out
    path = tmp_path / "large.dnnp"
    path.write_bytes(data)
    process = start(name, "-q", *arguments.split(), str(path))
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(PATIENCE_S) in (-signal.SIGPIPE, 128 + signal.SIGPIPE)
    assert process.stderr.read() == b""


def test_closed_pipe_in_a_shell(tmp_path: Path) -> None:
    path = tmp_path / "large.dnnp"
    path.write_bytes(large())
    command = f"'{sys.executable}' '{executable('coarsen')}' -q --rules none '{path}' | head -n 1"
    shell = subprocess.run(
        ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert shell.stdout.splitlines()[-1] == b"141"
    assert shell.stderr == b""


def worker_of(process: subprocess.Popen[bytes]) -> int:
    """The child of a command that does its work; 0 before there is one."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0]) if children else 0


def wait_for(what: str, happened: Callable[[], bool]) -> None:
    """Wait until something has happened."""
    end = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.05)


def wait_until_reading(process: subprocess.Popen[bytes]) -> None:
    """Wait until a command sleeps on its standard input."""

    def reading() -> bool:
        worker = worker_of(process)
        if not worker:
            return False
        if "pipe_read" in Path(f"/proc/{worker}/wchan").read_text():
            return True
        try:
            return Path(f"/proc/{worker}/syscall").read_text().split()[:2] == ["0", "0x0"]
        except PermissionError:
            time.sleep(1)
            return True

    wait_for("the process reads its input", reading)


def press(process: subprocess.Popen[bytes], number: int = signal.SIGINT) -> None:
    """Send a signal, and wait until the process has seen to it and waits for the next one."""
    process.send_signal(number)

    def taken() -> bool:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        pending = int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)
        waits = fields["State"][0] == "S" and not pending >> (number - 1) & 1
        return waits or fields["State"][0] == "Z"

    wait_for("the signal is seen to", taken)


READERS = {
    "bound": ["-o", "out"],
    "check": [],
    "coarsen": ["-o", "out"],
    "export": ["--to", "stages", "-o", "out"],
    "partition": ["-k", "2", "-o", "out"],
    "profile": ["-o", "out"],
    "run": ["-o", "out"],
    "schedule": ["-n", "2", "-o", "out"],
    "view": ["-o", "out.svg"],
}
"""Options of all commands that read a stream, with a file to write."""


def interrupt_halfway(process: subprocess.Popen[bytes], pipe: int, data: bytes) -> None:
    """Give a command half of its input, Ctrl-C when it has taken that, the rest, and the end."""
    half = len(data) // 2
    os.write(pipe, data[:half])
    wait_for("half is read", lambda: unread(pipe) == 0)
    press(process)
    os.write(pipe, data[half:])
    os.close(pipe)


def unread(pipe: int) -> int:
    """Bytes in a pipe that are not read yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("source", ["fifo", "stdin"])
def test_an_interrupt_while_reading_ends_a_command_that_has_read(
    name: str, source: str, tmp_path: Path
) -> None:
    """Nothing is written."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)  # held open, so that the input has no end yet
    with open(path, "rb") as stdin:
        stream = ["fifo"] if source == "fifo" else []
        process = start(name, *READERS[name], *stream, stdin=stdin, cwd=tmp_path)
    interrupt_halfway(process, pipe, seeds.encode(seeds.planned()))
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (INTERRUPTED, b"")
    assert err == f"dnnp-{name}: interrupted\n".encode()
    assert [entry.name for entry in tmp_path.iterdir()] == ["fifo"]


def test_an_interrupt_while_reading_is_heeded_once_in_a_pipeline(tmp_path: Path) -> None:
    """The command before has written its best plan so far, and says so."""
    records = seeds.planned()
    plan = next(record for record in records if record["type"] == "plan")
    plan |= {"status": "interrupted", "bound": 0.0, "gap": 1.0}
    os.mkfifo(tmp_path / "fifo")
    pipe = os.open(tmp_path / "fifo", os.O_RDWR)
    process = start("check", str(tmp_path / "fifo"))
    interrupt_halfway(process, pipe, seeds.encode(records))
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, b"")
    assert err.startswith(b"dnnp-check: ok: ")


def test_second_interrupt_quits_at_once() -> None:
    process = start("check")
    wait_until_reading(process)
    press(process)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == INTERRUPTED


def deep(tmp_path: Path) -> Path:
    """A model of which ONNX Runtime never makes a session: functions nested deep."""
    from onnx import TensorProto, helper

    functions = []
    for i in range(40):
        name, domain = (f"F{i - 1}", "my") if i else ("Relu", "")
        nodes = [
            helper.make_node(name, [tail], [head], domain=domain)
            for tail, head in (("x", "t"), ("t", "y"))
        ]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
        functions.append(helper.make_function("my", f"F{i}", ["x"], ["y"], nodes, opsets))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "ab"]
    node = helper.make_node("F39", ["a"], ["b"], domain="my")
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)
    path = tmp_path / "stuck.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def stuck(tmp_path: Path) -> Path:
    """A plan of that model."""
    plan = tmp_path / "stuck.dnnp"
    imported = dnnp("import", deep(tmp_path))
    plan.write_bytes(dnnp("partition", "-q", "-k", "1", stdin=imported.out).out)
    return plan


ENDLESS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4] a) => (int64[n, m] b) {
  trips = Constant<value = int64 {4000000000000}>()
  yes = Constant<value = bool {1}>()
  wide = Constant<value = int64[2] {1000000, 4}>()
  last, all = Loop<body = body (int64 i, bool c, float[4] x) => (bool d, float[4] y, float[p, q] z)
  { d = Identity(c)  y = Neg(x)  z = %s }>(trips, yes, a)
  b = NonZero(%s)
}"""
"""A loop without end whose result has a shape that only running it tells."""


def endless(tmp_path: Path, *, grows: bool) -> Path:
    """A model that runs without end, and takes more and more memory if it `grows`."""
    import onnx.parser

    step, result = ("Expand(x, wide)", "all") if grows else ("Neg(x)", "last")
    text = ENDLESS % (step, result)
    if not grows:
        text = text.replace("last, all", "last").replace(", float[p, q] z", "")
        text = text.replace("  z = Neg(x)", "")
    path = tmp_path / "endless.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


def wait_until_stuck(process: subprocess.Popen[bytes]) -> int:
    """Wait until a command has spent a while on native code; returns its worker."""

    def working() -> bool:
        worker = worker_of(process)
        if not worker:
            return False
        ticks = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[11]
        # Start-up takes half a second of it, or up to one on a busy machine.
        return int(ticks) > 1.5 * os.sysconf("SC_CLK_TCK")

    wait_for("the process works", working)
    return worker_of(process)


def gone(process: int) -> bool:
    """True if a process ends within a while; it may be a zombie."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            if "\nState:\tZ" in Path(f"/proc/{process}/status").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("numbers", "status"),
    [((signal.SIGINT, signal.SIGINT), INTERRUPTED), ((signal.SIGTERM,), -signal.SIGTERM)],
)
def test_signals_end_native_code(tmp_path: Path, numbers: tuple[int, ...], status: int) -> None:
    """While ONNX Runtime makes a session it lets no handler of ours run."""
    process = start("run", "-q", str(stuck(tmp_path)))
    worker = wait_until_stuck(process)
    for number in numbers:
        press(process, number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (status, b"")
    assert err == (b"dnnp-run: interrupted\n" if status == INTERRUPTED else b"")
    assert gone(worker)


def test_stage_timeout_ends_native_code(tmp_path: Path) -> None:
    process = start("run", "-q", "--stage-timeout", "0.5", str(stuck(tmp_path)))
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (5, b"")
    reason = b"stage 0: making its session: not done after 0.5 s (--stage-timeout)"
    assert err == b"dnnp-run: " + reason + b"\n"


def test_max_memory_ends_a_command(tmp_path: Path) -> None:
    process = start("run", "-q", "--max-memory", "1M", str(stuck(tmp_path)))
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (5, b"")
    assert err.endswith(b"more than 1 MB of memory are needed (--max-memory)\n")
    assert err.count(b"\n") == 1


def import_by_running(model: Path, *limits: str) -> tuple[int, bytes]:
    """Status and messages of an import that ends by a limit, and leaves no process."""
    process = start("import", "--shapes", "run", *limits, str(model), stdin=subprocess.DEVNULL)
    wait_for("there is a worker", lambda: worker_of(process) > 0)
    worker = worker_of(process)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert out == b""
    assert gone(worker)
    return process.returncode, err


def test_stage_timeout_of_the_run_for_shapes(tmp_path: Path) -> None:
    model = endless(tmp_path, grows=False)
    for seconds in ("0.5", "5", "50"):  # the session must be made within this time
        status, err = import_by_running(model, "--stage-timeout", seconds)
        assert status == 5
        if b"session" not in err:
            break
    reason = f"the run that shows the shapes: not done after {seconds} s (--stage-timeout)"
    # On a busy machine it says before that it is at work; here and below.
    assert err.decode().splitlines()[-1] == f"dnnp-import: {reason}"


def test_stage_timeout_of_the_session_for_shapes(tmp_path: Path) -> None:
    import onnx

    model = onnx.load(deep(tmp_path))
    model.graph.node.add(op_type="NonZero", input=["b"], output=["places"])
    model.graph.output.add(name="places").type.tensor_type.elem_type = onnx.TensorProto.INT64
    onnx.save(model, tmp_path / "stuck.onnx")
    status, err = import_by_running(tmp_path / "stuck.onnx", "--stage-timeout", "0.5")
    assert status == 5
    reason = b"the model: making its session: not done after 0.5 s (--stage-timeout)"
    assert err.splitlines()[-1] == b"dnnp-import: " + reason


def test_max_memory_of_the_run_for_shapes(tmp_path: Path) -> None:
    status, err = import_by_running(endless(tmp_path, grows=True), "--max-memory", "700M")
    assert status == 5
    reason = b"the run that shows the shapes: more than 700 MB of memory are needed"
    assert err.splitlines()[-1] == b"dnnp-import: " + reason + b" (--max-memory)"


def test_inputs_beyond_the_memory_are_refused(tmp_path: Path) -> None:
    """A stream whose shape was edited asks for more than there is: nothing is allocated."""
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in "ab"]
    graph = helper.make_graph([helper.make_node("Relu", ["a"], ["b"])], "g", ends[:1], ends[1:])
    path = tmp_path / "wide.onnx"
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path.write_bytes(model.SerializeToString())
    imported = dnnp("import", "--dim", "n=300000000", path)
    plan = dnnp("partition", "-q", "-k", "1", "--memory", "1T", stdin=imported.out)
    assert plan.status == 0, plan.err
    process = start("run", "-q", "--max-memory", "2G")
    _, err = process.communicate(plan.out, timeout=PATIENCE_S)
    assert process.returncode == 5
    reason = b"input 'a' of shape [300000000, 64] takes 76.8 GB; --max-memory allows 2 GB"
    assert err == b"dnnp-run: " + reason + b" in all\n"


def test_the_worker_ends_with_its_command() -> None:
    process = start("check")
    wait_until_reading(process)
    worker = worker_of(process)
    process.kill()
    process.wait(PATIENCE_S)
    assert gone(worker)


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells nobody of its parent's end")
def test_the_worker_ends_with_its_command_in_native_code(tmp_path: Path) -> None:
    """SIGTERM would wait for ONNX Runtime, which never ends, and the timer for ten minutes."""
    process = start("run", "-q", str(stuck(tmp_path)))
    worker = wait_until_stuck(process)
    process.kill()
    process.wait(PATIENCE_S)
    assert gone(worker)


def test_a_crash_is_one_line(tmp_path: Path) -> None:
    process = start("check", "-q")
    wait_until_reading(process)
    os.kill(worker_of(process), signal.SIGSEGV)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    said = b"the process that did the work crashed (SIGSEGV); perhaps for want of memory"
    assert err == b"dnnp-check: " + said + b"\n"


def test_signals_at_random_moments(tmp_path: Path) -> None:
    """No child, no unfinished file, no traceback: a few of what tests/tools/signals.py sends."""
    import random

    from tools.signals import COMMANDS, SIGNALS, prepare, try_command

    prepare(tmp_path)
    for name in ("import", "export"):
        assert name in COMMANDS
        assert not try_command(tmp_path, name, 1, SIGNALS, random.Random(1))


@pytest.mark.parametrize("messages", ["/dev/full", "closed pipe"])
def test_messages_that_cannot_be_written_decide_nothing(messages: str) -> None:
    stream = seeds.encode(seeds.graph_records())
    if messages == "/dev/full":
        if not Path("/dev/full").exists():
            pytest.skip("needs /dev/full")
        err = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, err = os.pipe()
        os.close(reader)
    process = start("partition", "-v", "-k", "1", stderr=err)
    os.close(err)
    out, _ = process.communicate(stream, timeout=PATIENCE_S)
    assert process.returncode == 0
    assert out.splitlines()[-1].startswith(b'{"type":"end"')


@pytest.mark.parametrize("name", ["partition", "bound"])
@pytest.mark.parametrize("megabytes", [120, 285, 350])
def test_little_memory_is_one_line(name: str, megabytes: int, tmp_path: Path) -> None:
    """With 350 MB numba is loaded, and little is left for scipy."""
    path = tmp_path / "plan"
    path.write_bytes(seeds.encode(seeds.planned()))
    for megabytes in (120, 200):
        command = f"ulimit -v {megabytes * 1024}; '{executable('partition')}' -q -k 1 '{path}'"
        done = subprocess.run(
            ["bash", "-c", f"{command} > /dev/null"], capture_output=True, timeout=PATIENCE_S
        )
        assert done.returncode in (0, 1)
        assert b"Traceback" not in done.stderr
        assert done.stderr.count(b"\n") == done.returncode, done.stderr


def test_interrupt_while_running(tmp_path: Path) -> None:
    """One Ctrl-C stops the samples; what was measured is written and marked."""
    from fuzz.onnx_models import models

    path = tmp_path / "mlp.onnx"
    path.write_bytes(models()["mlp"].SerializeToString())
    planned = dnnp("partition", "-q", "-k", "2", stdin=dnnp("import", path).out)
    plan = tmp_path / "plan.dnnp"
    plan.write_bytes(planned.out)
    result = interrupted_at_terminal("run", "-v", "-n", "200000", plan, after=SAMPLES)
    assert result.status == INTERRUPTED, result.err
    assert "Traceback" not in result.err
    assert result.one("run")["interrupted"] is True
    assert 0 < result.one("run")["samples"] < 200_000
    assert result.records()[-1]["type"] == "end"
    bar, cleared, rest = result.err.rpartition(CLEAR)
    assert cleared
    assert re.search(SAMPLES, bar)
    assert not re.search(SAMPLES, rest)


def test_terminal_without_input_is_a_usage_error() -> None:
    ours, theirs = pty.openpty()
    try:
        process = start("check", stdin=theirs)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (process.returncode, out) == (2, b"")
    assert b"usage: dnnp-check" in err
    assert b"nothing on standard input" in err


def test_full_disk() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    for stream in (large(), seeds.encode(seeds.graph_records())):
        with open("/dev/full", "wb") as full:
            process = start("coarsen", "-q", "--rules", "none", stdout=full)
            _, err = process.communicate(stream, timeout=PATIENCE_S)
        assert process.returncode == 1
        assert err == b"dnnp-coarsen: <stdout>: No space left on device\n"


def test_closed_standard_streams() -> None:
    """A process started without stdin, stdout or stderr does what it still can."""
    command = f"'{sys.executable}' '{executable('coarsen')}' -q --rules none"
    stream = seeds.encode(seeds.graph_records())
    for redirection, status, message in (
        ("<&-", 1, b"dnnp-coarsen: <stdin>: standard input is closed\n"),
        (">&-", 1, b"dnnp-coarsen: <stdout>: Bad file descriptor\n"),
        ("2>&-", 0, b""),
        ("2>&- >&-", 1, b""),
    ):
        shell = subprocess.run(
            ["bash", "-c", f"{command} {redirection}"],
            input=stream,
            capture_output=True,
            timeout=PATIENCE_S,
        )
        assert (shell.returncode, shell.stderr) == (status, message), redirection


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "KILL"])
def test_a_signal_waits_for_what_has_to_be_done_whole(name: str, tmp_path: Path) -> None:
    """Even that which kills the parent: the child then ends when it is done."""
    work = (
        "import os, signal, sys, time\n"
        "from pathlib import Path\n"
        "from dnnp.cmds.shell.guardian import guard, quit_interrupted\n"
        "from dnnp.formats.files import when_whole, whole\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # nohup would have it ignored
        "def work(listen):\n"
        "    listen(lambda: when_whole(lambda: quit_interrupted('dnnp-test')))\n"
        "    with whole():\n"
        "        Path('begun').touch()\n"
        "        while not Path('go').exists():\n"
        "            time.sleep(0.01)\n"
        "        Path('ended').touch()\n"
        f"    time.sleep({PATIENCE_S})\n"
        "    Path('not reached').touch()\n"
        "    return 0\n"
        "sys.exit(guard('dnnp-test', work))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", work], cwd=tmp_path, stderr=subprocess.PIPE)
    wait_for("the work to begin", (tmp_path / "begun").exists)
    number = signal.Signals[f"SIG{name}"]
    process.send_signal(number)
    time.sleep(0.1)
    assert not (tmp_path / "ended").exists()
    (tmp_path / "go").touch()
    assert process.wait(PATIENCE_S) == (INTERRUPTED if name == "INT" else -number)
    wait_for("the end of the work", (tmp_path / "ended").exists)
    assert process.stderr is not None
    process.stderr.read()  # closed by the last process that has it
    assert not (tmp_path / "not reached").exists()
