"""Settings of `vit_jax inspect_data`.

Only the standard library is imported, as in the other folders' `settings.py`.
"""

import dataclasses

from vit_jax.data.settings import NormalizationSettings, TrainTransformSettings
from vit_jax.runtime import checks
from vit_jax.runtime.settings import Section, section, setting
from vit_jax.tasks.settings import DataSettings


@dataclasses.dataclass(frozen=True)
class InspectSettings(Section):
  """Settings of `vit_jax inspect_data`: keys of a training run."""

  image_size: tuple[int, int] = setting(
    (224, 224), "Height and width of the images in pixels.", must=checks.SIDES
  )
  channels: int = setting(3, "Channels of an image.", must=checks.BANDS)
  data: DataSettings = section(DataSettings)
  train_transform: TrainTransformSettings = section(TrainTransformSettings)
  normalization: NormalizationSettings = section(NormalizationSettings)

  def __post_init__(self):
    super().__post_init__()
    self.data.refuse_keys_of_batches("inspect_data")
