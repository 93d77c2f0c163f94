"""Which errors are damage, and what is said of them."""

import json

import pytest

from vit_jax.workdir.bucket import reason
from vit_jax.workdir.read_errors import is_damage


def _raised(function):
  try:
    function()
  except Exception as error:
    return error
  raise AssertionError


def _wrapped(error):
  """As Orbax wraps TensorStore's errors."""
  wrapper = Exception("Encountered error while reading array index: (slice(0")
  wrapper.__cause__ = error
  return wrapper


# Messages as TensorStore 0.1.86 words them, their paths left out.
CUT = 'OUT_OF_RANGE: Error reading "a/0.0" in OCDBT database: Requested byte r'
FLIPPED = 'DATA_LOSS: Error opening "zarr" driver: CRC-32C checksum verifi'
UNDECODED = 'FAILED_PRECONDITION: Error reading "a/0.0": Truncated Zstd-com'
MISSING = 'NOT_FOUND: Error opening "zarr" driver: Error reading "a/.zarray"'
UNPARSED = 'Error opening "zarr" driver: Error decoding b-tree node: End of'


@pytest.mark.parametrize(
  "error",
  [
    *map(ValueError, (CUT, FLIPPED, UNDECODED, MISSING, UNPARSED)),
    FileNotFoundError("Metadata file does not exist"),
    KeyError('Item "params" was not found in the checkpoint.'),
    _raised(lambda: json.loads('{"a')),
    _raised(lambda: b"\xff".decode()),
    RecursionError("maximum recursion depth exceeded"),
  ],
)
def test_damage(error):
  assert is_damage(error)
  assert is_damage(_wrapped(error))


@pytest.mark.parametrize(
  "error",
  [
    ValueError("PERMISSION_DENIED: Error reading x: HTTP response code: 403"),
    ValueError("UNAVAILABLE: Error reading x: HTTP response code: 503"),
    ValueError("DEADLINE_EXCEEDED: Error reading x"),
    ValueError("UNAUTHENTICATED: no token"),
    PermissionError(13, "Permission denied"),
    OSError(5, "Input/output error"),
    TimeoutError(),
    ConnectionResetError(),
    RuntimeError("Barrier timed out"),
  ],
)
def test_trouble(error):
  assert not is_damage(error)
  assert not is_damage(_wrapped(error))


def test_a_reason_is_one_line_of_the_cause():
  error = ValueError(f"{CUT} [tensorstore_spec='{{\n  many: 'lines'}}']")
  assert reason(_wrapped(error)) == CUT
  assert reason(KeyError('Item "params"')) == 'Item "params"'
  missing = FileNotFoundError(2, "No such file or directory", "a/b")
  assert reason(missing) == "[Errno 2] No such file or directory: 'a/b'"
  assert reason(TimeoutError()) == "TimeoutError"
  long = reason(ValueError("a" * 100 + "b" * 200))
  assert long.startswith("a") and long.endswith("b") and len(long) == 200
