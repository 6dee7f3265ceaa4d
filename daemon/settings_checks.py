"""The rules between keys: each looks at what is written, so that it also holds in a section that has other mistakes."""

import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from daemon.errors import Problem
from daemon.row_template import RowTemplate, TemplateMistakeError
from daemon.settings_fields import Section, find_field
from daemon.settings_report import KeyPath, Written, nearest
from daemon.yaml_nodes import describe, quote
from pipelines.config import Schedule

MAX_NAME_CHARS = 64
NAME_PATTERN = rf"[a-z0-9][a-z0-9_-]{{0,{MAX_NAME_CHARS - 1}}}"
NAME_TEXT = f"at most {MAX_NAME_CHARS} of a-z, 0-9, _ and -, the first a letter or a digit"
ASYNC_SLOTS = 2

SCHEDULE, SLOTS = ("schedule",), ("buffers", "slots")
MAX_NUM_SEQS = ("batch", "max_num_seqs")
MAX_NUM_BATCHED_TOKENS = ("batch", "max_num_batched_tokens")
BLOCK_SIZE = ("kv_cache", "block_size")
KV_MAX_TOKENS = ("kv_cache", "max_tokens")
MAX_CONTEXT = ("max_context",)
PER_SLOT, SHARE_POOL = ("cuda_graphs", "per_slot"), ("cuda_graphs", "share_pool")
ENGINE, MODELS, STRICT_MODEL, TEMPLATE = ("engine",), ("models",), ("strict_model",), ("template",)
HOST, TOKEN_FILE, INSECURE = ("http", "host"), ("http", "token_file"), ("http", "insecure")


@dataclass(frozen=True, slots=True)
class SectionView:
    """The values of a section, defaults included, of which some may be faulty."""

    written: Written
    kind: type[Section]
    faulty: frozenset[KeyPath]  # paths below the section that have a problem already

    def are_sound(self, *paths: KeyPath) -> bool:
        """Whether none of the values at `paths` has a problem of its own."""
        return not any(
            self.written.is_refused(path) or any(path[:length] in self.faulty for length in range(len(path) + 1))
            for path in paths
        )

    def get(self, path: KeyPath) -> Any:
        """Return the value at `path` as written, or its default."""
        node = self.written.find(path)
        if node:
            return node.plain
        field = find_field(self.kind, path)
        return field.default if field else None

    def problem(self, path: KeyPath, expected: str, hint: str = "") -> Problem:
        """Return a problem with the value at `path`."""
        node = self.written.find(path)
        return self.written.problem(path, node.shown if node else describe(self.get(path)), expected, hint)


def check_daemon(view: SectionView) -> Iterator[Problem]:
    """Yield what does not fit together in the daemon's section."""
    if not view.are_sound(HOST, TOKEN_FILE, INSECURE) or _is_loopback(view.get(HOST)):
        return
    if view.get(TOKEN_FILE) is None and not view.get(INSECURE):
        yield view.problem(
            HOST, "an address of this machine alone, such as 127.0.0.1", "else set token_file, or insecure: true"
        )


def check_engine(view: SectionView) -> Iterator[Problem]:
    """Yield what does not fit together in an engine's section."""
    if view.are_sound(SLOTS, SCHEDULE) and view.get(SCHEDULE) == Schedule.ASYNC and view.get(SLOTS) < ASYNC_SLOTS:
        yield view.problem(SLOTS, f"at least {ASYNC_SLOTS}, because schedule is async", "one slot needs schedule: sync")
    yield from _check_batch(view)
    if view.are_sound(PER_SLOT, SHARE_POOL) and not view.get(PER_SLOT) and not view.get(SHARE_POOL):
        yield view.problem(SHARE_POOL, "true, because per_slot is false, so that there is one set of graphs")
    if not view.are_sound(KV_MAX_TOKENS) or view.get(KV_MAX_TOKENS) is None:
        return
    block_size, max_tokens, max_context = view.get(BLOCK_SIZE), view.get(KV_MAX_TOKENS), view.get(MAX_CONTEXT)
    if view.are_sound(BLOCK_SIZE) and max_tokens < block_size:
        yield view.problem(KV_MAX_TOKENS, f"at least block_size ({block_size})")
    if view.are_sound(MAX_CONTEXT) and max_context is not None and max_context > max_tokens:
        yield view.problem(MAX_CONTEXT, f"at most kv_cache.max_tokens ({max_tokens})")


def _check_batch(view: SectionView) -> Iterator[Problem]:
    if not view.are_sound(MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS):
        return
    num_seqs, num_tokens = view.get(MAX_NUM_SEQS), view.get(MAX_NUM_BATCHED_TOKENS)
    if num_tokens >= num_seqs:
        return
    if view.written.find(MAX_NUM_BATCHED_TOKENS):
        yield view.problem(MAX_NUM_BATCHED_TOKENS, f"at least max_num_seqs ({num_seqs})")
    else:
        yield view.problem(MAX_NUM_SEQS, f"at most max_num_batched_tokens ({num_tokens})")


def check_pipeline(view: SectionView) -> Iterator[Problem]:
    """Yield what does not fit together in a pipeline's section."""
    if view.are_sound(STRICT_MODEL, MODELS) and view.get(STRICT_MODEL) and not view.get(MODELS):
        yield view.problem(STRICT_MODEL, "false, because models names none")
    if view.are_sound(TEMPLATE) and (template := view.get(TEMPLATE)) is not None:
        try:
            RowTemplate(template)
        except TemplateMistakeError as error:
            yield view.problem(TEMPLATE, "a Jinja template", str(error))


def check_engine_name(written: Written, engines: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem if a pipeline's engine is none of `engines`."""
    node = written.find(ENGINE)
    name = node.plain if node else None
    if isinstance(name, str) and name and name not in engines:
        expected = f"one of the engines: {', '.join(engines)}" if engines else "an engine, of which there is none"
        yield written.problem(ENGINE, describe(name), expected, nearest(name, engines))


def check_name(written: Written) -> Iterator[Problem]:
    """Yield what is wrong with the name of an engine or a pipeline, which becomes a folder's name and a metric's label."""
    name = written.prefix[-1]
    if not re.fullmatch(NAME_PATTERN, name):
        better = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")
        hint = f"did you mean {quote(better)}?" if 0 < len(better) <= MAX_NAME_CHARS else ""
        yield written.key_problem((), f"the name {quote(name)}", NAME_TEXT, hint)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
