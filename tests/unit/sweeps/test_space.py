import math

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype_dagster.sweeps import DEFAULT_SPACE, SearchSpaceDef

DOCUMENTED = {
    "uniform": SearchSpaceDef("uniform", 0.9, 0.99),
    "stepped": SearchSpaceDef("uniform", 0, 0.3, step=0.1),
    "log_uniform": SearchSpaceDef("log_uniform", 1e-5, 1e-3),
    "discrete": SearchSpaceDef("discrete", 0.1, 0.7, step=0.2),
    "int": SearchSpaceDef("int", 1, 10),
    "int_uniform": SearchSpaceDef("int_uniform", 2, 10, step=4),
    "log_int": SearchSpaceDef("int", 1, 1000, log=True),
    "categorical": SearchSpaceDef("categorical", choices=[512, 1024, None, "all", 0.5]),
    "choice": SearchSpaceDef("choice", choices=("lstm", "gru")),
}


def drawn(definition: SearchSpaceDef, seed: int) -> object:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return definition.suggest(study.ask(), "parameter")


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_every_documented_type_draws_what_it_defines(seed: int) -> None:
    values = {name: drawn(definition, seed) for name, definition in DOCUMENTED.items()}
    assert 0.9 <= values["uniform"] <= 0.99
    assert min(abs(values["stepped"] - allowed) for allowed in (0, 0.1, 0.2, 0.3)) < 1e-12
    assert 1e-5 <= values["log_uniform"] <= 1e-3
    assert min(abs(values["discrete"] - allowed) for allowed in (0.1, 0.3, 0.5, 0.7)) < 1e-12
    assert values["int"] in range(1, 11)
    assert values["int_uniform"] in (2, 6, 10)
    assert values["log_int"] in range(1, 1001)
    assert values["categorical"] in (512, 1024, None, "all", 0.5)
    assert values["choice"] in ("lstm", "gru")
    assert all(isinstance(values[name], int) for name in ("int", "int_uniform", "log_int"))


def test_a_logarithmic_range_gives_each_decade_the_same_share() -> None:
    values = [drawn(DOCUMENTED["log_uniform"], seed) for seed in range(200)]
    assert 0.35 < sum(value < 1e-4 for value in values) / 200 < 0.65


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"param_type": "gaussian", "low": 0, "high": 1}, r"param_type must be one of .*param_type='gaussian'"),
        ({"param_type": "uniform", "low": 1, "high": 1}, "low must be below high, got low=1 and high=1"),
        ({"param_type": "int", "low": 5, "high": 1}, "low must be below high, got low=5 and high=1"),
        ({"param_type": "uniform", "low": 1}, "needs low and high, got low=1 and high=None"),
        ({"param_type": "uniform", "low": math.nan, "high": 1}, "low must be finite, got low=nan"),
        ({"param_type": "uniform", "low": 0, "high": math.inf}, "high must be finite, got high=inf"),
        ({"param_type": "uniform", "low": "0", "high": 1}, "low must be a number, got low='0'"),
        ({"param_type": "int", "low": 0.5, "high": 2}, "low of int must be a whole number, got low=0.5"),
        ({"param_type": "log_uniform", "low": 0, "high": 1}, "low must be positive on a logarithmic scale, got low=0"),
        ({"param_type": "uniform", "low": -1, "high": 1, "log": True}, "low must be positive .* got low=-1"),
        ({"param_type": "log_uniform", "low": 1, "high": 2, "step": 0.5}, "has no step, got step=0.5"),
        ({"param_type": "discrete", "low": 0, "high": 1}, "discrete needs a step"),
        ({"param_type": "discrete", "low": 0, "high": 1, "step": 0.3}, "must be a multiple of step, got .*step=0.3"),
        ({"param_type": "int", "low": 0, "high": 5, "step": 2}, "must be a multiple of step"),
        ({"param_type": "int", "low": 0, "high": 5, "step": 0}, "step must be positive, got step=0"),
        ({"param_type": "uniform", "low": 0, "high": 1, "step": math.nan}, "step must be finite, got step=nan"),
        ({"param_type": "categorical"}, "at least one value, got choices=None"),
        ({"param_type": "categorical", "choices": []}, r"at least one value, got choices=\[\]"),
        ({"param_type": "choice", "choices": "abc"}, "must be a list .*got choices='abc'"),
        ({"param_type": "choice", "choices": [1.0, math.nan]}, "choices must be finite, got nan"),
        ({"param_type": "choice", "choices": ["a", "b", "a"]}, "choices must differ, got 'a' twice"),
        ({"param_type": "choice", "choices": [[64, 64]]}, r"text, numbers, truth values or None, got \[64, 64\]"),
        ({"param_type": "choice", "choices": [1, 2], "low": 0}, "takes choices alone"),
        ({"param_type": "uniform", "low": 0, "high": 1, "choices": [1]}, r"not choices, got choices=\[1\]"),
    ],
)
def test_a_definition_that_defines_nothing_is_refused_with_its_rule(arguments: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SearchSpaceDef(**arguments)


def test_long_and_short_forms_define_the_same_values() -> None:
    assert SearchSpaceDef("int", 1, 3).as_json() == SearchSpaceDef("int_uniform", 1, 3).as_json()
    assert SearchSpaceDef("log_uniform", 1, 3).as_json() == SearchSpaceDef("uniform", 1, 3, log=True).as_json()
    assert SearchSpaceDef("choice", choices=[1, 2]).as_json() == SearchSpaceDef("categorical", choices=(1, 2)).as_json()


def test_the_default_space_is_that_of_ppo() -> None:
    assert set(DEFAULT_SPACE) == {"lr", "gamma", "clip_param", "entropy_coeff"}
