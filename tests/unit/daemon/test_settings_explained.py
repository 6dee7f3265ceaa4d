"""The table of `gapless check --explain`."""

from daemon.settings import load_settings
from daemon.settings_daemon import DaemonSettings
from daemon.settings_engine import EngineSettings
from daemon.settings_explained import render_explained
from daemon.settings_fields import iterate_keys
from daemon.settings_pipeline import PipelineSettings


def test_each_key_of_each_section_has_a_row_with_its_value_and_class(tmp_path):
    """As many rows as there are keys, none without a class."""
    path = tmp_path / "gapless.yaml"
    path.write_text(
        "engines: {e: {model: {path: 'fake:'}}}\npipelines: {p: {engine: e}, q: {engine: e, priority: 7}}\n"
    )
    head, *rows = render_explained(load_settings([path])).splitlines()
    assert head.split("  ")[0] == "KEY"
    counts = [len(list(iterate_keys(kind))) for kind in (DaemonSettings, EngineSettings, PipelineSettings)]
    assert len(rows) == counts[0] + counts[1] + 2 * counts[2]
    words = {row.split()[0]: row.split(maxsplit=2)[1:] for row in rows}
    assert words["pipelines.q.priority"] == ["7", "with the next file claimed"]
    assert words["daemon.http.port"] == ["9400", "after a restart"]
    assert words["engines.e.schedule"] == ["async", "at once"]
    assert words["engines.e.kv_cache.block_size"] == ["64", "after a drain"]
    assert words["engines.e.batch.max_num_seqs"] == ["256", "at once up to what is allocated, beyond it after a drain"]
