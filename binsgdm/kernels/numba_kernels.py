"""The CPU kernels: loops compiled by numba around steps of 32 elements written as LLVM vector instructions.

A step is written in LLVM's own terms, since numba cannot vectorize a loop that prefetches, and without prefetching the
loops wait for memory (decision 5). LLVM turns vectors of sixteen into what the CPU has: AVX-512, AVX2, SSE, NEON. No
fast-math flag is set anywhere, so LLVM never fuses a multiplication with an addition.

numba's cache looks only at the file of a compiled function: steps and loops stay in this one file.

bf16 travels as uint16 and fp16 as int16, since numpy has no bf16.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, no-any-return, attr-defined"
# ruff: noqa: PLR0913, PLR0917 - a loop takes its arrays and numbers one by one

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from binsgdm.kernels.keys import GROUP_NUMEL, MULTIPLIERS, ROUNDS, SCALE, WEYL

_LANES = 16
_LANE_STARTS = range(0, GROUP_NUMEL, _LANES)  # of the vectors of a group
_COUNTERS = GROUP_NUMEL // 4  # whose draws are those of a group: a 64-bit number each, in one vector
_PREFETCH_NUMEL = 1024  # 4 KiB ahead; 256 to 2048 measured, docs/explanation/decisions.md
_BLOCK_NUMEL = 1024  # values of a block that stay in the L1 cache between two loops
_LINE_BYTES = 64

_SUMS_IN_TURN = 4  # which the groups of an encoded block are added to, one after the other; a power of two

_MAGIC = 1.5 * 2**23  # where the step of fp32 is 1: a sum rounds to a whole number, half to even
_MAGIC_BITS = 0x4B400000

_I8, _I16, _I32, _I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_F32 = ir.FloatType()
_LOW32 = 0xFFFFFFFF


def _vector(element: ir.Type, lanes: int = _LANES) -> ir.VectorType:
    return ir.VectorType(element, lanes)


def _constant(element: ir.Type, value: float, lanes: int = _LANES) -> ir.Constant:
    return ir.Constant(_vector(element, lanes), [value] * lanes)


def _splat(build: ir.IRBuilder, scalar: ir.Value, lanes: int = _LANES) -> ir.Value:
    # LLVM has no "broadcast": insert into lane 0, then shuffle lane 0 into all lanes. It becomes one instruction.
    undefined = ir.Constant(_vector(scalar.type, lanes), ir.Undefined)
    first = build.insert_element(undefined, scalar, ir.Constant(_I32, 0))
    return build.shuffle_vector(first, undefined, _constant(_I32, 0, lanes))


def _as_number(build: ir.IRBuilder, mask: ir.Value, number: ir.Type) -> ir.Value:
    """Return a vector of booleans as the bits of a number."""
    return build.zext(build.bitcast(mask, ir.IntType(_LANES)), number)


class _Array:
    """An array that a step is given, addressed by groups of 32 elements.

    Attributes:
        element: numba's type of its elements.
    """

    def __init__(self, build: ir.IRBuilder, data: ir.Value, element: Any) -> None:
        self.element = element
        self._build, self._data = build, data

    def group(self, group: ir.Value, lane: int = 0) -> ir.Value:
        """Return the address of an element of a group."""
        build = self._build
        index = build.add(build.mul(group, ir.Constant(_I64, GROUP_NUMEL)), ir.Constant(_I64, lane))
        return build.gep(self._data, [index])

    def signs(self, group: ir.Value) -> ir.Value:
        """Return the address of the packed signs of a group."""
        return self.byte(self._build.mul(group, ir.Constant(_I64, GROUP_NUMEL // 8)))

    def byte(self, index: ir.Value) -> ir.Value:
        """Return the address of a byte of packed signs."""
        return self._build.gep(self._data, [index])

    def load(self, group: ir.Value, lane: int) -> ir.Value:
        """Load elements as fp32."""
        return _load(self._build, self.group(group, lane), self.element)

    def store(self, value: ir.Value, group: ir.Value, lane: int) -> None:
        """Store fp32 values, rounded to nearest even for 16-bit elements."""
        _store(self._build, value, self.group(group, lane), self.element)

    def int16s(self, group: ir.Value, lane: int) -> ir.Value:
        """Return the address of a vector of int16."""
        return self._build.bitcast(self.group(group, lane), _vector(_I16).as_pointer())

    def prefetch(self, group: ir.Value) -> None:
        """Ask for the cache lines of a group some way ahead; past the end it is ignored."""
        build, per_line = self._build, _LINE_BYTES * 8 // self.element.bitwidth
        byte = _I8.as_pointer()
        # numba offers no prefetch, so this calls LLVM's own. Without it the loops wait for memory (decision 5).
        function = build.module.declare_intrinsic(
            "llvm.prefetch.p0", (), ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        )
        read, keep, data = (ir.Constant(_I32, number) for number in (0, 3, 1))
        # One prefetch a cache line: 32 fp32 values take two lines of 64 bytes, 32 values of 16 bits one.
        for lane in range(0, GROUP_NUMEL, per_line):
            address = self.group(group, _PREFETCH_NUMEL + lane)
            build.call(function, [build.bitcast(address, byte), read, keep, data])


def _step(returns: Any) -> Callable[[Callable[..., ir.Value | None]], Any]:
    """Make a function of the compiled loops of one that writes its instructions, for one group of 32 elements.

    That one takes the builder, and then what the loop hands over: arrays as `_Array`, tuples as lists of values.
    """

    def decorate(write: Callable[..., ir.Value | None]) -> Any:
        def generate(context: Any, build: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            done = write(
                build, *(_argument(context, build, *pair) for pair in zip(signature.args, values, strict=True))
            )
            return context.get_dummy_value() if done is None else done

        def define(_context: Any, *kinds: Any) -> Any:
            return returns(*kinds), generate

        return _intrinsic(define, write, list(inspect.signature(write).parameters))

    return decorate


def _groups(*elements: Any) -> Callable[[Callable[..., ir.Value | None]], Any]:
    """Make a function as `_step` does that runs the instructions for all groups of a row of a table.

    It takes where `_take` wrote to, the number of groups, an array of the dtype that None in `elements` stands for, and
    what the one takes behind its columns and the group. It returns what that returns, or-ed.

    Args:
        elements: numba's types of the columns' elements.
    """

    def decorate(write: Callable[..., ir.Value | None]) -> Any:
        def generate(context: Any, build: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
            places, columns = build.inttoptr(values[0], _I64.as_pointer()), []
            for number, fixed in enumerate(elements):
                element = fixed or signature.args[2].dtype
                address = build.load(build.gep(places, [ir.Constant(_I64, number)]))
                pointer = build.inttoptr(address, context.get_value_type(element).as_pointer())
                columns.append(_Array(build, pointer, element))
            others = [_argument(context, build, *pair) for pair in zip(signature.args[3:], values[3:], strict=True)]
            failed = cgutils.alloca_once_value(build, ir.Constant(_I64, 0))
            with cgutils.for_range(build, values[1]) as loop:
                if (done := write(build, *columns, loop.index, *others)) is not None:
                    build.store(build.or_(build.load(failed), done), failed)
            return build.load(failed)

        def define(_context: Any, *kinds: Any) -> Any:
            return types.int64(*kinds), generate

        names = list(inspect.signature(write).parameters)
        return _intrinsic(define, write, [names[0], "places", "groups", "like", *names[len(elements) + 2 :]])

    return decorate


def _intrinsic(define: Any, write: Callable[..., Any], names: list[str]) -> Any:
    # numba matches arguments by the names of the function that it is given.
    define.__signature__ = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    )
    define.__name__ = write.__name__
    return intrinsic(define)


def _argument(context: Any, build: ir.IRBuilder, kind: Any, value: ir.Value) -> Any:
    if isinstance(kind, types.Array):
        return _Array(build, context.make_array(kind)(context, build, value).data, kind.dtype)
    if isinstance(kind, types.BaseTuple):
        return [
            _argument(context, build, *pair)
            for pair in zip(kind.types, cgutils.unpack_tuple(build, value), strict=True)
        ]
    # What Python computes in double precision is rounded once.
    return build.fptrunc(value, _F32) if kind == types.float64 else value


def _load(build: ir.IRBuilder, pointer: ir.Value, element: Any) -> ir.Value:
    """Load elements as fp32."""
    if element == types.float32:
        return build.load(build.bitcast(pointer, _vector(_F32).as_pointer()), align=4)
    # `align` is that of one element: a piece may start anywhere, so LLVM must use unaligned loads.
    raw = build.load(build.bitcast(pointer, _vector(ir.IntType(16)).as_pointer()), align=2)
    bits = build.zext(raw, _vector(_I32))
    if element == types.uint16:
        # bf16 is the upper half of an fp32: widening is a shift and exact.
        return build.bitcast(build.shl(bits, _constant(_I32, 16)), _vector(_F32))
    return _from_half(build, bits)


def _from_half(build: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Widen fp16 by its bits: LLVM's own conversion needs a function that numba lacks where the CPU cannot do it."""
    magnitude = build.and_(bits, _constant(_I32, 0x7FFF))
    shifted = build.shl(magnitude, _constant(_I32, 13))
    # Exponent biases: 127 of fp32, 15 of fp16; 112 is the difference.
    normal = build.add(shifted, _constant(_I32, 112 << 23))
    # A subnormal fp16 is an integer times 2^-24, which fp32 holds as a normal number.
    subnormal = build.fmul(build.sitofp(magnitude, _vector(_F32)), _constant(_F32, 2.0**-24))
    is_subnormal = build.icmp_signed("<", magnitude, _constant(_I32, 0x0400))
    is_finite = build.icmp_signed("<", magnitude, _constant(_I32, 0x7C00))
    widened = build.select(is_subnormal, build.bitcast(subnormal, _vector(_I32)), normal)
    widened = build.select(is_finite, widened, build.or_(shifted, _constant(_I32, 0x7F800000)))
    sign = build.shl(build.and_(bits, _constant(_I32, 0x8000)), _constant(_I32, 16))
    return build.bitcast(build.or_(widened, sign), _vector(_F32))


