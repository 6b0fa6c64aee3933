/* Curve25519, v^2 = u^3 + 486662 u^2 + u modulo p = 2^255 - 19, for eight points at a time: X25519 (RFC 7748, section 5), and the
 * map Elligator 2 (RFC 9380, section 6.7.1). It uses the multiply-add of AVX-512 IFMA.
 *
 * A lane of 64 bits holds a limb of one point, so a vector holds the same limb of eight points.
 *
 * LIMBS. An element of the field is x_0 + 2^51 x_1 + ... + 2^204 x_4, with limbs below 2^51 + 2^15 ("reduced"). A multiply-add
 * takes the low 52 bits of two lanes and adds the low or the high 52 bits of their product to a third.
 *
 * BOUNDS. A factor of `mul` and `square` has limbs below 2^52. A column of the product adds up at most 5 low halves and twice 5 high
 * halves, each below 2^52, so it is below 15 2^52 < 2^56. Columns 5 to 9 are worth 19 times as much, 2^255 being 19 modulo p:
 *
 *     2^56 + 19 2^56 < 2^61
 *
 * so a lane does not overflow, and a carry is below 2^10. One round of carries makes the limbs reduced: below 2^51 + 2^10, and the
 * lowest one below 2^51 + 19 2^10 < 2^51 + 2^15. The sum of two reduced elements, and their difference plus 2 p, have limbs below
 * 2^53, carries below 4, and are reduced after one round of carries.
 *
 * TIME. No branch and no address depends on the key, on an element or on a point.
 *
 * With EMULATE_IFMA defined, the two instructions are plain C, and everything else is the same source: so the tests run on any
 * processor.
 */
#include "kernels.h"

#if HAVE_KERNEL

#include <string.h>

#ifdef EMULATE_IFMA
#define KERNEL
#else
#include <immintrin.h>
#define KERNEL __attribute__((target("avx512f,avx512ifma")))
#endif

#define INLINE static inline __attribute__((always_inline)) KERNEL

enum { LANES = 8, LIMBS = 5, LIMB_BITS = 51, A = 486662, A24 = (A - 2) / 4 };

typedef uint64_t lanes __attribute__((vector_size(8 * LANES), may_alias));

typedef struct {
    lanes limb[LIMBS];
} element;

#define MASK ((UINT64_C(1) << LIMB_BITS) - 1)
#define EACH(i) for (int i = 0; i < LIMBS; i++)

INLINE lanes all(uint64_t x) { return (lanes){0} + x; }

#ifdef EMULATE_IFMA
INLINE lanes add_product(lanes c, lanes a, lanes b, int shift) {
    const uint64_t low = (UINT64_C(1) << 52) - 1;
    for (int i = 0; i < LANES; i++) c[i] += (uint64_t)((unsigned __int128)(a[i] & low) * (b[i] & low) >> shift) & low;
    return c;
}
INLINE lanes add_low(lanes c, lanes a, lanes b) { return add_product(c, a, b, 0); }
INLINE lanes add_high(lanes c, lanes a, lanes b) { return add_product(c, a, b, 52); }
#else
INLINE lanes add_low(lanes c, lanes a, lanes b) { return (lanes)_mm512_madd52lo_epu64((__m512i)c, (__m512i)a, (__m512i)b); }
INLINE lanes add_high(lanes c, lanes a, lanes b) { return (lanes)_mm512_madd52hi_epu64((__m512i)c, (__m512i)a, (__m512i)b); }
#endif

INLINE lanes times_19(lanes x) { return (x << 4) + (x << 1) + x; }

INLINE element small(uint64_t x) {
    element e;
    EACH(i) e.limb[i] = all(0);
    e.limb[0] = all(x);
    return e;
}

/* One round of carries, all at the same time. */
INLINE element carry(element x) {
    element out;
    out.limb[0] = (x.limb[0] & MASK) + times_19(x.limb[4] >> LIMB_BITS);
    for (int i = 1; i < LIMBS; i++) out.limb[i] = (x.limb[i] & MASK) + (x.limb[i - 1] >> LIMB_BITS);
    return out;
}

INLINE element add(element x, element y) {
    EACH(i) x.limb[i] += y.limb[i];
    return carry(x);
}

INLINE element subtract(element x, element y) {
    x.limb[0] += 2 * (MASK - 18) - y.limb[0];
    for (int i = 1; i < LIMBS; i++) x.limb[i] += 2 * MASK - y.limb[i];
    return carry(x);
}

INLINE element fold(const lanes column[2 * LIMBS]) {
    element out;
    EACH(i) out.limb[i] = column[i] + times_19(column[i + LIMBS]);
    return carry(out);
}

