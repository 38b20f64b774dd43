"""What an attention is: settings with types, a computation, its cost, and how it spends a budget of keys.

Each attention is a class; `ATTENTIONS` lists them. An object of the class is the attention with its settings, which are
checked once, when it is made. A budget is a setting: `share` of the pairs, or a number of `keys` for each query. The
attention resolves it for each sequence's own length.
"""

import difflib
import math
import reprlib
import warnings
from itertools import count
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from albert_lsh.attention.clusters import Clusters
from albert_lsh.attention.compute import attend, attend_with_mean
from albert_lsh.attention.convolution import add_convolution
from albert_lsh.attention.keys import Keys, clear_padding, count_tokens, token_mask

HIGHEST = 2**31 - 1  # of a whole number, where nothing else is said
LAST_WITH_ALL = "commit e85e234"  # of the repository: with all settings that left


def odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("must be odd")
    return value


Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=HIGHEST)]
CountOrZero = Annotated[int, Field(ge=0, le=HIGHEST)]
Size = Annotated[int, Field(ge=2, le=HIGHEST)]
OddCount = Annotated[Count, AfterValidator(odd)]


def check_whole(what: str, value: Any, lowest: int, highest: int = HIGHEST) -> None:
    """Raise ValueError unless the value is a whole number in that range."""
    if type(value) is not int or not lowest <= value <= highest:
        raise ValueError(f"{what}={reprlib.repr(value)} must be a whole number, {lowest} to {highest}")


