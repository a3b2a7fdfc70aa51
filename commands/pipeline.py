"""Runs the stages of an experiment in order, in one process."""

import hashlib
import itertools
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.utilities import rank_zero_only

from artifacts.errors import InputError
from artifacts.files import exclusive, read_json, require_file, sha256_of_file, write_json
from artifacts.tensors import package_version
from artifacts.weights import sha256_of_content
from commands.scale import Scale, Value
from commands.stages import MARKER, finished_files


@dataclass
class Stage:
    """One command of a pipeline.

    In ``options``, ``{run}`` stands for the pipeline's directory and ``{stage}`` for this stage's.
    A file that is named so counts as an input, but for ``output``, and so do the JSON files of all
    finished stages in the directory, also another pipeline's, if an option is ``{run}`` alone.
    Names of the pipeline's grid stand for a value in every string here.

    Attributes:
        command: The subcommand of ``main.py``.
        config: Config files, later ones over earlier ones.
        inputs: Option name to file, relative to the pipeline's directory: what earlier stages
            made; ``<name>`` in it stands for anything, and all such files count. An input that
            holds other values makes the stage run again.
        outputs: Files, relative to the stage's directory, that exist when it is complete.
        options: Further options.
    """

    command: Literal["fit", "validate", "test", "predict", "report", "table"]
    config: list[str] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    options: dict[str, Value] = field(default_factory=dict)


def pipeline(
    run: str,
    stages: dict[str, Stage],
    grid: dict[str, list[Value]] | None = None,
    scale: Scale | None = None,
    *,
    dispatch: Callable[[list[str]], None],
) -> None:
    """Runs stages in order, skips those that are complete, continues one that was stopped.

    A stage runs again when its configs, options, inputs or the package version changed; what it
    had made before is moved to ``<stage>.previous``, and back if the change is undone. Of several
    processes in one run directory, one at a time works at a stage.

    Args:
        run: Directory of the whole experiment; each stage has its own in it.
        stages: Stage by name, in order.
        grid: Values by name. All stages are run for each combination of them, with ``{name}``
            replaced by its value in stage names and settings; a stage whose name holds none of
            the names is run once.
        scale: A smaller form of the experiment; it has a run directory of its own.
        dispatch: Runs a command line.

    Raises:
        InputError: A config or input is missing, a stage did not make its outputs, or the grid
            makes different stages of one name.
    """
    if not stages:
        raise InputError("the pipeline has no stages; give a config: --config FILE")
    if not run.strip():
        raise InputError("run is blank: name the directory of the experiment")
    if scale is not None:
        if unknown := sorted(set(scale.grid) - set(grid or {})):
            _say(f"of the scale's grid this experiment has no {', '.join(unknown)}")
        run, grid = f"{run}_{scale.name}", scale.scaled_grid(grid or {})
    stages = expand_grid(stages, grid or {})
    if scale is not None:
        stages = {
            name: replace(stage, config=scale.scaled_configs(stage.config))
            for name, stage in stages.items()
        }
    for name, stage in stages.items():
        if (left := re.search(r"\{(\w+)\}", str(name))) is not None:
            raise InputError(
                f"the grid has no values for '{left[1]}', which stage {name} needs; a grid on the "
                "command line takes the place of the whole grid of the config"
            )
        if not re.fullmatch(r"\w[\w.+=,-]*", str(name)) or name.endswith(".previous"):
            raise InputError(
                f"a stage cannot be named '{name}': its name is a directory's, of letters, digits "
                "and _.+=,-"
            )
        for path in stage.config:
            # Before the first stage, as it may take days until the last.
            made_by = f"check 'config' of stage {name}, or whether this scale is for the pipeline"
            require_file(path, what="config file", made_by=made_by)
    _require_stages_of_inputs(Path(run), stages)
    for number, (name, stage) in enumerate(stages.items(), start=1):
        title = f"[{number}/{len(stages)}] {name}"

        def wait(title: str = title) -> None:
            _say(f"{title}: another process is at this stage; waits for it to end")

        if not Path(run).is_dir():
            # A mistake in the first stage leaves no directory behind.
            _state(Path(run), Path(run) / name, stage)
        # Under srun every task runs the pipeline: those after the first work with it at the stage.
        alone = exclusive(Path(run) / ".locks" / name, wait)
        first = rank_zero_only.rank == 0  # type: ignore[attr-defined]
        with alone if first else nullcontext():
            _run_stage(Path(run), name, stage, title, dispatch)
    _say(f"all {len(stages)} stages are complete; results are in {run}")


