"""Joins the processes of one run on many hosts.

Every host runs the same command. On Cloud TPU, GKE with TPUs, SLURM and Open
MPI 4, JAX finds the other processes in the environment; elsewhere three flags
say where they are:

vit_jax train ... --coordinator=10.0.0.1:1234 --num_processes=2 \
  --process_id=0
"""

import asyncio
import contextlib
import faulthandler
import functools
import os
import threading
from collections.abc import Iterator
from typing import Any

from absl import flags

from vit_jax.runtime.printable import say

# With this line, --help of a command shows the flags that are defined here.
flags.disclaim_key_flags()

FLAG_NAMES = ("coordinator", "num_processes", "process_id")
TIMEOUT_SECONDS = 300  # Longest wait for the other processes to join.
_SILENCE_SECONDS = 60  # Heartbeat timeout for another process.
_MEET_SECONDS = 3600  # Longest wait of `meet`, as other processes may compile.
LEAVE_SECONDS = 10  # Longest wait for the other processes after an error.
# Errors of XLA that would occur again after a restart.
_LASTING = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNIMPLEMENTED")
_OPEN_MPI = """\
mpirun started {0} processes, and JAX does not see the others, as with Open \
MPI 5: let each give --coordinator=HOST:PORT, --num_processes={0} and \
--process_id=$OMPI_COMM_WORLD_RANK."""
_POD = """\
this is pod {} of a Kubernetes job, and no other process of the run is seen: \
off TPUs, JAX finds them with `pip install jax[k8s]` and a service account \
that may list pods and services and get jobs. Or give --coordinator, \
--num_processes and --process_id; --num_processes=1 if the job has one pod."""


def define_flags() -> None:
  """Defines the flags that `join_flags` reads."""
  says = "HOST:PORT of the first process, for a run on several hosts."
  flags.DEFINE_string("coordinator", None, says)
  says = (
    "Number of processes of the run; 1 runs alone, whatever the environment "
    "says."
  )
  flags.DEFINE_integer("num_processes", None, says)
  says = "Number of this process, counted from 0."
  flags.DEFINE_integer("process_id", None, says)


def join_flags() -> None:
  """Joins the other processes that the flags describe."""
  options = flags.FLAGS
  join(options.coordinator, options.num_processes, options.process_id)


def join(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
) -> None:
  """Joins the other processes of the run; a single process joins nothing.

  If a process dies, JAX ends the others within a minute and says which one
  died. Call this before any other function of JAX. If all arguments are None,
  the environment is consulted. Raises ValueError if some of the arguments are
  missing or do not fit together, or if the other processes cannot be found, and
  ConnectionError if joining fails otherwise. If they do not join in time, this
  process ends with a line and exit code 2.
  """
  process = (coordinator, num_processes, process_id)
  if num_processes != 1 and process != (None, None, None):
    _check(*process)
    _initialize(*process, cluster_detection_method="deactivate")
  elif num_processes == 1:
    if process_id:
      _check_number(process_id, num_processes)
  else:
    try:
      _initialize()
    except ValueError as error:
      # JAX says this if it finds no environment that it knows.
      if "coordinator_address should be defined" not in str(error):
        raise
      _check_alone()


def stay_alone() -> None:
  """Takes the CPU if the chips of this machine are part of a larger TPU slice.

  A single process that opened such chips would wait for those of the other
  hosts. Call this before JAX is imported. Kubernetes sets the variable that
  lists the hosts; a TPU VM has the list in its metadata, which only libtpu
  reads.
  """
  hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
  if len(hosts) > 1 and "JAX_PLATFORMS" not in os.environ:
    os.environ["JAX_PLATFORMS"] = "cpu"
    alone = f"This host is one of {len(hosts)} of a TPU slice"
    then = "and this command runs on one alone: it uses the CPU."
    say(f"{alone}, {then}")


def compile_together(function: Any) -> Any:
  """A jitted function whose first call waits until all processes compiled it.

  A process that finds the program in its cache would otherwise wait inside the
  program for those that still compile, and a CPU gives up after 30 s. Each
  shape of the arguments has a program, and a first call.
  """
  import jax

  if jax.process_count() == 1:
    return function
  compiled = set()

  @functools.wraps(function)
  def call(*arguments: Any) -> Any:
    """Calls the function, compiled by all processes for these shapes."""
    shapes = tuple(jax.numpy.shape(leaf) for leaf in jax.tree.leaves(arguments))
    if shapes not in compiled:
      # `meet` imports Orbax. If it did so after compiling, JAX would trace the
      # function again, so it is imported before.
      _barrier_function()
      function.lower(*arguments).compile()
      meet("compiled")
      compiled.add(shapes)
    return function(*arguments)

  same: Any = call
  same.lower = function.lower
  return same


