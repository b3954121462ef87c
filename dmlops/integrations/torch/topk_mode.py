"""`stable_topk`: a context under which ``torch.topk`` is `dmlops.top_k`.

It is a mode of torch, which replaces calls by the operator ``torch.ops.dmlops.top_k``: compiled graphs
keep that, and so do exported programs. torch leaves its modes in backward passes and in the bodies of some
operators, and other threads have modes of their own. For those, the context also puts dmlops' kernels in the
place of torch's.
"""

import threading
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, handle_torch_function

from dmlops import top_k


class StableTopK(TorchFunctionMode):  # type: ignore[misc]
    """The context manager that `stable_topk` returns."""

    def __enter__(self) -> "StableTopK":
        if not torch.compiler.is_compiling():
            _kernels.hold(self)
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if not torch.compiler.is_compiling():
            _kernels.release(self)

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        """Run a function of torch, and `dmlops.top_k` in the place of topk."""
        if func is torch.topk or func is torch.Tensor.topk:
            named = {_OTHER_NAMES.get(name, name): value for name, value in (kwargs or {}).items()}
            return _topk(*args, **named)
        if func is _innermost_mode:
            return self
        return func(*args, **(kwargs or {}))

    def enable(self) -> None:
        """Enter the context, for this thread and until `disable` is called."""
        _check_is_not_traced("enable")
        self.__enter__()

    def disable(self) -> None:
        """Leave the context again.

        Raises
        ------
        RuntimeError
            If it is not the context that this thread entered last.
        """
        _check_is_not_traced("disable")
        try:
            innermost = handle_torch_function(_innermost_mode, ())
        except TypeError:  # there is no mode
            innermost = None
        if innermost is not self:
            message = (
                "stable_topk.disable: this thread did not enter it last; call enable() "
                "in this thread first, and leave other modes of torch that were entered since"
            )
            raise RuntimeError(message)
        self.__exit__(None, None, None)


def _check_is_not_traced(method: str) -> None:
    """Refuse a call that a compiled function would make when it is compiled, and not when it runs."""
    if torch.compiler.is_compiling():
        message = (
            f"stable_topk.{method}: call it outside of compiled functions, or write `with stable_topk():`"
        )
        raise RuntimeError(message)


def stable_topk() -> StableTopK:
    """Return a context manager under which ``torch.topk`` and ``Tensor.topk`` are `dmlops.top_k`.

    Code of models stays as it is: all forms of the call are served, and results are torch's named tuples.
    It may be nested. Until the last thread has left it, all threads get `dmlops.top_k`, and so do
    backward passes that compute parts of a model again.

    Returns
    -------
    StableTopK
        For a ``with`` statement; or call its methods ``enable()`` and ``disable()``.

    Raises
    ------
    InvalidDescriptorError, TypeError
        By a call of topk that `dmlops.top_k` refuses, as on a device other than a CPU or CUDA. It never
        becomes torch's own, which would break ties in another way.

    Notes
    -----
    Functions that are compiled or exported in a thread that is in the context contain the operator
    ``torch.ops.dmlops.top_k``. What was compiled before is compiled anew; what was exported or scripted
    before runs on dmlops' kernels for as long as the context lasts. The order without ``sorted`` is that of
    the indices. In eager code, the mode costs every call of torch one or two microseconds; compiled code is
    not slowed.

    Examples
    --------
    >>> import torch
    >>> with stable_topk():
    ...     torch.ones(1000).topk(3).indices
    tensor([0, 1, 2])
    """
    return StableTopK()


# torch takes NumPy's names of these parameters, too.
_OTHER_NAMES = {"axis": "dim", "x": "input", "a": "input", "x1": "input"}


def _topk(
    input: Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    out: Sequence[Tensor] | None = None,
) -> Any:
    """Return what ``torch.topk`` does; the names of the parameters are torch's."""
    x = input.reshape(1) if input.dim() == 0 else input
    select = partial(top_k, x, k, axis=dim, largest=largest, sorted=sorted, index_dtype=torch.int64)
    if out is None:
        values, indices = select()
        if x is not input and k == 1:
            values, indices = values.reshape(()), indices.reshape(())
        return torch.return_types.topk((values, indices))
    if any(array.numel() == 0 for array in out):
        # torch gives outputs without elements the size of the result. The next call finds them in that size.
        shape = select().values.shape if x is input else ()
        for array in out:
            if array.numel() == 0:
                array.resize_(shape)
    select(out=tuple(array.reshape(1) for array in out) if x is not input else out)
    return torch.return_types.topk_out(out)


class _Kernels:
    """dmlops' kernels, in the place of torch's own, while a thread is in the context."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: list[StableTopK] = []
        self._library: torch.library.Library | None = None

    def hold(self, mode: StableTopK) -> None:
        with self._lock:
            if self._library is None:
                # torch warns of kernels that are overridden.
                with warnings.catch_warnings(action="ignore"):
                    self._library = torch.library.Library("aten", "IMPL")
                    for key in ("CPU", "CUDA"):
                        self._library.impl("topk", _run, key)
                        self._library.impl("topk.values", _run_into, key)
            self._holders.append(mode)

    def release(self, mode: StableTopK) -> None:
        with self._lock:
            if mode in self._holders:  # it is not, if a compiled function entered it
                self._holders.remove(mode)
            if not self._holders:
                self._library = None  # which takes the kernels out again


_kernels = _Kernels()


def _run(x: Tensor, *arguments: Any, **options: Any) -> Any:
    return tuple(_topk(x.detach(), *arguments, **options))


def _run_into(x: Tensor, *arguments: Any, values: Tensor, indices: Tensor, **options: Any) -> object:
    return tuple(_topk(x.detach(), *arguments, **options, out=(values, indices)))


def _innermost_mode() -> None:
    """Stand for a function of torch; the innermost mode sees the call, and only `StableTopK` answers it."""