def _require_stages_of_inputs(run: Path, stages: dict[str, Stage]) -> None:
    """Refuses an input that no stage can make, before any stage has run.

    Raises:
        InputError: There is one.
    """
    for name, stage in stages.items():
        for option, path in stage.inputs.items():
            source = path.partition("/")[0]
            if "<" not in path and source not in (*stages, "..") and not (run / path).is_file():
                raise InputError(
                    f"stage {name} takes {option} from '{path}' in {run}, but no stage is named "
                    f"'{source}'; check the grid's values"
                )


def _run_stage(
    run: Path,
    name: str,
    stage: Stage,
    title: str,
    dispatch: Callable[[list[str]], None],
) -> None:
    """Runs a stage unless it is complete; moves aside what other settings made."""
    directory = run / name
    state = _state(run, directory, stage)
    status = _status(directory, state, stage.outputs)
    if status == "complete":
        _say(f"{title}: complete, skipped ({directory})")
        return
    if status == "changed":
        previous = directory.with_name(f"{name}.previous")
        of_previous = _status(previous, state, stage.outputs)
        aside = directory.with_name(f"{name}.aside.previous")
        shutil.rmtree(aside, ignore_errors=True)
        directory.rename(aside)
        if of_previous == "complete":
            previous.rename(directory)
            aside.rename(previous)
            _say(f"{title}: complete, its results before the last change fit ({directory})")
            return
        shutil.rmtree(previous, ignore_errors=True)
        aside.rename(previous)
        _say(f"{title}: its settings or inputs changed; the old results are in {previous}")
    _say(f"{title}: {'continues' if status == 'running' else 'starts'} ({stage.command})")
    write_json(directory / MARKER, {**state, "status": "running"})
    dispatch(_command_line(run, directory, stage))
    for output in stage.outputs:
        require_file(
            directory / output, what=f"output of stage {name}", made_by="the stage did not end"
        )
    write_json(directory / MARKER, {**state, "status": "complete"})


def expand_grid(stages: dict[str, Stage], grid: dict[str, list[Value]]) -> dict[str, Stage]:
    """Repeats stages for every combination of the grid's values.

    Args:
        stages: Stage by name, with ``{name}`` where a value goes.
        grid: Values by name.

    Returns:
        Stage by name: those of the first combination, in order, then those of the next; last the
        stages at the end whose names hold none of the grid's.

    Raises:
        InputError: Two stages of one name differ, or a name or a value list cannot be used.
    """
    if {"run", "stage"} & set(grid):
        raise InputError("a grid has names other than 'run' and 'stage'")
    for name, choices in grid.items():
        if not choices:
            raise InputError(f"'{name}' has no values in the grid; give some")
    stages = {str(name): stage for name, stage in stages.items()}  # YAML has numbers as names, too.
    expanded: dict[str, Stage] = {}
    repeated_names = [name for name in stages if _filled(name, dict.fromkeys(grid, "")) != name]
    last = list(stages)[list(stages).index(repeated_names[-1]) + 1 :] if repeated_names else []
    for combination in itertools.product(*grid.values()):
        values = dict(zip(grid, combination, strict=True))
        for name, stage in stages.items():
            filled = _filled(name, values)
            repeated = Stage(**_filled(vars(stage), values))
            if name not in last and expanded.setdefault(filled, repeated) != repeated:
                raise InputError(
                    f"the grid makes different stages named '{filled}': put the names that they "
                    "use into the stage's name"
                )
    return expanded | {name: stages[name] for name in last}


