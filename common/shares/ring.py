"""Elements of the ring of integers modulo 2^64: how they stand for numbers, and how a sum leaves the parties.

A number v with f fraction bits is the element v 2^f, rounded, in two's complement. f need not be a whole number.
Addition and multiplication of uint64 arrays in numpy are those of the ring.
"""

import math

import numpy as np

from trilateral.common.base.arrays import ElementVector, FloatVector
from trilateral.common.base.errors import OutOfRangeError

LIMIT = 2.0**63


def encode(values: FloatVector, fraction_bits: float) -> ElementVector:
    """Return the elements of some numbers.

    Args:
        values: finite numbers, shape (n,).
        fraction_bits: f.

    Returns:
        Elements, shape (n,).

    Raises:
        OutOfRangeError: a number is not finite, or |v| 2^f reaches 2^63.
    """
    scaled = np.rint(np.asarray(values, np.float64) * math.pow(2, fraction_bits))
    if not (np.abs(scaled) < LIMIT).all():
        raise OutOfRangeError(f"a number does not fit 64 bits with {fraction_bits:g} fraction bits")
    return scaled.astype(np.int64).view(np.uint64)


def decode(elements: ElementVector, fraction_bits: float) -> FloatVector:
    """Return the numbers that some elements stand for, the reverse of `encode`."""
    return elements.view(np.int64).astype(np.float64) * math.pow(2, -fraction_bits)


def decode_near(elements: ElementVector, fraction_bits: float, expected: FloatVector) -> FloatVector:
    """Return the numbers nearest to some expected ones that some elements stand for.

    Args:
        elements: shape (n,).
        fraction_bits: f.
        expected: shape (n,). They may be outside of the range of `encode`.
    """
    turn = math.pow(2, 64 - fraction_bits)
    near = decode(elements, fraction_bits)
    # The difference is a whole number of turns and less than half a turn.
    return near + turn * np.rint((expected - near) / turn)


def cut_share(share: ElementVector, mask: ElementVector, bits: int, *, subtract: bool) -> ElementVector:
    """Return what a party sends to the coordinator of its share of a sum: masked, and without its low bits.

    Args:
        share: shape (n,).
        mask: elements of the stream that only the parties know, shape (n,). The host adds it, the guest subtracts it.
        bits: how many low bits to drop; `Format.gradient_drop` or `Format.loss_drop`.
        subtract: whether to subtract the mask.
    """
    masked = share - mask if subtract else share + mask
    return masked >> np.uint64(bits)


def join_shares(host: ElementVector, guest: ElementVector, own: ElementVector | int, bits: int) -> ElementVector:
    """Return the sum of three shares of which two were cut by `cut_share`.

    Each cut takes away a number that is uniform in [0, 2^bits) for everybody but its sender, since the mask is uniform.
    The result adds 2^bits, the mean of both (to half a unit): its error has mean 1 and variance 4^bits / 6.

    Args:
        host: the host's cut share, shape (n,).
        guest: the guest's cut share, shape (n,).
        own: the coordinator's share, not cut, shape (n,); or 0.
        bits: how many bits were dropped.
    """
    return ((host + guest + np.uint64(1 if bits else 0)) << np.uint64(bits)) + np.asarray(own, np.uint64)
