/* The path for AVX-512 IFMA: products modulo n^2, eight at a time, in digits of 52 bits held as whole numbers.
 *
 * A number x modulo n^2 is a pair x = lo - hi n. Then x x' = lo lo' - (lo hi' + hi lo') n, since n n = 0. With R = 2^(52 D)
 * and Montgomery's reduction, which finds M with T + M n = R t for T = lo lo', the product x x' / R is
 *
 *     lo'' = t                            = (T + M n) / R
 *     hi'' = (lo hi' + hi lo' + M) / R    made whole by another reduction
 *
 * because T / R = t - (M / R) n. Because of the minus sign in the pair, M is added like the rest: the processor multiplies and adds in
 * one instruction, but has none that multiplies and subtracts.
 *
 * BOUNDS. R >= 2^16 n. Inputs have lo, hi < 16 n and outputs have lo, hi < 3 n, so that a subtraction of n is never needed
 * between products:
 *
 *     a reduction takes T to (T + M n) / R with M < 2 R (see `reduce_columns`), so to less than T / R + 2 n
 *     lo'' < 256 n^2 / R + 2 n            <= n / 256 + 2 n
 *     hi'' < (512 n^2 + 2 R) / R + 2 n    <= n / 128 + 2 + 2 n    below 3 n for n > 2
 *
 * DIGITS are whole numbers d with 0 <= d < 2^52, in lanes of 64 bits. The factors of a multiply-add are the low 52 bits of two
 * lanes; one instruction adds the lower half of their product to a column, 52 bits of 104, and another the upper half. Both
 * ignore the upper 12 bits of the factors. So a column whose carry has been passed on can be a factor without a mask.
 *
 * COLUMNS are signed sums of 64 bits. Column t adds up lower halves of digits with i + j = t and upper halves of those with
 * i + j = t - 1, and no carry is taken before it is complete. A carry is an arithmetic shift, which rounds down, so it is right for
 * columns below zero too; the low 52 bits are the digit either way. In units of 2^52, a column is in size at most
 *
 *     80      lo hi' + hi lo' of up to 20 digits: two products, each 20 lower and 20 upper halves. So is 2 lo hi of a square
 *     326     the same of up to 40 digits, from products of halves: four such columns, and for the carries of the sums of halves
 *             four digits and two ones (see `pair_columns`)
 *     1310    the same of up to 80 digits: 4 x 326 + 6
 *     170     what `reduce_columns` adds: 2 D halves, 8 of k m, a digit of mu, and a carry
 *
 * in all below 2^11, so that a lane of 64 bits does not overflow.
 *
 * TIME depends on D alone: no branch and no address depends on a digit, and the instructions take the same time for all operands.
 *
 * With EMULATE_IFMA defined, the two instructions and the transposition are plain C, and everything else is the same source: so the
 * tests run on any processor.
 */
#include "kernels.h"

#if HAVE_KERNEL

#ifdef EMULATE_IFMA
#define KERNEL
#else
#include <immintrin.h>
#define KERNEL __attribute__((target("avx512f,avx512ifma")))
#endif

#define INLINE static inline __attribute__((always_inline)) KERNEL
#define UNROLL _Pragma("GCC unroll 8")

enum { LANES = 8, K_DIGITS = 4 };

typedef uint64_t digit;
typedef int64_t words __attribute__((vector_size(8 * LANES), may_alias));
/* Digits, and columns and carries too: whole numbers modulo 2^64. */
typedef uint64_t digits __attribute__((vector_size(8 * LANES), may_alias));

INLINE digits every(uint64_t word) { return (digits){word, word, word, word, word, word, word, word}; }
INLINE words all(uint64_t word) { return (words)every(word); }

#ifdef EMULATE_IFMA

/* No inlining, which would take the compiler minutes. */
static __attribute__((noinline)) digits add_lower(digits column, digits x, digits y) {
    for (int l = 0; l < LANES; l++) {
        column[l] += (x[l] & DIGIT_MASK) * (y[l] & DIGIT_MASK) & DIGIT_MASK;
    }
    return column;
}

static __attribute__((noinline)) digits add_upper(digits column, digits x, digits y) {
    for (int l = 0; l < LANES; l++) {
        const unsigned __int128 product = (unsigned __int128)(x[l] & DIGIT_MASK) * (y[l] & DIGIT_MASK);
        column[l] += (uint64_t)(product >> DIGIT_BITS);
    }
    return column;
}

