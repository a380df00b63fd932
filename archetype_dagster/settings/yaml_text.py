"""Reading YAML that anybody may have written: plain values only, each key once, and no more than it looks like."""

from __future__ import annotations

from typing import Any, Final

import yaml

from archetype_dagster.errors import SettingsError

LARGEST: Final = 2**20
DEEPEST: Final = 50


def read_yaml(text: str, origin: str) -> Any:
    """The value in a YAML text: mappings, lists, strings, numbers, times, true, false and null.

    Args:
        text: the text.
        origin: what messages call it, e.g. `settings file x.yaml`.

    Raises:
        SettingsError: it is longer than 1 MiB, nested deeper than 50 levels, no YAML, names a key twice, or has an
            alias (`*name`), with which few lines can stand for any amount of memory, or a tag that makes objects.
    """
    if len(text) > LARGEST:
        raise SettingsError(f"{origin} must be shorter than {LARGEST} characters, got {len(text)}")
    try:
        return yaml.load(text, _PlainLoader)  # noqa: S506
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"{origin} is not valid YAML: {error}") from error


class _PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader without aliases, without bottomless nesting, and with each key of a mapping once."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not taken", self.current_event.start_mark)
        self._depth += 1
        if self._depth > DEEPEST:
            raise yaml.composer.ComposerError(
                None, None, f"nested deeper than {DEEPEST} levels", self.current_event.start_mark
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        if len(mapping) < len(node.value):
            seen: set[Any] = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key!r} is there twice", key_node.start_mark
                    )
                seen.add(key)
        return mapping
