"""Triton's interpreter without what it does again at each step: it computes the same in a quarter of the time.

It puts its functions into the language at each launch and at each call of one function by another, having looked through all
of the language for where; and it makes the type of each value anew, with a name and a shape of objects of their own.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


def make_quick() -> None:
    """Change the interpreter of this process; its other changes have to be made before."""
    _remember_types()
    _remember_storage()
    _see_at_once()
    _patch_once()


def _patch_once() -> None:
    """Leave the interpreter's functions in the language: nothing of this process asks for others."""

    def patch(place: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        semantic = TritonSemantic(builder)
        inner = getattr(member, "__wrapped__", member)  # without the look at whether it has a semantic

        def interpreted(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return inner(*args, **kwargs)

        scope.set_attr(place, name, interpreted)

    interpreter._patch_attr = patch
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()


def _remember_types() -> None:
    """Make what a shape is made of once a shape: none of it is changed afterwards. A type is named when its name is wanted."""
    make_type = tl.block_type.__init__
    parts: dict[tuple[int, ...], tuple[Any, ...]] = {}  # of a shape: a type's shape and size, a tensor's shape and size

    def init_type(self: Any, element: Any, shape: Any) -> None:
        key = tuple([size.value if isinstance(size, tl.constexpr) else size for size in shape])
        if key not in parts:
            make_type(self, element, shape)  # which refuses what is no shape
            size, sizes = tl.constexpr(self.numel), tl.tuple([tl.constexpr(size) for size in key])
            parts[key] = self.shape, self.numel, sizes, size
        self.element_ty = element
        self.shape, self.numel, self.sizes, self.size = parts[key]

    def init_tensor(self: Any, handle: Any, kind: Any) -> None:
        self.handle = handle
        self.type = kind
        self.dtype = kind.scalar
        self.shape, self.numel = (kind.sizes, kind.size) if kind.is_block() else (no_sizes, one)

    def name_of(self: Any) -> str:
        return f"<{self.shape}, {self.element_ty}>"

    no_sizes, one = tl.tuple([]), tl.constexpr(1)
    tl.block_type.name = property(name_of, lambda *_: None)
    tl.block_type.__init__ = init_type
    tl.tensor.__init__ = init_tensor


def _remember_storage() -> None:
    find = interpreter._get_np_dtype
    found: dict[str, np.dtype[Any]] = {}

    def storage_of(kind: Any) -> np.dtype[Any]:
        if kind.name not in found:
            found[kind.name] = find(kind)
        return found[kind.name]

    interpreter._get_np_dtype = storage_of


def _see_at_once() -> None:
    """Decide what most calls ask by identity, before the interpreter looks closer."""
    is_equal, unwrap = tl.dtype.__eq__, tl.core._unwrap_if_constexpr
    broadcast, sanitize = TritonSemantic.broadcast_impl_value, TritonSemantic.binary_op_sanitize_overflow_impl

    def equals(self: Any, other: Any) -> bool:
        return self is other or is_equal(self, other)

    def unwrapped(value: Any) -> Any:
        kind = type(value)
        if kind is tl.constexpr:
            return value.value
        return unwrap(value) if kind in nested else value

    def broadcasted(self: Any, left: Any, right: Any) -> Any:
        if getattr(left.type, "sizes", None) is getattr(
            right.type, "sizes", None
        ):  # as `_remember_types` has made them
            return left, right
        return broadcast(self, left, right)

    def sanitized(self: Any, left: Any, right: Any, operation: Any) -> None:
        if self.builder.options.debug:  # else what was computed for it would be thrown away
            sanitize(self, left, right, operation)

    nested = {list, tuple, tl.tuple}
    tl.dtype.__eq__ = equals
    tl.core._unwrap_if_constexpr = unwrapped
    TritonSemantic.broadcast_impl_value = broadcasted
    TritonSemantic.binary_op_sanitize_overflow_impl = sanitized