def _round_off(build: ir.IRBuilder, bits: ir.Value, num_bits: int) -> ir.Value:
    """Drop the lowest bits of a number, rounding to nearest even."""
    odd = build.and_(build.lshr(bits, _constant(_I32, num_bits)), _constant(_I32, 1))
    # Adding just under one half, plus 1 if the kept part is odd, carries exactly where round-to-nearest-even rounds up.
    # A carry out of the mantissa raises the exponent, which is right as well.
    almost_half = _constant(_I32, (1 << num_bits - 1) - 1)
    return build.lshr(build.add(build.add(bits, almost_half), odd), _constant(_I32, num_bits))


def _to_bfloat(build: ir.IRBuilder, value: ir.Value) -> ir.Value:
    # Only NaN is unordered with itself. Rounding its bits could carry into infinity or 0, so NaN gets torch's pattern.
    is_nan = build.fcmp_unordered("uno", value, value)
    rounded = _round_off(build, build.bitcast(value, _vector(_I32)), 16)
    return build.select(is_nan, _constant(_I32, 0x7FC0), rounded)


def _to_half(build: ir.IRBuilder, value: ir.Value) -> ir.Value:
    bits = build.bitcast(value, _vector(_I32))
    magnitude = build.and_(bits, _constant(_I32, 0x7FFFFFFF))
    normal = _round_off(build, build.sub(magnitude, _constant(_I32, 112 << 23)), 13)
    # Adding 0.5 leaves a multiple of 2**-24, the step of fp16's subnormals, in the lowest bits.
    shifted = build.fadd(build.bitcast(magnitude, _vector(_F32)), _constant(_F32, 0.5))
    subnormal = build.sub(build.bitcast(shifted, _vector(_I32)), _constant(_I32, 0x3F000000))
    is_subnormal = build.icmp_signed("<", magnitude, _constant(_I32, 113 << 23))
    is_small = build.icmp_signed("<", magnitude, _constant(_I32, 143 << 23))
    is_nan = build.icmp_signed(">", magnitude, _constant(_I32, 0x7F800000))
    large = build.select(is_nan, _constant(_I32, 0x7E00), _constant(_I32, 0x7C00))
    narrowed = build.select(is_small, build.select(is_subnormal, subnormal, normal), large)
    return build.or_(narrowed, build.and_(build.lshr(bits, _constant(_I32, 16)), _constant(_I32, 0x8000)))


def _store(build: ir.IRBuilder, value: ir.Value, pointer: ir.Value, element: Any) -> None:
    """Store fp32 values, rounded to nearest even for 16-bit elements."""
    if element == types.float32:
        build.store(value, build.bitcast(pointer, value.type.as_pointer()), align=4)
        return
    bits = _to_bfloat(build, value) if element == types.uint16 else _to_half(build, value)
    half = _vector(ir.IntType(16))
    build.store(build.trunc(bits, half), build.bitcast(pointer, half.as_pointer()), align=2)


def _thresholds(build: ir.IRBuilder, group: ir.Value, key: list[ir.Value]) -> list[ir.Value]:
    """Return two vectors of thresholds: the words of Philox4x32-10 for a group's eight counters, one after the other.

    Each 32-bit word lives in the lower half of a 64-bit lane, where one multiplication gives the 64-bit product. The
    upper half of a lane may hold anything.
    """
    # The whole generator stays in vector registers: no draw is ever stored.
    wide = _vector(_I64, _COUNTERS)
    k0, k1, *other_words = key
    low_mask, half_bits = _constant(_I64, _LOW32, _COUNTERS), _constant(_I64, 32, _COUNTERS)
    factors = [_constant(_I64, factor, _COUNTERS) for factor in MULTIPLIERS]
    counter = build.mul(group, ir.Constant(_I64, _COUNTERS))
    lanes = build.add(_splat(build, counter, _COUNTERS), ir.Constant(wide, list(range(_COUNTERS))))
    c0, c1, c2, c3 = lanes, *(_splat(build, word, _COUNTERS) for word in other_words)
    for number in range(ROUNDS):
        # The sum may carry into the upper half, which is ignored.
        key0, key1 = (
            _splat(build, build.add(word, ir.Constant(_I64, weyl * number & _LOW32)), _COUNTERS)
            for word, weyl in zip((k0, k1), WEYL, strict=True)
        )
        # Only the factors need a mask: the upper halves of the xors are ignored until the next multiplication.
        p0 = build.mul(build.and_(c0, low_mask), factors[0])
        p1 = build.mul(build.and_(c2, low_mask), factors[1])
        c0, c1 = build.xor(build.lshr(p1, half_bits), build.xor(c1, key0)), p1
        c2, c3 = build.xor(build.lshr(p0, half_bits), build.xor(c3, key1)), p0
    words = [build.trunc(word, _vector(_I32, _COUNTERS)) for word in (c0, c1, c2, c3)]
    in_order = ir.Constant(_vector(_I32), list(range(_LANES)))
    return [_threshold(build, build.shuffle_vector(*pair, in_order)) for pair in (words[:2], words[2:])]


def _threshold(build: ir.IRBuilder, draw: ir.Value) -> ir.Value:
    """Put 23 bits behind the exponent of 2 and subtract 3: exact, and uniform in [-1, 1)."""
    # 0x40000000 is 2.0: 23 random mantissa bits give [2, 4) in steps of 2^-22. That costs two integer instructions in
    # place of a conversion and a product, with the same result.
    bits = build.or_(build.lshr(draw, _constant(_I32, 9)), _constant(_I32, 0x40000000))
    return build.fsub(build.bitcast(bits, _vector(_F32)), _constant(_F32, 3.0))


