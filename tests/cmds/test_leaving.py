"""The end of a command's process: complete, and without taking down the interpreter."""

from __future__ import annotations

import subprocess
import sys

from support.run import PATIENCE_S

PROGRAM = """
import atexit, os, sys, threading, time
from dnnp.cmds.shell.cli import Command

class Kept:
    def __del__(self):
        os.write(2, b"torn down")

def run(args, context):
    global kept
    kept = Kept()
    atexit.register(lambda: os.write(2, b"called "))
    threading.Thread(target=time.sleep, args=(1000,)).start()
    with context.open_output() as file:
        file.write(b"x" * 1_000_000)
    sys.stderr.write("said ")
    print("by a library", end=" ")
    return int(args.status)

Command("dnnp-test", "", run, model=("STATUS", "")).main()
"""


def test_a_process_ends_at_once_with_everything_written() -> None:
    """Neither a thread nor what it holds keeps it from ending; what asked to be called is."""
    for status in (0, 6):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(status)], capture_output=True, timeout=PATIENCE_S
        )
        assert (done.returncode, len(done.stdout)) == (status, 1_000_000)
        assert sorted(done.stderr.split()) == [b"a", b"by", b"called", b"library", b"said"]


def test_a_full_disk_is_still_an_error() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "0"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 1
    assert b"<stdout>: No space left on device" in done.stderr