/* Rows of eight words to columns of eight words. */
INLINE void transpose(digits v[LANES]) {
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < i; j++) {
            const uint64_t word = v[i][j];
            v[i][j] = v[j][i], v[j][i] = word;
        }
}

#else

INLINE digits add_lower(digits column, digits x, digits y) {
    return (digits)_mm512_madd52lo_epu64((__m512i)column, (__m512i)x, (__m512i)y);
}

INLINE digits add_upper(digits column, digits x, digits y) {
    return (digits)_mm512_madd52hi_epu64((__m512i)column, (__m512i)x, (__m512i)y);
}

/* Rows of eight words to columns of eight words: first pairs of words, within the even rows and within the odd rows, and then the
 * words of each two pairs. */
INLINE void transpose(digits v[LANES]) {
    __m512i pairs[2][4];
    UNROLL for (int odd = 0; odd < 2; odd++) {
        const __m512i a = (__m512i)v[odd], b = (__m512i)v[odd + 2], c = (__m512i)v[odd + 4], d = (__m512i)v[odd + 6];
        const __m512i ab0 = _mm512_shuffle_i64x2(a, b, 0x44), ab2 = _mm512_shuffle_i64x2(a, b, 0xee);
        const __m512i cd0 = _mm512_shuffle_i64x2(c, d, 0x44), cd2 = _mm512_shuffle_i64x2(c, d, 0xee);
        pairs[odd][0] = _mm512_shuffle_i64x2(ab0, cd0, 0x88), pairs[odd][1] = _mm512_shuffle_i64x2(ab0, cd0, 0xdd);
        pairs[odd][2] = _mm512_shuffle_i64x2(ab2, cd2, 0x88), pairs[odd][3] = _mm512_shuffle_i64x2(ab2, cd2, 0xdd);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        v[2 * i] = (digits)_mm512_unpacklo_epi64(pairs[0][i], pairs[1][i]);
        v[2 * i + 1] = (digits)_mm512_unpackhi_epi64(pairs[0][i], pairs[1][i]);
    }
}

#endif

INLINE digits digits_of(words x) { return (digits)x; }
INLINE words words_of(digits x) { return (words)x; }

INLINE digits digit_of(digits column) { return column & every(DIGIT_MASK); }
INLINE digits carry_of(digits column) { return (digits)((words)column >> DIGIT_BITS); }

/* Seven neighbouring columns while they are being added up, as many as four digits by four reach. The upper halves in `upper[t]`
 * belong to column t + 1. They are kept apart so that no instruction needs the result of one of the seven before it: the units
 * begin two in a cycle and take four cycles for each. */
struct columns7 {
    digits lower[7], upper[7];
};

INLINE struct columns7 no_columns(void) {
    struct columns7 c;
    UNROLL for (int t = 0; t < 7; t++) c.lower[t] = c.upper[t] = every(0);
    return c;
}

/* Give the four lowest columns, which are complete, and drop them. */
INLINE void next_columns(digits out[4], struct columns7 *c) {
    out[0] = c->lower[0];
    UNROLL for (int t = 1; t < 4; t++) out[t] = c->lower[t] + c->upper[t - 1];
    c->lower[0] = c->lower[4] + c->upper[3], c->lower[1] = c->lower[5], c->lower[2] = c->lower[6];
    UNROLL for (int t = 0; t < 3; t++) c->upper[t] = c->upper[t + 4];
    UNROLL for (int t = 3; t < 7; t++) c->lower[t] = c->upper[t] = every(0);
}

INLINE void times(struct columns7 *c, int t, digits x, digits y) {
    c->lower[t] = add_lower(c->lower[t], x, y);
    c->upper[t] = add_upper(c->upper[t], x, y);
}

/* Four digits times a digit, j places up. */
INLINE void row(struct columns7 *c, const digits x[4], int j, digits y) {
    UNROLL for (int i = 3; i >= 0; i--) times(c, i + j, x[i], y);
}

INLINE void tile(struct columns7 *c, const digits *p, const digits *q) {
    const digits x[4] = {p[0], p[1], p[2], p[3]};
    UNROLL for (int j = 0; j < 4; j++) row(c, x, j, q[j]);
}

/* A digit of a constant of the modulus: one for all lanes, or a vector with one for each. */
INLINE digits constant(const void *constants, int lanewise, int j) {
    return lanewise ? ((const digits *)constants)[j] : every(((const digit *)constants)[j]);
}