def meet(name: str) -> None:
  """Waits for all processes, up to an hour, without running a program.

  The coordinator is asked, so a background thread may call this as well.
  """
  import jax

  if jax.process_count() > 1:
    met = _barrier_function()(
      name, operation_id="vit_jax", timeout=_MEET_SECONDS
    )
    asyncio.run(met)


def _barrier_function() -> Any:
  """Orbax's function that waits for all processes."""
  from orbax.checkpoint import v1

  return v1.multihost.sync_global_processes


@contextlib.contextmanager
def detect_lost_peers() -> Iterator[None]:
  """Raises ConnectionError if an exchange with other processes fails.

  JAX's errors that would come again, as for lack of memory, are raised as they
  are.
  """
  import jax

  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    text = str(error)
    if jax.process_count() == 1 or text.startswith(_LASTING):
      raise
    raise ConnectionError(
      f"an exchange with the other processes failed ({text.splitlines()[0]})."
    ) from error


def leave_soon(code: int) -> None:
  """Ends this process, which has failed, within 10 s.

  Otherwise JAX waits up to 5 minutes for the other processes to end, and they
  wait for this one; and Python waits for ever for a thread that hangs in a
  read.
  """
  timer = threading.Timer(LEAVE_SECONDS, os._exit, (code,))
  timer.daemon = True
  timer.start()


def _initialize(*arguments, **options) -> None:
  """Calls `jax.distributed.initialize`; ConnectionError if that fails.

  A ValueError of JAX about the arguments is raised as it is. If the processes
  do not meet in time, this one ends with a line.
  """
  import jax  # Data workers import the commands, and must not load JAX.

  place = f" at {arguments[0]}" if arguments else ""
  timer = threading.Timer(TIMEOUT_SECONDS, _give_up, (place,))
  timer.daemon = True
  timer.start()
  try:
    jax.distributed.initialize(
      *arguments,
      initialization_timeout=TIMEOUT_SECONDS + 30,
      heartbeat_timeout_seconds=_SILENCE_SECONDS,
      **options,
    )
  except ValueError:
    raise
  except Exception as error:  # JAX's own, or of its Kubernetes client.
    why = f"did not meet{place} ({str(error).splitlines()[0]})."
    raise ConnectionError(f"the processes of the run {why}") from error
  finally:
    timer.cancel()
  # Otherwise the stacks of all threads bury JAX's message about a dead process.
  faulthandler.disable()


def _give_up(place: str) -> None:
  """Ends this process with a line; JAX itself would abort it without one."""
  message = (
    f"error: not all processes of the run met{place} within "
    f"{TIMEOUT_SECONDS} s: start the same command on every host, and let them "
    "reach the first one's port.\n"
  )
  os.write(2, message.encode())  # sys.stderr may be held by a waiting thread.
  os._exit(2)


def _check_alone() -> None:
  """Raises ValueError if this is one of several processes.

  The pods of an indexed Kubernetes job and the processes that Open MPI 5 starts
  may not see each other. Each would then train alone, and all would write into
  one workdir.
  """
  count = os.environ.get("OMPI_COMM_WORLD_SIZE", "1")
  if count != "1":
    raise ValueError(_OPEN_MPI.format(count))
  index = os.environ.get("JOB_COMPLETION_INDEX")
  if "KUBERNETES_SERVICE_HOST" in os.environ and index is not None:
    raise ValueError(_POD.format(index))


def _check(
  coordinator: str | None, num_processes: int | None, process_id: int | None
) -> None:
  """Raises ValueError unless all three are given and valid."""
  if coordinator is None or num_processes is None or process_id is None:
    raise ValueError(
      f"--coordinator={coordinator}, --num_processes={num_processes} and "
      f"--process_id={process_id} go together: give all three, or none on "
      "Cloud TPU, SLURM or Open MPI 4, where JAX finds them."
    )
  host, _, port = coordinator.rpartition(":")
  if not host or not port.isdigit():
    needed = "must be the first process's HOST:PORT, as in 10.0.0.1:1234."
    raise ValueError(f"--coordinator={coordinator} {needed}")
  _check_number(process_id, num_processes)


def _check_number(process_id: int, num_processes: int) -> None:
  """Raises ValueError unless the process is one of so many."""
  if not 0 <= process_id < num_processes:
    needed = f"0 to {num_processes - 1}, with --num_processes={num_processes}."
    raise ValueError(f"--process_id={process_id} must be from {needed}")
