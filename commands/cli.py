"""The Lightning CLI as this project uses it, with its traps closed."""

import re
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import lightning as L
import torch
import yaml
from jsonargparse import Namespace
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException

from artifacts.checkpoints import AtomicCheckpointIO
from artifacts.errors import InputError
from artifacts.files import require_writable_directory
from artifacts.weights import read_checkpoint
from callbacks.config_writer import ConfigWriter
from callbacks.last_checkpoint import LastCheckpoint
from callbacks.peak_memory import PeakMemory
from commands.cluster import (
    cluster_environment,
    group_of_processes,
    refuse_hpc_checkpoints,
    require_one_run,
    was_requeued,
)
from commands.config_order import order_hint, require_order


class Parser(LightningArgumentParser):
    """A parser whose errors are one line, and that takes no abbreviated options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as the base class
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def parse_args(self, args: list[str], *rest: Any, **kwargs: Any) -> Any:  # type: ignore[override] # noqa: ANN401
        """Parses a command line, after a look at the config files that it names."""
        files = config_files(args)
        for path in files:
            check_config_file(path)
        require_order(files)
        # An option of a class within a class comes here a second time, as text made of its value.
        args = [re.sub(r"^(--[^=]+=|)None$", r"\1null", word) for word in args]
        try:
            return super().parse_args(args, *rest, **kwargs)
        except InputError as error:
            # Once: the parsers of subcommands come here too.
            hint = order_hint(files)
            raise InputError(str(error).removesuffix(hint) + hint) from error

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raises what went wrong as one line instead of printing 30 lines of usage."""
        raise InputError(one_line(str(ex or message))) from ex


def config_files(args: list[str]) -> list[Path]:
    """The config files that a command line names and that exist."""
    names = [word.removeprefix("--config=") for word in args if word.startswith("--config=")]
    names += [name for word, name in pairwise(args) if word == "--config"]
    return [path for path in map(Path, names) if path.is_file()]


def check_config_file(path: Path) -> None:
    """Refuses a file that is no YAML mapping, by its name, which the parser does not tell.

    Raises:
        InputError: It is not.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        reason = one_line(str(error)).replace(' in "<unicode string>"', "")
        raise InputError(f"{path} is not a YAML file: {reason}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is no config: it holds no options (name: value)")


# Lines of jsonargparse that tell how it searched, not what is wrong.
_NOISE = (
    "Does not validate against any of the Union subtypes",
    "Subtypes:",
    "Errors:",
    "Expected a <class 'NoneType'>",
    "Given value type:",
    "Given value:",
)


def one_line(message: str) -> str:
    """A parser's message of many lines as one, without what does not help the user."""
    message = message.split("Exception raised from ")[0]  # Frames of torch's own code follow.
    lines = (line.strip(" -") for line in message.splitlines())
    kept = [line for line in lines if line and not line.startswith(_NOISE)]
    return " ".join(dict.fromkeys(kept))


