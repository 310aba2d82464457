"""What the repository says of itself holds: commands, links, variables, public names, sizes, words.

Rules that a reader relies on and that no other tool checks.  Each rule is a function over text, so that it can be shown to
object; the limits of sizes are agreed ones, loosened only on purpose.
"""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("bindings/horovod", "proto", "observe", "coordinator", "agent", "native", "runner", "benchmarks")
GENERATED = "_pb2.py"

LONGEST_USUAL_FUNCTION = 35
USUAL_PART = 0.9
LARGEST_USUAL_MODULE = 400
LARGEST_MODULE = 600


def _tracked(*patterns: str) -> list[Path]:
    """Files of the repository, new ones too; without version control all files that are there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("this is not a checkout")
    return [ROOT / line for line in done.stdout.splitlines() if (ROOT / line).is_file()]


def _modules() -> list[Path]:
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(path for path in found if not path.name.endswith(GENERATED))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


# ---- documents


def shell_lines(markdown: str) -> Iterator[str]:
    """Commands of the sh blocks, without comments."""
    for block in re.findall(r"```sh\n(.*?)```", markdown, flags=re.DOTALL):
        yield from (line.partition("#")[0].strip() for line in block.splitlines() if line.partition("#")[0].strip())


def links(markdown: str) -> list[str]:
    """Targets of links that lie in the repository."""
    found = re.findall(r"\]\(([^)#\s]+)", markdown)
    return [target for target in found if not target.startswith(("http:", "https:", "mailto:"))]


def _verbs() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def test_commands_of_the_readme_exist() -> None:
    lines = list(shell_lines((ROOT / "README.md").read_text()))
    made = [verb for line in lines if line.startswith("make ") for verb in line.split()[1:] if "=" not in verb]
    assert {"demo", "test"} <= set(made) <= _verbs()
    programs = {word for line in lines for word in [line.split()[0]] if "=" not in word}
    assert programs <= {"make", "docker", "pip", "python", "horovodrun", "hvd-coordinator", "hvd-agent", "git", "cd"}
    files = {word for line in lines for word in line.split() if word.startswith(("examples/", "benchmarks/"))}
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_every_verb_of_the_readme_and_makefile_is_a_verb() -> None:
    named = re.findall(r"`make ([a-z -]+)`", (ROOT / "README.md").read_text())
    assert {verb for words in named for verb in words.split()} <= _verbs()
    scripts = re.findall(r"^\tscripts/([a-z-]+)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert scripts
    assert [name for name in scripts if not (ROOT / "scripts" / name).stat().st_mode & 0o100] == []


def test_ci_runs_the_readme_s_test_command() -> None:
    assert "make test" in list(shell_lines((ROOT / "README.md").read_text()))
    assert re.search(r"^make test\b", (ROOT / ".ci/run").read_text(), flags=re.MULTILINE)


def test_links_lead_somewhere() -> None:
    broken = [
        f"{_name(path)}: {target}"
        for path in _tracked("*.md")
        for target in links(path.read_text())
        if not (path.parent / target).exists()
    ]
    assert broken == []


def test_words_that_must_not_stay() -> None:
    patterns = re.compile(r"\b(TO[D]O|FI[X]ME|XX[X]|HAC[K])\b|/wor[k]/|/tmp/t[e]am|\b[i]ssue #?\d", re.ASCII)
    found = [
        f"{_name(path)}: {match.group(0)}"
        for path in _tracked()
        if path.suffix not in (".png", ".ico") and path.name != "LICENSE"
        for match in patterns.finditer(path.read_text(errors="replace"))
    ]
    assert found == []


# ---- environment variables

# Who looks at which environment: modules that may touch os.environ, and whose variables the document lists.
READERS = {
    "bindings/horovod/common/config.py": "Read by a rank",
    "runner/launch.py": "Read by the launcher",
    "proto/security.py": "Read by the launcher, hvd-coordinator and hvd-agent",
    "agent/cli.py": "Read by hvd-agent",
}
MAY_TOUCH = {  # one place for each kind of process
    "agent/cli.py",
    "bindings/horovod/common/config.py",
    "coordinator/cli.py",
    "runner/environment.py",
    "runner/run_task.py",
    "runner/settings.py",
    "runner/variables.py",
}
VARIABLE = re.compile(r"(?:HOROVOD|HVD)_[A-Z0-9_]+")


def constants(source: str) -> set[str]:
    """Strings of a module that are nothing but the name of a variable."""
    nodes = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {value for value in nodes if isinstance(value, str) and VARIABLE.fullmatch(value)}


def documented(markdown: str, title: str) -> set[str]:
    """Variables in the first column of the table below this title."""
    _, _, rest = markdown.partition(f"## {title}\n")
    rows = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return {name for row in rows for name in VARIABLE.findall(row.split("|")[1])}


@pytest.mark.parametrize("reader", READERS)
def test_variables_are_documented(reader: str) -> None:
    read = constants((ROOT / reader).read_text())
    if reader.startswith("bindings"):
        sources = "".join(path.read_text() for path in (ROOT / "native/src").glob("*.cc"))
        read |= set(re.findall(r'getenv\("(\w+)"\)', sources))
    assert read
    assert documented((ROOT / "docs/environment.md").read_text(), READERS[reader]) == read


def test_the_environment_is_read_in_few_places() -> None:
    touching = {
        _name(path)
        for path in _modules()
        if not _name(path).startswith("benchmarks/") and re.search(r"os\.(environ|getenv)\b", path.read_text())
    }
    assert touching <= MAY_TOUCH


# ---- public names


def name_problems(source: str) -> list[str]:
    """Differences between ``__all__`` and what a module defines or imports; nothing for a module without the list."""
    tree = ast.parse(source)
    listed = _listed(tree)
    defined = {name for node in tree.body for name in _names(node)}
    public = {node.name for node in tree.body if isinstance(node, DEFINITIONS) and not node.name.startswith("_")}
    if listed is None:
        return []
    # A module with __getattr__ offers names that are made when they are asked for.
    absent = [] if "__getattr__" in defined else [f"{name} does not exist" for name in listed if name not in defined]
    twice = [f"{name} is listed twice" for name in sorted(set(listed)) if listed.count(name) > 1]
    return absent + twice + [f"{name} is not listed" for name in sorted(public - set(listed))]


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _listed(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and "__all__" in _names(node):
            return [str(name) for name in ast.literal_eval(node.value)]
    return None


def _names(node: ast.stmt) -> set[str]:
    """Names that a statement of a module binds, in branches of if and try too."""
    if isinstance(node, DEFINITIONS):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.If | ast.Try):
        return {name for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt) for name in _names(inner)}
    stored = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store))
    return {inner.id for inner in stored}


def test_public_names_exist() -> None:
    problems = [f"{_name(path)}: {text}" for path in _modules() for text in name_problems(path.read_text())]
    assert problems == []


def test_every_module_says_what_it_is_for() -> None:
    modules = [path for path in _modules() if path.read_text().strip()]
    assert [_name(path) for path in modules if not ast.get_docstring(ast.parse(path.read_text()))] == []


# ---- sizes


def function_lengths(source: str) -> dict[str, int]:
    """Lines of each function and method."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {f"{node.name}:{node.lineno}": (node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes}


