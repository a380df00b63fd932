import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype_dagster.codebook import ArchetypeDecoder
from archetype_dagster.seeding import seeded_initialisation

STEPS = 12


def decoder(kind: str, *, hidden_size: int = 16) -> ArchetypeDecoder:
    with seeded_initialisation(0, kind):
        return ArchetypeDecoder(5, 3, hidden_size, kind).eval()


def states_and_codes(batch: int, num_codes: int = 4, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, STEPS, 5, generator=generator), 2 * torch.randn(num_codes, 3, generator=generator)


@settings(max_examples=30, deadline=None)
@given(
    last=st.integers(0, STEPS - 1),
    batch=st.integers(1, 9),
    hidden_size=st.sampled_from([8, 16, 20, 64]),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    seed=st.integers(0, 100),
)
def test_future_states_change_no_logit_of_the_causal_decoder_by_a_bit(
    last: int, batch: int, hidden_size: int, scale: float, seed: int
) -> None:
    model = decoder("lstm", hidden_size=hidden_size)
    states, codes = states_and_codes(batch, seed=seed)
    other = states.clone()
    other[:, last + 1 :] = scale * torch.randn(
        other[:, last + 1 :].shape, generator=torch.Generator().manual_seed(seed)
    )
    z_q = codes[:1].expand(batch, -1)
    chosen = torch.zeros(batch, dtype=torch.int64)
    for run in (
        lambda rows: model(rows, z_q),
        lambda rows: model.decode_logits(rows, codes, chosen),
        lambda rows: model.decode_logits(rows, codes).transpose(1, 2),
    ):
        assert torch.equal(run(states)[:, : last + 1], run(other)[:, : last + 1])


def test_the_bidirectional_decoder_reads_the_future_and_says_so() -> None:
    model = decoder("bilstm")
    states, codes = states_and_codes(3)
    other = states.clone()
    other[:, -1] += 1.0
    z_q = codes[:3]
    assert model.hindsight
    assert not decoder("lstm").hindsight
    assert not torch.equal(model(states, z_q)[:, 0], model(other, z_q)[:, 0])
    assert not torch.equal(model.decode_logits(states, codes)[:, :, 0], model.decode_logits(other, codes)[:, :, 0])


@pytest.mark.parametrize("kind", ["lstm", "bilstm"])
def test_decoding_all_codes_on_one_projection_equals_the_trained_forward_pass(kind: str) -> None:
    model = decoder(kind)
    states, codes = states_and_codes(6)
    every = model.decode_logits(states, codes)
    assert every.shape == (6, 4, STEPS, 3)
    for code in range(4):
        torch.testing.assert_close(every[:, code], model(states, codes[code].expand(6, -1)), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", ["lstm", "bilstm"])
@pytest.mark.parametrize("batch", [1, 2, 7, 33])
def test_what_runs_beside_a_horizon_does_not_change_its_logits(kind: str, batch: int) -> None:
    model = decoder(kind)
    states, codes = states_and_codes(40)
    every = model.decode_logits(states, codes)
    chosen = torch.arange(batch) % 4
    torch.testing.assert_close(
        model.decode_logits(states[:batch], codes, chosen), every[torch.arange(batch), chosen], rtol=0, atol=1e-6
    )


def test_steps_from_a_fresh_state_equal_the_whole_horizon() -> None:
    model = decoder("lstm")
    states, codes = states_and_codes(4)
    state = model.initial_state(4)
    logits = []
    with torch.no_grad():
        for t in range(STEPS):
            step, state = model.step(states[:, t], codes, state)
            logits.append(step)
        torch.testing.assert_close(torch.stack(logits, dim=1), model(states, codes), rtol=0, atol=1e-6)


def test_decoding_leaves_no_gradient_behind() -> None:
    states, codes = states_and_codes(2)
    assert not decoder("lstm").decode_logits(states, codes).requires_grad


def test_the_bidirectional_decoder_has_no_step() -> None:
    model = decoder("bilstm")
    states, codes = states_and_codes(2)
    with pytest.raises(ValueError, match="bilstm decoder reads the whole horizon"):
        model.step(states[:, 0], codes[:2], model.initial_state(2))


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="kind must be 'lstm' or 'bilstm', got kind='gru'"):
        ArchetypeDecoder(5, 3, 8, "gru")