class AfterimageCLI(LightningCLI):
    """Runs one stage: any module, any data module, everything of it under one run directory.

    The run directory is ``trainer.default_root_dir``: config, TensorBoard events, artifacts, and
    ``checkpoints/last.ckpt``, which a stopped run continues from when ``ckpt_path`` is ``last``.

    Args:
        args: Command-line words after the program's name.
    """

    def __init__(self, args: list[str]) -> None:
        super().__init__(
            args=args,
            parser_class=Parser,
            parser_kwargs={"prog": "python main.py"},
            save_config_callback=ConfigWriter,
            save_config_kwargs={"save_to_log_dir": False},
            seed_everything_default=0,
            auto_configure_optimizers=False,
            # With it, a checkpoint would name a function to call when loaded: not from strangers.
            load_from_checkpoint_support=False,
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parses ``args``, whatever ``sys.argv`` holds."""
        assert isinstance(args, list)
        self.config = parser.parse_args(args)

    def _parse_ckpt_path(self) -> None:
        """Leaves the config alone: no checkpoint's hyper-parameters override what was asked."""

    def _set_seed(self) -> None:
        """Sets the seed.

        Raises:
            InputError: It is out of range.
        """
        try:
            super()._set_seed()
        except ValueError as error:
            raise InputError(f"seed_everything: {one_line(str(error))}") from error

    def before_instantiate_classes(self) -> None:
        """Refuses an unwritable run directory before any work is done."""
        # Evaluating a run must not replace the config that it was trained with.
        name = "config.yaml" if self.subcommand == "fit" else f"config_{self.subcommand}.yaml"
        self.save_config_kwargs["config_filename"] = name
        trainer = self._get(self.config, "trainer")
        root = trainer.get("default_root_dir")
        if root is not None and not str(root).strip():
            raise InputError("trainer.default_root_dir is blank")
        root = root or "."
        if trainer.get("check_val_every_n_epoch") == 0:
            raise InputError("trainer.check_val_every_n_epoch must be at least 1")
        if not trainer.get("fast_dev_run"):
            require_writable_directory(root)
        refuse_hpc_checkpoints(root)

    def instantiate_classes(self) -> None:
        """Builds module, data module and trainer; what a constructor refuses comes through."""
        try:
            super().instantiate_classes()
            require_one_run(self.trainer)
        except InputError:
            raise
        except (ValueError, RuntimeError, MemoryError, MisconfigurationException) as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, InputError):
                mended = _mendable(cause)
                cause = mended or cause.__cause__ or cause.__context__
            if cause is None and not isinstance(error, ValueError | MisconfigurationException):
                raise
            raise cause or InputError(one_line(str(error))) from error

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        """Finds ``ckpt_path: last`` in the run directory; loads no checkpoint by unpickling."""
        kwargs = super()._prepare_subcommand_kwargs(subcommand)
        if subcommand == "fit" and kwargs.get("ckpt_path") is None and was_requeued():
            kwargs["ckpt_path"] = "last"
        if kwargs.get("ckpt_path") == "last":
            root = Path(self.trainer.default_root_dir)
            last = root / "checkpoints" / "last.ckpt"
            if subcommand != "fit" and not last.is_file():
                raise InputError(
                    f"there is no checkpoint at {last} to {subcommand}: fit first, or give "
                    "another --trainer.default_root_dir or --ckpt_path"
                )
            kwargs["ckpt_path"] = str(last) if last.is_file() else None
            if subcommand == "fit" and last.is_file():
                self._require_same_settings(root)
        if kwargs.get("ckpt_path") is not None:
            path = kwargs["ckpt_path"]
            advice = "delete it to start afresh" if path.endswith("last.ckpt") else "give another"
            content = read_checkpoint(path, what="checkpoint of a run", made_by=advice)
            if not {"state_dict", "pytorch-lightning_version"} <= content.keys():
                raise InputError(f"{path} is not a checkpoint of a run; {advice}")
        if subcommand == "predict":
            # Callbacks write what is predicted, batch by batch: any number of images may come.
            kwargs["return_predictions"] = False
        if kwargs.get("weights_only") is None:
            kwargs["weights_only"] = True
        return kwargs

    def _require_same_settings(self, root: Path) -> None:
        """Refuses to continue a run that was started with another model, data or seed."""
        path = root / "config.yaml"
        if not path.is_file():
            return
        check_config_file(path)
        self._dump_config()
        before = _flat(yaml.safe_load(path.read_text(encoding="utf-8")))
        now = _flat(self.config_dump)
        for name in sorted(before.keys() | now.keys()):
            was, is_now = before.get(name), now.get(name)
            if name.startswith(("model.", "data.", "seed_everything")) and was != is_now:
                raise InputError(
                    f"{root} holds a run with {name}={was}, this one has {name}={is_now}; "
                    "choose another --trainer.default_root_dir, or delete the old run"
                )

    def _run_subcommand(self, subcommand: str) -> None:
        """Runs the stage; what the trainer refuses is the user's to mend."""
        try:
            with group_of_processes():
                super()._run_subcommand(subcommand)
        except (MemoryError, RuntimeError) as error:
            mended = _mendable(error)
            if mended is None:
                raise
            raise mended from error
        except SIGTERMException:
            # Lightning's own exit code for it is 0, as if the stage were finished.
            raise SystemExit(128 + signal.SIGTERM) from None
        except MisconfigurationException as error:
            raise InputError(one_line(str(error))) from error

        if not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._require_that_something_was_done(subcommand)

    def _require_that_something_was_done(self, subcommand: str) -> None:
        """Refuses to end well without a result, as under limits of 0 batches or epochs."""
        trainer = self.trainer
        if subcommand == "fit":
            done = trainer.global_step
        else:
            name = {"validate": "val"}.get(subcommand, subcommand)
            done = sum(getattr(trainer, f"num_{name}_batches"))
        if trainer.is_global_zero and done == 0:
            raise InputError(
                f"{subcommand} had nothing to do: the trainer's limits (trainer.max_epochs, "
                "trainer.max_steps, trainer.limit_…_batches) leave no batch"
            )

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:  # noqa: ANN401 - as the base class
        """Puts logs and checkpoints of a stage into its run directory unless told otherwise."""
        config: Namespace = self._get(self.config_init, "trainer")
        root = config.get("default_root_dir") or "."
        if config.get("logger") in (None, True):
            kwargs.setdefault("logger", TensorBoardLogger(root, name="", version=""))
        callbacks = config.get("callbacks") or []
        callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
        wants_checkpoints = config.get("enable_checkpointing") in (None, True)
        if wants_checkpoints and not any(isinstance(c, ModelCheckpoint) for c in callbacks):
            callbacks.append(LastCheckpoint())
        kwargs["callbacks"] = [*callbacks, PeakMemory()]
        plugins = config.get("plugins") or []
        plugins = plugins if isinstance(plugins, list) else [plugins]
        kwargs["plugins"] = [*plugins, AtomicCheckpointIO()]
        if not any(isinstance(plugin, ClusterEnvironment) for plugin in plugins):
            kwargs["plugins"].append(cluster_environment())
        strategy = getattr(self.model, "ddp_strategy", None)
        if strategy is not None and config.get("strategy") == "ddp":
            kwargs["strategy"] = strategy()
        return super().instantiate_trainer(**kwargs)


