"""The script that times a new user's first successes."""

import argparse
import re

import pytest

from scripts.bench.first_success import JOBS, jobs_named


def test_jobs_are_named_in_any_case_with_those_that_they_go_on_from():
  assert jobs_named(",".join(JOBS)) == JOBS
  assert [*jobs_named("onnx, pairs")] == ["digits", "ONNX", "pairs"]
  assert [*jobs_named("predict,photographs")] == ["photographs", "predict"]
  message = re.escape(f"no job 'onnnx': the jobs are {', '.join(JOBS)}.")
  with pytest.raises(argparse.ArgumentTypeError, match=message):
    jobs_named("onnnx")
