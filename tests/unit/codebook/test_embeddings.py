"""What stands between encoder and decoder: learnt codes, k-means centres or nothing."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from archetype_dagster.checkpoints import ResumePoint, load_tensors
from archetype_dagster.codebook import Codebook, initial_codes
from archetype_dagster.codebook.demonstrations import Demonstrations
from archetype_dagster.codebook.model import FACTS_FILE, WEIGHTS_FILE
from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning.trajectories import Trajectories
from archetype_dagster.settings import CodebookSettings
from archetype_dagster.types import NoProgress

Train = Callable[..., Codebook]
FilesOf = Callable[..., Mapping[str, bytes]]


@pytest.fixture
def embedded(settings: CodebookSettings) -> Callable[..., CodebookSettings]:
    def change(embedding: str, **others: object) -> CodebookSettings:
        return settings.model_copy(update={"embedding": embedding, **others})

    return change


class StopAfter(NoProgress):
    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        if completed == self.epochs:
            raise KeyboardInterrupt


def test_clustered_codes_are_the_k_means_centres_of_the_training_encodings(
    train: Train, embedded: Callable[..., CodebookSettings], market: Callable[[], MarketDataset], plan: Callable
) -> None:
    codebook, dataset = train(embedded("clustered")), market()
    trajectories: Trajectories = plan(dataset)
    learnt = Demonstrations.of(dataset, trajectories, validation_fraction=0.1, device=torch.device("cpu"))
    numbers = learnt.training
    states = dataset.horizons(trajectories.starts[numbers]).states
    encodings = codebook.encodings(states, trajectories.actions[numbers], learnt.rewards[numbers])
    expected = initial_codes(encodings, trajectories.actions[numbers], 4, method="kmeans", seed=0)
    np.testing.assert_allclose(codebook.codes, expected, rtol=1e-4, atol=1e-5)

    nearest = ((encodings[:, None] - codebook.codes) ** 2).sum(axis=2).argmin(axis=1)
    means = np.stack([encodings[nearest == code].mean(axis=0) for code in range(4)])
    np.testing.assert_allclose(codebook.codes, means, rtol=1e-3, atol=1e-3)
    assert codebook.usage.counts.tolist() == np.bincount(nearest, minlength=4).tolist()


def test_clustered_is_the_continuous_encoder_and_decoder_with_codes_added(
    train: Train, embedded: Callable[..., CodebookSettings]
) -> None:
    clustered, continuous = (train(embedded(name)) for name in ("clustered", "continuous"))
    for module in ("encoder", "decoder"):
        with_codes, without = (getattr(codebook, module).state_dict() for codebook in (clustered, continuous))
        assert {name: tensor.numpy().tobytes() for name, tensor in with_codes.items()} == {
            name: tensor.numpy().tobytes() for name, tensor in without.items()
        }
    *epochs, closing = clustered.history.to_dicts()
    assert epochs == continuous.history.to_dicts()
    assert not any(row["quantised"] for row in epochs)
    assert closing["quantised"]
    assert closing["epoch"] == len(epochs) == 7
    assert closing["reconstruction"] < 0.5 * epochs[0]["reconstruction"]
    assert closing["validation_accuracy"] > 0.8
    assert closing["used_codes"] == clustered.usage.used >= 3


@pytest.mark.parametrize("embedding", ["clustered", "continuous"])
@pytest.mark.parametrize("epochs_done", [2, 3])
def test_an_interrupted_run_goes_on_to_the_same_bytes(
    train: Train,
    files_of: FilesOf,
    embedded: Callable[..., CodebookSettings],
    tmp_path: Path,
    embedding: str,
    epochs_done: int,
) -> None:
    chosen = embedded(embedding, epochs=2)
    resume = ResumePoint(tmp_path / "resume.safetensors", "key")
    with pytest.raises(KeyboardInterrupt):
        train(chosen, resume=resume, progress=StopAfter(epochs_done))
    resumed = train(chosen, resume=resume)
    assert files_of(resumed, tmp_path / "resumed") == files_of(train(chosen), tmp_path / "whole")
    assert files_of(Codebook.load(tmp_path / "whole"), tmp_path / "again") == files_of(resumed, tmp_path / "third")


def sharp(embedding: str = "vq") -> Codebook:
    settings = CodebookSettings(embedding=embedding, num_codes=6, code_dim=3, hidden_size=16)
    codebook = Codebook.untrained(5, 8, settings, seed=1)
    codebook.decoder.head.weight.normal_(std=3.0, generator=torch.Generator().manual_seed(0))
    return codebook


def test_whatever_needs_codes_is_refused_where_there_are_none(tmp_path: Path) -> None:
    codebook = sharp("continuous")
    states = np.zeros((2, 8, 5), dtype=np.float32)
    flat = np.ones((2, 8), dtype=np.int8)
    for use in (
        lambda: codebook.codes,
        lambda: codebook.num_codes,
        lambda: codebook.usage,
        lambda: codebook.embed(np.array([0])),
        lambda: codebook.encode(states, flat, np.zeros((2, 8))),
        lambda: codebook.decode(states, np.array([0, 0])),
        lambda: codebook.decode_all_codes(states),
    ):
        with pytest.raises(ArtifactError, match="'continuous' has no codes"):
            use()
    codebook.save(tmp_path)
    assert not [name for name in load_tensors(tmp_path / WEIGHTS_FILE)[0] if name.startswith("quantizer")]
    assert Codebook.load(tmp_path).settings.embedding == "continuous"


@pytest.mark.parametrize("decoder", ["lstm", "bilstm"])
def test_embeddings_that_are_codes_decode_like_the_codes(decoder: str) -> None:
    settings = CodebookSettings(num_codes=6, code_dim=3, hidden_size=16, decoder=decoder, decoding="single_change")
    codebook = Codebook.untrained(5, 8, settings, seed=1)
    generator = torch.Generator().manual_seed(0)
    codebook.quantizer.codes.normal_(std=1.5, generator=generator)
    codebook.decoder.head.weight.normal_(std=3.0, generator=generator)
    states = np.random.default_rng(0).normal(size=(300, 8, 5)).astype(np.float32)
    own = np.broadcast_to(codebook.codes, (300, 6, 3)).copy()
    actions, logits = codebook.decode_embeddings(states, own)
    np.testing.assert_array_equal(actions, codebook.decode_all_codes(states))
    mixed = np.arange(300) % 6
    np.testing.assert_allclose(logits[np.arange(300), mixed], codebook.decode(states, mixed)[1], atol=1e-5)


def test_what_decodes_beside_an_embedding_changes_no_bit_of_its_logits() -> None:
    codebook, rng = sharp("continuous"), np.random.default_rng(0)
    states = rng.normal(size=(90, 8, 5)).astype(np.float32)
    embeddings = rng.normal(size=(90, 1, 3)).astype(np.float32)
    _, logits = codebook.decode_embeddings(states, embeddings)
    for count in (1, 7, 89):
        np.testing.assert_array_equal(codebook.decode_embeddings(states[:count], embeddings[:count])[1], logits[:count])
    changed = states.copy()
    changed[:, 5:] += 1.0
    np.testing.assert_array_equal(codebook.decode_embeddings(changed, embeddings)[1][:, :, :5], logits[:, :, :5])


@pytest.mark.parametrize("shape", [(2, 3), (3, 1, 3), (2, 0, 3), (2, 1, 4)])
def test_embeddings_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"embeddings must be float32 \(2, S, 3\)"):
        sharp().decode_embeddings(np.zeros((2, 8, 5), dtype=np.float32), np.zeros(shape, dtype=np.float32))


def test_a_codebook_that_names_no_embedding_is_one_of_vq_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    sharp().save(tmp_path)
    facts = json.loads((tmp_path / FACTS_FILE).read_text())
    assert "embedding" not in facts["settings"]
    assert Codebook.load(tmp_path).settings.embedding == "vq"
    facts["settings"]["embedding"] = "hashed"
    (tmp_path / FACTS_FILE).write_text(json.dumps(facts))
    with pytest.raises(ArtifactError, match="Input should be 'vq', 'clustered' or 'continuous'"):
        Codebook.load(tmp_path)
    facts["settings"]["embedding"] = "continuous"
    (tmp_path / FACTS_FILE).write_text(json.dumps(facts))
    with pytest.raises(ArtifactError, match="other shapes"):
        Codebook.load(tmp_path)
