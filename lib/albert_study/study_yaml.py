"""YAML as studies are written in it: numbers and booleans of YAML 1.2, every key once, no more than a person writes.

`no` is a text here and `1:30` too, `010` is ten and `1e-5` a number. Anchors, aliases and merge keys (`<<`) are
allowed; with aliases expanded a file has at most LARGEST values.
"""

import re
from pathlib import Path
from typing import Any, NoReturn

import yaml

LARGEST = 20_000  # values, aliases written out
LONGEST = 200_000  # bytes
DEEPEST = 30  # mappings and lists inside each other
BOOLEANS = {"true": True, "false": False}
NUMBER = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
SCALARS = {  # the core schema of YAML 1.2: tag, pattern, what such a scalar may begin with
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (rf"{NUMBER}|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.0123456789"),
    "merge": (r"<<", "<"),
}
PREFIX = "tag:yaml.org,2002:"
TAGS = {PREFIX + name for name in (*SCALARS, "str", "map", "seq")}
TOO_DEEP = f"more than {DEEPEST} values inside each other"


def refuse(node: yaml.Node, what: str) -> NoReturn:
    raise yaml.constructor.ConstructorError(None, None, what, node.start_mark)


def scalar(node: yaml.Node) -> str:
    """The text of a node; refuses a list or a mapping that is tagged as a number or a boolean."""
    if not isinstance(node, yaml.ScalarNode):
        refuse(node, f"a list or mapping cannot be a {node.tag.removeprefix(PREFIX)}")
    return node.value


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with the rules above."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML's own)
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > DEEPEST:
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, TOO_DEEP, mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_int(self, node: yaml.ScalarNode) -> int:
        text = scalar(node)
        base = {"0x": 16, "0o": 8}.get(text[:2], 10)
        try:
            return int(text, base)
        except ValueError:
            refuse(node, f"{text!r} is no whole number")

    def construct_float(self, node: yaml.ScalarNode) -> float:
        try:
            return float(re.sub(r"\.(inf|nan)$", r"\1", scalar(node).lower()))
        except ValueError:
            refuse(node, f"{node.value!r} is no number")

    def construct_bool(self, node: yaml.ScalarNode) -> bool:
        if scalar(node).lower() not in BOOLEANS:
            refuse(node, f"{node.value!r} is neither true nor false")
        return BOOLEANS[node.value.lower()]


for _name, (_pattern, _first) in SCALARS.items():  # the first that fits counts: a whole number would fit "float" too
    Loader.add_implicit_resolver(PREFIX + _name, re.compile(rf"^(?:{_pattern})$"), list(_first))
for _name in ("int", "float", "bool"):
    Loader.add_constructor(PREFIX + _name, getattr(Loader, f"construct_{_name}"))


def check(node: yaml.Node, known: dict[int, tuple[int, int]], above: frozenset[int] = frozenset()) -> tuple[int, int]:
    """How many values a node stands for, aliases written out, and how deep they go; refuses what no study needs.

    known: both, of the nodes that were met already.
    """
    if id(node) in above:
        refuse(node, "an alias that contains itself")
    if id(node) in known:
        return known[id(node)]
    if node.tag not in TAGS:
        refuse(node, f"the tag {node.tag} is not allowed in a study")
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        check_keys(node)
        children = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    found = [check(child, known, above | {id(node)}) for child in children]
    size, depth = 1 + sum(size for size, _ in found), 1 + max((depth for _, depth in found), default=0)
    if size > LARGEST:
        refuse(node, f"more than {LARGEST:,} values, aliases written out")
    if depth > DEEPEST:
        refuse(node, TOO_DEEP)
    known[id(node)] = size, depth
    return size, depth


def check_keys(node: yaml.MappingNode) -> None:
    keys = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            refuse(key, "a key must be a text or a number")
        if (key.tag, key.value) in keys:
            refuse(key, f"the key {key.value!r} stands there twice")
        keys.add((key.tag, key.value))


def read_yaml(path: Path, name: str) -> tuple[Any, yaml.Node | None]:
    """What a file says, and the tree that it was read from, which knows the lines.

    Raises:
        yaml.YAMLError, ValueError: it cannot be read so; the message names the file by `name`, and the line.
    """
    with path.open("rb") as file:
        content = file.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise ValueError(f"it has more than {LONGEST:,} bytes")
    loader = Loader(content.decode("utf-8"))
    loader.name = name
    try:
        tree = loader.get_single_node()
        if tree is None:
            return None, None
        check(tree, {})
        return loader.construct_document(tree), tree
    finally:
        loader.dispose()


def line_of(tree: yaml.Node | None, place: tuple[int | str, ...]) -> int | None:
    """The line of the value at a place (keys and list indices), or of the nearest thing around it that has one."""
    line = tree.start_mark.line + 1 if tree else None
    for step in place:
        found: yaml.Node | None = None
        if isinstance(tree, yaml.MappingNode):
            pair = next((pair for pair in tree.value if pair[0].value == str(step)), None)
            line, found = (pair[0].start_mark.line + 1, pair[1]) if pair else (line, None)
        elif isinstance(tree, yaml.SequenceNode) and isinstance(step, int) and step < len(tree.value):
            found = tree.value[step]
            line = found.start_mark.line + 1
        if found is None:
            break
        tree = found
    return line
