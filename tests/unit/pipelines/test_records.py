"""Records travel in frames, and a request keeps everything but its key from one attempt to the next."""

from hypothesis import given
from hypothesis import strategies as st

from pipelines.channel import FrameSplitter, Peer, decode_records, encode_frame
from pipelines.core.request import Cancel, SamplingParams, StopSequence, TextRequest


@given(st.builds(SamplingParams, seed=st.integers(0, 2**63 - 1), stop=st.tuples(st.text())))
def test_a_record_comes_back_as_it_was(sampling):
    """Whatever the number of its fields: `Cancel` has one."""
    for record in (sampling, StopSequence(3, 1), Cancel((1, 2)), Cancel(())):
        splitter = FrameSplitter()
        [(_, payload)] = splitter.feed(encode_frame(Peer.TEXT, [record]))
        assert decode_records(payload) == [record]


@given(
    st.builds(
        TextRequest,
        sampling=st.builds(SamplingParams),
        messages=st.none(),
        text=st.text(),
        token_ids=st.none() | st.tuples(st.integers()),
        clamp_max_tokens=st.booleans(),
    ),
    st.integers(),
)
def test_another_attempt_differs_in_its_key_alone(text_request, key):
    other = text_request.with_key(key)
    assert other.key == key
    assert other.with_key(text_request.key) == text_request
