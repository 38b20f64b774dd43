"""YAML for study files: numbers and booleans as in YAML 1.2, and no key twice.

`no` and `1:30` are texts, `010` is ten and `1e-5` a number. Anchors, aliases and merge keys (`<<`) are allowed.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import yaml

LARGEST = 20_000  # values of a file, aliases written out
NUMBER = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
SCALARS: dict[str, tuple[str, Callable[[str], Any]]] = {  # the first pattern that fits, and what makes a value of it
    "bool": ("true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    "null": ("~|null|Null|NULL|", lambda text: None),
    "int": ("[-+]?[0-9]+", int),
    "float": (NUMBER, float),
    "merge": ("<<", str),
}


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which reads YAML 1.1, with the scalars above."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own)


for _name, (_pattern, _make) in SCALARS.items():
    _tag = f"tag:yaml.org,2002:{_name}"
    Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), None)  # None: whatever it begins with
    Loader.add_constructor(_tag, partial(lambda make, loader, node: make(loader.construct_scalar(node)), _make))


def read_yaml(path: Path, name: str) -> tuple[Any, yaml.Node | None]:
    """The content of a file, and its tree of nodes, which knows the lines (see `line_of`).

    Raises:
        yaml.YAMLError, ValueError: it cannot be read; the message names `name` and, if there is one, the line.
    """
    loader = Loader(path.read_text(encoding="utf-8"))
    loader.name = name
    try:
        tree = loader.get_single_node()
        if tree is None:
            return None, None
        check_tree(tree)
        return loader.construct_document(tree), tree
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
    finally:
        loader.dispose()


def check_tree(tree: yaml.Node) -> None:
    """Refuse a key that is given twice, and a file that aliases make larger than LARGEST."""
    nodes, count = [tree], 0
    while nodes:
        node, count = nodes.pop(), count + 1
        if count > LARGEST:
            refuse(node, f"more than {LARGEST:,} values, aliases written out")
        if isinstance(node, yaml.MappingNode):
            seen: list[tuple[str, Any]] = []
            for key, value in node.value:
                if (key.tag, key.value) in seen:
                    refuse(key, f"the key {key.value!r} is given twice")
                seen.append((key.tag, key.value))
                nodes += [key, value]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value


def refuse(node: yaml.Node, what: str) -> NoReturn:
    raise yaml.constructor.ConstructorError(None, None, what, node.start_mark)


def line_of(tree: yaml.Node | None, place: tuple[int | str, ...]) -> int | None:
    """The line of the value at a place (keys and list indices), or of the nearest node around it."""
    line = tree.start_mark.line + 1 if tree else None
    for step in place:
        children: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        if isinstance(tree, yaml.MappingNode):
            children = {key.value: (key, value) for key, value in tree.value}
        elif isinstance(tree, yaml.SequenceNode):
            children = {str(number): (value, value) for number, value in enumerate(tree.value)}
        if str(step) not in children:
            break
        first, tree = children[str(step)]
        line = first.start_mark.line + 1
    return line
