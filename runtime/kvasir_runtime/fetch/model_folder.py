"""Where in a folder that was fetched or mounted the checkpoint is. Called by `source` and `model_store`."""

from pathlib import Path


def model_folder(folder: Path) -> Path:
    """The directory with the checkpoint: the folder, or the one within it that has a config.json."""
    if (folder / "config.json").is_file():
        return folder
    found = sorted(folder.rglob("config.json"), key=lambda path: len(path.parts))
    return found[0].parent if found else folder
