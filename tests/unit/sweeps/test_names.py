import gymnasium as gym
import pytest
from stable_baselines3 import PPO

from archetype_dagster.policies.sb3 import SB3Adapter
from archetype_dagster.settings.policies import CleanRlSettings
from archetype_dagster.sweeps import DEFAULT_SPACE, cleanrl_settings, sb3_keywords


def corner(bound: str) -> dict[str, float]:
    return {name: getattr(definition, bound) for name, definition in DEFAULT_SPACE.items()}


@pytest.mark.parametrize("bound", ["low", "high"])
def test_every_default_name_is_accepted_by_the_trainers(bound: str) -> None:
    params = corner(bound)
    model = PPO("MlpPolicy", gym.make("CartPole-v1"), device="cpu", **sb3_keywords(params))
    taken = (model.learning_rate, model.gamma, model.clip_range(1.0), model.ent_coef)
    assert taken == tuple(params[name] for name in ("lr", "gamma", "clip_param", "entropy_coeff"))
    assert SB3Adapter("PPO", **sb3_keywords(params)).parameters["ent_coef"] == params["entropy_coeff"]
    settings = CleanRlSettings(**cleanrl_settings(params))
    taken = (settings.learning_rate, settings.gamma, settings.clip_range, settings.entropy_weight)
    assert taken == tuple(params[name] for name in ("lr", "gamma", "clip_param", "entropy_coeff"))


def test_a_name_of_the_trainer_s_own_stays_and_may_not_come_twice() -> None:
    assert sb3_keywords({"lr": 1e-3, "n_steps": 128}) == {"learning_rate": 1e-3, "n_steps": 128}
    with pytest.raises(ValueError, match="each argument must be given once"):
        sb3_keywords({"lr": 1e-3, "learning_rate": 1e-4})
