"""Command line of Afterimage: stages as Lightning subcommands, and tools around them."""

import os
import signal
import sys
import warnings
from importlib import import_module

from artifacts.errors import InputError

# Threads that wait for work without spinning: a loaded machine slows down in proportion only, and
# an idle one loses nothing. OpenMP reads this when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _leave_signals_to_the_parent() -> None:
    """Signals of a scheduler are for the run, not for the workers that load its data."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_leave_signals_to_the_parent)

DESCRIPTION = """Afterimage: what does a trained vision model give away about its training images?

stages (LightningCLI), each with --config FILE, --help and --print_config:
  fit         train a probe, reconstruct its training vectors, …
  validate    evaluate on the validation data
  test        evaluate; compare an attack's result with the truth
  predict     apply; choose representatives of an attack's candidates

tools:
  pipeline    run the stages of a config in order, skip finished ones, resume
  report      write one self-contained HTML page about finished stages
  table       gather the numbers of many runs, averaged over seeds
  merge       make one file of what the parts of a sweep found

options:
  --debug     on an error, show the whole traceback
"""

# Each is a function of its name in a module of its name in commands.
TOOLS = ("pipeline", "report", "table", "merge")


def dispatch(args: list[str]) -> None:
    """Runs what the first word names."""
    command = args[0] if args else "--help"
    if command in ("-h", "--help"):
        sys.stdout.write(DESCRIPTION)
    elif command in TOOLS:
        from commands.cli import run_tool

        tool = getattr(import_module(f"commands.{command}"), command)
        given = {"dispatch": dispatch} if command == "pipeline" else {}
        run_tool(tool, args[1:], **given)
    elif command in ("fit", "validate", "test", "predict"):
        from commands.cli import AfterimageCLI

        # A run on several devices starts its other processes with these words.
        sys.argv = [__file__, *args]
        AfterimageCLI(args)
    else:
        raise InputError(f"unknown command '{command}'; try: python main.py --help")


def main(args: list[str] | None = None) -> int:
    """Runs a command line.

    Args:
        args: Words after the program's name; by default those of this process.

    Returns:
        The exit code: 0, or 1 after an error that one line on stderr explains.
    """
    args = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in args
    # Advice about workers and steps that does not apply to data held in memory.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*The number of training batches.*")
    warnings.filterwarnings("ignore", message=".*`srun` command is available.*")
    try:
        dispatch([word for word in args if word != "--debug"])
    except (InputError, OSError, UnicodeDecodeError) as error:
        if debug:
            raise
        message = " ".join(str(error).split()) or type(error).__name__
        sys.stderr.write(f"error: {message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
