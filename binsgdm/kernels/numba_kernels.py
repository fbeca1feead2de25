"""The CPU kernels: loops compiled by numba around steps of 32 elements written as LLVM vector instructions.

A step is written in LLVM's own terms, since numba cannot vectorize a loop that prefetches, and without prefetching the
loops wait for memory (ADR 5). LLVM turns vectors of sixteen into what the CPU has: AVX-512, AVX2, SSE, NEON. No
fast-math flag is set anywhere, so LLVM never fuses a multiplication with an addition.

numba's cache looks only at the file of a compiled function: steps and loops stay in this one file.

bf16 travels as uint16 and fp16 as int16, since numpy has no bf16.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, import-untyped, no-any-return, attr-defined"
# ruff: noqa: PLR0913, PLR0917 - a loop takes its arrays and numbers one by one

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from binsgdm.functional import SCALE
from binsgdm.random import GROUP_NUMEL, MULTIPLIERS, ROUNDS, WEYL

_LANES = 16
_COUNTERS = GROUP_NUMEL // 4  # whose draws are those of a group: a 64-bit number each, in one vector
_PREFETCH_NUMEL = 1024  # 4 KiB ahead; 256 to 2048 measured, docs/explanation/adr/0005
_BLOCK_NUMEL = 1024  # values of a block that stay in the L1 cache between two loops
_LINE_BYTES = 64

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


class _GroupArguments:
    """Arguments of the instructions for one group of 32 elements: arrays, addressed by group, and scalars."""

    def __init__(self, context: Any, build: ir.IRBuilder, signature: Any, values: Any) -> None:
        self.build = build
        self._context = context
        self._types = signature.args
        self._values = values

    def scalar(self, position: int) -> ir.Value:
        return self._values[position]

    def tuple(self, position: int) -> list[ir.Value]:
        return list(cgutils.unpack_tuple(self.build, self._values[position]))

    def pointer(self, position: int, index: ir.Value) -> ir.Value:
        array = self._context.make_array(self._types[position])(self._context, self.build, self._values[position])
        return self.build.gep(array.data, [index])

    def element(self, position: int) -> ir.Value:
        return self._types[position].dtype

    def group(self, position: int, group: ir.Value, *, lane: int = 0) -> ir.Value:
        """Return the address of an element of a 32-element group."""
        index = self.build.add(self.build.mul(group, ir.Constant(_I64, GROUP_NUMEL)), ir.Constant(_I64, lane))
        return self.pointer(position, index)

    def prefetch(self, position: int, group: ir.Value) -> None:
        """Ask for the cache lines of a group some way ahead; past the end it is ignored."""
        build, per_line = self.build, _LINE_BYTES * 8 // self.element(position).bitwidth
        byte = _I8.as_pointer()
        # numba offers no prefetch, so this calls LLVM's own. Without it the loops wait for memory (ADR 5).
        function = build.module.declare_intrinsic(
            "llvm.prefetch.p0", (), ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        )
        read, keep, data = (ir.Constant(_I32, number) for number in (0, 3, 1))
        # One prefetch a cache line: 32 fp32 values take two lines of 64 bytes, 32 values of 16 bits one.
        for lane in range(0, GROUP_NUMEL, per_line):
            address = self.group(position, group, lane=_PREFETCH_NUMEL + lane)
            build.call(function, [build.bitcast(address, byte), read, keep, data])


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


def _thresholds(build: ir.IRBuilder, counter: ir.Value, key: list[ir.Value]) -> list[ir.Value]:
    """Return two vectors of thresholds: the words of Philox4x32-10 for eight consecutive counters, one after the other.

    Each 32-bit word lives in the lower half of a 64-bit lane, where one multiplication gives the 64-bit product. The
    upper half of a lane may hold anything.
    """
    # The whole generator stays in vector registers: no draw is ever stored.
    wide = _vector(_I64, _COUNTERS)
    k0, k1, *other_words = key
    low_mask, half_bits = _constant(_I64, _LOW32, _COUNTERS), _constant(_I64, 32, _COUNTERS)
    factors = [_constant(_I64, factor, _COUNTERS) for factor in MULTIPLIERS]
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


def _reverse_in_bytes(build: ir.IRBuilder, word: ir.Value) -> ir.Value:
    """Turn lane 0 = least significant bit of each byte into most significant, or back."""
    # A bit mask has lane 0 in its least significant bit; packed signs have it in the most significant bit of each byte
    # (`binsgdm.bits`). Reversing all 32 bits and then the bytes reverses the bits inside each byte.
    reverse = build.module.declare_intrinsic("llvm.bitreverse", [_I32])
    return build.bswap(build.call(reverse, [word]))


def _store_signs(build: ir.IRBuilder, positive: list[ir.Value], pointer: ir.Value) -> None:
    """Store the booleans of a group as four bytes."""
    word = ir.Constant(_I32, 0)
    for number, mask in enumerate(positive):
        word = build.or_(word, build.shl(_as_number(build, mask, _I32), ir.Constant(_I32, _LANES * number)))
    build.store(_reverse_in_bytes(build, word), build.bitcast(pointer, _I32.as_pointer()), align=1)


def _load_signs(build: ir.IRBuilder, pointer: ir.Value) -> list[ir.Value]:
    """Load four bytes as the booleans of a group."""
    word = _reverse_in_bytes(build, build.load(build.bitcast(pointer, _I32.as_pointer()), align=1))
    bits, masks = ir.IntType(_LANES), _vector(ir.IntType(1))
    shifts = [ir.Constant(_I32, lane) for lane in range(0, GROUP_NUMEL, _LANES)]
    return [build.bitcast(build.trunc(build.lshr(word, shift), bits), masks) for shift in shifts]


def _update(args: _GroupArguments, group: ir.Value, lane: int, decay: list[ir.Value]) -> tuple[ir.Value, ir.Value]:
    """Update m and b (arguments 1, 2) with gradients (argument 0); return u and where b is finite."""
    build, (beta, one_minus_beta, beta_b, one_minus_beta_b, of_m, of_g) = args.build, decay
    g = _load(build, args.group(0, group, lane=lane), args.element(0))
    m_pointer, b_pointer = args.group(1, group, lane=lane), args.group(2, group, lane=lane)
    m, b = _load(build, m_pointer, types.float32), _load(build, b_pointer, types.float32)
    # |g| by clearing the sign bit.
    magnitude = build.bitcast(build.and_(build.bitcast(g, _vector(_I32)), _constant(_I32, 0x7FFFFFFF)), g.type)
    # Two products and a sum, each rounded: a fused multiply-add would differ from the reference in the last bit.
    new_m = build.fadd(build.fmul(m, beta), build.fmul(g, one_minus_beta))
    new_b = build.fadd(build.fmul(b, beta_b), build.fmul(magnitude, one_minus_beta_b))
    finite = build.fcmp_ordered("<", new_b, _constant(_F32, float("inf")))
    new_m, new_b = build.select(finite, new_m, m), build.select(finite, new_b, b)
    _store(build, new_m, m_pointer, types.float32)
    _store(build, new_b, b_pointer, types.float32)
    zero = _constant(_F32, 0.0)
    # Where b stayed, g may be NaN, or an infinity whose product with 0 is.
    ahead = build.select(finite, build.fadd(build.fmul(new_m, of_m), build.fmul(g, of_g)), new_m)
    # The division runs in all lanes; where b is 0 its NaN is not selected.
    u = build.select(build.fcmp_ordered(">", new_b, zero), build.fdiv(ahead, new_b), zero)
    return u, finite


def _update_group(args: _GroupArguments, group: ir.Value, decay: int) -> tuple[list[ir.Value], ir.Value]:
    """Update the 32 elements of a group; return vectors of u, and not 0 if one b was not finite."""
    build = args.build
    # Gradient, m and b are read; an output is only written and needs no prefetch.
    for position in range(3):
        args.prefetch(position, group)
    factors = [_splat(build, factor) for factor in args.tuple(decay)]
    results = [_update(args, group, lane, factors) for lane in range(0, GROUP_NUMEL, _LANES)]
    finite = results[0][1]
    for _, more in results[1:]:
        finite = build.and_(finite, more)
    return [u for u, _ in results], build.xor(_as_number(build, finite, _I64), ir.Constant(_I64, (1 << _LANES) - 1))


def _generator(write: Callable[[_GroupArguments], ir.Value | None]) -> Callable[..., ir.Value]:
    """Make numba's code generator of a function that writes the instructions of a step."""

    def generate(context: Any, build: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        done = write(_GroupArguments(context, build, signature, values))
        return context.get_dummy_value() if done is None else done

    return generate


def _write_update_32(args: _GroupArguments) -> ir.Value:
    """Do `update_` for a group. Arguments: grad, m, b, out_u, group, decay."""
    group = args.scalar(4)
    us, failed = _update_group(args, group, 5)
    for number, u in enumerate(us):
        _store(args.build, u, args.group(3, group, lane=_LANES * number), types.float32)
    return failed


def _write_update_quantize_pack_32(args: _GroupArguments) -> ir.Value:
    """Do `update_quantize_pack_` for a group. Arguments: grad, m, b, out, group, decay, gain, counter, key."""
    build, group = args.build, args.scalar(4)
    thresholds = _thresholds(build, args.scalar(7), args.tuple(8))
    us, failed = _update_group(args, group, 5)
    gain = _splat(build, args.scalar(6))
    # No clip: a threshold lies in [-1, 1), so that whatever is beyond compares as the end does.
    positive = [build.fcmp_ordered("<", t, build.fmul(u, gain)) for t, u in zip(thresholds, us, strict=True)]
    _store_signs(build, positive, args.pointer(3, build.mul(group, ir.Constant(_I64, 4))))
    return failed


def _write_update_shape_pack_32(args: _GroupArguments) -> ir.Value:
    """Do `update_shape_pack_` for a group. Arguments: grad, m, b, residual, out, group, decay, gain."""
    build, group = args.build, args.scalar(5)
    args.prefetch(3, group)
    us, failed = _update_group(args, group, 6)
    gain = _splat(build, args.scalar(7))
    positive = [_shape(args, u, gain, args.group(3, group, lane=_LANES * number)) for number, u in enumerate(us)]
    _store_signs(build, positive, args.pointer(4, build.mul(group, ir.Constant(_I64, 4))))
    return failed


def _write_shape_pack_32(args: _GroupArguments) -> None:
    """Do `shape_pack_` for a group. Arguments: u, residual, out, group, gain."""
    build, group = args.build, args.scalar(3)
    args.prefetch(0, group)
    args.prefetch(1, group)
    gain = _splat(build, args.scalar(4))
    positive = []
    for lane in range(0, GROUP_NUMEL, _LANES):
        u = _load(build, args.group(0, group, lane=lane), types.float32)
        positive.append(_shape(args, u, gain, args.group(1, group, lane=lane)))
    _store_signs(build, positive, args.pointer(2, build.mul(group, ir.Constant(_I64, 4))))


def _shape(args: _GroupArguments, u: ir.Value, gain: ir.Value, residual: ir.Value) -> ir.Value:
    """Round u, add residuals and store what is left; return where the sums are not negative."""
    build = args.build
    low, high = _constant(_F32, -1.0), _constant(_F32, 1.0)
    clipped = build.fmul(u, gain)
    # In this order: NaN compares false and becomes -1.
    clipped = build.select(build.fcmp_ordered(">", clipped, low), clipped, low)
    clipped = build.select(build.fcmp_ordered("<", clipped, high), clipped, high)
    # Rounded by the sum, whose lowest bits then hold the whole number: no conversion, which may round otherwise.
    rounded = build.fadd(build.fmul(clipped, _constant(_F32, float(SCALE))), _constant(_F32, _MAGIC))
    whole = build.sub(build.bitcast(rounded, _vector(_I32)), _constant(_I32, _MAGIC_BITS))
    return _split(args, whole, residual, _constant(_I32, SCALE))


def _split(args: _GroupArguments, values: ir.Value, residual: ir.Value, unit: ir.Value) -> ir.Value:
    """Add residuals to values, take a unit of the same sign away and store what is left; return the signs."""
    build = args.build
    pointer = build.bitcast(residual, _vector(_I16).as_pointer())
    total = build.add(values, build.sext(build.load(pointer, align=2), _vector(_I32)))
    positive = build.icmp_signed(">=", total, _constant(_I32, 0))
    left = build.sub(total, build.select(positive, unit, build.neg(unit)))
    build.store(build.trunc(left, _vector(_I16)), pointer, align=2)
    return positive


def _write_quantize_pack_32(args: _GroupArguments) -> None:
    """Write the packed signs of Q(gain u) of a group. Arguments: u, out, group, gain, counter, key."""
    build, group = args.build, args.scalar(2)
    args.prefetch(0, group)
    gain, positive = _splat(build, args.scalar(3)), []
    for number, t in enumerate(_thresholds(build, args.scalar(4), args.tuple(5))):
        u = _load(build, args.group(0, group, lane=_LANES * number), types.float32)
        positive.append(build.fcmp_ordered("<", t, build.fmul(u, gain)))
    _store_signs(build, positive, args.pointer(1, build.mul(group, ir.Constant(_I64, 4))))


def _write_count_signs_32(args: _GroupArguments) -> None:
    """Add to int16 counts how many signs of a group are +1. Arguments: packed, counts, group."""
    build, group = args.build, args.scalar(2)
    for number, positive in enumerate(_load_signs(build, args.pointer(0, build.mul(group, ir.Constant(_I64, 4))))):
        pointer = build.bitcast(args.group(1, group, lane=_LANES * number), _vector(_I16).as_pointer())
        counts = build.add(build.load(pointer, align=2), build.zext(positive, _vector(_I16)))
        build.store(counts, pointer, align=2)


def _write_shape_counts_32(args: _GroupArguments) -> None:
    """Write the packed signs of a shaped merge. Arguments: counts of +1, residual, out, group, num_vectors (int32)."""
    build, group = args.build, args.scalar(3)
    vectors, positive = _splat(build, args.scalar(4)), []
    for lane in range(0, GROUP_NUMEL, _LANES):
        counts = build.load(build.bitcast(args.group(0, group, lane=lane), _vector(_I16).as_pointer()), align=2)
        # So many +1, all others -1.
        sums = build.sub(build.shl(build.sext(counts, _vector(_I32)), _constant(_I32, 1)), vectors)
        positive.append(_split(args, sums, args.group(1, group, lane=lane), vectors))
    _store_signs(build, positive, args.pointer(2, build.mul(group, ir.Constant(_I64, 4))))


def _write_add_signs_32(args: _GroupArguments) -> None:
    """Add the signs of a group to `total`. Arguments: packed, total, group."""
    build, group = args.build, args.scalar(2)
    for number, positive in enumerate(_load_signs(build, args.pointer(0, build.mul(group, ir.Constant(_I64, 4))))):
        pointer = args.group(1, group, lane=_LANES * number)
        sign = build.select(positive, _constant(_F32, 1.0), _constant(_F32, -1.0))
        _store(build, build.fadd(_load(build, pointer, types.float32), sign), pointer, types.float32)


def _write_apply_32(args: _GroupArguments) -> None:
    """Do x = x decay - lr sign for a group. Arguments: x, packed, group, lr, decay."""
    build, group, element = args.build, args.scalar(2), args.element(0)
    args.prefetch(0, group)
    lr, decay = _splat(build, args.scalar(3)), _splat(build, args.scalar(4))
    for number, positive in enumerate(_load_signs(build, args.pointer(1, build.mul(group, ir.Constant(_I64, 4))))):
        pointer = args.group(0, group, lane=_LANES * number)
        change = build.select(positive, lr, build.fneg(lr))
        _store(build, build.fsub(build.fmul(_load(build, pointer, element), decay), change), pointer, element)


def _intrinsic(function: Callable[..., Any]) -> Any:
    """Make a function of the compiled loops, whose instructions are written here.

    `function` gets numba's typing context, which none here needs, and the types of the arguments; it returns the
    signature and a code generator.
    """
    return intrinsic(function)


@_intrinsic
def _update_32(_: Any, grad: Any, m: Any, b: Any, out_u: Any, group: Any, decay: Any) -> Any:
    return types.int64(grad, m, b, out_u, group, decay), _generator(_write_update_32)


@_intrinsic
def _update_quantize_pack_32(
    _: Any, grad: Any, m: Any, b: Any, out: Any, group: Any, decay: Any, gain: Any, counter: Any, key: Any
) -> Any:
    signature = types.int64(grad, m, b, out, group, decay, gain, counter, key)
    return signature, _generator(_write_update_quantize_pack_32)


@_intrinsic
def _update_shape_pack_32(
    _: Any, grad: Any, m: Any, b: Any, residual: Any, out: Any, group: Any, decay: Any, gain: Any
) -> Any:
    signature = types.int64(grad, m, b, residual, out, group, decay, gain)
    return signature, _generator(_write_update_shape_pack_32)


@_intrinsic
def _quantize_pack_32(_: Any, u: Any, out: Any, group: Any, gain: Any, counter: Any, key: Any) -> Any:
    return types.void(u, out, group, gain, counter, key), _generator(_write_quantize_pack_32)


@_intrinsic
def _shape_pack_32(_: Any, u: Any, residual: Any, out: Any, group: Any, gain: Any) -> Any:
    return types.void(u, residual, out, group, gain), _generator(_write_shape_pack_32)


@_intrinsic
def _count_signs_32(_: Any, packed: Any, counts: Any, group: Any) -> Any:
    return types.void(packed, counts, group), _generator(_write_count_signs_32)


@_intrinsic
def _shape_counts_32(_: Any, counts: Any, residual: Any, out: Any, group: Any, num_vectors: Any) -> Any:
    return types.void(counts, residual, out, group, num_vectors), _generator(_write_shape_counts_32)


@_intrinsic
def _add_signs_32(_: Any, packed: Any, total: Any, group: Any) -> Any:
    return types.void(packed, total, group), _generator(_write_add_signs_32)


@_intrinsic
def _apply_32(_: Any, x: Any, packed: Any, group: Any, lr: Any, decay: Any) -> Any:
    return types.void(x, packed, group, lr, decay), _generator(_write_apply_32)


# Loops. Arrays are 1-D and contiguous; the whole groups of 32 run in place, the ragged ends through scratch arrays.
# The key is (low and high word of the seed, step, rank, stream).


def _compiled(function: Callable[..., Any]) -> Any:
    # nogil: the threads of `binsgdm.kernels.cpu` run these at once. error_model: a division by 0 gives NaN as in torch,
    # and no branch that would keep LLVM from vectorizing.
    options: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to cache in: compile anew in each process
        return njit(**options)(function)


@_compiled
def _rounded(decay):
    """Return (beta, 1 - beta, beta_b, 1 - beta_b, factors of m and g in u) in fp32, each rounded once."""
    beta, rest, beta_b, rest_b, of_m, of_g = decay
    return (
        np.float32(beta),
        np.float32(rest),
        np.float32(beta_b),
        np.float32(rest_b),
        np.float32(of_m),
        np.float32(of_g),
    )


@_compiled
def _update_groups(grad, m, b, out_u, decay):
    failed = 0
    for group in range(grad.size // GROUP_NUMEL):
        failed |= _update_32(grad, m, b, out_u, group, decay)
    return failed


@_compiled
def update(grad, m, b, out_u, decay):
    """Update m and b, write u; return 0, or another number if some b was not finite."""
    factors = _rounded(decay)
    whole = grad.size // GROUP_NUMEL * GROUP_NUMEL
    failed = _update_groups(grad[:whole], m[:whole], b[:whole], out_u[:whole], factors)
    # The instructions always do 32 elements, so the end of a tensor goes through zeroed scratch arrays of one group.
    left = grad.size - whole
    if left:
        scratch = np.zeros((3, GROUP_NUMEL), np.float32)
        tail_g, tail_m, tail_b, tail_u = np.zeros(GROUP_NUMEL, grad.dtype), scratch[0], scratch[1], scratch[2]
        for i in range(left):
            tail_g[i], tail_m[i], tail_b[i] = grad[whole + i], m[whole + i], b[whole + i]
        failed |= _update_groups(tail_g, tail_m, tail_b, tail_u, factors)
        for i in range(left):
            m[whole + i], b[whole + i], out_u[whole + i] = tail_m[i], tail_b[i], tail_u[i]
    return failed


@_compiled
def _whole_groups(start, numel):
    """Return where the whole groups of a segment begin and end; both `numel` if there are none."""
    first = min(numel, -start % GROUP_NUMEL)
    return first, first + (numel - first) // GROUP_NUMEL * GROUP_NUMEL


@_compiled
def _copy_signs(tail_out, skip, numel, out):
    """Copy the bytes of `numel` signs, and clear the bits after the last."""
    for index in range(out.size):
        out[index] = tail_out[skip // 8 + index]
    if numel % 8:
        # Zeros in the scratch arrays draw signs as well; padding bits must be 0 on all ranks.
        out[out.size - 1] &= np.uint8(0xFF00 >> numel % 8 & 0xFF)


@_compiled
def _update_quantize_pack_groups(grad, m, b, out, decay, gain, counter, key):
    failed = 0
    for group in range(grad.size // GROUP_NUMEL):
        failed |= _update_quantize_pack_32(grad, m, b, out, group, decay, gain, counter + group * _COUNTERS, key)
    return failed


@_compiled
def _update_quantize_pack_few(grad, m, b, out, decay, gain, start, key):
    """Do a part of one group."""
    skip = start % GROUP_NUMEL
    scratch = np.zeros((2, GROUP_NUMEL), np.float32)
    tail_g, tail_m, tail_b, tail_out = np.zeros(GROUP_NUMEL, grad.dtype), scratch[0], scratch[1], np.zeros(4, np.uint8)
    for i in range(grad.size):
        tail_g[skip + i], tail_m[skip + i], tail_b[skip + i] = grad[i], m[i], b[i]
    counter = start // GROUP_NUMEL * _COUNTERS
    failed = _update_quantize_pack_groups(tail_g, tail_m, tail_b, tail_out, decay, gain, counter, key)
    for i in range(grad.size):
        m[i], b[i] = tail_m[skip + i], tail_b[skip + i]
    _copy_signs(tail_out, skip, grad.size, out)
    return failed


@_compiled
def update_quantize_pack(grad, m, b, out, decay, gain, start, key):
    """Update m and b, write the packed signs; return 0, or another number if some b was not finite."""
    factors, gain = _rounded(decay), np.float32(gain)
    # A segment may begin inside a draw group (a slice of a parameter does): the parts of groups at both ends go through
    # scratch arrays, so an element gets the same draw whatever segment it is in.
    first, last = _whole_groups(start, grad.size)
    failed = _update_quantize_pack_groups(
        grad[first:last],
        m[first:last],
        b[first:last],
        out[first // 8 : last // 8],
        factors,
        gain,
        (start + first) // GROUP_NUMEL * _COUNTERS,
        key,
    )
    for lo, hi in ((0, first), (last, grad.size)):
        if lo < hi:
            tail = out[lo // 8 : (hi + 7) // 8]
            failed |= _update_quantize_pack_few(grad[lo:hi], m[lo:hi], b[lo:hi], tail, factors, gain, start + lo, key)
    return failed


@_compiled
def _update_shape_pack_groups(grad, m, b, residual, out, decay, gain):
    failed = 0
    for group in range(grad.size // GROUP_NUMEL):
        failed |= _update_shape_pack_32(grad, m, b, residual, out, group, decay, gain)
    return failed


@_compiled
def update_shape_pack(grad, m, b, residual, out, decay, gain):
    """Update m and b, write the packed signs of m / b, shaped; return not 0 if some b was not finite."""
    factors, gain = _rounded(decay), np.float32(gain)
    whole = grad.size // GROUP_NUMEL * GROUP_NUMEL
    failed = _update_shape_pack_groups(
        grad[:whole], m[:whole], b[:whole], residual[:whole], out[: whole // 8], factors, gain
    )
    left = grad.size - whole
    if left:
        scratch, tail_g = np.zeros((2, GROUP_NUMEL), np.float32), np.zeros(GROUP_NUMEL, grad.dtype)
        tail_m, tail_b, tail_e, tail_out = (
            scratch[0],
            scratch[1],
            np.zeros(GROUP_NUMEL, np.int16),
            np.zeros(4, np.uint8),
        )
        for i in range(left):
            tail_g[i], tail_m[i], tail_b[i] = grad[whole + i], m[whole + i], b[whole + i]
            tail_e[i] = residual[whole + i]
        failed |= _update_shape_pack_groups(tail_g, tail_m, tail_b, tail_e, tail_out, factors, gain)
        for i in range(left):
            m[whole + i], b[whole + i], residual[whole + i] = tail_m[i], tail_b[i], tail_e[i]
        _copy_signs(tail_out, 0, left, out[whole // 8 :])
    return failed


@_compiled
def _shape_pack_groups(u, residual, out, gain):
    for group in range(u.size // GROUP_NUMEL):
        _shape_pack_32(u, residual, out, group, gain)


@_compiled
def shape_pack(u, residual, out, gain):
    """Write the packed signs of u, shaped."""
    gain, whole = np.float32(gain), u.size // GROUP_NUMEL * GROUP_NUMEL
    _shape_pack_groups(u[:whole], residual[:whole], out[: whole // 8], gain)
    left = u.size - whole
    if left:
        tail_u, tail_e, tail_out = (
            np.zeros(GROUP_NUMEL, np.float32),
            np.zeros(GROUP_NUMEL, np.int16),
            np.zeros(4, np.uint8),
        )
        for i in range(left):
            tail_u[i], tail_e[i] = u[whole + i], residual[whole + i]
        _shape_pack_groups(tail_u, tail_e, tail_out, gain)
        for i in range(left):
            residual[whole + i] = tail_e[i]
        _copy_signs(tail_out, 0, left, out[whole // 8 :])


@_compiled
def _quantize_pack_groups(u, out, gain, counter, key):
    for group in range(u.size // GROUP_NUMEL):
        _quantize_pack_32(u, out, group, gain, counter + group * _COUNTERS, key)


@_compiled
def quantize_pack(u, out, gain, start, key):
    """Write the packed signs of Q(gain u)."""
    gain = np.float32(gain)
    first, last = _whole_groups(start, u.size)
    counter = (start + first) // GROUP_NUMEL * _COUNTERS
    _quantize_pack_groups(u[first:last], out[first // 8 : last // 8], gain, counter, key)
    for lo, hi in ((0, first), (last, u.size)):
        if lo < hi:
            skip = (start + lo) % GROUP_NUMEL
            tail_u, tail_out = np.zeros(GROUP_NUMEL, np.float32), np.zeros(4, np.uint8)
            for i in range(hi - lo):
                tail_u[skip + i] = u[lo + i]
            _quantize_pack_groups(tail_u, tail_out, gain, (start + lo) // GROUP_NUMEL * _COUNTERS, key)
            _copy_signs(tail_out, skip, hi - lo, out[lo // 8 : (hi + 7) // 8])


@_compiled
def _add_signs(packed, total):
    groups = total.size // GROUP_NUMEL
    for group in range(groups):
        _add_signs_32(packed, total, group)
    for index in range(groups * GROUP_NUMEL, total.size):
        total[index] += np.float32(1) if packed[index // 8] >> (7 - index % 8) & 1 else np.float32(-1)


@_compiled
def merge(packed_rows, lo, hi, out, start, key):
    """Write to `out` the packed signs of Q of the mean of the signs [lo, hi) of K rows; `start` belongs to lo."""
    # Row after row would read and write the sums of the whole slice K times; blocks keep them in the L1 cache.
    mean = np.empty(_BLOCK_NUMEL, np.float32)
    num_rows = np.float32(packed_rows.shape[0])
    for base in range(lo, hi, _BLOCK_NUMEL):
        end = min(hi, base + _BLOCK_NUMEL)
        block = mean[: end - base]
        for index in range(block.size):
            block[index] = 0
        for row in range(packed_rows.shape[0]):
            _add_signs(packed_rows[row, base // 8 : (end + 7) // 8], block)
        for index in range(block.size):
            block[index] /= num_rows
        quantize_pack(block, out[(base - lo) // 8 : (end - lo + 7) // 8], 1.0, start + base - lo, key)


@_compiled
def _count_signs(packed, counts):
    for group in range(counts.size // GROUP_NUMEL):
        _count_signs_32(packed, counts, group)


@_compiled
def _shape_counts(counts, residual, out, num_vectors):
    for group in range(counts.size // GROUP_NUMEL):
        _shape_counts_32(counts, residual, out, group, num_vectors)


@_compiled
def _merge_shaped_block(packed_rows, first_byte, counts, residual, out):
    """Do whole groups, in blocks whose counts stay in the L1 cache."""
    num_vectors = np.int32(packed_rows.shape[0])
    for lo in range(0, residual.size, _BLOCK_NUMEL):
        hi = min(residual.size, lo + _BLOCK_NUMEL)
        block = counts[: hi - lo]
        for index in range(block.size):
            block[index] = 0
        for row in range(packed_rows.shape[0]):
            _count_signs(packed_rows[row, first_byte + lo // 8 : first_byte + hi // 8], block)
        _shape_counts(block, residual[lo:hi], out[lo // 8 : hi // 8], num_vectors)


@_compiled
def merge_shaped(packed_rows, residual, lo, hi, out):
    """Write to `out` the packed signs of the mean of the signs [lo, hi) of K rows, shaped; lo is a multiple of 32."""
    counts = np.empty(_BLOCK_NUMEL, np.int16)
    whole = (hi - lo) // GROUP_NUMEL * GROUP_NUMEL
    _merge_shaped_block(packed_rows, lo // 8, counts, residual[lo : lo + whole], out[: whole // 8])
    left = hi - lo - whole
    if left:
        num_bytes = (left + 7) // 8
        tail_rows, tail_e = np.zeros((packed_rows.shape[0], 4), np.uint8), np.zeros(GROUP_NUMEL, np.int16)
        tail_out = np.zeros(4, np.uint8)
        for row in range(packed_rows.shape[0]):
            for i in range(num_bytes):
                tail_rows[row, i] = packed_rows[row, (lo + whole) // 8 + i]
        for i in range(left):
            tail_e[i] = residual[lo + whole + i]
        _merge_shaped_block(tail_rows, 0, counts, tail_e, tail_out)
        for i in range(left):
            residual[lo + whole + i] = tail_e[i]
        _copy_signs(tail_out, 0, left, out[whole // 8 :])


@_compiled
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


@_compiled
def _apply_groups(x, packed, lr, decay):
    for group in range(x.size // GROUP_NUMEL):
        _apply_32(x, packed, group, lr, decay)


@_compiled
def unpack_apply(x, packed, lr, decay):
    """Do x = x decay - lr sign."""
    lr, decay = np.float32(lr), np.float32(decay)
    whole = x.size // GROUP_NUMEL * GROUP_NUMEL
    _apply_groups(x[:whole], packed, lr, decay)
    left = x.size - whole
    if left:
        tail_x, tail_packed = np.zeros(GROUP_NUMEL, x.dtype), np.zeros(4, np.uint8)
        for i in range(left):
            tail_x[i] = x[whole + i]
        for i in range(packed.size - whole // 8):
            tail_packed[i] = packed[whole // 8 + i]
        _apply_groups(tail_x, tail_packed, lr, decay)
        for i in range(left):
            x[whole + i] = tail_x[i]


# Tables. A row is a piece of a tensor: addresses, then elements, then where it starts in the order of draws.


@_intrinsic
def _pointer(_: Any, address: Any) -> Any:
    """Turn an integer address into a pointer, which compiled Python has no expression for."""

    def generate(context: Any, build: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:  # noqa: ARG001
        return build.inttoptr(values[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@_compiled
def update_rows(table, first, last, like, decay):
    """Do `update` for rows of (grad, m, b, u, elements); gradients have the dtype of `like`."""
    failed = 0
    # The rows hold addresses: numba would otherwise unpack and check an array object for each tensor.
    for grad, m, b, u, numel in table[first:last]:
        failed |= update(
            carray(_pointer(grad), (numel,), like.dtype),
            carray(_pointer(m), (numel,), np.float32),
            carray(_pointer(b), (numel,), np.float32),
            carray(_pointer(u), (numel,), np.float32),
            decay,
        )
    return failed


@_compiled
def update_quantize_pack_rows(table, first, last, like, decay, gain, key):
    """Do `update_quantize_pack` for rows of (grad, m, b, out, elements, start)."""
    failed = 0
    for grad, m, b, out, numel, start in table[first:last]:
        failed |= update_quantize_pack(
            carray(_pointer(grad), (numel,), like.dtype),
            carray(_pointer(m), (numel,), np.float32),
            carray(_pointer(b), (numel,), np.float32),
            carray(_pointer(out), ((numel + 7) // 8,), np.uint8),
            decay,
            gain,
            start,
            key,
        )
    return failed


@_compiled
def update_shape_pack_rows(table, first, last, like, decay, gain):
    """Do `update_shape_pack` for rows of (grad, m, b, residual, out, elements)."""
    failed = 0
    for grad, m, b, residual, out, numel in table[first:last]:
        failed |= update_shape_pack(
            carray(_pointer(grad), (numel,), like.dtype),
            carray(_pointer(m), (numel,), np.float32),
            carray(_pointer(b), (numel,), np.float32),
            carray(_pointer(residual), (numel,), np.int16),
            carray(_pointer(out), ((numel + 7) // 8,), np.uint8),
            decay,
            gain,
        )
    return failed


@_compiled
def unpack_apply_rows(table, first, last, like, lr, decay):
    """Do `unpack_apply` for rows of (x, packed, elements)."""
    for x, packed, numel in table[first:last]:
        unpack_apply(
            carray(_pointer(x), (numel,), like.dtype),
            carray(_pointer(packed), ((numel + 7) // 8,), np.uint8),
            lr,
            decay,
        )