INLINE void tile_by_constant(struct columns7 *c, const digits *p, const void *q, int lanewise, int quad) {
    const digits x[4] = {p[0], p[1], p[2], p[3]};
    UNROLL for (int j = 0; j < 4; j++) row(c, x, j, constant(q, lanewise, 4 * quad + j));
}

/* Pass carries from below along four columns, and return the carry out of them. */
INLINE digits pass_carries(digits t[4], digits carry) {
    UNROLL for (int i = 0; i < 4; i++) t[i] += carry, carry = carry_of(t[i]);
    return carry;
}

/* Numbers are multiplied in quads of four digits: quad i of one, of Q, times quad s - i of the other goes to columns 4 s ... */
INLINE int first_quad(int s, int Q) { return s < Q ? 0 : s - Q + 1; }
INLINE int last_quad(int s, int Q) { return s < Q ? s : Q - 1; }

/* All columns of p q, or of p q + p2 q2. */
INLINE void product_columns(digits *out, const digits *p, const digits *q, const digits *p2, const digits *q2, int D) {
    struct columns7 c = no_columns();
    for (int s = 0; s < D / 2; s++) {
        const int first = first_quad(s, D / 4), last = last_quad(s, D / 4);
        for (int i = first; i <= last; i++) tile(&c, p + 4 * i, q + 4 * (s - i));
        for (int i = first; p2 && i <= last; i++) tile(&c, p2 + 4 * i, q2 + 4 * (s - i));
        next_columns(out + 4 * s, &c);
    }
}

/* All columns of p^2: twice the products of digits i < j, and then the squares of digits. */
INLINE void square_columns(digits *out, const digits *p, int D) {
    struct columns7 c = no_columns();
    for (int s = 0; s < D / 2; s++) {
        const digits *x = p + 2 * s;
        for (int i = first_quad(s, D / 4); 2 * i < s; i++) tile(&c, p + 4 * i, p + 4 * (s - i));
        if (s % 2 == 0) {
            UNROLL for (int j = 1; j < 4; j++) {
                UNROLL for (int i = 0; i < j; i++) times(&c, i + j, x[i], x[j]);
            }
        }
        digits *column = out + 4 * s;
        next_columns(column, &c);
        UNROLL for (int i = 0; i < 2; i++) {
            column[2 * i] = add_lower(column[2 * i] + column[2 * i], x[i], x[i]);
            column[2 * i + 1] = add_upper(column[2 * i + 1] + column[2 * i + 1], x[i], x[i]);
        }
    }
}

/* The two parts of a number modulo n^2, or of a sum of halves. */
struct pair {
    const digits *lo, *hi;
};

/* Columns of lo lo' and of lo hi' + hi lo' for two pairs; for a square, of lo lo and of lo hi, half of what is needed. */
INLINE void short_columns(digits *lo, digits *hi, struct pair a, struct pair b, int is_square, int D) {
    if (is_square) {
        square_columns(lo, a.lo, D);
        product_columns(hi, a.lo, a.hi, 0, 0, D);
    } else {
        product_columns(lo, a.lo, b.lo, 0, 0, D);
        product_columns(hi, a.lo, b.hi, a.hi, b.lo, D);
    }
}

/* From this number of digits on, products are made from halves: below, the sums cost as much as they save. */
enum { SPLIT_FROM = 24 };

INLINE int lower_digits(int D) { return (D + 7) / 8 * 4; }

/* The sums of the L lower digits and the upper digits of lo and of hi: L digits, followed by a mask of all ones in the lanes with a
 * carry out of the sum. Both at a time because each carry waits for the one below. */
INLINE struct pair add_halves(digits *out, struct pair p, int L, int D) {
    digits carry_lo = every(0), carry_hi = every(0), *out_hi = out + L + 1;
    for (int i = 0; i < L; i++) {
        digits lo = p.lo[i], hi = p.hi[i];
        if (L + i < D) lo += p.lo[L + i], hi += p.hi[L + i];
        lo += carry_lo, hi += carry_hi;
        out[i] = digit_of(lo), carry_lo = carry_of(lo);
        out_hi[i] = digit_of(hi), carry_hi = carry_of(hi);
    }
    out[L] = -carry_lo, out_hi[L] = -carry_hi;
    return (struct pair){out, out_hi};
}