def _store_signs(build: ir.IRBuilder, positive: list[ir.Value], pointer: ir.Value) -> ir.Value:
    """Store the booleans of a group as four bytes; return how many are true."""
    word = ir.Constant(_I32, 0)
    for number, mask in enumerate(positive):
        word = build.or_(word, build.shl(_as_number(build, mask, _I32), ir.Constant(_I32, _LANES * number)))
    # A mask has lane 0 in its least significant bit; packed signs have it in the most significant bit of each byte
    # (`binsgdm.kernels.bits`). Reversing all 32 bits and then the bytes reverses the bits inside each byte.
    reverse = build.module.declare_intrinsic("llvm.bitreverse", [_I32])
    build.store(build.bswap(build.call(reverse, [word])), build.bitcast(pointer, _I32.as_pointer()), align=1)
    return build.zext(build.ctpop(word), _I64)


def _load_signs(build: ir.IRBuilder, pointer: ir.Value) -> list[tuple[int, ir.Value]]:
    """Load four bytes as the booleans of a group; return vectors of them, each with its first lane."""
    word = _splat(build, build.load(build.bitcast(pointer, _I32.as_pointer()), align=1))
    # Of a byte, the first sign is the most significant bit.
    places = [ir.Constant(_vector(_I32), [1 << (n ^ 7) for n in range(lane, lane + _LANES)]) for lane in _LANE_STARTS]
    masks = [build.icmp_signed("!=", build.and_(word, place), _constant(_I32, 0)) for place in places]
    return list(zip(_LANE_STARTS, masks, strict=True))


def _update(
    build: ir.IRBuilder, grad: _Array, m: _Array, b: _Array, group: ir.Value, decay: list[ir.Value]
) -> tuple[list[ir.Value], ir.Value]:
    """Update the 32 elements of a group; return vectors of u, and not 0 if one b was not finite."""
    # An output is only written and needs no prefetch.
    for array in (grad, m, b):
        array.prefetch(group)
    beta, rest, beta_b, rest_b, of_m, of_g = (_splat(build, factor) for factor in decay)
    zero, us, all_finite = _constant(_F32, 0.0), [], []
    for lane in _LANE_STARTS:
        g, old_m, old_b = (array.load(group, lane) for array in (grad, m, b))
        new_m = _momentum(build, old_m, g, beta, rest)
        new_b = _momentum(build, old_b, _magnitude(build, g), beta_b, rest_b)
        finite = build.fcmp_ordered("<", new_b, _constant(_F32, float("inf")))
        new_m, new_b = build.select(finite, new_m, old_m), build.select(finite, new_b, old_b)
        m.store(new_m, group, lane)
        b.store(new_b, group, lane)
        # Where b stayed, g may be NaN, or an infinity whose product with 0 is.
        ahead = build.select(finite, _momentum(build, new_m, g, of_m, of_g), new_m)
        # The division runs in all lanes; where b is 0 its NaN is not selected.
        us.append(build.select(build.fcmp_ordered(">", new_b, zero), build.fdiv(ahead, new_b), zero))
        all_finite.append(finite)
    return us, _unless_all(build, all_finite)


def _unless_all(build: ir.IRBuilder, masks: list[ir.Value]) -> ir.Value:
    """Return not 0 if a boolean of two vectors is false."""
    both = _as_number(build, build.and_(*masks), _I64)
    return build.xor(both, ir.Constant(_I64, (1 << _LANES) - 1))


def _momentum(build: ir.IRBuilder, m: ir.Value, g: ir.Value, beta: ir.Value, rest: ir.Value) -> ir.Value:
    """Return beta m + rest g."""
    # Two products and a sum, each rounded: a fused multiply-add would differ from the reference in the last bit.
    return build.fadd(build.fmul(m, beta), build.fmul(g, rest))


def _magnitude(build: ir.IRBuilder, values: ir.Value) -> ir.Value:
    """Clear the signs."""
    bits = build.and_(build.bitcast(values, _vector(_I32)), _constant(_I32, 0x7FFFFFFF))
    return build.bitcast(bits, values.type)


@_groups(None, *[types.float32] * 3)
def _update_groups(
    build: ir.IRBuilder, grad: _Array, m: _Array, b: _Array, out_u: _Array, group: ir.Value, decay: list[ir.Value]
) -> ir.Value:
    us, failed = _update(build, grad, m, b, group, decay)
    for lane, u in zip(_LANE_STARTS, us, strict=True):
        out_u.store(u, group, lane)
    return failed


@_groups(None, types.float32, types.float32, types.uint8)
def _update_quantize_pack_groups(
    build: ir.IRBuilder, grad: _Array, m: _Array, b: _Array, out: _Array, group: ir.Value, decay: list[ir.Value],
    gain: ir.Value, first: ir.Value, key: list[ir.Value],
) -> ir.Value:  # fmt: skip
    thresholds = _thresholds(build, build.add(first, group), key)
    us, failed = _update(build, grad, m, b, group, decay)
    gains = _splat(build, gain)
    # No clip: a threshold lies in [-1, 1), so that whatever is beyond compares as the end does.
    positive = [build.fcmp_ordered("<", t, build.fmul(u, gains)) for t, u in zip(thresholds, us, strict=True)]
    _store_signs(build, positive, out.signs(group))
    return failed


@_groups(None, types.float32, types.float32, types.int16, types.uint8)
def _update_shape_pack_groups(
    build: ir.IRBuilder, grad: _Array, m: _Array, b: _Array, residual: _Array, out: _Array, group: ir.Value,
    decay: list[ir.Value], gain: ir.Value,
) -> ir.Value:  # fmt: skip
    residual.prefetch(group)
    us, failed = _update(build, grad, m, b, group, decay)
    _store_signs(build, _shape(build, us, residual, group, gain), out.signs(group))
    return failed


@_groups(types.float32, types.int16, types.uint8)
def _shape_pack_groups(
    build: ir.IRBuilder, u: _Array, residual: _Array, out: _Array, group: ir.Value, gain: ir.Value
) -> None:
    u.prefetch(group)
    residual.prefetch(group)
    us = [u.load(group, lane) for lane in _LANE_STARTS]
    _store_signs(build, _shape(build, us, residual, group, gain), out.signs(group))


def _shape(
    build: ir.IRBuilder, us: list[ir.Value], residual: _Array, group: ir.Value, gain: ir.Value
) -> list[ir.Value]:
    """Round vectors of u, add residuals and store what is left; return where the sums are not negative."""
    low, high, gains, wholes = _constant(_F32, -1.0), _constant(_F32, 1.0), _splat(build, gain), []
    for u in us:
        clipped = build.fmul(u, gains)
        # In this order: NaN compares false and becomes -1.
        clipped = build.select(build.fcmp_ordered(">", clipped, low), clipped, low)
        clipped = build.select(build.fcmp_ordered("<", clipped, high), clipped, high)
        # Rounded by the sum, whose lowest bits then hold the whole number: no conversion, which may round otherwise.
        rounded = build.fadd(build.fmul(clipped, _constant(_F32, float(SCALE))), _constant(_F32, _MAGIC))
        wholes.append(build.sub(build.bitcast(rounded, _vector(_I32)), _constant(_I32, _MAGIC_BITS)))
    return _split(build, wholes, residual, group, _constant(_I32, SCALE))


def _split(
    build: ir.IRBuilder, wholes: list[ir.Value], residual: _Array, group: ir.Value, unit: ir.Value
) -> list[ir.Value]:
    """Add residuals to values, take a unit of the same sign away and store what is left; return the signs."""
    signs = []
    for lane, values in zip(_LANE_STARTS, wholes, strict=True):
        pointer = residual.int16s(group, lane)
        total = build.add(values, build.sext(build.load(pointer, align=2), _vector(_I32)))
        signs.append(build.icmp_signed(">=", total, _constant(_I32, 0)))
        left = build.sub(total, build.select(signs[-1], unit, build.neg(unit)))
        build.store(build.trunc(left, _vector(_I16)), pointer, align=2)
    return signs


