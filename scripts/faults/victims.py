"""What an attack from a foreign folder is after: files and folders next to it that must stay as they are."""

from pathlib import Path

CONTENT = b"not yours"


class Victims:
    """A file, a folder with a file, a place where nothing is, and a module that leaves a mark when it is imported.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file, self.inside, self.nowhere = folder / "victim", folder / "victims", folder / "created"
        self.mark = folder / "imported"
        folder.mkdir(parents=True)
        self.inside.mkdir()
        for path in (self.file, self.inside / "model.safetensors"):
            path.write_bytes(CONTENT)
        self._before = self._seen()

    def write_module(self, folder: Path) -> str:
        """Write a module and return the name of a method in it."""
        code = f"open({str(self.mark)!r}, 'w').close()\nfrom timm_patchup.methods.cutout import Cutout as Harmless\n"
        (folder / "planted_module.py").write_text(code)
        return "planted_module:Harmless"

    def harm(self) -> str:
        """Return what has changed, empty if nothing has."""
        after = self._seen()
        return ", ".join(sorted(str(name) for name, content in (after.items() ^ self._before.items())))

    def _seen(self) -> dict[Path, bytes | None]:
        found = sorted(self.folder.rglob("*"))
        return {path.relative_to(self.folder): path.read_bytes() if path.is_file() else None for path in found}
