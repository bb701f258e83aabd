"""Files are whole or absent, the cache is checked and never needed, downloads are what they should be."""

import hashlib
import http.server
import os
import socket
import stat
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from spectail._utils.files import (
    array_digest,
    cache_folder,
    cached_array,
    download,
    file_digest,
    read_regular,
    whole_file,
    whole_folder,
    write_json,
)


class Stop(Exception):
    pass


def names(folder):
    """Everything in a folder, hidden files too."""
    return sorted(entry.name for entry in os.scandir(folder))


def permissions(path):
    return stat.S_IMODE(path.stat().st_mode)


def fail_half_way(context, error=Stop):
    with context as temporary:
        (temporary / "file" if temporary.is_dir() else temporary).write_text("half")
        raise error


@pytest.fixture(params=[0o022, 0o077, 0o002])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


# --- whole files and folders ---


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "folder" / "file.txt"
    with whole_file(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
        assert temporary.parent == path.parent  # or the move would not be atomic
    assert path.read_text() == "half"
    assert names(path.parent) == ["file.txt"]


def test_a_file_that_fails_leaves_nothing(tmp_path):
    path = tmp_path / "file.txt"
    with pytest.raises(Stop):
        fail_half_way(whole_file(path))
    assert names(tmp_path) == []


def test_an_existing_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(Stop):
        fail_half_way(whole_file(path))
    assert path.read_text() == "old"
    with whole_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file.txt"]


def test_an_interruption_leaves_nothing(tmp_path):
    for context in (whole_file(tmp_path / "file.txt"), whole_folder(tmp_path / "folder")):
        with pytest.raises(KeyboardInterrupt):
            fail_half_way(context, KeyboardInterrupt)
    assert names(tmp_path) == []


def test_files_have_the_permissions_of_ordinary_files(tmp_path, umask):
    with whole_file(tmp_path / "file.txt") as temporary:
        temporary.write_text("text")
    assert permissions(tmp_path / "file.txt") == 0o666 & ~umask
    assert os.umask(umask) == umask  # and the process's own setting is as it was


def test_folders_have_the_permissions_of_ordinary_folders(tmp_path, umask):
    with whole_folder(tmp_path / "folder") as temporary:
        (temporary / "file").write_text("text")
    assert permissions(tmp_path / "folder") == 0o777 & ~umask


def test_a_folder_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "deep" / "folder"
    with whole_folder(path) as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "file").write_text("text")
        assert not path.exists()
    assert (path / "inner" / "file").read_text() == "text"
    assert names(path.parent) == ["folder"]


def test_a_folder_that_fails_leaves_nothing(tmp_path):
    path = tmp_path / "folder"
    with pytest.raises(Stop):
        fail_half_way(whole_folder(path))
    assert names(tmp_path) == []


def test_the_folder_that_was_there_first_stays(tmp_path):
    path = tmp_path / "folder"
    with whole_folder(path) as temporary:
        (temporary / "file").write_text("mine")
        path.mkdir()  # meanwhile, another process
        (path / "file").write_text("theirs")
    assert (path / "file").read_text() == "theirs"
    with pytest.raises(Stop):
        fail_half_way(whole_folder(path))
    assert (path / "file").read_text() == "theirs"
    assert names(tmp_path) == ["folder"]


def test_a_folder_cannot_replace_a_file(tmp_path):
    (tmp_path / "taken").write_text("text")
    with pytest.raises(OSError, match="taken"), whole_folder(tmp_path / "taken") as temporary:
        (temporary / "file").write_text("text")
    assert (tmp_path / "taken").read_text() == "text"
    assert names(tmp_path) == ["taken"]


