"""What lies in an inbox and waits is told to whoever asks."""

from daemon.status import PipelineStatus, StatusSnapshot
from daemon.status_table import render_status


def test_status_says_which_orders_and_options_wait_and_for_what():
    left = ("f.cancel: it waits until its file is taken", "g.options.yaml: it waits for a file g")
    pipeline = PipelineStatus("p", "e", left_files=left)
    text = render_status(StatusSnapshot(2.0, 1.0, (), (pipeline,)).to_json())
    assert [word for word in left if word not in text] == []
