"""Checks that every #include follows the direction of dependency between the parts (DESIGN.md, section 3).

    check_includes.py ROOT

Prints one line for each violation and exits 1 if there is any. Needs nothing but Python 3.
"""

import pathlib
import re
import sys

# What each part may include besides itself. A new part is a new line here: a reviewed decision.
MAY_INCLUDE = {
    "base": [],
    "os": ["base"],
    "unicode": ["base"],
    "jinja": ["base", "unicode"],
    "tokenizers": ["base", "unicode", "jinja"],
    "memory": ["base", "os"],
    "io": ["base", "memory"],
    "plan": ["base"],
    "report": ["base", "plan"],
    "optim": ["base", "memory"],
    "checkpoint": ["base", "io"],
    "data": ["base", "tokenizers", "io", "checkpoint"],
    "journal": ["base", "report", "checkpoint"],
    "engine": ["base", "memory", "io", "plan", "optim"],
    "ranks": ["base", "memory", "io", "optim", "engine"],
    "torch": ["base", "os", "memory", "io", "plan", "report", "optim", "checkpoint", "engine", "ranks"],
    "train": [
        "base", "os", "unicode", "jinja", "tokenizers", "memory", "io", "plan", "report", "optim", "checkpoint", "data", "journal",
        "engine", "ranks", "torch",
    ],
    "cli": ["base", "os", "memory", "io", "plan", "report", "optim", "engine"],
}

# Where the names of torch's own headers may appear.
MAY_NAME_TORCH = [
    "include/bottomless/optim.h", "include/bottomless/shard.h", "src/torch/", "src/train/", "python/", "examples/",
    "tests/torch/", "tests/train/", "bench/",
]  # fmt: skip

FOLDERS = ["include", "src", "tests", "bench", "examples", "python", "fuzz"]
SUFFIXES = {".h", ".hh", ".hpp", ".cc", ".cpp", ".cxx", ".cu", ".c"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)
TORCH = re.compile(r"(torch|ATen|c10)/")


def sources(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield path.relative_to(root)


def includes(path):
    text = path.read_text(encoding="utf-8", errors="replace")
    for match in INCLUDE.finditer(text):
        line = text.count("\n", 0, match.start(2)) + 1
        yield line, match.group(1) == "<", match.group(2)


def is_torchs(root, angled, name):
    """True for a header of torch itself. "torch/..." in quotes is our own part where such a file exists."""
    if not TORCH.match(name):
        return False
    return angled or not (root / "src" / name).exists()


def part_of(root, name):
    """The part that an included name belongs to, or None: <memory> is a standard header, "memory/heap.h" is not."""
    other = name.split("/")[0] if "/" in name else None
    return other if other in MAY_INCLUDE and (root / "src" / other).is_dir() else None


def violations(root):
    """Yields (file, line, what is wrong)."""
    root = pathlib.Path(root)
    for file in sources(root):
        part = file.parts[1] if file.parts[0] == "src" and len(file.parts) > 2 else None
        if part is not None and part not in MAY_INCLUDE:
            yield file, 1, f"the part '{part}' is unknown: say in {pathlib.Path(__file__).name} what it may include"
            continue
        for line, angled, name in includes(root / file):
            if is_torchs(root, angled, name):
                if not file.as_posix().startswith(tuple(MAY_NAME_TORCH)):
                    yield file, line, f"names torch ({name}); only {', '.join(MAY_NAME_TORCH)} may"
                continue
            other = part_of(root, name)
            if other is None:
                continue
            if file.parts[0] == "include":
                yield file, line, f"a public header includes a private one ({name})"
            elif part is not None and other != part and other not in MAY_INCLUDE[part]:
                allowed = ", ".join(MAY_INCLUDE[part]) or "no other part"
                yield file, line, f"'{part}' may not include '{other}' ({name}); it may include {allowed}"


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    found = list(violations(sys.argv[1]))
    for file, line, what in found:
        print(f"{file}:{line}: {what}")
    checked = sum(1 for _ in sources(pathlib.Path(sys.argv[1])))
    if checked == 0:
        print(f"{sys.argv[1]}: no sources found")
        return 1
    print(f"{checked} files, {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