def _mendable(error: BaseException) -> InputError | None:
    """What an error of torch's means for the user, if anything."""
    text = one_line(str(error))
    if "loading state_dict" in text:
        return InputError(f"the checkpoint is of another model: {text[:300]}")
    out_of_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if out_of_memory or "allocate memory" in text or "Storage size calculation overflowed" in text:
        size = re.search(r"\d+ bytes", text)
        need = f" for {size.group()}" if size else ""
        return InputError(f"there is not enough memory{need}; lower the sizes in the config")
    return None


def _flat(config: Any, prefix: str = "") -> dict[str, Any]:  # noqa: ANN401 - any YAML value
    """Values of a nested mapping by dotted name, without the names that say nothing to a user."""
    if not isinstance(config, dict):
        return {prefix: config}
    flat: dict[str, Any] = {}
    for name, value in config.items():
        part = prefix if name == "init_args" else f"{prefix}.{name}".lstrip(".")
        flat |= _flat(value, part)
    return flat


def run_tool(function: Callable[..., None], args: list[str], **given: Any) -> None:  # noqa: ANN401
    """Runs a function with its parameters as options, from the command line or a config file.

    Args:
        function: Its docstring and annotations describe the options.
        args: Command-line words after the tool's name.
        given: Parameters of the function that are no options.

    Raises:
        InputError: An option is unknown, missing or of the wrong type.
    """
    parser = Parser(prog=f"python main.py {function.__name__}", description=function.__doc__)
    parser.add_argument("--config", action="config", help="A YAML file with options.")
    parser.add_function_arguments(function, skip=set(given))
    options = parser.instantiate_classes(parser.parse_args(args)).as_dict()
    options.pop("config", None)
    function(**options, **given)