def test_functions_are_short() -> None:
    lengths = {
        f"{_name(path)}:{name}": lines
        for path in _modules()
        for name, lines in function_lengths(path.read_text()).items()
    }
    usual = sum(lines < LONGEST_USUAL_FUNCTION for lines in lengths.values()) / len(lengths)
    longest = sorted(lengths.items(), key=lambda item: -item[1])[:5]
    assert usual >= USUAL_PART, longest
    assert statistics.median(lengths.values()) <= 12, longest


def test_modules_are_small() -> None:
    sizes = {_name(path): len(path.read_text().splitlines()) for path in _modules()}
    large = {name: lines for name, lines in sizes.items() if lines > LARGEST_USUAL_MODULE}
    assert [name for name, lines in large.items() if lines > LARGEST_MODULE] == []
    assert len(large) <= (1 - USUAL_PART) * len(sizes), large


# ---- the rules object


def test_the_rules_object() -> None:
    text = "```sh\nmake demo # why\n```\n[a](docs/x.md) [b](https://example.org)"
    assert list(shell_lines(text)) == ["make demo"]
    assert links(text) == ["docs/x.md"]
    assert constants('f("HVD_X", "not HVD_Y", "HOROVOD_Z")') == {"HVD_X", "HOROVOD_Z"}
    table = "## Read here\n| `HVD_X` | `HVD_IN_ANOTHER_COLUMN` |\n## Else\n| `HVD_Y` | |"
    assert documented(table, "Read here") == {"HVD_X"}
    assert name_problems('__all__ = ["f", "g"]\ndef f(): ...\n') == ["g does not exist"]
    assert name_problems('__all__ = ["f", "f"]\ndef f(): ...\n') == ["f is listed twice"]
    assert name_problems('__all__ = ["a", "b"]\na, b = 1, 2\ndef f(): ...\n') == ["f is not listed"]
    assert function_lengths("def f():\n    a\n    b\n") == {"f:1": 3}