@_groups(types.float32, types.uint8)
def _quantize_pack_groups(
    build: ir.IRBuilder, u: _Array, out: _Array, group: ir.Value, gain: ir.Value, first: ir.Value, key: list[ir.Value]
) -> None:
    u.prefetch(group)
    gains, positive = _splat(build, gain), []
    for lane, t in zip(_LANE_STARTS, _thresholds(build, build.add(first, group), key), strict=True):
        positive.append(build.fcmp_ordered("<", t, build.fmul(u.load(group, lane), gains)))
    _store_signs(build, positive, out.signs(group))


@_step(types.void)
def _count_signs_32(build: ir.IRBuilder, rows: _Array, byte: ir.Value, counts: _Array, place: ir.Value) -> None:
    """Add to the counts of a group which signs from a byte on are +1."""
    number = _vector(ir.IntType(counts.element.bitwidth))
    for lane, positive in _load_signs(build, rows.byte(byte)):
        pointer = build.bitcast(counts.group(place, lane), number.as_pointer())
        build.store(build.add(build.load(pointer, align=2), build.zext(positive, number)), pointer, align=2)


@_step(types.void)
def _merge_counts_32(
    build: ir.IRBuilder, counts: _Array, place: ir.Value, out: _Array, group: ir.Value, num_rows: ir.Value,
    first: ir.Value, key: list[ir.Value],
) -> None:  # fmt: skip
    """Write the packed signs of Q of the means of a group, from int32 counts of +1."""
    divisor, positive = _splat(build, build.sitofp(num_rows, _F32)), []
    sums = _sums_of_counts(build, counts, place, num_rows)
    for t, total in zip(_thresholds(build, build.add(first, group), key), sums, strict=True):
        positive.append(build.fcmp_ordered("<", t, build.fdiv(build.sitofp(total, _vector(_F32)), divisor)))
    _store_signs(build, positive, out.signs(group))


@_step(types.void)
def _shape_counts_32(
    build: ir.IRBuilder, counts: _Array, place: ir.Value, out: _Array, group: ir.Value, num_rows: ir.Value,
    residual: _Array,
) -> None:  # fmt: skip
    """Write the packed signs of a shaped merge of a group, from int16 counts of +1."""
    unit = _splat(build, build.trunc(num_rows, _I32))
    sums = _sums_of_counts(build, counts, place, num_rows)
    _store_signs(build, _split(build, sums, residual, group, unit), out.signs(group))


def _sums_of_counts(build: ir.IRBuilder, counts: _Array, place: ir.Value, num_rows: ir.Value) -> list[ir.Value]:
    """Return two vectors of int32: so many are +1, all other rows -1."""
    number, vectors = _vector(ir.IntType(counts.element.bitwidth)), _splat(build, build.trunc(num_rows, _I32))
    pointers = [build.bitcast(counts.group(place, lane), number.as_pointer()) for lane in _LANE_STARTS]
    ones = [build.sext(build.load(pointer, align=2), _vector(_I32)) for pointer in pointers]
    return [build.sub(build.shl(count, _constant(_I32, 1)), vectors) for count in ones]


@_step(types.void)
def _add_scaled_32(build: ir.IRBuilder, packed: _Array, total: _Array, group: ir.Value, scale: ir.Value) -> None:
    """Add plus or minus a scale to the values of a group."""
    for lane, change in _scaled_signs(build, packed, group, scale):
        total.store(build.fadd(total.load(group, lane), change), group, lane)


@_step(types.void)
def _set_scaled_32(build: ir.IRBuilder, packed: _Array, total: _Array, group: ir.Value, scale: ir.Value) -> None:
    """Do `_add_scaled_32` to values of 0."""
    for lane, change in _scaled_signs(build, packed, group, scale):
        total.store(build.fadd(_constant(_F32, 0.0), change), group, lane)  # 0 and -0 is 0


def _scaled_signs(
    build: ir.IRBuilder, packed: _Array, group: ir.Value, scale: ir.Value
) -> Iterator[tuple[int, ir.Value]]:
    scales = _splat(build, scale)
    for lane, positive in _load_signs(build, packed.signs(group)):
        yield lane, build.select(positive, scales, build.fneg(scales))


@_groups(None, types.uint8)
def _apply_groups(
    build: ir.IRBuilder, x: _Array, packed: _Array, group: ir.Value, lr: ir.Value, decay: ir.Value
) -> None:
    """Do x = x decay - lr sign."""
    x.prefetch(group)
    rate, factor = _splat(build, lr), _splat(build, decay)
    for lane, positive in _load_signs(build, packed.signs(group)):
        change = build.select(positive, rate, build.fneg(rate))
        x.store(build.fsub(build.fmul(x.load(group, lane), factor), change), group, lane)


def _adam_step(
    build: ir.IRBuilder, m: ir.Value, v: ir.Value, x: _Array, group: ir.Value, lane: int, factors: list[ir.Value]
) -> None:
    """Write x decay + step m / (sqrt(v / correction) + eps), each operation rounded."""
    correction, eps, decay, step = factors
    root_type = ir.FunctionType(_vector(_F32), [_vector(_F32)])
    root = build.module.declare_intrinsic(f"llvm.sqrt.v{_LANES}f32", (), root_type)
    divisor = build.fadd(build.call(root, [build.fdiv(v, correction)]), eps)
    change = build.fdiv(build.fmul(m, step), divisor)
    x.store(build.fadd(build.fmul(x.load(group, lane), decay), change), group, lane)


@_step(types.void)
def _dense_adam_32(
    build: ir.IRBuilder, total: _Array, m: _Array, v: _Array, x: _Array, group: ir.Value, factors: list[ir.Value]
) -> None:
    """Take a dense step from a sum of gradients."""
    for array in (total, m, v, x):
        array.prefetch(group)
    beta1, rest1, beta2, rest2, ranks, *others = (_splat(build, factor) for factor in factors)
    for lane in _LANE_STARTS:
        g = build.fdiv(total.load(group, lane), ranks)
        new_m = _momentum(build, m.load(group, lane), g, beta1, rest1)
        squares = build.fmul(build.fmul(g, rest2), g)
        new_v = build.fadd(build.fmul(v.load(group, lane), beta2), squares)
        m.store(new_m, group, lane)
        v.store(new_v, group, lane)
        _adam_step(build, new_m, new_v, x, group, lane, others)


@_step(types.int64)
def _copy_32(build: ir.IRBuilder, values: _Array, out: _Array, group: ir.Value, limit: ir.Value) -> ir.Value:
    """Copy a group; return not 0 if a magnitude is not below a limit."""
    return _copy_group(build, values, group, limit, lambda value, lane: out.store(value, group, lane))


@_step(types.int64)
def _stream_32(build: ir.IRBuilder, values: _Array, out: _Array, group: ir.Value, limit: ir.Value) -> ir.Value:
    """Do `_copy_32` past the caches, to memory at a multiple of 64 bytes."""
    return _copy_group(build, values, group, limit, lambda value, lane: _stream(build, value, out, group, lane))


@_step(types.int64)
def _check_32(build: ir.IRBuilder, values: _Array, group: ir.Value, limit: ir.Value) -> ir.Value:
    """Return not 0 if a magnitude of a group is not below a limit."""
    return _copy_group(build, values, group, limit, lambda _value, _lane: None)


def _stream(build: ir.IRBuilder, value: ir.Value, out: _Array, group: ir.Value, lane: int) -> None:
    """Store fp32 values past the caches: memory that is only written need not be read first."""
    pointer = build.bitcast(out.group(group, lane), value.type.as_pointer())
    store = build.store(value, pointer, align=_LINE_BYTES)
    store.set_metadata("nontemporal", build.module.add_metadata([ir.Constant(_I32, 1)]))


