"""SIMD for numba: a row of eight float64 as one LLVM vector, with its arithmetic.

The compiler leaves a plain loop over eight elements scalar, since it cannot know that arrays do not
overlap. Each element is rounded as in a loop.
"""

import operator
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

WIDTH: Final = 8

_DOUBLES: Final = ir.VectorType(ir.DoubleType(), WIDTH)
_LANES: Final = ir.VectorType(ir.IntType(32), WIDTH)


class _Row(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Row")


row: Final = _Row()


@register_model(_Row)
class _RowModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: _Row) -> None:
        super().__init__(manager, kind, _DOUBLES)


def _pointer(context: Any, builder: Any, matrix: Any, value: Any, index: Any) -> Any:
    """Pointer to row `index` of a matrix [any, WIDTH] in C order."""
    data = context.make_array(matrix)(context, builder, value).data
    start = builder.gep(data, [builder.mul(index, ir.Constant(index.type, WIDTH))])
    return builder.bitcast(start, ir.PointerType(_DOUBLES))


@intrinsic
def load(typing: Any, matrix: Any, index: Any) -> Any:
    """Row `index` of a matrix [any, WIDTH]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_pointer(context, builder, signature.args[0], *arguments), align=8)

    return row(matrix, types.intp), generate


@intrinsic
def store(typing: Any, matrix: Any, index: Any, value: Any) -> Any:
    """Writes row `index` of a matrix [any, WIDTH]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = _pointer(context, builder, signature.args[0], *arguments[:2])
        builder.store(arguments[2], target, align=8)
        return context.get_dummy_value()

    return types.void(matrix, types.intp, row), generate


def _splat(builder: Any, value: Any, kind: ir.VectorType) -> Any:
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, one, ir.Constant(_LANES, [0] * WIDTH))


@intrinsic
def splat(typing: Any, x: Any) -> Any:
    """A row of eight times `x`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _splat(builder, arguments[0], _DOUBLES)

    return row(types.float64), generate


@intrinsic
def fma(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """Scalar a b + c, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float64(*[types.float64] * 3), generate


@intrinsic
def fma_rows(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """Row a b + c, rounded once per element."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_DOUBLES, [_DOUBLES] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{WIDTH}f64")
        return builder.call(function, arguments)

    return row(row, row, row), generate


@intrinsic
def negate(typing: Any, a: Any) -> Any:
    """The row -a."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fneg(arguments[0])

    return row(row), generate


@intrinsic
def join_halves(typing: Any, first: Any, second: Any) -> Any:
    """The first half of one row followed by the second half of another."""
    places = [i if i < WIDTH // 2 else WIDTH + i for i in range(WIDTH)]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.shuffle_vector(*arguments, ir.Constant(_LANES, places))

    return row(row, row), generate


@intrinsic
def zero_before(typing: Any, a: Any, first: Any) -> Any:
    """The row with zeros before index `first`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = _splat(builder, builder.trunc(arguments[1], ir.IntType(32)), _LANES)
        kept = builder.icmp_signed(">=", ir.Constant(_LANES, list(range(WIDTH))), start)
        return builder.select(kept, arguments[0], ir.Constant(_DOUBLES, [0.0] * WIDTH))

    return row(row, types.intp), generate


def _define(operation: Any, instruction: str) -> None:
    """Defines +, - or * of two rows, element by element."""

    class Typing(ConcreteTemplate):
        cases = [signature(row, row, row)]  # noqa: RUF012

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return getattr(builder, instruction)(*arguments)

    infer_global(operation)(Typing)
    lower_builtin(operation, row, row)(generate)


for _operation, _instruction in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul")):
    _define(_operation, _instruction)
