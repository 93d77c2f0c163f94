"""Objects at a store that may be out of reach."""


class Store:
  """Objects by name; while there is an `error`, nothing can be written."""

  def __init__(self):
    self.objects: dict[str, bytes] = {}
    self.error: Exception | None = None
    self.attempts = 0


class Object:
  """As much of `epath.Path` as is needed, of an object or a folder."""

  def __init__(self, store, name="run"):
    self._store, self._path = store, name

  def __str__(self):
    return f"gs://bucket/{self._path}"

  def __truediv__(self, name):
    return Object(self._store, f"{self._path}/{name}")

  @property
  def name(self):
    return self._path.rpartition("/")[2]

  def with_name(self, name):
    return Object(self._store, f"{self._path.rpartition('/')[0]}/{name}")

  def mkdir(self, **_):
    pass

  def exists(self):
    return self._path in self._store.objects

  def read_bytes(self):
    return self._store.objects[self._path]

  def write_bytes(self, content):
    self._store.attempts += 1
    if self._store.error is not None:
      raise self._store.error
    self._store.objects[self._path] = content

  def replace(self, other):
    self._store.objects[other._path] = self._store.objects.pop(self._path)
