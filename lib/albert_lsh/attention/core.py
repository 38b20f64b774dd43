"""What an attention is: settings with types, a computation, its cost, and the sizes that a budget of keys gives it.

Each attention is a class; `ATTENTIONS` lists them. An object of the class is the attention with its settings, which are
checked once, when it is made: by `attend`, or when a model is loaded or switched. It has its own sizes, such as rounds
and clusters, or a budget: `share` of the pairs, or a number of `keys` for each query. A budget becomes sizes for each
sequence's own length (`sizes_for`).
"""

import math
import reprlib
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from albert_lsh.attention.compute import attend, attend_with_mean
from albert_lsh.attention.keys import ClusterKeys, Keys
from albert_lsh.attention.rows import clear_padding, count_tokens, token_mask
from albert_lsh.files import described, nearest

HIGHEST = 2**31 - 1  # of a whole number, where nothing else is said


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
    description: ClassVar[str] = ""  # one line, for people
    version: ClassVar[int] = 1  # of its method; kept with models and records, which another one would contradict
    defaults: ClassVar[dict[str, Any]]  # all settings

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls.defaults = {name: field.default for name, field in cls.model_fields.items()}

    @classmethod
    def make(cls, settings: dict[str, Any]) -> Self:
        """The attention with these settings; None stands for one that is not given.

        Raises:
            ValueError: a setting that it does not have, or a value that it cannot take.
        """
        try:
            return cls.model_validate({setting: value for setting, value in settings.items() if value is not None})
        except ValidationError as failed:
            raise ValueError(cls.explain(failed)) from failed

    @classmethod
    def explain(cls, failed: ValidationError) -> str:
        """What is wrong with settings, in one line: the setting, its value, and what was expected."""
        error = failed.errors()[0]
        if error["type"] == "extra_forbidden":
            setting = str(error["loc"][0])
            return f"attention {cls.name!r} has no setting {setting!r}; {nearest(setting, cls.model_fields)}"
        return f"{cls.name}: {described(error)}"

    @property
    def has_mean_key(self) -> bool:
        """Whether a query that does not see all keys sees one key more, their mean."""
        return getattr(self, "mean_key", False)

    def full_settings(self) -> dict[str, Any]:
        """All settings; None for those that follow from a budget."""
        return self.model_dump()

    def settings_for(self, n_tokens: int) -> dict[str, Any]:
        """The settings that follow from how many tokens a sequence has; it may be 0, a sequence that is all padding."""
        return {}

    def resolve(self, n_tokens: Tensor) -> Self:
        """The same with the settings of each sequence: one number where they are alike, else (batch,).

        n_tokens: (batch,).
        """
        counts = n_tokens.tolist()
        settings = {n: self.settings_for(n) for n in set(counts)}
        update: dict[str, Any] = {}
        for name in settings[counts[0]]:
            values = [settings[n][name] for n in counts]
            alike = len(set(values)) == 1
            update[name] = values[0] if alike else torch.tensor(values, device="cpu").to(n_tokens.device)
        return self.model_copy(update=update) if update else self

    def visible(self, padding_mask: Tensor | None) -> Tensor | None:
        """The mask that it computes with; None where it takes padding for tokens."""
        return padding_mask

    def attend(self, query, key, value, padding_mask, *, scaling, dropout=0.0, generator=None) -> Tensor:
        """The attention; rows of padding, and their gradients, are zero whatever stands there, even NaN."""
        padding_mask = self.visible(padding_mask)
        resolved = self.resolve(count_tokens(query, padding_mask))
        query, key, value = (clear_padding(x, padding_mask) for x in (query, key, value))
        options = {"scaling": scaling, "dropout": dropout, "generator": generator}
        return clear_padding(resolved.compute(query, key, value, padding_mask, **options), padding_mask)

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        """The output. Padding comes in as zeros; what comes out there is cleared."""
        raise NotImplementedError

    def pairs(self, query: Tensor, key: Tensor, padding_mask: Tensor | None, generator) -> Tensor:
        """How often each query meets each key: (batch, heads, length, length), integers."""
        return torch.ones(*query.shape[:3], key.shape[2], dtype=torch.long, device=query.device)

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: two products of head_dim numbers for each pair."""
        return 2 * length**2 * head_dim


class Budgeted(Attention):
    """An attention with sizes of its own, or with a budget, `share` or `keys`, that becomes sizes for each sequence."""

    name: ClassVar[str] = "budget"
    sizes: ClassVar[tuple[str, ...]] = ()  # settings that a budget takes the place of
    decided: ClassVar[tuple[str, ...]] = ()  # settings that a budget decides too, unless they are given
    usual_share: ClassVar[float | None] = None  # where neither a budget nor a size is given
    fewest: ClassVar[int] = 1  # keys that it chooses at least

    share: Share | None = None
    keys: Count | None = None

    @classmethod
    def make(cls, settings: dict[str, Any]) -> Self:
        present = {setting for setting, value in settings.items() if value is not None}
        if cls.usual_share and not present & {"share", "keys", *cls.sizes}:
            settings = {**settings, "share": cls.usual_share}
        return super().make(settings)

    @model_validator(mode="after")
    def check_budget(self) -> Self:
        if self.share is not None and self.keys is not None:
            raise ValueError(f"share={self.share} and keys={self.keys} cannot both be given")
        sizes = [f"{size}={getattr(self, size)}" for size in self.sizes if size in self.model_fields_set]
        if self.has_budget and sizes:
            raise ValueError(f"share or keys decides {', '.join(self.sizes)}; {sizes[0]} cannot be given too")
        return self

    @property
    def has_budget(self) -> bool:
        return self.share is not None or self.keys is not None

    def full_settings(self) -> dict[str, Any]:
        follow = {*self.sizes, *self.decided} - self.model_fields_set if self.has_budget else ()
        return self.model_dump() | dict.fromkeys(follow)

    def budget(self, n_tokens: int) -> int:
        """How many keys the budget gives each query of a sequence of so many tokens."""
        return min(int(self.keys or 0), n_tokens) if self.share is None else math.floor(self.share * n_tokens + 1e-9)

    def room(self, n_tokens: int, keys: int) -> int:
        """How many of `keys` are left for choosing, at least `fewest`, beside global tokens and the mean key."""
        return max(self.fewest, keys - min(getattr(self, "global_tokens", 0), n_tokens) - self.has_mean_key)

    def sizes_for(self, n_tokens: int, keys: int) -> dict[str, Any]:
        """The sizes with which a query of a sequence of so many tokens attends to `keys` keys, or the fewest it can.

        n_tokens may be 0, a sequence that is all padding.
        """
        raise NotImplementedError

    def settings_for(self, n_tokens: int) -> dict[str, Any]:
        return self.sizes_for(n_tokens, self.budget(n_tokens)) if self.has_budget else {}


def rounds_of(keys: int, smallest: int) -> tuple[int, int]:
    """A number of rounds, four if there are keys enough, and the size of their clusters, at least `smallest`."""
    rounds = min(4, keys // smallest)
    return rounds, max(smallest, keys // rounds)


class SparseAttention(Budgeted):
    """Softmax attention over the keys that `choose_keys` names.

    A subclass may have the setting `mean_key`: one key more for each query, the mean of all keys that it does not see,
    with the logarithm of their number added to its score (`compute.mean_key`).
    """

    def choose_keys(self, query, key, mask, scaling, generator) -> Keys | ClusterKeys:
        """The keys of each query. query, key: float32; mask: (batch, heads, length) bool, True for tokens."""
        raise NotImplementedError

    @torch.no_grad()
    def keys_for(self, query, key, padding_mask, generator, scaling: float | None = None) -> Keys | ClusterKeys:
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        with torch.autocast(query.device.type, enabled=False):
            return self.choose_keys(query.float(), key.float(), token_mask(query, padding_mask), scaling, generator)

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        """Gradients flow to the queries, to the keys and values seen, and through the mean key; the choice has none."""
        keys = self.keys_for(query, key, padding_mask, generator, scaling)
        options = {"scaling": scaling, "dropout": dropout}
        if self.has_mean_key:
            return attend_with_mean(query, key, value, keys, token_mask(query, padding_mask), **options)
        return attend(query, key, value, keys, **options)[0]

    def pairs(self, query, key, padding_mask, generator) -> Tensor:
        return self.keys_for(query, key, padding_mask, generator).count_pairs(query.shape[2])

    def mean_key_products(self, length: int, pairs: float) -> float:
        """Products of head_dim numbers for the mean key: adding up keys and values seen, and attending to the mean."""
        return (2 * length + 2 * pairs) * self.has_mean_key
