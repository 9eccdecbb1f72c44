"""A request ends at the first end inside a block, whatever the block held."""

import pytest

from support.toy_models import Scripted, judge, letters, make_decoder, make_row, run, tiny_llama

PROMPT = [5, 9, 2, 7]
K = 6


@pytest.fixture(scope="module")
def truth():
    return judge(tiny_llama(), PROMPT, 30)


def perfect(truth):
    return Scripted(lambda row, limit: truth[row.num_generated : row.num_generated + limit])


@pytest.mark.parametrize("offset", range(2 * K + 2))
def test_eos_at_every_offset_of_a_block_ends_there(truth, offset):
    eos = truth[offset]
    end = truth.index(eos) + 1
    row = make_row(PROMPT, 30, eos={eos})
    assert run(make_decoder(tiny_llama(), perfect(truth), K), row) == [truth[:end]]
    assert row.finish_reason == "stop"
    assert sum(item.emitted for item in row.rounds) == end == sum(chunk.num_tokens for chunk in row.chunks)


@pytest.mark.parametrize("offset", range(K + 1))
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_stop_string_is_found_at_its_first_end(truth, offset, size):
    stop = letters(truth[offset : offset + size])
    end = letters(truth).index(stop) + size
    row = make_row(PROMPT, 30, stop=(stop,))
    assert run(make_decoder(tiny_llama(), perfect(truth), K), row) == [truth[:end]]
    assert row.finish_reason == "stop"
    assert stop not in row.stop.text(row.generated)


@pytest.mark.parametrize("max_tokens", range(1, K + 4))
def test_never_more_than_max_tokens(truth, max_tokens):
    row = make_row(PROMPT, max_tokens)
    assert run(make_decoder(tiny_llama(), perfect(truth), K), row) == [truth[:max_tokens]]
    assert row.finish_reason == "length"
    assert all(item.num_proposed < max_tokens for item in row.rounds)


@pytest.mark.parametrize("offset", range(K))
def test_an_eos_that_the_target_rejects_does_not_end_anything(truth, offset):
    eos = next(token for token in range(64) if token not in truth)
    script = Scripted(lambda row, limit: [*truth[row.num_generated : row.num_generated + offset], eos, *[1] * limit])
    assert run(make_decoder(tiny_llama(), script, K), make_row(PROMPT, 30, eos={eos})) == [truth]


@pytest.mark.parametrize("left", range(1, K + 3))
def test_output_stops_at_the_context_limit(truth, left):
    decoder = make_decoder(tiny_llama(), perfect(truth), K, max_len=len(PROMPT) + left)
    assert run(decoder, make_row(PROMPT, left)) == [truth[:left]]
