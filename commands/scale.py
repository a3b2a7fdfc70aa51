"""A smaller form of an experiment: the same stages, other files."""

from dataclasses import dataclass, field

from artifacts.errors import InputError

# Any YAML value. With `Any`, the parser would make an object of what names a class.
Value = str | bool | int | float | list | dict | None  # type: ignore[type-arg]


@dataclass
class Scale:
    """What takes the place of an experiment's files and grid values.

    A pipeline states an experiment at its full size, with data, backbone and sizes in config files
    of their own. A scale names stand-ins for those files, so one file shrinks every experiment.

    Attributes:
        name: Appended to the run's directory.
        replace: Config file by the files that stand in for it; none removes it.
        grid: Values for a grid's names, where the experiment has such a name.
    """

    name: str
    replace: dict[str, list[str]] = field(default_factory=dict)
    grid: dict[str, list[Value]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the name.

        Raises:
            InputError: It cannot be a part of a directory's name.
        """
        if not self.name.isidentifier():
            raise InputError(f"scale.name must be a word, got '{self.name}'")

    def scaled_grid(self, grid: dict[str, list[Value]]) -> dict[str, list[Value]]:
        """The grid with this scale's values for the names that it has."""
        return {name: self.grid.get(name, values) for name, values in grid.items()}

    def scaled_configs(self, configs: list[str]) -> list[str]:
        """The config files with their stand-ins, each once."""
        replaced = [new for path in configs for new in self.replace.get(path, [path])]
        return list(dict.fromkeys(replaced))