INLINE element mul(element x, element y) {
    lanes low[2 * LIMBS], high[2 * LIMBS];
    for (int i = 0; i < 2 * LIMBS; i++) low[i] = high[i] = all(0);
    EACH(i) EACH(j) {
        low[i + j] = add_low(low[i + j], x.limb[i], y.limb[j]);
        /* 2^52 is twice 2^51, so the high halves count twice. */
        high[i + j + 1] = add_high(high[i + j + 1], x.limb[i], y.limb[j]);
    }
    for (int i = 0; i < 2 * LIMBS; i++) low[i] += high[i] << 1;
    return fold(low);
}

INLINE element square(element x) {
    lanes low[2 * LIMBS], high[2 * LIMBS];
    for (int i = 0; i < 2 * LIMBS; i++) low[i] = high[i] = all(0);
    EACH(i) for (int j = i + 1; j < LIMBS; j++) {
        low[i + j] = add_low(low[i + j], x.limb[i], x.limb[j]);
        high[i + j + 1] = add_high(high[i + j + 1], x.limb[i], x.limb[j]);
    }
    /* Each pair of different limbs counts twice. The sums are the same as those of `mul`. */
    for (int i = 0; i < 2 * LIMBS; i++) low[i] <<= 1, high[i] <<= 1;
    EACH(i) {
        low[2 * i] = add_low(low[2 * i], x.limb[i], x.limb[i]);
        high[2 * i + 1] = add_high(high[2 * i + 1], x.limb[i], x.limb[i]);
    }
    for (int i = 0; i < 2 * LIMBS; i++) low[i] += high[i] << 1;
    return fold(low);
}

/* x + n y for n below 2^19: twice a high half is below 2^20, so limbs are below 2^53 before the carries, and reduced after them. */
INLINE element add_times(element x, element y, uint64_t n) {
    lanes high[LIMBS], by = all(n);
    EACH(i) {
        x.limb[i] = add_low(x.limb[i], y.limb[i], by);
        high[i] = add_high(all(0), y.limb[i], by) << 1;
    }
    x.limb[0] += times_19(high[4]);
    for (int i = 1; i < LIMBS; i++) x.limb[i] += high[i - 1];
    return carry(x);
}

static KERNEL __attribute__((noinline)) element squares(element x, int count) {
    for (int i = 0; i < count; i++) x = square(x);
    return x;
}

/* x^(2^250 - 1), and x^11 for `invert`. */
static KERNEL __attribute__((noinline)) element power_250(element x, element *eleven) {
    const element two = square(x), nine = mul(x, squares(two, 2));
    *eleven = mul(nine, two);
    const element p5 = mul(square(*eleven), nine);
    const element p10 = mul(squares(p5, 5), p5);
    const element p20 = mul(squares(p10, 10), p10);
    const element p40 = mul(squares(p20, 20), p20);
    const element p50 = mul(squares(p40, 10), p10);
    const element p100 = mul(squares(p50, 50), p50);
    const element p200 = mul(squares(p100, 100), p100);
    return mul(squares(p200, 50), p50);
}

/* x^(p - 2), which is 1 / x, or 0 for 0. */
static KERNEL element invert(element x) {
    element eleven;
    const element p250 = power_250(x, &eleven);
    return mul(squares(p250, 5), eleven);
}

/* The one representative below p, of a reduced element. */
INLINE element canonical(element x) {
    /* One limb after the other passes its carry on, the last one to the first. What is left is below 2^255 + 19, so below 2 p. */
    for (int i = 0; i < LIMBS - 1; i++) x.limb[i + 1] += x.limb[i] >> LIMB_BITS, x.limb[i] &= MASK;
    x.limb[0] += times_19(x.limb[4] >> LIMB_BITS), x.limb[4] &= MASK;
    /* x + 19 reaches 2^255 if x is at least p. */
    lanes over = x.limb[0] + 19;
    for (int i = 1; i < LIMBS; i++) over = x.limb[i] + (over >> LIMB_BITS);
    x.limb[0] += times_19(over >> LIMB_BITS);
    for (int i = 0; i < LIMBS - 1; i++) x.limb[i + 1] += x.limb[i] >> LIMB_BITS, x.limb[i] &= MASK;
    x.limb[4] &= MASK;
    return x;
}

/* All ones in the lanes where x is zero or a square, else zero, by Euler's criterion: x^((p - 1) / 2), which is 0, 1 or -1. */
INLINE lanes is_square(element x) {
    element eleven;
    const element p250 = power_250(x, &eleven);
    const element e = canonical(mul(squares(p250, 4), square(mul(square(x), x))));
    return (lanes)(e.limb[1] == 0);
}

/* Read elements; the topmost bit is ignored. Lanes past the last element get the number 9, the base point. */
INLINE element load(const uint8_t *in, int64_t count) {
    uint64_t words[LANES][4] = {{0}};
    element out;
    for (int lane = 0; lane < LANES; lane++) words[lane][0] = 9;
    memcpy(words, in, (size_t)(ELEMENT_BYTES * (count < LANES ? count : LANES)));
    for (int lane = 0; lane < LANES; lane++) {
        const uint64_t *w = words[lane];
        out.limb[0][lane] = w[0] & MASK;
        out.limb[1][lane] = (w[0] >> 51 | w[1] << 13) & MASK;
        out.limb[2][lane] = (w[1] >> 38 | w[2] << 26) & MASK;
        out.limb[3][lane] = (w[2] >> 25 | w[3] << 39) & MASK;
        out.limb[4][lane] = w[3] >> 12 & MASK;
    }
    return out;
}