/* Add what the carries c and c' (0 or 1) contribute to (s + c B) (s' + c' B). B is the place after the digits of s and s'. */
INLINE void add_carried(digits *columns, const digits *s, const digits *t, int L) {
    const digits s_carried = s[L], t_carried = t[L];
    for (int i = 0; i < L; i++) columns[i] += (s_carried & t[i]) + (t_carried & s[i]);
    columns[L] -= s_carried & t_carried; /* all ones are -1 */
}

/* Join products of halves: with the columns of p0 q0 and p1 q1 in `out` and those of (p0 + p1) (q0 + q1) in `middle`. */
INLINE void join_halves(digits *out, const digits *middle, int L, int U) {
    for (int t = 0; t < L; t++) {
        const digits between = out[L + t] - out[2 * L + t];
        digits above = middle[L + t] - between;
        if (t < 2 * U - L) above -= out[3 * L + t];
        out[L + t] = middle[t] + between - out[t], out[2 * L + t] = above;
    }
}

/* Like `short_columns`, but from products of halves (Karatsuba and Ofman): with p = p0 + p1 B and q = q0 + q1 B
 *
 *     p q = p0 q0 + ((p0 + p1) (q0 + q1) - p0 q0 - p1 q1) B + p1 q1 B^2
 *
 * with L digits in p0 and U <= L in p1. A column differs from that in `product_columns` and can be negative, but the value of all
 * columns together is the same. `scratch` has room for 8 L + 4 words and for what the halves need. */
KERNEL static void pair_columns(digits *lo, digits *hi, struct pair a, struct pair b, int is_square, digits *scratch, int D) {
    if (D < SPLIT_FROM) {
        if (is_square) short_columns(lo, hi, a, b, 1, D);
        else short_columns(lo, hi, a, b, 0, D);
        return;
    }
    const int L = lower_digits(D), U = D - L;
    digits *middle_lo = scratch, *middle_hi = scratch + 2 * L, *sums = scratch + 4 * L, *rest = sums + 4 * (L + 1);
    pair_columns(lo, hi, a, b, is_square, rest, L);
    pair_columns(lo + 2 * L, hi + 2 * L, (struct pair){a.lo + L, a.hi + L}, (struct pair){b.lo + L, b.hi + L}, is_square, rest, U);
    const struct pair s = add_halves(sums, a, L, D), t = is_square ? s : add_halves(sums + 2 * (L + 1), b, L, D);
    pair_columns(middle_lo, middle_hi, s, t, is_square, rest, L);
    join_halves(lo, middle_lo, L, U), join_halves(hi, middle_hi, L, U);
    if (is_square) {
        add_carried(lo + 2 * L, s.lo, s.lo, L), add_carried(hi + 2 * L, s.lo, s.hi, L);
    } else {
        add_carried(lo + 2 * L, s.lo, t.lo, L), add_carried(hi + 2 * L, s.lo, t.hi, L), add_carried(hi + 2 * L, s.hi, t.lo, L);
    }
}

/* Find M with columns + M n = R t. Put t into `out` and M into the D lower columns: M = k m + mu 2^(52 (D - 4)), with m in the low
 * 52 bits of D - 4 columns and mu in the other four. `other`, if given, is such an M, which is added to the columns first.
 *
 * With k = -1/n mod 2^208 and N = k n = 2^208 h - 1, no product is needed to find what to add: adding m N clears the four low
 * digits m of the columns. To add m N is to add m h four digits higher and to subtract m. So D - 4 digits are cleared in fours. Each
 * four is m itself, and only carries pass between columns. The rest is below T / 2^(52 (D - 4)) + k n, which is 2^208 n too long;
 * so the last four digits, t, are cleared by adding mu n with mu = t k mod 2^208. Then
 *
 *     M = k m + mu 2^(52 (D - 4)) < 2^208 2^(52 (D - 4)) + 2^(52 D) = 2 R */
