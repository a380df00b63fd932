import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from archetype_dagster.codebook import Codebook
from archetype_dagster.codebook.model import FACTS_FILE, HISTORY_FILE, WEIGHTS_FILE
from archetype_dagster.errors import ArtifactError
from archetype_dagster.settings import CodebookSettings

FEATURES = 5
HORIZON = 8
VARIANTS = [
    {"decoder": "lstm", "decoding": "argmax"},
    {"decoder": "lstm", "decoding": "single_change"},
    {"decoder": "bilstm", "decoding": "single_change", "pooling": "attention"},
]


def sharp_codebook(**changes: str) -> Codebook:
    """Untrained, but its codes decode to different actions."""
    settings = CodebookSettings(num_codes=6, code_dim=3, hidden_size=16, **changes)
    codebook = Codebook.untrained(FEATURES, HORIZON, settings, seed=1)
    generator = torch.Generator().manual_seed(0)
    codebook.quantizer.codes.normal_(std=1.5, generator=generator)
    codebook.decoder.head.weight.normal_(std=3.0, generator=generator)
    return codebook


def demonstrations(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(count, HORIZON, FEATURES)).astype(np.float32)
    return states, rng.integers(0, 3, (count, HORIZON)).astype(np.int8), rng.normal(0, 0.01, (count, HORIZON))


@pytest.mark.parametrize("changes", VARIANTS)
def test_decoding_all_codes_gives_the_actions_of_decoding_each(changes: dict[str, str]) -> None:
    codebook = sharp_codebook(**changes)
    states, _, _ = demonstrations(300)
    every = codebook.decode_all_codes(states)
    assert every.shape == (300, 6, HORIZON)
    assert every.dtype == np.int8
    assert len({every[:, code].tobytes() for code in range(6)}) == 6
    for code in range(6):
        actions, logits = codebook.decode(states, np.full(300, code))
        np.testing.assert_array_equal(every[:, code], actions)
        assert logits.shape == (300, HORIZON, 3)
    mixed = np.arange(7) % 6
    np.testing.assert_array_equal(codebook.decode(states[:7], mixed)[0], every[np.arange(7), mixed])


def test_chunks_do_not_show_in_what_is_encoded_or_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    codebook = sharp_codebook()
    states, actions, rewards = demonstrations(50)
    codes = codebook.encode(states, actions, rewards)
    every = codebook.decode_all_codes(states)
    single = codebook.decode(states, codes)[0]
    monkeypatch.setattr("archetype_dagster.codebook.model.ROWS_AT_ONCE", 17)
    np.testing.assert_array_equal(codebook.encode(states, actions, rewards), codes)
    np.testing.assert_array_equal(codebook.decode_all_codes(states), every)
    np.testing.assert_array_equal(codebook.decode(states, codes)[0], single)


def test_a_cut_horizon_decodes_like_the_start_of_the_whole_one() -> None:
    codebook = sharp_codebook()
    states, _, _ = demonstrations(20)
    codes = np.arange(20) % 6
    np.testing.assert_array_equal(codebook.decode(states[:, :5], codes)[0], codebook.decode(states, codes)[0][:, :5])


def test_encoding_finds_the_code_nearest_to_the_encoder_output() -> None:
    codebook = sharp_codebook()
    states, actions, rewards = demonstrations(40)
    z = codebook.encoder(torch.tensor(states), torch.tensor(actions).long(), torch.tensor(rewards).float()).numpy()
    codebook.quantizer.codes.copy_(torch.from_numpy(z[:6]))
    distances = ((z[:, None].astype(np.float64) - codebook.codes) ** 2).sum(axis=2)
    codes = codebook.encode(states, actions, rewards)
    np.testing.assert_array_equal(codes, distances.argmin(axis=1))
    assert codes[:6].tolist() == list(range(6))
    assert codes.dtype == np.int64


