"""`stable_topk`: a mode of torch under which ``torch.topk`` is `dmlops.top_k`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, handle_torch_function

from dmlops import top_k


class StableTopK(TorchFunctionMode):  # type: ignore[misc]
    """The context manager that `stable_topk` returns."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function of torch, and `dmlops.top_k` in the place of topk."""
        if func is torch.topk or func is torch.Tensor.topk:
            named = {_OTHER_NAMES.get(name, name): value for name, value in (kwargs or {}).items()}
            return _topk(*args, **named)
        if func is _innermost_mode:
            return self
        return func(*args, **(kwargs or {}))

    def enable(self) -> None:
        """Enter the context, for this thread and until `disable` is called."""
        self.__enter__()

    def disable(self) -> None:
        """Leave the context again.

        Raises
        ------
        RuntimeError
            If it is not the context that this thread entered last.
        """
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


def stable_topk() -> StableTopK:
    """Return a context manager under which ``torch.topk`` and ``Tensor.topk`` are `dmlops.top_k`.

    Code of models stays as it is: all forms of the call are served, and results are named tuples of torch's
    own types. It may be nested. Like every mode of torch it holds for the thread that enters it, and for the
    backward passes that this thread starts; another thread enters one of its own.

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
    Functions that are compiled or exported under it contain the operator ``torch.ops.dmlops.top_k``. Those
    that were compiled before are compiled anew; those that were exported or scripted before stay as they are.
    The order without ``sorted`` is that of the indices. In eager code, a mode costs every call of torch about
    a microsecond; compiled code is not slowed.

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


def _innermost_mode() -> None:
    """Stand for a function of torch; the innermost mode sees the call, and only `StableTopK` answers it."""