INLINE void reduce_columns(digits *out, digits *columns, const digits *other, const struct modulus *mod, int lanewise, int D) {
    const int last = D / 4 - 1;
    const digits k[4] = {constant(mod->k, lanewise, 0), constant(mod->k, lanewise, 1), constant(mod->k, lanewise, 2),
                         constant(mod->k, lanewise, 3)};
    struct columns7 c = no_columns();
    digits t[4] = {every(0), every(0), every(0), every(0)}, carry = every(0);
    for (int s = 0;; s++) {
        if (other && s < last) tile(&c, k, other + 4 * s);
        for (int i = 0; i < s - 1; i++) tile_by_constant(&c, columns + 4 * i, mod->h, lanewise, s - 1 - i);
        if (s) tile_by_constant(&c, t, mod->h, lanewise, 0);
        next_columns(t, &c);
        UNROLL for (int i = 0; i < 4; i++) t[i] += columns[4 * s + i];
        if (other && s == last) UNROLL for (int i = 0; i < 4; i++) t[i] += other[4 * s + i];
        carry = pass_carries(t, carry);
        if (s == last) break;
        UNROLL for (int i = 0; i < 4; i++) columns[4 * s + i] = t[i];
    }
    digits *mu = columns + 4 * last, low[4];
    struct columns7 d = no_columns();
    UNROLL for (int j = 0; j < 4; j++) {
        UNROLL for (int i = 0; i + j < 4; i++) times(&d, i + j, t[i], k[j]);
    }
    next_columns(low, &d);
    pass_carries(low, every(0));
    UNROLL for (int i = 0; i < 4; i++) mu[i] = digit_of(low[i]);
    /* mu times the four lowest digits of n: below, it cancels t and leaves a carry. It is made apart so that `c` need not wait. */
    d = no_columns();
    tile_by_constant(&d, mu, mod->n, lanewise, 0);
    next_columns(low, &d);
    UNROLL for (int i = 0; i < 4; i++) low[i] += digit_of(t[i]);
    carry += pass_carries(low, every(0));
    next_columns(low, &d);
    UNROLL for (int i = 0; i < 4; i++) c.lower[i] += low[i];
    for (int s = last + 1; s < D / 2; s++) {
        for (int i = s - 1 - last; i < last; i++) tile_by_constant(&c, columns + 4 * i, mod->h, lanewise, s - 1 - i);
        if (s <= 2 * last) tile_by_constant(&c, mu, mod->n, lanewise, s - last);
        next_columns(t, &c);
        UNROLL for (int i = 0; i < 4; i++) t[i] += columns[4 * s + i];
        carry = pass_carries(t, carry);
        UNROLL for (int i = 0; i < 4; i++) out[4 * s - D + i] = digit_of(t[i]);
    }
}

KERNEL static void reduce(digits *out, digits *columns, const digits *other, const struct modulus *mod, int D) {
    reduce_columns(out, columns, other, mod, 0, D);
}

KERNEL static void reduce_lanewise(digits *out, digits *columns, const digits *other, const struct modulus *mod, int D) {
    reduce_columns(out, columns, other, mod, 1, D);
}

/* The product of two pairs, or the square of one. */
INLINE void multiply_pairs(digits *out, const digits *a, const digits *b, int is_square, const struct modulus *m) {
    const int D = m->digits;
    digits lo[2 * MAX_DIGITS], hi[2 * MAX_DIGITS], scratch[6 * MAX_DIGITS + 8];
    pair_columns(lo, hi, (struct pair){a, a + D}, (struct pair){b, b + D}, is_square, scratch, D);
    for (int t = 0; is_square && t < 2 * D; t++) hi[t] += hi[t];
    if (m->lanewise) reduce_lanewise(out, lo, 0, m, D), reduce_lanewise(out + D, hi, lo, m, D);
    else reduce(out, lo, 0, m, D), reduce(out + D, hi, lo, m, D);
}

/* out = a b / R mod n^2. `out` may be a or b. */
KERNEL static void multiply_lanes(digits *out, const digits *a, const digits *b, const struct modulus *m) {
    multiply_pairs(out, a, b, 0, m);
}

/* out = a^2 / R mod n^2. `out` may be a. */
KERNEL static void square_lanes(digits *out, const digits *a, const struct modulus *m) {
    multiply_pairs(out, a, a, 1, m);
}

/* out = a + b, digit by digit with carries. The caller makes sure that lo and hi stay below 16 n. */
KERNEL static void add_lanes(digits *out, const digits *a, const digits *b, const struct modulus *m) {
    for (int half = 0; half < 2; half++) {
        digits carry = every(0);
        for (int i = half * m->digits; i < (half + 1) * m->digits; i++) {
            const digits column = carry + a[i] + b[i];
            out[i] = digit_of(column), carry = carry_of(column);
        }
    }
}

#include "operations.h"

const struct kernels ifma_kernels = {.name = "ifma", .lanes = LANES, .k_digits = K_DIGITS, OPERATIONS};

#endif
