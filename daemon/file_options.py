"""`STEM.options.yaml`: what one file asks for beside its pipeline's settings, a subset of them under the same keys."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError, create_model

from daemon.errors import Problem, SettingsError
from daemon.settings_checks import SectionView, check_pipeline
from daemon.settings_fields import Section, subsection
from daemon.settings_pipeline import PipelineSettings
from daemon.settings_report import Written, to_problems
from daemon.yaml_nodes import YamlEntry
from daemon.yaml_source import YamlSource, read_yaml

PIPELINE_ONLY = frozenset({"engine", "models", "strict_model", "on_done"})  # what whoever drops a file has no say in


def _options_model() -> type[Section]:
    """Return the section of all keys that a file may bring; those not given are the pipeline's, so defaults mean nothing."""
    fields: dict[str, Any] = {
        name: (field.annotation, field)
        for name, field in PipelineSettings.model_fields.items()
        if name not in PIPELINE_ONLY
    }
    return create_model("FileOptions", __base__=Section, __doc__="What one file asks for.", **fields)


FileOptions = _options_model()
EXPECTED = f"a mapping with some of the keys {', '.join(FileOptions.model_fields)}"


def read_options(path: Path, settings: PipelineSettings) -> PipelineSettings:
    """Return the pipeline's settings as the options at `path` change them.

    Raises:
        SettingsError: with all mistakes in them; they name the file without its folder.
    """
    source = read_yaml(path, EXPECTED)
    problems = [replace(problem, file=Path(path.name)) for problem in _problems(source)]
    if problems or source.root is None:
        raise SettingsError(sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0)))
    return PipelineSettings.from_record(_merged(PipelineSettings, settings.to_record(), source.root.plain), path)


def _problems(source: YamlSource) -> Sequence[Problem]:
    problems = list(source.problems)
    root = source.root
    if root is None or () in source.refused:
        return problems
    written = Written(source.file, (), YamlEntry(root.mark, root), source.refused)
    if not isinstance(root.plain, dict):
        return [*problems, written.problem((), root.shown, EXPECTED)]
    faulty: frozenset[tuple[str | int, ...]] = frozenset()
    try:
        FileOptions.read(root.plain, source.file.parent)
    except ValidationError as error:
        faulty = frozenset(mistake["loc"] for mistake in error.errors())
        problems += to_problems(error, FileOptions, written)
    return [*problems, *check_pipeline(SectionView(written, FileOptions, faulty))]


def _merged(kind: type[Section], base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values that are given; a section that is given empty changes nothing."""
    merged = dict(base)
    for key, value in given.items():
        below = subsection(kind.model_fields[key])
        merged[key] = value if below is None else _merged(below, merged[key], value or {})
    return merged
