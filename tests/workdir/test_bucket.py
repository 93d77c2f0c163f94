"""A bucket that is missing, forbidden, or in trouble."""

import secrets

import pytest
from etils import epath

from vit_jax.workdir import bucket


@pytest.fixture
def folder():
  return f"gs://bucket/{secrets.token_hex(4)}"


def test_a_good_bucket_is_left_as_it_was(store, folder):
  for _ in range(2):
    bucket.check(folder, writes=True)
  found = bucket.blob(folder).bucket.list_blobs(prefix=folder.split("/")[-1])
  assert list(found) == []
  store.requests.clear()
  bucket.check(folder, writes=False)
  assert {method for method, _ in store.requests} == {"GET"}


@pytest.mark.parametrize(
  "permission, is_asked",
  [
    ("storage.buckets.get", lambda m, p: p.startswith("/storage/v1/b/bucket?")),
    ("storage.objects.list", lambda m, p: "/b/bucket/o?" in p and m == "GET"),
    ("storage.objects.create", lambda m, p: m == "POST"),
    ("storage.objects.get", lambda m, p: p.startswith("/download")),
    ("storage.objects.delete", lambda m, p: m == "DELETE"),
  ],
)
def test_a_missing_permission_is_named(store, folder, permission, is_asked):
  store.fault = lambda *request: 403 if is_asked(*request) else None
  with pytest.raises(OSError, match=f"{permission} is .* bucket bucket; grant"):
    bucket.check(folder, writes=True)


def test_a_missing_bucket_is_named(store):
  for writes in (True, False):
    with pytest.raises(ValueError, match="there is no bucket nowhere"):
      bucket.check("gs://nowhere/run", writes=writes)


@pytest.mark.parametrize("fault", [503, "drop"])
def test_a_store_in_trouble_is_no_missing_permission(store, folder, fault):
  store.fault = lambda *_: fault
  with pytest.raises(OSError, match="cannot be used now: ") as caught:
    bucket.check(folder, writes=True)
  assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["gs://bucket", "gs:///run", "s3://bucket/x"])
def test_an_address_that_names_no_folder_is_refused(name):
  with pytest.raises(ValueError, match="must be a local folder or gs://"):
    bucket.check(name, writes=True)


def test_a_local_folder_is_not_asked(store, tmp_path):
  bucket.check(str(tmp_path / "run"), writes=True)
  assert store.requests == [] and list(tmp_path.iterdir()) == []
  (tmp_path / "run").touch()
  with pytest.raises(ValueError, match="--workdir=.*run is a file: name a fol"):
    bucket.check(str(tmp_path / "run"), writes=True)


def test_an_object_grows_by_what_is_sent(store, folder):
  path = epath.Path(folder) / "log"
  assert bucket.size(path) == 0
  bucket.append(path, b"one,")
  bucket.append(path, b"two,")
  assert bucket.size(path) == 8
  assert path.read_bytes() == b"one,two,"
  assert [p.name for p in epath.Path(folder).iterdir()] == ["log"]
