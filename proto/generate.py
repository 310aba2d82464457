"""Makes the Python modules of the .proto files, or checks that they are current: ``python proto/generate.py --check``.

An old protoc is used on purpose: its output imports with every protobuf from 3.20 to the newest, so that the
package lives beside whatever a framework asks for.  The compiler comes from PyPI into a throw-away environment.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
COMPILER = ("grpcio-tools==1.62.3", "setuptools<81")
NAMES = ("worker", "control")


def compile_protos(directory: Path) -> dict[str, str]:
    """File name -> text of every generated module."""
    environment = directory / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *COMPILER], check=True)
    command = [python, "-m", "grpc_tools.protoc", f"-I{HERE}", f"--python_out={directory}", f"--pyi_out={directory}"]
    subprocess.run([*command, *(str(HERE / f"{name}.proto") for name in NAMES)], check=True)
    files = [f"{name}_pb2{end}" for name in NAMES for end in (".py", ".pyi")]
    return {file: _packaged((directory / file).read_text()) for file in files}


def _packaged(text: str) -> str:
    # protoc writes imports for a flat folder; ours is a package.
    return re.sub(r"^import worker_pb2 as", "from horovod.proto import worker_pb2 as", text, flags=re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Writes the modules, or with --check says which differ."""
    with tempfile.TemporaryDirectory() as directory:
        made = compile_protos(Path(directory))
    stale = [name for name, text in made.items() if not (HERE / name).exists() or (HERE / name).read_text() != text]
    if "--check" in arguments:
        print(f"run `make proto`, these are stale: {', '.join(stale)}" if stale else "generated modules are current")
        return 1 if stale else 0
    for name in stale:
        (HERE / name).write_text(made[name])
    print(f"wrote {', '.join(stale) or 'nothing, all modules are current'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
