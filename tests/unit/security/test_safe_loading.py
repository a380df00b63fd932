"""Nothing in the source tree can turn a file into running code: no pickle in any of its forms, no eval, no shell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
FOLDERS = ("archetype_dagster", "assets", "resources", "configs", "examples", "benchmarks", "deploy")
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle", "imp"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "torch.load",
    "torch.save",
    "torch.jit.load",
    "torch.package",
    "yaml.unsafe_load",
    "yaml.full_load",
    "yaml.load_all",
    "yaml.unsafe_load_all",
    "pd.read_pickle",
    "pandas.read_pickle",
    "pl.DataFrame.deserialize",
    "os.system",
    "os.popen",
    "tempfile.mktemp",
    "shutil.unpack_archive",
    "mlflow.pyfunc.load_model",
    "mlflow.pytorch.load_model",
    "importlib.import_module",
}
# The one place that gives PyYAML a loader: a stricter one than its safe loader.
YAML_LOADER = ("yaml.load", "archetype_dagster/settings/yaml_text.py")
METHODS = {"extractall", "to_pickle", "read_pickle", "load_state_dict_from_url"}


def faults(source: str, place: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # An error's class, to catch what another process could not send, opens nothing.
            names = [] if all(alias.name.endswith("Error") for alias in node.names) else [node.module or ""]
        else:
            names = []
        yield from (f"imports {name}" for name in names if name.split(".")[0] in MODULES)
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        arguments = {word.arg: word.value for word in node.keywords}
        if isinstance(node.func, ast.Name) and called in BUILTINS:
            yield f"calls {called}"
        if called in CALLS or (isinstance(node.func, ast.Attribute) and node.func.attr in METHODS):
            yield f"calls {called}"
        if called == "yaml.load" and (called, place) != YAML_LOADER:
            yield "calls yaml.load"
        if "allow_pickle" in arguments and not _is_false(arguments["allow_pickle"]):
            yield "allows pickle"
        if "shell" in arguments and not _is_false(arguments["shell"]):
            yield "uses a shell"
        if "weights_only" in arguments:
            yield "loads a pickle of weights"


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def test_the_source_tree_holds_none_of_it() -> None:
    files = [file for folder in FOLDERS for file in sorted((REPOSITORY / folder).rglob("*.py"))]
    assert len(files) > 200
    found = []
    for file in files:
        place = file.relative_to(REPOSITORY).as_posix()
        found += [f"{place} {fault}" for fault in faults(file.read_text(encoding="utf-8"), place)]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "import torch\ntorch.load('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import numpy as np\nnp.load('x', allow_pickle=choice)",
        "import yaml\nyaml.load(text, yaml.Loader)",
        "eval('1')",
        "exec(text)",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import zipfile\nzipfile.ZipFile('x').extractall('y')",
    ],
)
def test_each_of_them_is_found(source: str) -> None:
    assert len(list(faults(source, "somewhere.py"))) == 1


def test_what_looks_alike_is_not_taken_for_it() -> None:
    harmless = """
from pickle import PicklingError
network.eval()
np.load('x', allow_pickle=False)
yaml.safe_load(text)
re.compile('x')
frame.load()
"""
    assert list(faults(harmless, "somewhere.py")) == []


def test_no_program_of_ours_listens_beyond_this_machine() -> None:
    files = [file for folder in FOLDERS[:4] for file in sorted((REPOSITORY / folder).rglob("*.py"))]
    assert [str(file) for file in files if "0.0.0.0" in file.read_text(encoding="utf-8")] == []
