"""What a part of a model may be."""

import pytest

from vit_jax.models.part import Part


def test_an_unknown_place_is_refused():
  with pytest.raises(ValueError, match="place='middle' of the part 'x' is unk"):
    Part("x", "middle")
