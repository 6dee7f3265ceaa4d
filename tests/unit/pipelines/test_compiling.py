"""Grammars are compiled beside the loop: what has none does not wait for them."""

import threading

from rig import token_request
from test_engine_loop import EOS, SumsToNine, fake_rig

from pipelines.core.request import Cancel


def request(key, grammar="sums", max_tokens=12):
    return token_request(key, range(100, 105), max_tokens, stop_token_ids=(EOS,), grammar=grammar)


class SlowMasks:
    """Makes a mask when it is told that it may."""

    def __init__(self):
        self.may = threading.Event()
        self.threads = set()

    def __call__(self, grammar):
        assert self.may.wait(30)
        self.threads.add(threading.current_thread().name)
        return SumsToNine(grammar)


def test_others_run_while_a_grammar_is_compiled():
    """The first grammar may have a tokenizer loaded, which takes seconds."""
    slow = SlowMasks()
    rig = fake_rig([[request(1), request(2, ""), request(3)]], new_mask=slow)
    while (2, 0) not in rig.source.finished():
        rig.engine.turn()
    assert rig.engine.num_compiling == 2
    slow.may.set()
    assert {key for key, _ in rig.run()} == {1, 2, 3}
    assert not slow.threads & {threading.main_thread().name}


def test_a_request_that_is_cancelled_while_it_waits_never_runs():
    slow = SlowMasks()
    rig = fake_rig([[request(1), request(2)], [Cancel((1,))]], new_mask=slow)
    rig.engine.turn()
    rig.engine.turn()
    assert rig.engine.num_compiling == 1
    slow.may.set()
    assert {key for key, _ in rig.run()} == {2}


def test_what_a_compiler_raises_is_said_of_its_request_alone():
    """A tokenizer that cannot be used for grammars, say: the engine goes on with the others, and is not loaded anew."""

    def broken(grammar):
        raise ValueError(f"{grammar}: no such tokens")

    rig = fake_rig([[request(1), request(2, "")]], new_mask=broken)
    finished = rig.run()
    assert finished[1, 0].failure == "it could not be compiled: ValueError: sums: no such tokens"
    assert (finished[2, 0].failure, len(finished[2, 0].token_ids)) == ("", 12)