def _copy_group(
    build: ir.IRBuilder, values: _Array, group: ir.Value, limit: ir.Value, store: Callable[[ir.Value, int], None]
) -> ir.Value:
    values.prefetch(group)
    limits, small = _splat(build, limit), []
    for lane in _LANE_STARTS:
        loaded = values.load(group, lane)
        store(loaded, lane)
        # NaN fails the comparison as well.
        small.append(build.fcmp_ordered("<", _magnitude(build, loaded), limits))
    return _unless_all(build, small)


@_step(types.void)
def _fence(build: ir.IRBuilder) -> None:
    """Let other threads see what was streamed."""
    build.fence("seq_cst")


@_step(types.void)
def _local_momentum_32(
    build: ir.IRBuilder, g: _Array, m: _Array, out: _Array, group: ir.Value, factors: list[ir.Value]
) -> None:
    """Write the momentum with a gradient, divided by a scale."""
    for array in (g, m):
        array.prefetch(group)
    for lane in _LANE_STARTS:
        out.store(_scaled_momentum(build, g, m, group, lane, factors), group, lane)


def _scaled_momentum(
    build: ir.IRBuilder, g: _Array, m: _Array, group: ir.Value, lane: int, factors: list[ir.Value]
) -> ir.Value:
    """Return the momentum with a gradient, divided by a scale."""
    beta, rest, scale = factors
    is_scaled = build.fcmp_ordered("!=", scale, ir.Constant(_F32, 1.0))
    gradient, before = g.load(group, lane), m.load(group, lane)
    momentum = _momentum(build, before, gradient, _splat(build, beta), _splat(build, rest))
    return _unless(build, is_scaled, momentum, lambda: build.fdiv(momentum, _splat(build, scale)))


@_step(types.void)
def _has_variance_32(build: ir.IRBuilder, v: _Array, out: _Array, group: ir.Value) -> None:
    """Write as int16 which v are above 0."""
    v.prefetch(group)
    for lane in _LANE_STARTS:
        valid = build.fcmp_ordered(">", v.load(group, lane), _constant(_F32, 0.0))
        build.store(build.zext(valid, _vector(_I16)), out.int16s(group, lane), align=2)


@_step(types.int64)
def _pack_valid_32(build: ir.IRBuilder, valid: _Array, out: _Array, group: ir.Value) -> ir.Value:
    """Write int16 booleans of a group as bits; return how many are true."""
    flags = [build.load(valid.int16s(group, lane), align=2) for lane in _LANE_STARTS]
    masks = [build.icmp_signed("!=", flag, _constant(_I16, 0)) for flag in flags]
    return _store_signs(build, masks, out.signs(group))


@_step(types.void)
def _encode_32(
    build: ir.IRBuilder, values: _Array, residual: _Array, valid: _Array, out: _Array, sums: _Array, group: ir.Value
) -> None:
    """Add the residual of a group where it is valid (bits), keep the sum there, and write its signs.

    Magnitudes are added to 16 sums in fp64, other ones for the next group: each waits for the one before it.
    """
    _encode_group(build, lambda lane: values.load(group, lane), residual, valid, out, sums, group)


@_step(types.void)
def _encode_momentum_32(
    build: ir.IRBuilder,
    g: _Array,
    m: _Array,
    factors: list[ir.Value],
    residual: _Array,
    valid: _Array,
    out: _Array,
    sums: _Array,
    group: ir.Value,
) -> None:
    """Do `_local_momentum_32` and `_encode_32` without storing the momentum."""
    for array in (g, m):
        array.prefetch(group)
    values = {lane: _scaled_momentum(build, g, m, group, lane, factors) for lane in _LANE_STARTS}
    _encode_group(build, values.__getitem__, residual, valid, out, sums, group)


def _unless(build: ir.IRBuilder, is_other: ir.Value, value: ir.Value, other: Callable[[], ir.Value]) -> ir.Value:
    """Return a value, or in a few cases another one, such as a division: it takes as long as all the rest."""
    here = build.block
    with build.if_then(is_other, likely=False):
        instead, there = other(), build.block
    result = build.phi(value.type)
    result.add_incoming(value, here)
    result.add_incoming(instead, there)
    return result


def _encode_group(
    build: ir.IRBuilder,
    value_of: Callable[[int], ir.Value],
    residual: _Array,
    valid: _Array,
    out: _Array,
    sums: _Array,
    group: ir.Value,
) -> None:
    residual.prefetch(group)
    wide, positive, magnitudes, zero = _vector(ir.DoubleType()), [], [], _constant(_F32, 0.0)
    for lane, is_valid in _load_signs(build, valid.signs(group)):
        before = residual.load(group, lane)
        total = build.fadd(value_of(lane), before)
        residual.store(build.select(is_valid, total, before), group, lane)
        total = build.select(is_valid, total, zero)
        positive.append(build.fcmp_ordered(">=", total, zero))
        magnitudes.append(build.fpext(_magnitude(build, total), wide))
    turn = build.and_(group, ir.Constant(_I64, _SUMS_IN_TURN - 1))
    place = build.gep(build.bitcast(sums.group(ir.Constant(_I64, 0)), wide.as_pointer()), [turn])
    build.store(build.fadd(build.load(place, align=8), build.fadd(*magnitudes)), place, align=8)
    _store_signs(build, positive, out.signs(group))


@_step(types.void)
def _keep_32(
    build: ir.IRBuilder, residual: _Array, valid: _Array, signs: _Array, group: ir.Value, scale: ir.Value
) -> None:
    """Take what was sent from a residual where it is valid (bits)."""
    residual.prefetch(group)
    scales = _splat(build, scale)
    masks = zip(_load_signs(build, valid.signs(group)), _load_signs(build, signs.signs(group)), strict=True)
    for (lane, is_valid), (_, positive) in masks:
        before, sent = residual.load(group, lane), build.select(positive, scales, build.fneg(scales))
        residual.store(build.select(is_valid, build.fsub(before, sent), before), group, lane)


@_step(types.void)
def _apply_average_32(
    build: ir.IRBuilder,
    average: _Array,
    m: _Array,
    v: _Array,
    x: _Array,
    group: ir.Value,
    factors: list[ir.Value],
    streams: ir.Value,
) -> None:
    """Take an average as momentum where v is above 0, and step; `streams` as in `_stream_32`."""
    _apply_group(build, lambda lane: average.load(group, lane), m, v, x, group, factors, streams)


@_step(types.void)
def _apply_signs_32(
    build: ir.IRBuilder,
    packed: _Array,
    size: ir.Value,
    m: _Array,
    v: _Array,
    x: _Array,
    group: ir.Value,
    factors: list[ir.Value],
    streams: ir.Value,
) -> None:
    """Do `_set_scaled_32` and `_apply_average_32` without storing the average."""
    average = dict(_scaled_signs(build, packed, group, size))
    _apply_group(build, average.__getitem__, m, v, x, group, factors, streams)


def _apply_group(
    build: ir.IRBuilder,
    average_of: Callable[[int], ir.Value],
    m: _Array,
    v: _Array,
    x: _Array,
    group: ir.Value,
    factors: list[ir.Value],
    streams: ir.Value,
) -> None:
    for array in (v, x):
        array.prefetch(group)
    with build.if_then(build.not_(streams)):
        m.prefetch(group)
    scale, *others = (_splat(build, factor) for factor in factors)
    zero = _constant(_F32, 0.0)
    for lane in _LANE_STARTS:
        momentum, variance = average_of(lane), v.load(group, lane)
        valid = build.fcmp_ordered(">", variance, zero)
        new_m = build.fmul(build.select(valid, momentum, zero), scale)
        with build.if_else(streams) as (past, into):
            with past:
                _stream(build, new_m, m, group, lane)
            with into:
                m.store(new_m, group, lane)
        _adam_step(build, new_m, variance, x, group, lane, others)


