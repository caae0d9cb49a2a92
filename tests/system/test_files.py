"""Writing whole files: through no link, next to other writers, and what is safe to read."""

import multiprocessing
import os
import socket
import threading
from pathlib import Path

import pytest

from timm_patchup.errors import Failed, UserError
from timm_patchup.system import files
from timm_patchup.system.locks import locked

PARTIAL = ".partial-x"


def plant(kind: str, at: Path, victim: Path) -> None:
    if kind == "link":
        at.symlink_to(victim)
    elif kind == "dangling":
        at.symlink_to(victim.parent / "created")
    elif kind == "hard link":
        os.link(victim, at)
    elif kind == "loop":
        at.symlink_to(at)
    elif kind == "folder link":
        at.symlink_to(victim.parent)
    elif kind == "fifo":
        os.mkfifo(at)
    elif kind == "folder":
        at.mkdir()
        (at / "inside").touch()
    else:
        at.write_text("half")


KINDS = ["link", "dangling", "hard link", "loop", "folder link", "fifo", "folder", "file"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_the_temporary_name_is_removed_and_not_followed(kind: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    plant(kind, tmp_path / "in" / PARTIAL, victim)
    files.write_whole(tmp_path / "in" / "x", "text")
    assert (tmp_path / "in" / "x").read_text() == "text"
    assert not (tmp_path / "in" / "x").is_symlink()
    assert victim.read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"in", "victim"}
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["x"]


@pytest.mark.parametrize("kind", ["link", "dangling", "loop", "folder link", "fifo"])
def test_logs_and_locks_follow_no_link(kind: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("log", ".lock"):
        plant(kind, tmp_path / "in" / name, victim)
    for text in (b"one", b"two"):
        with files.open_to_append(tmp_path / "in" / "log") as log:
            log.write(text)
    with locked(tmp_path / "in" / ".lock", busy="busy"):
        pass
    assert (tmp_path / "in" / "log").read_bytes() == b"onetwo"
    assert victim.read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"in", "victim"}


def write_often(path: Path, letter: str) -> None:
    os.fsync = lambda handle: None  # type: ignore[assignment]
    for _ in range(300):
        files.write_whole(path, letter * 50_000)


def test_processes_that_write_the_same_file_leave_each_other_alone(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=write_often, args=(tmp_path / "x", letter)) for letter in "abc"]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        text = (tmp_path / "x").read_text() if (tmp_path / "x").exists() else "a" * 50_000
        seen.add((text[0], text == text[0] * 50_000))
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert all(whole for _, whole in seen)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_file_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    done = threading.Event()
    other = threading.Thread(target=lambda: (files.write_whole(tmp_path / "x", "second"), done.set()))
    with files.replacing(tmp_path / "x") as file:
        other.start()
        assert not done.wait(0.5)
        file.write(b"first")
    assert done.wait(20)
    other.join()
    assert (tmp_path / "x").read_text() == "second"


def test_a_folder_in_the_place_of_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(Failed, match="x is a folder"):
        files.write_whole(tmp_path / "x", "text")
    with pytest.raises(UserError) as caught:
        files.refuse_folders([tmp_path / "y", tmp_path / "x"])
    assert not isinstance(caught.value, Failed)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    files.write_whole(tmp_path / "x", "old")
    with pytest.raises(TypeError), files.replacing(tmp_path / "x") as file:
        file.writelines([b"new", "text"])  # type: ignore[list-item]
    assert (tmp_path / "x").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "loop"])
def test_only_regular_files_are_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    path = tmp_path / "x"
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            os.chdir(tmp_path)  # the path of a socket must be short
            server.bind("x")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        plant(kind, path, tmp_path)
    for read in (files.read_file, files.checksum):
        with pytest.raises(OSError, match=r"not a regular file|symbolic links"):
            read(path)


def test_the_mode_of_a_file_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write_whole(tmp_path / "x", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640