def test_json_is_readable(tmp_path):
    write_json(tmp_path / "a.json", {"name": "ü", "list": [1]})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n "name": "ü",\n "list": [\n  1\n ]\n}\n'
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"name": object()})
    assert "ü" in (tmp_path / "a.json").read_text(encoding="utf-8")
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("make", [whole_file, whole_folder])
def test_what_a_killed_process_left_is_swept_and_what_is_held_is_not(make, tmp_path):
    left = [tmp_path / name for name in (".file.abcdefgh", ".file.abc12_gh")]
    other = [tmp_path / name for name in (".file.txt.abcdefgh", ".file.lock", ".file.long-name-of-ours")]
    left[1].mkdir()
    for path in (left[0], *other):
        path.write_text("half")
    for path in (*left, *other):
        os.utime(path, (0, 0))
    with make(tmp_path / "file") as mine:
        os.utime(mine, (0, 0))
        with pytest.raises(Stop):
            fail_half_way(make(tmp_path / "file"))
        assert mine.exists()
    assert names(tmp_path) == sorted([*(path.name for path in other), "file"])


def test_only_ordinary_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="no ordinary file"):
            read_regular(path)


# --- digests ---


def test_digests(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert file_digest(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_digest(tmp_path / "file", "md5") == "900150983cd24fb0d6963f7d28e17f72"


def test_array_digests_see_bytes_shape_and_type():
    array = np.arange(6, dtype=np.int32)
    others = [array[::-1], array.reshape(2, 3), array.view(np.uint32), array.astype(np.int64), array[:5]]
    assert len({array_digest(other) for other in (array, *others)}) == 6
    assert array_digest(array) == array_digest(array.copy()) == array_digest(np.repeat(array, 2)[::2])
    assert array_digest(array, array) != array_digest(array)


# --- cache ---


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECTAIL_CACHE", str(folder))
    return folder


class Builder:
    def __init__(self, array=None):
        self.array = np.arange(24, dtype=np.int16).reshape(4, 6) if array is None else array
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.array.copy()

    def is_cached(self, name="a"):
        """Whether the right array came, and whether it came from the cache."""
        before = self.calls
        found = cached_array(name, self)
        assert found.dtype == self.array.dtype
        assert found.shape == self.array.shape
        assert (found == self.array).all()
        return self.calls == before


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("SPECTAIL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "spectail"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "spectail"


@pytest.mark.parametrize(
    "array",
    [None, np.zeros((0, 3)), np.array(7.5), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array([True, False])],
)
def test_an_array_is_built_once(cache, array):
    build = Builder(array)
    assert not build.is_cached("pixels/a")
    assert build.is_cached("pixels/a")
    assert not build.is_cached("pixels/b")
    assert names(cache / "pixels") == ["a.crc", "a.npy", "b.crc", "b.npy"]


@pytest.mark.parametrize("size", [0, 1, 6, 40, 127, 128, 130, -1])
def test_a_cut_off_file_is_built_again(cache, size):
    build = Builder()
    build.is_cached()
    whole = (cache / "a.npy").read_bytes()
    (cache / "a.npy").write_bytes(whole[:size])
    assert not build.is_cached()
    assert build.is_cached()
    assert (cache / "a.npy").read_bytes() == whole


def test_a_flipped_bit_is_noticed_wherever_it_is(cache):
    """In the values every time; in the header unless the array is read just the same."""
    build = Builder()
    build.is_cached()
    whole, crc = (cache / "a.npy").read_bytes(), (cache / "a.crc").read_bytes()
    values = len(whole) - build.array.nbytes
    for place in range(len(whole)):
        for bit in (1, 2, 4, 8, 16, 64):
            damaged = bytearray(whole)
            damaged[place] ^= bit
            (cache / "a.npy").write_bytes(damaged)
            (cache / "a.crc").write_bytes(crc)
            assert not (build.is_cached() and place >= values), place  # is_cached asserts that the array is right


@pytest.mark.parametrize("dtype", ["<u2", ">i2", "<f2", "|S2"])
def test_another_type_of_the_same_bytes_is_noticed(cache, dtype):
    build = Builder()
    build.is_cached()
    path = cache / "a.npy"
    path.write_bytes(path.read_bytes().replace(b"'<i2'", f"'{dtype}'".encode()))
    assert not build.is_cached()


def test_another_shape_of_the_same_bytes_is_noticed(cache):
    build = Builder()
    build.is_cached()
    path = cache / "a.npy"
    path.write_bytes(path.read_bytes().replace(b"(4, 6)", b"(6, 4)"))
    assert not build.is_cached()


def test_an_archive_in_the_place_of_an_array_is_replaced(cache):
    build = Builder()
    build.is_cached()
    with zipfile.ZipFile(cache / "a.npy", "w") as archive:
        archive.writestr("x", "y")
    assert not build.is_cached()
    (cache / "a.npy").write_bytes(b"PK\x03\x04 and no archive")
    assert not build.is_cached()


@pytest.mark.parametrize("content", [None, "", "00000000 48", "garbage", "\u00fc"])
def test_an_array_without_its_checksum_is_built_again(cache, content):
    build = Builder()
    build.is_cached()
    (cache / "a.crc").unlink()
    if content is not None:
        (cache / "a.crc").write_text(content, encoding="latin-1")
    assert not build.is_cached()
    assert build.is_cached()


def test_stored_objects_are_never_unpickled(cache):
    build = Builder()
    build.is_cached()
    np.save(cache / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert not build.is_cached()


@pytest.mark.parametrize("below", ["", "folder"])
def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path, monkeypatch, below):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("SPECTAIL_CACHE", str(tmp_path / "file" / below))
    build = Builder()
    assert not build.is_cached("pixels/a")
    assert not build.is_cached("pixels/a")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "no folder"


def test_an_error_while_building_is_not_swallowed(cache):
    def fail():
        raise FileNotFoundError("no such image")

    with pytest.raises(FileNotFoundError, match="no such image"):
        cached_array("a", fail)
    assert not cache.exists() or names(cache) == []


# --- downloads ---

CONTENT = os.urandom(300_000)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/dropped":
            return  # closes the connection without an answer
        self.send_response(404 if self.path == "/missing" else 200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:1000] if self.path == "/short" else CONTENT)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def digest_of(content, algorithm="md5"):
    return hashlib.new(algorithm, content).hexdigest()


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_a_file_is_downloaded(server, tmp_path, algorithm):
    download(f"{server}/good", tmp_path / "new" / "data.bin", digest_of(CONTENT, algorithm), algorithm)
    assert (tmp_path / "new" / "data.bin").read_bytes() == CONTENT
    assert names(tmp_path / "new") == ["data.bin"]


def test_the_wrong_file_is_thrown_away(server, tmp_path):
    with pytest.raises(ValueError, match=rf"{server}/good has md5 {digest_of(CONTENT)}, expected 123; it was thrown"):
        download(f"{server}/good", tmp_path / "data.bin", "123")
    assert names(tmp_path) == []


def test_a_failed_download_keeps_the_file_that_was_there(server, tmp_path):
    (tmp_path / "data.bin").write_text("old")
    with pytest.raises(ValueError, match="thrown away"):
        download(f"{server}/good", tmp_path / "data.bin", "123")
    assert (tmp_path / "data.bin").read_text() == "old"
    assert names(tmp_path) == ["data.bin"]


def test_an_incomplete_file_is_thrown_away(server, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match="/short"):
        download(f"{server}/short", tmp_path / "data.bin", digest_of(CONTENT))
    assert names(tmp_path) == []


@pytest.mark.parametrize(("page", "reason"), [("missing", "Not Found"), ("dropped", "closed connection")])
def test_a_server_without_the_file_is_said_in_words(server, tmp_path, page, reason):
    with pytest.raises(
        FileNotFoundError, match=rf"data.bin is not in .*could not be downloaded \(.*{reason}.*/{page} on"
    ):
        download(f"{server}/{page}", tmp_path / "data.bin", digest_of(CONTENT))
    assert names(tmp_path) == []


def test_a_refused_connection_is_said_in_words(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as taken:  # bound but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/data.bin"
        with pytest.raises(FileNotFoundError) as caught:
            download(url, tmp_path / "data.bin", "123")
    message = str(caught.value)
    assert f"data.bin is not in {tmp_path} and could not be downloaded" in message
    assert "refused" in message
    assert f"Fetch {url} on a machine that is online" in message
    assert names(tmp_path) == []
