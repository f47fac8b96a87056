#!/usr/bin/env python3
"""Packs what has been built into a wheel: `make_wheel.py BUILD_FOLDER OUTPUT_FOLDER`. Prints its path; compiles nothing.

To be run by the interpreter that the build was made for.
"""

import base64
import hashlib
import pathlib
import platform
import subprocess
import sys
import tempfile
import tomllib
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
SYSTEM_AND_MODE = 3, 0o100755 << 16  # Unix, executable


def install(build, component, prefix):
    subprocess.run(["cmake", "--install", build, "--component", component, "--prefix", prefix], check=True, stdout=sys.stderr)


def metadata(project):
    requirements = "".join(f"Requires-Dist: {requirement}\n" for requirement in project["dependencies"])
    return (
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\nSummary: {project['description']}\n"
        f"Requires-Python: {project['requires-python']}\n{requirements}Description-Content-Type: text/markdown\n\n"
        + (ROOT / project["readme"]).read_text()
    )


def make_wheel(build, folder):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name = f"{project['name']}-{project['version']}"
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    tag = f"{python}-{python}-linux_{platform.machine()}"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{tag}.whl"
    recorded = []
    with tempfile.TemporaryDirectory() as staged, zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:

        def add(path, content):
            member = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))  # the same bytes whenever it is made
            member.create_system, member.external_attr = SYSTEM_AND_MODE
            archive.writestr(member, content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            recorded.append(f"{path},sha256={digest},{len(content)}")

        staged = pathlib.Path(staged)
        install(build, "python", staged / "package")
        install(build, "python_scripts", staged / "scripts")
        for root, to in (staged / "package", ""), (staged / "scripts/bin", f"{name}.data/scripts/"):
            for file in sorted(path for path in root.rglob("*") if path.is_file()):
                add(to + file.relative_to(root).as_posix(), file.read_bytes())
        about = f"{name}.dist-info/"
        add(about + "METADATA", metadata(project).encode())
        add(about + "WHEEL", f"Wheel-Version: 1.0\nGenerator: bottomless\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
        add(about + "LICENSE", (ROOT / project["license"]["file"]).read_bytes())
        archive.writestr(about + "RECORD", "\n".join([*recorded, about + "RECORD,,"]) + "\n")
    return wheel


if __name__ == "__main__":
    print(make_wheel(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
