"""Output files and folders: whole or not at all, and nothing else is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dnnp.formats.files import atomic_output, remove_unfinished, unfinished
from support.run import dnnp


def test_a_name_that_can_be_foreseen_leads_nowhere(tmp_path: Path) -> None:
    """No link can be planted at the name that a command writes before it renames."""
    victim, target = tmp_path / "victim", tmp_path / "out"
    victim.write_bytes(b"precious")
    (tmp_path / f"out.{os.getpid()}.tmp").symlink_to(victim)
    with atomic_output(str(target)) as file:
        (temporary,) = (n for n in os.listdir(tmp_path) if n.startswith(".dnnp-"))
        file.write(b"new")
    assert (victim.read_bytes(), target.read_bytes()) == (b"precious", b"new")
    assert not target.is_symlink()
    with atomic_output(str(target)):
        assert temporary not in os.listdir(tmp_path)


def test_an_output_takes_the_umask_and_keeps_the_mode_of_a_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_output(str(tmp_path / "out")) as file:
            file.write(b"1")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o640
    (tmp_path / "out").chmod(0o604)
    with atomic_output(str(tmp_path / "out")) as file:
        file.write(b"2")
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o604


def test_what_is_unfinished_is_removed_by_its_own_process_alone(tmp_path: Path) -> None:
    """Files and folders; a link in them is not followed; a forked child leaves them alone."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("")
    with unfinished(str(tmp_path / "folder")) as folder, unfinished(str(tmp_path / "file")) as file:
        os.mkdir(folder)
        os.symlink(kept, os.path.join(folder, "link"))
        Path(file).write_text("")
        child = os.fork()
        if child == 0:
            remove_unfinished()
            os._exit(0)
        os.waitpid(child, 0)
        assert sorted(os.listdir(tmp_path)) == ["file", "folder", "kept"]
        remove_unfinished()
        assert os.listdir(tmp_path) == ["kept"]
    assert os.listdir(kept) == ["file"]


@pytest.mark.parametrize("words", [("run", "--save-outputs"), ("schedule", "-n", "2", "--svg")])
def test_every_output_is_looked_at_before_any_work(words: tuple[str, ...], tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "no" / "x", "No such file"), (tmp_path, "Is a directory")):
        done = dnnp(*words, path, stdin=b"no stream")
        assert (done.status, done.out) == (1, b"")
        assert f"{path}: {reason}" in done.err