def test_a_frozen_codebook_does_not_move_while_a_selector_trains_on_it() -> None:
    codebook = sharp_codebook()
    states, _, _ = demonstrations(16)
    before = {name: tensor.numpy().tobytes() for name, tensor in codebook._modules.tensors().items()}
    selector = torch.nn.Linear(FEATURES, 6)
    optimizer = torch.optim.Adam([*selector.parameters(), *codebook.decoder.parameters(), codebook.quantizer.codes])
    rows = torch.from_numpy(states)
    for _ in range(100):
        mixture = torch.softmax(selector(rows[:, 0]), dim=1) @ codebook.quantizer.codes
        optimizer.zero_grad()
        codebook.decoder(rows, mixture).square().sum().backward()
        optimizer.step()
    assert {name: tensor.numpy().tobytes() for name, tensor in codebook._modules.tensors().items()} == before
    assert codebook.embed(np.array([4, 0])).tobytes() == codebook.codes[[4, 0]].tobytes()


@pytest.mark.parametrize("changes", VARIANTS)
def test_a_saved_codebook_answers_the_same_and_saves_the_same_bytes(
    changes: dict[str, str], tmp_path: Path, files_of: Callable[..., dict[str, bytes]]
) -> None:
    codebook = sharp_codebook(**changes)
    states, actions, rewards = demonstrations(30)
    files = files_of(codebook, tmp_path / "first")
    assert set(files) == {WEIGHTS_FILE, FACTS_FILE, HISTORY_FILE}
    state_of_chance = torch.random.get_rng_state()
    loaded = Codebook.load(tmp_path / "first")
    assert torch.equal(torch.random.get_rng_state(), state_of_chance)
    assert files_of(loaded, tmp_path / "second") == files
    assert loaded.settings == codebook.settings
    assert loaded.hindsight == (changes["decoder"] == "bilstm")
    np.testing.assert_array_equal(loaded.encode(states, actions, rewards), codebook.encode(states, actions, rewards))
    np.testing.assert_array_equal(loaded.decode_all_codes(states), codebook.decode_all_codes(states))
    assert not any(parameter.requires_grad for parameter in loaded.decoder.parameters())


@pytest.mark.parametrize("name", [WEIGHTS_FILE, FACTS_FILE, HISTORY_FILE])
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty"])
def test_a_missing_or_damaged_file_is_refused_by_name(name: str, damage: str, tmp_path: Path) -> None:
    sharp_codebook().save(tmp_path)
    path = tmp_path / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 if damage == "truncated" else 0])
    with pytest.raises(ArtifactError, match=name):
        Codebook.load(tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    sharp_codebook().save(tmp_path)
    facts = json.loads((tmp_path / FACTS_FILE).read_text())
    facts["settings"]["hidden_size"] = 32
    (tmp_path / FACTS_FILE).write_text(json.dumps(facts))
    with pytest.raises(ArtifactError, match=r"holds other shapes than codebook\.json describes"):
        Codebook.load(tmp_path)
    (tmp_path / FACTS_FILE).write_text(json.dumps({"settings": {"codes": 3}}))
    with pytest.raises(ArtifactError, match="does not describe a codebook"):
        Codebook.load(tmp_path)


class Trap:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return (open, (str(self.target), "w"))

    def __init__(self, target: Path) -> None:
        self.target = target


def test_a_pickle_in_place_of_the_weights_is_never_opened(tmp_path: Path) -> None:
    sharp_codebook().save(tmp_path)
    (tmp_path / WEIGHTS_FILE).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(ArtifactError, match=WEIGHTS_FILE):
        Codebook.load(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_inputs_of_another_shape_or_range_are_refused() -> None:
    codebook = sharp_codebook()
    states, actions, rewards = demonstrations(4)
    with pytest.raises(ValueError, match=r"states must be float32 \(B, steps, 5\), got torch.float64"):
        codebook.decode(states.astype(np.float64), np.zeros(4, dtype=np.int64))
    with pytest.raises(ValueError, match=r"codes must be \(B,\) in 0\.\.5"):
        codebook.decode(states, np.array([0, 1, 2, 6]))
    with pytest.raises(ValueError, match=r"codes must be \(B,\) in 0\.\.5"):
        codebook.embed(np.array([-1]))
    with pytest.raises(ValueError, match="one row each, got 4 and 3"):
        codebook.decode(states, np.zeros(3, dtype=np.int64))
    with pytest.raises(ValueError, match=r"must share \(B, h\)"):
        codebook.encode(states, actions[:, :-1], rewards)


def test_an_untrained_codebook_reports_no_usage() -> None:
    with pytest.raises(ValueError, match="an untrained codebook has no usage"):
        _ = sharp_codebook().usage
