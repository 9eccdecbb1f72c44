from draftproof.sampling.noise import KeyedNoise, Purpose


def test_a_number_depends_on_its_key_and_not_on_the_batch():
    noise = KeyedNoise()
    alone = noise.uniform([(7, 0)], [5], Purpose.ACCEPT, 4)
    among = noise.uniform([(1, 0), (7, 0), (9, 3)], [0, 3, 8], Purpose.ACCEPT, 6)
    assert alone[0].tolist() == among[1, 2:].tolist()
    assert alone[0].tolist() != noise.uniform([(7, 0)], [5], Purpose.DRAFT, 4)[0].tolist()


def test_numbers_are_uniform_and_neighbours_are_uncorrelated():
    """Fixed keys: mean within 5 sigma of 1/2 and lag-1 correlation within 5 sigma of 0 (false alarm 1e-6)."""
    values = KeyedNoise().uniform([(seed, 0) for seed in range(200)], [0] * 200, Purpose.TARGET, 500)
    assert 0 <= values.min() and values.max() < 1
    assert abs(values.mean().item() - 0.5) < 5 * (1 / 12) ** 0.5 / 100_000**0.5
    for left, right in ((values[:, 1:], values[:, :-1]), (values[1:], values[:-1])):
        correlation = ((left - 0.5) * (right - 0.5)).mean().item() * 12
        assert abs(correlation) < 5 / 100_000**0.5
