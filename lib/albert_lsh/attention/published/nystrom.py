"""Nyström attention (Xiong et al. 2021, "Nyströmformer", equations 12 to 16): all keys, through a few landmarks.

    softmax(Q K~^T) pinv(softmax(Q~ K~^T)) softmax(Q~ K^T) V

Q~ and K~ are the means of `num_landmarks` segments of the sequence. The pseudo-inverse is found by iteration. Cost and
memory are linear in the length. Padding is in no segment. With `conv_kernel_size` a depth-wise convolution of the
values is added (`convolution`). Weights are never dropped out, as in the authors' code (mlpen/Nystromformer).

Ours: a sequence of at most `num_landmarks` tokens has softmax attention itself (theirs: of exactly so many), landmarks
are means of tokens alone, and the iteration begins for each matrix by itself, so that no other sequence of a batch
changes an output. docs/attentions.md has what else differs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from albert_lsh.attention.core import Budgeted, Count, OddCount
from albert_lsh.attention.published.convolution import Convolved
from albert_lsh.attention.rows import MASKED, count_tokens, largest, means_of_groups, per_sequence, token_mask
from albert_lsh.attention.softmax import Softmax


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Moore-Penrose inverse of (..., n, n) by a third-order iteration (equation 11 of the paper).

    Begins with A^T / (|A|_1 |A|_inf) as for a matrix whose rows add up to one.
    """
    identity = torch.eye(matrix.shape[-1], device=matrix.device, dtype=matrix.dtype)
    inverse = matrix.transpose(-1, -2) / matrix.sum(-2).amax(-1)[..., None, None].clamp(min=1e-12)
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = 0.25 * inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product)))
    return inverse


class Nystrom(Convolved, Budgeted):
    name = "nystrom"
    description = "Nyströmformer: all keys, through a few landmarks"
    sizes = ("num_landmarks",)
    fewest = 2  # keys for a landmark: a query meets it, and it meets a key

    num_landmarks: Count = 64
    pinv_iterations: Count = 6
    conv_kernel_size: OddCount | None = None

    def sizes_for(self, n_tokens: int, keys: int) -> dict[str, int]:
        return {"num_landmarks": max(1, keys // self.fewest)}

    def compute(self, query, key, value, padding_mask, *, scaling, dropout, generator) -> Tensor:
        """Landmarks and pseudo-inverse in float32. dropout is not used."""
        n_tokens = count_tokens(query, padding_mask)
        most = largest(self.num_landmarks)
        few = (n_tokens <= self.num_landmarks)[:, None, None, None]
        if few.any():
            exact = Softmax().compute(query, key, value, padding_mask, scaling=scaling, dropout=0.0)
            if few.all():
                return exact
        mask = token_mask(query, padding_mask)
        number = per_sequence(self.num_landmarks, 3)
        segment = (mask.cumsum(-1) - 1) * number // n_tokens[:, None, None].clamp(min=1)
        segment = segment.clamp(max=most).masked_fill(~mask, most)
        mean_query, mean_key = (means_of_groups(rows.float(), segment, most) for rows in (query, key))
        unused = torch.arange(most, device=query.device)[None, None, None] >= per_sequence(self.num_landmarks, 4)
        with torch.autocast(query.device.type, enabled=False):
            to_landmarks = mean_key.transpose(-1, -2) * scaling
            first = (query.float() @ to_landmarks).masked_fill(unused, MASKED).softmax(-1)
            middle = (mean_query @ to_landmarks).masked_fill(unused, MASKED).softmax(-1)
            # Unused landmarks are zero rows. Few tokens leave empty segments, whose matrix has no inverse.
            middle = middle.masked_fill(unused.transpose(-1, -2) | few, 0)
            seen = None if padding_mask is None else padding_mask[:, None, None]
            last = F.scaled_dot_product_attention(mean_query, key.float(), value.float(), attn_mask=seen, scale=scaling)
            out = first @ (pseudo_inverse(middle, self.pinv_iterations) @ last)
        return torch.where(few, exact, out.to(query.dtype)) if few.any() else out.to(query.dtype)

    def cost(self, length: int, head_dim: int) -> float:
        """Multiply-adds of one head: three products, the pseudo-inverse and the convolution."""
        if length <= self.num_landmarks:
            return super().cost(length, head_dim)
        landmarks = self.num_landmarks
        products = 4 * length * landmarks + 2 * landmarks**2 + length * (self.conv_kernel_size or 0)
        return products * head_dim + 4 * self.pinv_iterations * landmarks**3