def _filled(value: Any, values: dict[str, Any]) -> Any:  # noqa: ANN401 - any YAML value
    """``value`` with ``{name}`` replaced in all its strings; a whole string by the value itself."""
    if isinstance(value, str):
        if value[:1] + value[-1:] == "{}" and value[1:-1] in values:
            return values[value[1:-1]]
        for name, replacement in values.items():
            value = value.replace(f"{{{name}}}", str(replacement))
        return value
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    if isinstance(value, dict):
        return {_filled(key, values): _filled(item, values) for key, item in value.items()}
    return value


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _state(run: Path, directory: Path, stage: Stage) -> dict[str, Any]:
    """What decides a stage's result, as hashes."""
    # What a stage writes is not what it reads.
    read = {name: value for name, value in stage.options.items() if name != "output"}
    description = {
        "command": _command_line(run, directory, stage),
        "configs": [sha256_of_file(path) for path in stage.config],
        "inputs": {
            **{
                name: _digest(run, f"{name} of stage {directory.name}", path)
                for name, path in stage.inputs.items()
            },
            **{path: sha256_of_content(run / path) for path in _named(run, directory.name, read)},
        },
        "package_version": package_version(),
    }
    # Another way to write the run's path, or a move of it, changes no result.
    anywhere = _command_line(Path("{run}"), Path("{run}") / directory.name, stage)
    decisive = json.dumps({**description, "command": anywhere}, sort_keys=True)
    return {"fingerprint": hashlib.sha256(decisive.encode()).hexdigest(), **description}


def _digest(run: Path, name: str, path: str) -> str | dict[str, str]:
    """Hash of an input, or of each file that a pattern with ``<name>`` stands for."""
    if "<" in path:
        matches = finished_files(run, re.sub(r"<\w+>", "*", path))
        return {str(match.relative_to(run)): sha256_of_content(match) for match in matches}
    return sha256_of_content(
        require_file(run / path, what=f"input {name}", made_by="an earlier stage makes it")
    )


def _named(run: Path, own: str, value: Any) -> Iterator[str]:  # noqa: ANN401 - any YAML value
    """Files that options of the stage ``own`` name, relative to ``run``, whatever made them."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _named(run, own, item)
    elif value == "{run}":
        for path in finished_files(run, "*/**/*.json"):
            relative = path.relative_to(run)
            if relative.parts[0] != own and relative.parts[1:] != (MARKER,):
                yield str(relative)
    elif isinstance(value, str) and value.startswith("{run}/"):
        relative = Path(value.removeprefix("{run}/"))
        if relative.parts[:1] != (own,) and (run / relative).is_file():
            yield str(relative)


def _status(
    directory: Path, state: dict[str, Any], outputs: list[str]
) -> Literal["new", "running", "complete", "changed"]:
    marker = directory / MARKER
    if not marker.is_file():
        # Without a marker nothing tells what made the files in there.
        return "changed" if directory.is_dir() and any(directory.iterdir()) else "new"
    saved = read_json(marker, what="stage marker", made_by=f"delete {directory} to start afresh")
    if not isinstance(saved, dict):
        raise InputError(f"{marker} is not a stage marker; delete {directory} to start afresh")
    if saved.get("fingerprint") != state["fingerprint"]:
        return "changed"
    done = saved.get("status") == "complete"
    return "complete" if done and all((directory / o).is_file() for o in outputs) else "running"


def _command_line(run: Path, directory: Path, stage: Stage) -> list[str]:
    words: list[str] = [stage.command]
    for path in stage.config:
        words += ["--config", path]
    if stage.command not in ("report", "table"):
        words.append(f"--trainer.default_root_dir={directory}")
    words += [f"--{name}={run / path}" for name, path in stage.inputs.items()]
    for name, value in stage.options.items():
        text = value if isinstance(value, str) else json.dumps(value)
        words.append(
            f"--{name}={text.replace('{run}', str(run)).replace('{stage}', str(directory))}"
        )
    return words
