"""The first weights of a new model: a bag of words, initialised from co-occurrence statistics.

A small ALBERT with random weights needs some million tokens before it predicts better than the frequencies of pieces
do. So a new model begins as a bag of words: its embeddings are word vectors counted from its training text, its
attention looks at near and similar tokens and passes them on, and its head answers with the pieces whose vectors are
close to the result.
"""

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.extmath import randomized_svd
from torch import Tensor
from transformers import PreTrainedModel

from albert_lsh.encoders import attention_modules

NEIGHBOURS = 4  # pieces counted on either side
AT_ONCE = 2**20  # tokens whose neighbours are counted
SMOOTHING = 0.75  # power of the counts of a neighbour, against rare ones (Levy et al. 2015)
WORDS = 4.0  # size of the word vectors, times that of ALBERT's first embeddings
LOOK = 0.55  # of queries and keys, times 1 / sqrt(width)
PASS_ON = 0.25  # share of the attended values that a layer adds to a token


def count_neighbours(ids: np.ndarray, vocabulary: int) -> sparse.csr_array:
    """How often two pieces stand within NEIGHBOURS places of each other: (vocabulary, vocabulary), symmetric.

    Neighbours across the border of two documents count too; they are few.
    """
    counts = sparse.csr_array((vocabulary, vocabulary), dtype=np.float64)
    for part in np.array_split(ids.astype(np.int32), len(ids) // AT_ONCE + 1):
        for distance in range(1, min(NEIGHBOURS, len(part) - 1) + 1):
            pairs = (part[:-distance], part[distance:])
            counts += sparse.coo_array((np.ones(len(pairs[0])), pairs), shape=counts.shape).tocsr()
    return (counts + counts.T).tocsr()


def word_vectors(counts: sparse.csr_array, width: int) -> np.ndarray:
    """A vector for every piece, (vocabulary, at most width); pieces with similar neighbours have similar vectors.

    The singular vectors of the positive pointwise mutual information, times the roots of the singular values (Levy,
    Goldberg and Dagan 2015, "Improving distributional similarity with lessons learned from word embeddings"). Zeros for
    a piece that is not in the text.
    """
    alone = np.asarray(counts.sum(axis=1))
    beside = alone**SMOOTHING / (alone**SMOOTHING).sum()
    information = counts.tocoo()
    row, column = information.coords
    information.data = np.log(np.maximum(information.data / (alone[row] * beside[column]), 1))
    left, values, _ = randomized_svd(information.tocsr(), min(width, len(alone) - 1), random_state=0)
    return left * np.sqrt(values)


@torch.no_grad()
def begin_as_bag_of_words(model: PreTrainedModel, ids: np.ndarray) -> None:
    """Initialise a new ALBERT as a bag of words; pieces that are not in the text `ids` keep random vectors.

    Positions are sinusoids (Vaswani et al. 2017, section 3.5); queries equal keys; values and outputs are a multiple of
    the identity (after Trockman and Kolter 2023, "Mimetic initialization of self-attention layers"; there their product
    begins near minus the identity). The head is the transpose of the projection from embeddings to hidden states.
    """
    size, width = model.config.initializer_range, model.config.hidden_size
    table = model.get_parameter("albert.embeddings.word_embeddings.weight")  # (vocabulary, embedding size)
    counts = count_neighbours(ids, len(table))
    vectors = torch.from_numpy(word_vectors(counts, table.shape[1])).to(table.dtype)
    known = torch.from_numpy(counts.sum(axis=1) > 0)
    table[known, : vectors.shape[1]] = of_size(vectors, WORDS * size)[known]
    share = torch.from_numpy(counts.sum(axis=1) + 1).log()
    model.get_parameter("predictions.bias").copy_(share - share.mean())

    positions = model.get_parameter("albert.embeddings.position_embeddings.weight")  # (positions, embedding size)
    length, dim = positions.shape
    angles = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(0, dim, 2) / dim)
    positions.copy_(of_size(torch.cat([angles.sin(), angles.cos()], dim=1), size))

    for module in attention_modules(model):
        module.get_parameter("query.weight").normal_(std=LOOK / width**0.5)
        module.get_parameter("key.weight").copy_(module.get_parameter("query.weight"))
        for name in ("value.weight", "dense.weight"):
            module.get_parameter(name).copy_(PASS_ON**0.5 * torch.eye(width))

    inwards = model.get_parameter("albert.encoder.embedding_hidden_mapping_in.weight")  # (width, embedding size)
    torch.nn.init.orthogonal_(inwards)
    model.get_parameter("predictions.dense.weight").copy_(inwards.T)


def of_size(vectors: Tensor, size: float) -> Tensor:
    """The vectors, scaled to a root mean square of `size`."""
    return vectors * (size / vectors.square().mean().sqrt())
