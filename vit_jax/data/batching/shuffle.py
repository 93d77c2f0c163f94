"""The random order of the examples of a large data set, index by index.

A list of the order would take too much memory, so a keyed permutation computes
the part that is asked for: a Feistel network with the round function of the
Simon cipher (IACR ePrint 2013/404) permutes the numbers of an even number of
bits, and an index that lands beyond the data set goes through again until it is
back inside (cycle walking; Black and Rogaway, "Ciphers with Arbitrary Finite
Domains").
"""

from collections.abc import Sequence

import numpy as np

_ROUNDS = 8  # With 4, neighbours stay near each other.
_MIN_BITS = 16  # In smaller blocks the permutations show patterns.


def shuffle_indices(
  indices: np.ndarray, max_index: int, seed: int
) -> np.ndarray:
  """Maps indices by a pseudo-random permutation of 0 ... `max_index` < 2**48.

  The result equals that of Grain's `index_shuffle` with 8 rounds, so that runs
  begun with Grain go on in the same order. That includes its one flaw: if
  `max_index` is a power of four, the last index is mapped like index 0. The
  indices and the result are uint64, and the seed has 32 bits.
  """
  bits = max((max_index - 1).bit_length(), _MIN_BITS)
  word_bits = (bits + 1) // 2
  keys = _round_keys(seed)
  shuffled = _encrypt(indices, word_bits, keys)
  beyond = np.flatnonzero(shuffled > max_index)
  while beyond.size:
    walked = _encrypt(shuffled[beyond], word_bits, keys)
    shuffled[beyond] = walked
    beyond = beyond[walked > max_index]
  return shuffled


def _encrypt(
  blocks: np.ndarray, word_bits: int, keys: Sequence[int]
) -> np.ndarray:
  """Puts blocks of two words each through one Feistel round per key."""
  mask = np.uint64((1 << word_bits) - 1)

  def rotate(words: np.ndarray, count: int) -> np.ndarray:
    # The bits that leave the word at its upper end are masked off below.
    return words << np.uint64(count) | words >> np.uint64(word_bits - count)

  left = blocks >> np.uint64(word_bits) & mask
  right = blocks & mask
  for key in keys:
    mixed = rotate(right, 1) & rotate(right, 8) ^ rotate(right, 2)
    left, right = right, (left ^ mixed ^ np.uint64(key)) & mask
  return left << np.uint64(word_bits) | right


def _round_keys(seed: int) -> list[int]:
  """Returns the words that C++'s `std::seed_seq{seed}` generates.

  [rand.util.seedseq] of the C++ standard defines them; x, p, q and r1 to r4
  are its names.
  """
  n = _ROUNDS
  word = (1 << 32) - 1
  p = (n - 3) // 2
  q = p + 3
  x = [0x8B8B8B8B] * n
  for k, added in enumerate((1, 1 + seed, *range(2, n))):
    r1 = 1664525 * _scramble(x[k] ^ x[(k + p) % n] ^ x[k - 1])
    r2 = r1 + added
    x[(k + p) % n] = (x[(k + p) % n] + r1) & word
    x[(k + q) % n] = (x[(k + q) % n] + r2) & word
    x[k] = r2 & word
  for k in range(n):
    r3 = 1566083941 * _scramble((x[k] + x[(k + p) % n] + x[k - 1]) & word)
    r4 = r3 - k
    x[(k + p) % n] ^= r3 & word
    x[(k + q) % n] ^= r4 & word
    x[k] = r4 & word
  return x


def _scramble(word: int) -> int:
  """The function T of the standard's `seed_seq::generate`."""
  return word ^ word >> 27