class Attention(BaseModel):
    """An attention with its settings, the fields.

    Tensors query, key and value are (batch, heads, length, head_dim). After `resolve` a setting may also be a tensor
    (batch,), where sequences differ in it.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: ClassVar[str]
    about: ClassVar[str]  # one line, for people
    version: ClassVar[int] = 1  # of its method; kept with models and records, which another one would contradict
    defaults: ClassVar[dict[str, Any]]  # all settings
    left: ClassVar[dict[str, tuple[Any, ...]]] = {}  # settings that left, with the values that changed nothing
    open: ClassVar[tuple[str, ...]] = ()  # settings that a budget decides unless they are given; rounds and size first
    usual_share: ClassVar[float | None] = None  # where neither a budget nor a setting in `open` is given
    fewest: ClassVar[int] = 0  # keys that it can choose from a budget; 0: it has none

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls.defaults = {name: field.default for name, field in cls.model_fields.items()}

    @classmethod
    def make(cls, settings: dict[str, Any]) -> Self:
        """The attention with these settings; None stands for one that is not given.

        Settings of an old record or model become those of today, where that is the same attention.

        Raises:
            ValueError: a setting that it does not have, or that left, or a value that it cannot take.
        """
        for setting in cls.left.keys() & settings.keys():
            if settings[setting] not in cls.left[setting]:
                shown = f"{setting}={reprlib.repr(settings[setting])}"
                raise ValueError(f"{cls.name}: {shown} left the library; {LAST_WITH_ALL} still has it")
        values = {setting: x for setting, x in settings.items() if setting not in cls.left and x is not None}
        if cls.usual_share and not values.keys() & {"share", "keys", *cls.open}:
            values["share"] = cls.usual_share
        try:
            return cls.model_validate(values)
        except ValidationError as failed:
            raise ValueError(cls.explain(failed)) from failed

    @classmethod
    def explain(cls, failed: ValidationError) -> str:
        """What is wrong with settings, in our words: the setting, its value, and what was expected."""
        error, known = failed.errors()[0], list(cls.model_fields)
        setting = "".join(map(str, error["loc"][:1]))
        if error["type"] == "extra_forbidden":
            near = difflib.get_close_matches(setting, known, 1)
            hint = f"did you mean {near[0]!r}? It has" if near else "it has"
            return f"attention {cls.name!r} has no setting {setting!r}; {hint}: {', '.join(known) or 'none'}"
        expected = error["msg"].removeprefix("Value error, ").replace("Input should", "must", 1)
        return f"{cls.name}: " + (f"{setting}={reprlib.repr(error['input'])} {expected}" if setting else expected)

    @property
    def has_rest(self) -> bool:
        """Whether a query that does not see all keys sees one key more, their mean."""
        return getattr(self, "rest", False)

    def fixed(self, setting: str) -> int | None:
        """The value of a setting that was given, None if it is open."""
        return getattr(self, setting) if setting in self.model_fields_set else None

    def full_settings(self) -> dict[str, Any]:
        """All settings; None for those that follow from a budget."""
        return self.model_dump()

    def resolve(self, n_tokens: Tensor) -> Self:
        """The same with numbers in the place of a budget. n_tokens: (batch,)."""
        return self

    def visible(self, padding_mask: Tensor | None) -> Tensor | None:
        """The mask that it computes with; None where it takes padding for tokens."""
        return padding_mask

    @classmethod
    def attend(cls, query, key, value, padding_mask, *, scaling, dropout, generator, conv_weight=None, **settings):
        """The attention; rows of padding, and their gradients, are zero whatever stands there, even NaN.

        conv_weight: (heads, conv_kernel_size), where the settings have a convolution of the values.
        """
        made = cls.make(settings)
        padding_mask = made.visible(padding_mask)
        made = made.resolve(count_tokens(query, padding_mask))
        query, key, value = (clear_padding(x, padding_mask) for x in (query, key, value))
        more = {"scaling": scaling, "dropout": dropout, "generator": generator}
        out = made.compute(query, key, value, padding_mask, **more)
        out = add_convolution(out, value, getattr(made, "conv_kernel_size", None), conv_weight)
        return clear_padding(out, padding_mask)

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        """The output. Padding comes in as zeros; what comes out there is cleared."""
        raise NotImplementedError

    def pairs(self, query: Tensor, key: Tensor, padding_mask: Tensor | None, generator) -> Tensor:
        """How often each query meets each key: (batch, heads, length, length), integers."""
        return torch.ones(*query.shape[:3], key.shape[2], dtype=torch.long, device=query.device)

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: two products of head_dim numbers for each pair."""
        return 2 * length**2 * head_dim

    def spent(self, length: int, keys: int) -> int:
        """How many of a budget's `keys` are not for choosing: global tokens, and the rest."""
        return min(getattr(self, "global_tokens", 0), length) + self.has_rest

    def needed(self, length: int) -> int:
        """How many keys the settings that were given choose at least."""
        number = self.fixed(self.open[0]) if self.open else None
        return self.fewest * (number or 1)

    def divide(self, length: int, keys: int, room: int) -> dict[str, Any]:
        """The settings that were left open (others are not looked at), from the `room` that is left of so many keys.

        Here it is one setting, which counts what takes `fewest` keys each.
        """
        return {self.open[0]: room // self.fewest}

    def fit_budget(self, length: int, keys: int) -> tuple[dict[str, Any], int]:
        """Settings that spend so many keys of each query, in a sequence of `length` tokens, and how many these are.

        What was given is kept: where it does not fit, the budget grows to the fewest keys that hold it. All keys hold
        everything.
        """

        def fits(keys: int) -> bool:
            room = keys - self.spent(length, keys)
            return room >= self.fewest and (room >= self.needed(length) or keys >= length)

        keys = next(n for n in count(keys) if fits(n))
        values = {name: getattr(self, name) for name in self.model_fields_set - {"share", "keys"}}
        return self.divide(length, keys, keys - self.spent(length, keys)) | values, keys


def keys_of(length: int, share: float | None, keys: int | None) -> int:
    """How many keys a budget is in a sequence of `length` tokens."""
    return min(int(keys or 0), length) if share is None else math.floor(share * length + 1e-9)


class Budgeted(Attention):
    """An attention that takes `share` or `keys`, and resolves it for each sequence."""

    name: ClassVar[str] = "budget"

    share: Share | None = None
    keys: Count | None = None

    @model_validator(mode="after")
    def check_budget(self) -> Self:
        if self.share is not None and self.keys is not None:
            raise ValueError(f"share={self.share} and keys={self.keys} cannot both be given")
        if self.has_budget and len(sizes := self.open[:2]) == 2 and self.model_fields_set >= set(sizes):
            raise ValueError(f"a budget leaves {sizes[0]} or {sizes[1]} open; give one of them, or no budget")
        return self

    @property
    def has_budget(self) -> bool:
        return self.share is not None or self.keys is not None

    def full_settings(self) -> dict[str, Any]:
        return self.model_dump() | dict.fromkeys(set(self.open) - self.model_fields_set if self.has_budget else ())

    def resolve(self, n_tokens: Tensor) -> Self:
        if not self.has_budget:
            return self
        counts = n_tokens.tolist()
        fitted = {n: self.fit_or_warn(n) for n in set(counts)}
        columns = {name: [fitted[n][name] for n in counts] for name in fitted[counts[0]]}
        same = {name: values[0] for name, values in columns.items() if len(set(values)) == 1}
        differing = {name: torch.tensor(values, device="cpu") for name, values in columns.items() if name not in same}
        return self.model_copy(update=same | {name: x.to(n_tokens.device) for name, x in differing.items()})

    def fit_or_warn(self, length: int) -> dict[str, Any]:
        """`fit_budget`; a warning says so where a number of rounds, or a size, that was given does not fit."""
        keys = keys_of(length, self.share, self.keys)
        values, needed = self.fit_budget(length, keys)
        sizes = ", ".join(f"{name}={self.fixed(name)}" for name in self.open[:2] if self.fixed(name))
        if needed > keys and sizes:
            budget = f"keys={self.keys}" if self.share is None else f"share={self.share}"
            said = f"{budget} of length={length} does not hold {sizes}; {min(needed, length)} keys are seen"
            warnings.warn(said, stacklevel=2)
        return values


class InRounds(Attention):
    """How a budget becomes n_hashes rounds of clusters of a size."""

    size_name: ClassVar[str] = "cluster_size"
    smallest: ClassVar[int] = 1  # cluster that there may be
    clusters_seen: ClassVar[int] = 1  # by a query in a round
    fewest: ClassVar[int] = 1  # smallest * clusters_seen

    def needed(self, length: int) -> int:
        return self.clusters_seen * (self.fixed("n_hashes") or 1) * (self.fixed(self.size_name) or self.smallest)

    def divide(self, length: int, keys: int, room: int) -> dict[str, Any]:
        """Four rounds, if there is room for so many."""
        room //= self.clusters_seen
        if (size := self.fixed(self.size_name)) is not None:
            return {"n_hashes": max(1, room // size)}
        rounds = self.fixed("n_hashes") or min(4, room // self.smallest)
        return {"n_hashes": rounds, self.size_name: max(self.smallest, room // rounds)}


class ChoosesKeys(Budgeted):
    """Softmax attention over the keys that `choose_keys` names.

    A subclass may have the setting `rest`: one key more for each query, the mean of all keys that it does not see, with
    the logarithm of their number added to its score.
    """

    def choose_keys(self, query, key, mask, scaling, generator) -> Keys | Clusters:
        """The keys of each query. query, key: float32; mask: (batch, heads, length) bool, True for tokens."""
        raise NotImplementedError

    @torch.no_grad()
    def keys_for(self, query, key, padding_mask, generator, scaling: float | None = None) -> Keys | Clusters:
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        with torch.autocast(query.device.type, enabled=False):
            return self.choose_keys(query.float(), key.float(), token_mask(query, padding_mask), scaling, generator)

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        """Gradients flow to the queries, to the keys and values seen, and through the rest; the choice has none."""
        keys = self.keys_for(query, key, padding_mask, generator, scaling)
        options = {"scaling": scaling, "dropout": dropout}
        if self.has_rest:
            return attend_with_mean(query, key, value, keys, token_mask(query, padding_mask), **options)
        return attend(query, key, value, keys, **options)[0]

    def pairs(self, query, key, padding_mask, generator) -> Tensor:
        return self.keys_for(query, key, padding_mask, generator).count_pairs(query.shape[2])

    def rest_products(self, length: int, pairs: float) -> float:
        """Products of head_dim numbers for the rest: adding up keys and values seen, and attending to their mean."""
        return (2 * length + 4 * pairs) * self.has_rest
