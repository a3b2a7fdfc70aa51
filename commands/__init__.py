"""Subcommands of ``main.py`` that are not trainings."""