/* Write the elements of as many lanes as there is room for, below p. Returns how many are zero. */
INLINE int64_t store(uint8_t *out, element x, int64_t count) {
    uint64_t words[LANES][4];
    int64_t zeros = 0;
    x = canonical(x);
    count = count < LANES ? count : LANES;
    for (int lane = 0; lane < LANES; lane++) {
        uint64_t *w = words[lane];
        w[0] = x.limb[0][lane] | x.limb[1][lane] << 51;
        w[1] = x.limb[1][lane] >> 13 | x.limb[2][lane] << 38;
        w[2] = x.limb[2][lane] >> 26 | x.limb[3][lane] << 25;
        w[3] = x.limb[3][lane] >> 39 | x.limb[4][lane] << 12;
        zeros += lane < count && (w[0] | w[1] | w[2] | w[3]) == 0;
    }
    memcpy(out, words, (size_t)(ELEMENT_BYTES * count));
    return zeros;
}

/* Elligator 2 with Z = 2: u is x = -A / d for d = 1 + 2 t^2 if x^3 + A x^2 + x is a square, and else -A - x. The cubic is
 * -A (A^2 - A^2 d + d^2) / d^3, and a square if that times d^4 is. 2 t^2 is never -1, which is a square while 2 is none. */
KERNEL void map_to_curve(uint8_t *out, const uint8_t *in, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) {
        const element zero = small(0), one = small(1), t2 = square(load(in + ELEMENT_BYTES * i, count - i));
        const element d = add(one, add(t2, t2));
        const element inner = add(square(d), add_times(zero, subtract(zero, add_times(zero, subtract(d, one), A)), A));
        const element cubic = mul(d, subtract(zero, add_times(zero, inner, A)));
        const lanes first = is_square(cubic);
        const element ratio = add_times(zero, invert(d), A); /* A / d, so -x */
        const element x = subtract(zero, ratio), other = subtract(ratio, small(A));
        element u;
        EACH(k) u.limb[k] = (x.limb[k] & first) | (other.limb[k] & ~first);
        store(out + ELEMENT_BYTES * i, u, count - i);
    }
}

INLINE void swap(element *x, element *y, lanes mask) {
    EACH(i) {
        const lanes different = (x->limb[i] ^ y->limb[i]) & mask;
        x->limb[i] ^= different, y->limb[i] ^= different;
    }
}

enum { WORDS = 4 };

/* Read a key for each lane as X25519 does: the lowest three bits are 0, bit 254 is 1, and the ladder does not look at bit 255. */
INLINE void load_keys(lanes key[WORDS], const uint8_t *in, int64_t step, int64_t count) {
    uint64_t words[LANES][WORDS] = {{0}};
    for (int64_t lane = 0; lane < LANES && lane < count; lane++) memcpy(words[lane], in + step * lane, ELEMENT_BYTES);
    for (int word = 0; word < WORDS; word++)
        for (int lane = 0; lane < LANES; lane++) key[word][lane] = words[lane][word];
    key[0] &= all(~UINT64_C(7));
    key[WORDS - 1] |= all(UINT64_C(1) << 62);
}

/* The ladder of RFC 7748, with its names. */
static KERNEL element ladder(element x1, const lanes key[WORDS]) {
    element x2 = small(1), z2 = small(0), x3 = x1, z3 = small(1);
    lanes before = all(0);
    for (int bit = 254; bit >= 0; bit--) {
        const lanes now = key[bit / 64] >> bit % 64 & all(1), mask = all(0) - (now ^ before);
        before = now;
        swap(&x2, &x3, mask), swap(&z2, &z3, mask);
        const element a = add(x2, z2), b = subtract(x2, z2), c = add(x3, z3), d = subtract(x3, z3);
        const element aa = square(a), bb = square(b), e = subtract(aa, bb), da = mul(d, a), cb = mul(c, b);
        x3 = square(add(da, cb)), z3 = mul(x1, square(subtract(da, cb)));
        x2 = mul(aa, bb), z2 = mul(e, add_times(aa, e, A24));
    }
    /* The lowest bit of a key is zero, so nothing is left to swap. */
    return mul(x2, invert(z2));
}

KERNEL int64_t multiply(uint8_t *out, const uint8_t *keys, int64_t step, const uint8_t *in, int64_t count) {
    int64_t zeros = 0;
    for (int64_t i = 0; i < count; i += LANES) {
        lanes key[WORDS];
        load_keys(key, keys + step * i, step, count - i);
        zeros += store(out + ELEMENT_BYTES * i, ladder(load(in + ELEMENT_BYTES * i, count - i), key), count - i);
    }
    return zeros;
}

#endif
