"""Keys of clients: given, read of a file or of a mounted Secret, and read again."""

import asyncio
import logging
from pathlib import Path

import pytest

from kvasir_runtime.errors import ModelError
from kvasir_runtime.server import auth
from kvasir_runtime.server.auth import MAX_BYTES, ApiKeys


class Mounted:
    """A Secret as the kubelet mounts it: links into a directory that is replaced as a whole."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._version = folder, 0
        folder.mkdir()

    def put(self, **files: str) -> None:
        self._version += 1
        real = self.folder / f"..{self._version}"
        real.mkdir()
        for name, content in files.items():
            (real / name).write_text(content)
        fresh = self.folder / "..data_tmp"
        fresh.symlink_to(real.name)
        fresh.replace(self.folder / "..data")
        for old in self.folder.iterdir():
            if not old.name.startswith("..") and old.name not in files:
                old.unlink()
        for name in files:
            link = self.folder / name
            if not link.is_symlink():
                link.symlink_to(f"..data/{name}")


@pytest.fixture
def secret(tmp_path):
    return Mounted(tmp_path / "keys")


def loaded(*given, path=""):
    made = ApiKeys(given, str(path))
    made.load(may_come=False)
    return made


def opening(made, *candidates):
    return [key for key in candidates if made.accepts([key.encode()])]


def test_without_any_key_everybody_is_let_in():
    made = loaded()
    assert (made.accepts([]), made.watched, made.locked) == (True, False, "")


@pytest.mark.parametrize(
    ("content", "opens"),
    [("a\nb\n", ["a", "b"]), ("a", ["a"]), (" a \r\n\r\n  b", ["a", "b"]), ("a b", ["a b"]), ("ä", ["ä"])],
)
def test_keys_of_a_file_are_its_lines(tmp_path, content, opens):
    file = tmp_path / "keys"
    file.write_text(content)
    assert opening(loaded(path=file), "a", "b", "a b", "", "ä") == opens


def test_keys_of_all_files_of_a_secret_and_given_ones_open(secret):
    secret.put(team="a\nb", other="c")
    made = loaded("given", path=secret.folder)
    assert opening(made, "a", "b", "c", "given", "d", "..data", "") == ["a", "b", "c", "given"]
    assert len(made) == 4
    assert made.accepts([b"d", b"c"])
    assert not made.accepts([])


def test_a_rotation_counts_once_it_was_seen_twice(secret):
    secret.put(keys="old")
    made = loaded(path=secret.folder)
    secret.put(keys="old\nnew")
    assert [made.reload(), made.reload(), made.reload()] == [False, True, False]
    assert opening(made, "old", "new") == ["old", "new"]
    secret.put(keys="new")
    made.reload()
    secret.put(keys="newest")  # in the middle of a change: nothing holds until it stands still
    assert not made.reload()
    assert opening(made, "old", "new", "newest") == ["old", "new"]
    assert made.reload()
    assert opening(made, "old", "new", "newest") == ["newest"]


@pytest.mark.parametrize("empty", [{}, {"keys": "\n \n"}])
def test_a_secret_that_loses_its_keys_admits_no_client(secret, empty):
    secret.put(keys="old")
    made = loaded(path=secret.folder)
    assert made.locked == ""
    secret.put(**empty)
    made.reload()
    assert made.reload()
    assert opening(made, "old", "") == []
    assert made.locked == f"there is no key in {secret.folder}"
    secret.put(keys="back")
    made.reload()
    assert made.reload()
    assert (opening(made, "old", "back"), made.locked) == (["back"], "")


def test_a_start_without_any_key_is_refused(tmp_path, secret):
    with pytest.raises(ModelError, match=r"^KeysMissing: there is no key in .*/keys, so no request could be accepted$"):
        loaded(path=secret.folder)
    with pytest.raises(ModelError, match=r"there is no key in .*/none"):
        loaded(path=tmp_path / "none")
    with pytest.raises(ModelError, match="there is no key in the options"):
        loaded("", " ")


def test_a_replica_of_a_service_may_wait_for_its_first_key(secret):
    made = ApiKeys((), str(secret.folder))
    assert made.locked == ""  # nobody has looked yet
    made.load(may_come=True)
    assert made.locked == f"there is no key in {secret.folder}"
    secret.put(keys="first")
    made.reload()
    assert made.reload()
    assert (opening(made, "first"), made.locked) == (["first"], "")
    with pytest.raises(ModelError, match="there is no key in the options"):
        ApiKeys(("",)).load(may_come=True)  # what was given does not change


def test_too_much_is_refused_at_the_start_and_ignored_later(tmp_path):
    file = tmp_path / "keys"
    file.write_text("x" * (MAX_BYTES + 1))
    with pytest.raises(ModelError, match=r"^KeysMissing: keys cannot be read: .*keys is too long"):
        loaded(path=file)
    file.write_text("old")
    made = loaded(path=file)
    file.write_text("x\n" * MAX_BYTES)
    with pytest.raises(ValueError, match="too long"):
        made.reload()
    assert opening(made, "old") == ["old"]


async def test_the_watch_follows_and_says_how_many_but_never_which(secret, caplog):
    caplog.set_level(logging.INFO, "kvasir.keys")
    secret.put(keys="first-secret")
    made = loaded(path=secret.folder)
    watching = asyncio.create_task(auth.watch(made, every_s=0.001))

    async def until(holds):
        async with asyncio.timeout(60):
            while not holds():  # noqa: ASYNC110 - nobody tells us when
                await asyncio.sleep(0.001)

    secret.put(keys="second-secret\nthird-secret")
    await until(lambda: opening(made, "third-secret"))
    await until(lambda: "keys changed: 2 are accepted" in caplog.text)
    secret.put(keys="x" * (MAX_BYTES + 1))
    await until(lambda: "keys cannot be read, the previous ones stay valid" in caplog.text)
    assert opening(made, "second-secret")
    secret.put()
    await until(lambda: made.locked)
    await until(lambda: caplog.records[-1].levelno == logging.WARNING and "0 are" in caplog.text)
    watching.cancel()
    assert caplog.text.count("cannot be read") == 1
    assert "secret" not in caplog.text.replace(str(secret.folder), "")