# Loops. Arrays are contiguous; whole groups of 32 elements run in place, parts of groups through scratch memory.
# The key is (low and high word of the seed, step, rank, stream).


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a loop when it is first called; what another process has compiled is loaded."""
    # nogil: the threads of `binsgdm.kernels.cpu` run these at once. error_model: a division by 0 gives NaN as in torch,
    # and no branch that would keep LLVM from vectorizing.
    options: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
    # What only loops call needs no entry for Python, and nothing here one for C: a tenth of the time to compile.
    options |= {"no_cpython_wrapper": function.__name__.startswith("_"), "no_cfunc_wrapper": True}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to cache in: compile anew in each process
        return njit(**options)(function)


@compiled
def _few(values, skip):
    """Return a part of a group as a whole one, zeros before and behind it: a step always does 32 elements."""
    made = np.zeros(GROUP_NUMEL, values.dtype)
    for index in range(values.size):
        made[skip + index] = values[index]
    return made


@compiled
def _put_back(few, skip, values):
    for index in range(values.size):
        values[index] = few[skip + index]


@compiled
def _add_scaled(signs, total, scale):
    whole = total.size // GROUP_NUMEL
    for group in range(whole):
        _add_scaled_32(signs, total, group, scale)
    for index in range(whole * GROUP_NUMEL, total.size):
        total[index] += scale if signs[index // 8] & np.uint8(128 >> index % 8) else -scale


@compiled
def _set_scaled(signs, total, scale):
    whole = total.size // GROUP_NUMEL
    for group in range(whole):
        _set_scaled_32(signs, total, group, scale)
    for index in range(whole * GROUP_NUMEL, total.size):
        total[index] = np.float32(0) + (scale if signs[index // 8] & np.uint8(128 >> index % 8) else -scale)


@compiled
def _count_signs(rows, lo, hi, counts):
    """Write how many of the signs [lo, hi) of K rows are +1."""
    for index in range(hi - lo):
        counts[index] = 0
    for row in range(rows.shape[0]):
        for place in range((hi - lo) // GROUP_NUMEL):
            _count_signs_32(rows, row * rows.shape[1] + lo // 8 + place * (GROUP_NUMEL // 8), counts, place)


@compiled
def merge(rows, out, lo, hi, start, key):
    """Write the packed signs [lo, hi) of Q of the mean of K sign vectors.

    They are whole groups, of vectors that take the draws from `start` on.
    """
    # Row after row would read and write the counts of the whole slice K times; blocks keep them in the L1 cache.
    counts = np.empty(_BLOCK_NUMEL, np.int32)
    for base in range(lo, hi, _BLOCK_NUMEL):
        end = min(hi, base + _BLOCK_NUMEL)
        _count_signs(rows, base, end, counts)
        for group in range(base // GROUP_NUMEL, end // GROUP_NUMEL):
            place = group - base // GROUP_NUMEL
            _merge_counts_32(counts, place, out, group, rows.shape[0], start // GROUP_NUMEL, key)


@compiled
def merge_shaped(rows, out, residual, lo, hi):
    """Write the packed signs [lo, hi) of the mean of K sign vectors, shaped; they are whole groups."""
    counts = np.empty(_BLOCK_NUMEL, np.int16)
    for base in range(lo, hi, _BLOCK_NUMEL):
        end = min(hi, base + _BLOCK_NUMEL)
        _count_signs(rows, base, end, counts)
        for group in range(base // GROUP_NUMEL, end // GROUP_NUMEL):
            _shape_counts_32(counts, group - base // GROUP_NUMEL, out, group, rows.shape[0], residual)


@compiled
def mean(parts, out, lo, hi):
    """Write the mean of the elements [lo, hi) of K rows."""
    num_rows = np.float32(parts.shape[0])
    for base in range(lo, hi, _BLOCK_NUMEL):
        end = min(hi, base + _BLOCK_NUMEL)
        block = out[base:end]
        first = parts[0, base:end]
        for index in range(block.size):
            block[index] = first[index]
        for row in range(1, parts.shape[0]):
            part = parts[row, base:end]
            for index in range(block.size):
                block[index] += part[index]
        for index in range(block.size):
            block[index] /= num_rows


# Tables. A row is whole groups of a tensor, or the part of a group at one of its ends: addresses, then elements, then
# where it starts in the order of draws. Row 0 says how many bits an element has in each column, and then which column
# is only read. Parts of groups go through scratch memory, with zeros around them: a step always does 32 elements, and
# an element gets the same draw whatever row it is in.

_SLOT_BYTES = 4 * GROUP_NUMEL
_MAX_COLUMNS = 5


@_step(types.voidptr)
def _pointer(build: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Turn an integer address into a pointer, which compiled Python has no expression for."""
    return build.inttoptr(address, cgutils.voidptr_t)


