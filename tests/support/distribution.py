"""What must be in the built files and what must not: `python distribution.py dist`, from `make dist`."""

import sys
import tarfile
import zipfile
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def check(folder: Path) -> None:
    """Hold the wheel and the sdist against the source; stop at the first fault."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        about = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    files = {str(path.relative_to(SOURCE)) for path in (SOURCE / "pluribus").rglob("*") if path.is_file()}
    wanted = {name for name in files if "__pycache__" not in name}
    if packed != wanted:
        raise SystemExit(f"the wheel lacks {sorted(wanted - packed)} and has {sorted(packed - wanted)} besides")
    for line in ("Name: pluribus-ml", "License-Expression: Apache-2.0", "Provides-Extra: all"):
        if line not in about:
            raise SystemExit(f"the wheel's metadata has no {line!r}")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {f"src/{name}" for name in wanted} | {"README.md", "LICENSE", "pyproject.toml"}
    if missing := needed - names:
        raise SystemExit(f"the sdist lacks {sorted(missing)}")
    print(f"{wheel.name}: {len(packed)} files; {sdist.name}: {len(names)}")


if __name__ == "__main__":
    check(Path(sys.argv[1]))
