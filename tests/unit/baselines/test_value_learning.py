from collections.abc import Callable

import numpy as np
import pytest
import torch

from archetype_dagster.baselines.chunks import cut_chunks
from archetype_dagster.baselines.hyper_agent import EpisodicMemory, blended
from archetype_dagster.baselines.learning_market import LearningMarket, WeightedRows
from archetype_dagster.baselines.router import routed_actions, routed_blocks
from archetype_dagster.baselines.value_learning import next_values, teacher_divergence
from archetype_dagster.baselines.value_networks import BlendNetwork, DuellingNetwork, OnlineAndTarget, PositionNetwork
from archetype_dagster.envs import reward_table
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.seeding import torch_generator

Split = Callable[..., MarketDataset]


def test_equal_weights_draw_every_row_once_an_epoch_and_zero_weights_none() -> None:
    rows = np.arange(100, 112)
    generator = torch_generator(0, "test")
    order = torch.randperm(12, generator=generator)
    equal = WeightedRows(rows, np.full(12, 0.3)).draw(order, generator)
    assert sorted(equal.tolist()) == rows.tolist()
    half = WeightedRows(rows, np.repeat([0.0, 2.0, 0.0], 4)).draw(order, generator)
    np.testing.assert_array_equal(np.bincount(half.numpy() - 100, minlength=12), np.repeat([0, 3, 0], 4))


def test_double_q_picks_with_one_net_and_values_with_the_other() -> None:
    online = torch.tensor([[[0.0, 1.0], [3.0, 2.0], [0.0, 0.1]]])
    target = torch.tensor([[[7.0, 5.0], [1.0, 9.0], [4.0, 6.0]]])
    assert next_values(online, target).tolist() == [[5.0, 1.0, 6.0]]


def test_teacher_divergence_is_zero_up_to_a_shift_and_has_its_closed_form() -> None:
    teacher = torch.tensor([[[0.0, 0.1, 0.0]] * 3])
    assert teacher_divergence(teacher + 5, teacher, 0.1).item() == pytest.approx(0, abs=1e-6)
    wanted = torch.softmax(teacher[0, 0] / 0.1, dim=0).double().numpy()
    expected = float((wanted * np.log(3 * wanted)).sum())
    assert teacher_divergence(torch.zeros(1, 3, 3), teacher, 0.1).item() == pytest.approx(expected, rel=1e-5)


def test_the_target_follows_at_its_rate_and_only_the_online_net_learns() -> None:
    pair = OnlineAndTarget(PositionNetwork(4, (8,), 3))
    before = [tensor.clone() for tensor in pair.target.parameters()]
    with torch.no_grad():
        for tensor in pair.online.parameters():
            tensor.add_(1.0)
    pair.follow(0.25)
    for slow, old in zip(pair.target.parameters(), before, strict=True):
        torch.testing.assert_close(slow, old + 0.25)
        assert not slow.requires_grad


def test_duelling_advantages_are_centred_and_depend_on_context_and_position_once_trained() -> None:
    network = DuellingNetwork(4, 2, (8, 8))
    inputs = torch.randn(5, 6, generator=torch_generator(0, "inputs"))
    same = inputs.clone()
    same[:, 4:] += 1
    # The modulation starts at zero, so an untrained network sees neither.
    torch.testing.assert_close(network(inputs), network(same))
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            if "modulation.weight" in name:
                tensor.fill_(1.0)
    values = network(inputs)
    assert values.shape == (5, 3, 3)
    assert (values - network(same)).abs().max() > 1e-5
    assert (values[:, 0] - values[:, 2]).abs().max() > 1e-5


def test_blending_starts_as_the_mean_and_weighs_per_held_action() -> None:
    weights = BlendNetwork(4, 2, (8,), 5)(torch.zeros(2, 6))
    torch.testing.assert_close(weights, torch.full((2, 3, 5), 0.2))
    values = torch.randn(2, 5, 3, 3, generator=torch_generator(0, "values"))
    torch.testing.assert_close(blended(weights, values), values.mean(dim=1))
    only = torch.zeros(2, 3, 5)
    only[:, 0, 4] = 1
    torch.testing.assert_close(blended(only, values)[:, 0], values[:, 4, 0])


def test_the_memory_forgets_the_oldest_and_recalls_the_nearest() -> None:
    memory = EpisodicMemory(4, 2)
    values = torch.arange(6.0).view(6, 1, 1).expand(6, 3, 3)
    memory.write(torch.arange(3), values[:3])
    assert not memory.full
    memory.write(torch.arange(3, 6), values[3:])
    assert memory.full
    assert memory.rows.tolist() == [4, 5, 2, 3]
    keys = torch.tensor([[4.0], [5.0], [2.0], [3.0]])
    recalled = memory.recall(torch.tensor([[2.0], [4.5]]), keys)
    near, far = 1 / 1e-3, 1 / (1 + 1e-3)
    assert recalled[0, 0, 0].item() == pytest.approx((2 * near + 3 * far) / (near + far))
    assert recalled[1, 2, 1].item() == pytest.approx(4.5)


def test_routed_blocks_are_the_discounted_sums_of_what_their_agents_do(learnable_split: Split) -> None:
    dataset = learnable_split(segments=(20, 15))
    table = reward_table(dataset)
    market = LearningMarket(dataset, dataset.states, table, cut_chunks(dataset, 5))
    decisions = np.random.default_rng(0).integers(0, 3, (2, len(dataset), 3)).astype(np.int8)
    pool = np.array([[0, 1, 0], [1, 0, 1]])
    blocks = routed_blocks(market, decisions, pool, bars=4, gamma=0.9)
    np.testing.assert_array_equal(blocks.starts, [*range(16), *range(20, 31)])
    for block, held, label in ((0, 0, 0), (7, 1, 1), (20, 2, 1)):
        action, total = held, 0.0
        for step in range(4):
            row = blocks.starts[block] + step
            taken = decisions[pool[label, held], row, action]
            total += 0.9**step * table.percent[row, action, taken]
            action = taken
        assert blocks.returns[block, held, label].item() == pytest.approx(total, rel=1e-6)
        assert blocks.ends[block, held, label] == action


def test_a_routed_agent_trades_its_block_and_hands_its_position_on(learnable_split: Split) -> None:
    dataset = learnable_split(segments=(11, 9))
    decisions = np.random.default_rng(1).integers(0, 3, (3, len(dataset), 3)).astype(np.int8)
    pool = np.array([[0, 1, 2], [2, 0, 1]])
    router = PositionNetwork(dataset.num_features, (8,), 2)
    labels = router(torch.from_numpy(dataset.states)).argmax(-1).numpy()
    actions = routed_actions(router, pool, decisions, dataset, bars=4, device=torch.device("cpu"))
    held, agent = 1, -1
    for row, offset in enumerate([*range(11), *range(9)]):
        if offset == 0:
            held = 1
        if offset % 4 == 0:
            agent = pool[labels[row, held], held]
        held = decisions[agent, row, held]
        assert actions[row] == held