@_step(types.CPointer(types.int64))
def _words(build: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return build.inttoptr(address, _I64.as_pointer())


@_step(types.CPointer(types.uint8))
def _bytes(build: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return build.inttoptr(address, _I8.as_pointer())


@_step(types.void)
def _copy_bytes(build: ir.IRBuilder, source: ir.Value, target: ir.Value, number: ir.Value) -> None:
    data, out = (build.inttoptr(address, _I8.as_pointer()) for address in (source, target))
    cgutils.raw_memcpy(build, out, data, number, 1)


@_step(types.int64)
def _scratch(build: ir.IRBuilder) -> ir.Value:
    """Return the address of memory that lasts as long as the loop: for addresses, and a slot for each column."""
    return build.ptrtoint(cgutils.alloca_once(build, _I8, size=(1 + _MAX_COLUMNS) * _SLOT_BYTES), _I64)


@compiled
def _take(table, row, scratch):
    """Write to the beginning of scratch memory where the columns of a row are; return of how many groups."""
    places, count = _words(scratch), table.shape[1] - 2
    numel, skip = table[row, count], table[row, count + 1] % GROUP_NUMEL
    for column in range(count):
        places[column] = table[row, column]
        if numel % GROUP_NUMEL:
            bits, slot = table[0, column], scratch + (1 + column) * _SLOT_BYTES
            for index in range(_SLOT_BYTES // 8):
                _words(slot)[index] = 0
            _copy_bytes(places[column], slot + skip * bits // 8, (numel * bits + 7) // 8)
            places[column] = slot
    return (numel + GROUP_NUMEL - 1) // GROUP_NUMEL


@compiled
def _put(table, row, scratch):
    """Write what has changed in scratch memory to where it belongs."""
    count = table.shape[1] - 2
    numel, skip = table[row, count], table[row, count + 1] % GROUP_NUMEL
    for column in range(count if numel % GROUP_NUMEL else 0):
        bits = table[0, column]
        num_bytes = (numel * bits + 7) // 8
        few = scratch + (1 + column) * _SLOT_BYTES + skip * bits // 8
        if bits == 1 and numel % 8:
            # Zeros in scratch memory draw signs as well; padding bits must be 0 on all ranks.
            _bytes(few)[num_bytes - 1] &= np.uint8(0xFF00 >> numel % 8 & 0xFF)
        if column != table[0, count]:
            _copy_bytes(few, table[row, column], num_bytes)


@compiled
def update(table, first, last, like, decay):
    """Update m and b and write u, of rows of (grad, m, b, u); gradients have the dtype of `like`.

    Returns:
        not 0 if some b was not finite; as the other updates.
    """
    failed, scratch = 0, _scratch()
    for row in range(first, last):
        failed |= _update_groups(scratch, _take(table, row, scratch), like, decay)
        _put(table, row, scratch)
    return failed


@compiled
def update_quantize_pack(table, first, last, like, decay, gain, key):
    """Update m and b and write the packed signs of Q(gain m / b), of rows of (grad, m, b, out)."""
    failed, scratch = 0, _scratch()
    for row in range(first, last):
        groups, number = _take(table, row, scratch), table[row, 5] // GROUP_NUMEL
        failed |= _update_quantize_pack_groups(scratch, groups, like, decay, gain, number, key)
        _put(table, row, scratch)
    return failed


@compiled
def update_shape_pack(table, first, last, like, decay, gain):
    """Update m and b and write the packed signs of m / b, shaped, of rows of (grad, m, b, residual, out)."""
    failed, scratch = 0, _scratch()
    for row in range(first, last):
        failed |= _update_shape_pack_groups(scratch, _take(table, row, scratch), like, decay, gain)
        _put(table, row, scratch)
    return failed


@compiled
def quantize_pack(table, first, last, like, gain, key):
    """Write the packed signs of Q(gain u), of rows of (u, out)."""
    scratch = _scratch()
    for row in range(first, last):
        groups, number = _take(table, row, scratch), table[row, 3] // GROUP_NUMEL
        _quantize_pack_groups(scratch, groups, like, gain, number, key)
        _put(table, row, scratch)


@compiled
def shape_pack(table, first, last, like, gain):
    """Write the packed signs of u, shaped, of rows of (u, residual, out)."""
    scratch = _scratch()
    for row in range(first, last):
        _shape_pack_groups(scratch, _take(table, row, scratch), like, gain)
        _put(table, row, scratch)


@compiled
def unpack_apply(table, first, last, like, lr, decay):
    """Do x = x decay - lr sign, of rows of (x, packed)."""
    scratch = _scratch()
    for row in range(first, last):
        _apply_groups(scratch, _take(table, row, scratch), like, lr, decay)
        _put(table, row, scratch)


# 1-bit Adam. All parameters are one flat vector, cut into chunks and these into blocks of at most ADAM_BLOCK_NUMEL. A
# piece is what a block has of one tensor: (tensor, first element there, elements, first element in the flat vector).
# Addresses and factors stand in a row a tensor; address 0 leaves a tensor out.

ADAM_BLOCK_NUMEL = 4096  # values that stay in the L1 cache between two loops


@compiled
def _floats(address, first, numel):
    return carray(_pointer(address + 4 * first), (numel,), np.float32)


@compiled
def _copy(values, out, limit, streams):
    failed, whole = 0, values.size // GROUP_NUMEL
    if streams:
        for group in range(whole):
            failed |= _stream_32(values, out, group, limit)
    else:
        for group in range(whole):
            failed |= _copy_32(values, out, group, limit)
    for index in range(whole * GROUP_NUMEL, values.size):
        out[index] = values[index]
        failed |= 0 if abs(values[index]) < limit else 1
    return failed


@compiled
def _check(values, limit):
    failed, whole = 0, values.size // GROUP_NUMEL
    for group in range(whole):
        failed |= _check_32(values, group, limit)
    for index in range(whole * GROUP_NUMEL, values.size):
        failed |= 0 if abs(values[index]) < limit else 1
    return failed


@compiled
def check_gradients(blocks, first, last, pieces, grads, limit):
    """Return not 0 if an fp32 gradient (T addresses, 0 for none) is too large."""
    failed, limit = 0, np.float32(limit)
    for tensor, begin, numel, _ in pieces[blocks[first, 2] : blocks[last - 1, 3]]:
        if grads[tensor]:
            failed |= _check(_floats(grads[tensor], begin, numel), limit)
    return failed


@compiled
def gather_gradients(blocks, first, last, pieces, grads, out, limit, streams):
    """Copy fp32 gradients (T addresses) to the flat vector, 0 where there is none; return not 0 if one is too large.

    With `streams`, past the caches: a vector that they cannot hold need not be read before it is written.
    """
    failed, limit = 0, np.float32(limit)
    for tensor, begin, numel, flat in pieces[blocks[first, 2] : blocks[last - 1, 3]]:
        if grads[tensor]:
            target = out[flat : flat + numel]
            is_aligned = flat % _LANES == 0
            failed |= _copy(_floats(grads[tensor], begin, numel), target, limit, streams and is_aligned)
        else:
            for index in range(flat, flat + numel):
                out[index] = 0
    if streams:
        _fence()
    return failed


@compiled
def _dense_adam(total, m, v, x, factors):
    whole = total.size // GROUP_NUMEL
    for group in range(whole):
        _dense_adam_32(total, m, v, x, group, factors)
    done = whole * GROUP_NUMEL
    if done < total.size:
        few_m, few_v, few_x = _few(m[done:], 0), _few(v[done:], 0), _few(x[done:], 0)
        _dense_adam_32(_few(total[done:], 0), few_m, few_v, few_x, 0, factors)
        _put_back(few_m, 0, m[done:])
        _put_back(few_v, 0, v[done:])
        _put_back(few_x, 0, x[done:])


@compiled
def dense_adam(blocks, first, last, pieces, addresses, factors, like, size):
    """Take a dense step, for tensors with addresses of (m, v, x, sum of all ranks' gradients)."""
    for tensor, begin, numel, _ in pieces[blocks[first, 2] : blocks[last - 1, 3]]:
        m, v, x, total = addresses[tensor]
        f = factors[tensor]
        if x:
            _dense_adam(
                _floats(total, begin, numel),
                _floats(m, begin, numel),
                _floats(v, begin, numel),
                carray(_pointer(x + size * begin), (numel,), like.dtype),
                (f[0], f[1], f[2], f[3], f[4], f[6], f[7], f[8], f[9]),
            )


@compiled
def _local_momentum(g, m, out, factors):
    whole = g.size // GROUP_NUMEL
    for group in range(whole):
        _local_momentum_32(g, m, out, group, factors)
    done = whole * GROUP_NUMEL
    if done < g.size:
        few_out = _few(out[done:], 0)
        _local_momentum_32(_few(g[done:], 0), _few(m[done:], 0), few_out, 0, factors)
        _put_back(few_out, 0, out[done:])


@compiled
def _momenta_of(pieces, first, last, start, addresses, factors, out):
    """Write the momenta of some pieces, the first element of the flat vector being `start`."""
    for tensor, begin, numel, flat in pieces[first:last]:
        m, _, _, gradient = addresses[tensor]
        f = factors[tensor]
        if m:
            _local_momentum(
                _floats(gradient, begin, numel),
                _floats(m, begin, numel),
                out[flat - start : flat - start + numel],
                (f[0], f[1], f[5]),
            )


@compiled
def local_momenta(blocks, first, last, pieces, addresses, factors, out):
    """Write this rank's momenta with its gradient, flat, for tensors with addresses of (m, v, x, gradient)."""
    _momenta_of(pieces, blocks[first, 2], blocks[last - 1, 3], 0, addresses, factors, out)


@compiled
def _is_of_one_tensor(pieces, begin, end, lo, hi):
    """Tell whether a block is whole groups of one tensor: most are, and need no scratch array."""
    return end - begin == 1 and pieces[begin, 2] == hi - lo and (hi - lo) % GROUP_NUMEL == 0


@compiled
def pack_valid(blocks, first, last, pieces, addresses, out, counts):
    """Write as bits which elements have a variance, of tensors with addresses of (m, v, ...); how many of a block."""
    flags, bits = np.empty(ADAM_BLOCK_NUMEL, np.int16), np.empty(ADAM_BLOCK_NUMEL // 8, np.uint8)
    for number in range(first, last):
        lo, hi, begin, end = blocks[number]
        groups, count = -(-(hi - lo) // GROUP_NUMEL), 0
        for index in range(groups * GROUP_NUMEL):
            flags[index] = 0
        for tensor, start, numel, flat in pieces[begin:end]:
            if addresses[tensor, 1]:
                v, target = _floats(addresses[tensor, 1], start, numel), flags[flat - lo : flat - lo + numel]
                whole = numel // GROUP_NUMEL
                for group in range(whole):
                    _has_variance_32(v, target, group)
                for index in range(whole * GROUP_NUMEL, numel):
                    target[index] = 1 if v[index] > 0 else 0
        for group in range(groups):
            count += _pack_valid_32(flags, bits, group)
        for index in range((hi - lo) // 8):
            out[lo // 8 + index] = bits[index]
        counts[number] = count


@compiled
def _total(sums):
    total = 0.0
    for lane in range(sums.size):
        total += sums[lane]
    return total


@compiled
def _encode_momenta(g, m, factors, residual, valid, out, sums):
    """Do `_encode` for the momenta of whole groups."""
    for lane in range(sums.size):
        sums[lane] = 0
    for group in range(residual.size // GROUP_NUMEL):
        _encode_momentum_32(g, m, factors, residual, valid, out, sums, group)
    return _total(sums)


@compiled
def _encode(values, residual, valid, out, sums):
    """Encode a block; return the sum of magnitudes."""
    for lane in range(sums.size):
        sums[lane] = 0
    whole = residual.size // GROUP_NUMEL
    for group in range(whole):
        _encode_32(values, residual, valid, out, sums, group)
    done = whole * GROUP_NUMEL
    if done < residual.size:
        few_residual, few_out = _few(residual[done:], 0), _few(out[done // 8 :], 0)
        few_values, few_valid = _few(values[done : residual.size], 0), _few(valid[done // 8 :], 0)
        _encode_32(few_values, few_residual, few_valid, few_out, sums, 0)
        _put_back(few_residual, 0, residual[done:])
        _put_back(few_out, 0, out[done // 8 :])
    return _total(sums)


@compiled
def encode_momenta(blocks, first, last, pieces, addresses, factors, residual, valid, rows, chunk, block_sums):
    """Do `local_momenta` and `encode_values` without storing momenta."""
    values, sums = np.zeros(ADAM_BLOCK_NUMEL, np.float32), np.empty(_SUMS_IN_TURN * _LANES, np.float64)
    for number in range(first, last):
        lo, hi, begin, end = blocks[number]
        row, offset = lo // chunk, lo % chunk // 8
        out = rows[row, 4 + offset : 4 + offset + (hi - lo) // 8]
        left, bits = residual[lo:hi], valid[lo // 8 : hi // 8]
        if _is_of_one_tensor(pieces, begin, end, lo, hi) and addresses[pieces[begin, 0], 0]:
            tensor, start, numel, _ = pieces[begin]
            m, _, _, g = addresses[tensor]
            f = factors[tensor]
            gradients, before = _floats(g, start, numel), _floats(m, start, numel)
            block_sums[number] = _encode_momenta(gradients, before, (f[0], f[1], f[5]), left, bits, out, sums)
        else:
            _momenta_of(pieces, begin, end, lo, addresses, factors, values)
            # Where no tensor has written, values are of another block, and none is valid.
            block_sums[number] = _encode(values, left, bits, out, sums)


@compiled
def encode_values(blocks, first, last, values, residual, valid, rows, chunk, block_sums):
    """Add values to residuals where valid and write the signs of the sums; the sum of magnitudes of each block."""
    sums = np.empty(_SUMS_IN_TURN * _LANES, np.float64)
    for number in range(first, last):
        lo, hi, _, _ = blocks[number]
        row, offset = lo // chunk, lo % chunk // 8
        out = rows[row, 4 + offset : 4 + offset + (hi - lo) // 8]
        block_sums[number] = _encode(values[lo:hi], residual[lo:hi], valid[lo // 8 : hi // 8], out, sums)


@compiled
def _mean_of_rows(rows, scales, lo, hi, out):
    """Write the mean of some elements of encoded chunks, summed in order and divided once."""
    count = rows.shape[0]
    _set_scaled(rows[0, 4 + lo // 8 : 4 + hi // 8], out, scales[0])
    for row in range(1, count):
        _add_scaled(rows[row, 4 + lo // 8 : 4 + hi // 8], out, scales[row])
    if count & (count - 1):
        for index in range(out.size):
            out[index] /= np.float32(count)
    elif count > 1:
        # The same to the bit, and a division takes as long as all the rest.
        part = np.float32(1) / np.float32(count)
        for index in range(out.size):
            out[index] *= part


@compiled
def encode_mean(blocks, first, last, encoded, scales, residual, valid, rows, block_sums):
    """Do `encode_values` of the mean of encoded chunks, which is not stored, as one chunk."""
    values, sums = np.zeros(ADAM_BLOCK_NUMEL, np.float32), np.empty(_SUMS_IN_TURN * _LANES, np.float64)
    for number in range(first, last):
        lo, hi, _, _ = blocks[number]
        _mean_of_rows(encoded, scales, lo, hi, values[: hi - lo])
        out = rows[0, 4 + lo // 8 : 4 + hi // 8]
        block_sums[number] = _encode(values, residual[lo:hi], valid[lo // 8 : hi // 8], out, sums)


@compiled
def keep_residual(blocks, first, last, residual, valid, rows, scales, chunk):
    """Take what was sent from the residuals."""
    for number in range(first, last):
        lo, hi, _, _ = blocks[number]
        row, offset = lo // chunk, lo % chunk // 8
        some, bits = residual[lo:hi], valid[lo // 8 : hi // 8]
        signs, scale = rows[row, 4 + offset : 4 + offset + (hi - lo) // 8], scales[row]
        whole = some.size // GROUP_NUMEL
        for group in range(whole):
            _keep_32(some, bits, signs, group, scale)
        for index in range(whole * GROUP_NUMEL, some.size):
            place = np.uint8(128 >> index % 8)
            if bits[index // 8] & place:
                some[index] -= scale if signs[index // 8] & place else -scale


@compiled
def _apply_average(average, m, v, x, factors, streams):
    whole = average.size // GROUP_NUMEL
    for group in range(whole):
        _apply_average_32(average, m, v, x, group, factors, streams)
    done = whole * GROUP_NUMEL
    if done < average.size:
        few_m, few_x = _few(m[done:], 0), _few(x[done:], 0)
        _apply_average_32(_few(average[done:], 0), few_m, _few(v[done:], 0), few_x, 0, factors, False)
        _put_back(few_m, 0, m[done:])
        _put_back(few_x, 0, x[done:])


@compiled
def apply_average(blocks, first, last, pieces, addresses, factors, rows, scales, chunk, like, size, streams):
    """Take the encoded average as the momenta, and move tensors with addresses of (m, v, x, ...).

    With `streams`, momenta go past the caches.
    """
    average = np.empty(ADAM_BLOCK_NUMEL, np.float32)
    for number in range(first, last):
        lo, hi, begin, end = blocks[number]
        row, offset = lo // chunk, lo % chunk // 8
        signs, is_whole = (
            rows[row, 4 + offset : 4 + offset + (hi - lo) // 8],
            _is_of_one_tensor(pieces, begin, end, lo, hi),
        )
        if not is_whole:
            _set_scaled(signs, average[: hi - lo], scales[row])
        for tensor, start, numel, flat in pieces[begin:end]:
            m, v, x, _ = addresses[tensor]
            f = factors[tensor]
            if x:
                new_m, root = _floats(m, start, numel), _floats(v, start, numel)
                moved, others = carray(_pointer(x + size * start), (numel,), like.dtype), (f[5], f[6], f[7], f[8], f[9])
                is_aligned = streams and (m + 4 * start) % _LINE_BYTES == 0
                if is_whole:
                    for group in range(numel // GROUP_NUMEL):
                        _apply_signs_32(signs, scales[row], new_m, root, moved, group, others, is_aligned)
                else:
                    part = average[flat - lo : flat - lo + numel]
                    _apply_average(part, new_m, root, moved, others, is_aligned)
    if streams:
        _fence()


# What is compiled stays in numba's cache, from which other processes load it.


@compiled
def prepare():
    """Do nothing; at the first call numba does what it does once in a process."""


def cache_folder() -> Path | None:
    """Return where compiled loops are kept; None where no folder can be written to."""
    path = prepare.stats.cache_path
    return None if path is None else Path(path)
