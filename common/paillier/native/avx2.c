/* The path for AVX2 with fused multiply-add: products modulo n^2, four at a time, in digits of 52 bits held as doubles.
 *
 * A number x modulo n^2 is a pair x = lo - hi n. Then x x' = lo lo' - (lo hi' + hi lo') n, since n n = 0. With R = 2^(52 D)
 * and Montgomery's reduction, which finds M with T + M n = R t for T = lo lo', the product x x' / R is
 *
 *     lo'' = t                            = (T + M n) / R
 *     hi'' = (lo hi' + hi lo' + M) / R      made whole by another reduction
 *
 * because T / R = t - (M / R) n. The minus sign in the pair makes M a term of a sum. That is five products of D digits by D: three
 * here, which are made from halves for long numbers (`split_columns`), and two in the reductions.
 *
 * BOUNDS. R >= 2^16 n. Inputs have lo, hi < 16 n and outputs have lo, hi < 3 n, so that a subtraction of n is never needed
 * between products:
 *
 *     a reduction takes T to (T + M n) / R with M < 2 R (see `struct reduction`), so to less than T / R + 2 n
 *     lo'' < 256 n^2 / R + 2 n            <= n / 256 + 2 n
 *     hi'' < (512 n^2 + 2 R) / R + 2 n    <= n / 128 + 2 + 2 n    which is below 3 n for n > 2
 *
 * DIGITS are whole numbers d with 0 <= d < 2^52, as doubles. A product d e < 2^104 has an upper and a lower half of 52 bits:
 *
 *     high = fma(d, e, 2^104)               rounded toward zero, so 2^104 <= high < 2^105, a multiple of 2^52
 *     low  = fma(d, e, 2^104 + 2^52 - high) exact, 2^52 <= low < 2^53
 *
 * The difference in the second line is a multiple of 2^52 of size at most 2^104 and so a double. The bits of `high`, read as a
 * whole number, are those of 2^104 plus (d e) div 2^52, and those of `low` those of 2^52 plus (d e) mod 2^52.
 *
 * COLUMNS. Both are added up as 64-bit whole numbers, column by column: column t gathers lower halves of digits with i + j = t
 * and upper halves of those with i + j = t - 1. Each time, the bits of the constants 2^104 and 2^52 are added as well. How often
 * is known, so the arrays `constant` subtract them again, modulo 2^64. What is left is at most 2 D terms from each of three
 * products (lo hi', hi lo', M n) of less than 2^52 each, at most 5 2^52 from M, less than 2^12 carried over, and 2^62, which
 * every column is given and the next one pays for as 2^10: it keeps columns above zero that are differences (`split_columns`, which
 * also adds less than 2^60). For D <= 80 that is less than 490 2^52 + 2^60 + 2^62 < 2^63 and more than
 * 2^62 - 2^61 - 2^10 > 0: a lane of 64 bits does not overflow, and no carry is taken before a column is complete.
 *
 * TIME depends on D alone: no branch and no address depends on a digit.
 */
#include "kernels.h"

#if HAVE_KERNEL

#include <immintrin.h>
#include <string.h>

#define KERNEL __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline)) KERNEL

enum { LANES = 4, K_DIGITS = 2 };

typedef double digit;
typedef __m256d digits;
typedef __m256i words;

static const double TWO_52 = 0x1p52, TWO_104 = 0x1p104;

#define WORDS(x) _mm256_castpd_si256(x)
#define DOUBLES(x) _mm256_castsi256_pd(x)
#define ADD(a, b) _mm256_add_epi64(a, b)
#define SUB(a, b) _mm256_sub_epi64(a, b)
#define BROADCAST(p) _mm256_broadcast_sd(p)

/* [2 D] What is added to each column before it is read: of lo lo', of lo lo, and of lo hi' + hi lo'. modulus.py makes them. */
#define CONSTANT_LO(m, D) ((m)->columns)
#define CONSTANT_SQUARE(m, D) ((m)->columns + 2 * (D))
#define CONSTANT_HI(m, D) ((m)->columns + 4 * (D))

/* Six neighbouring columns while they are being added up. */
struct columns6 {
    words c0, c1, c2, c3, c4, c5;
};

INLINE struct columns6 no_columns(void) {
    words zero = _mm256_setzero_si256();
    return (struct columns6){zero, zero, zero, zero, zero, zero};
}

/* Drop the two lowest columns, which are complete. */
INLINE void next_columns(struct columns6 *c) {
    c->c0 = c->c2, c->c1 = c->c3, c->c2 = c->c4, c->c3 = c->c5;
    c->c4 = c->c5 = _mm256_setzero_si256();
}

/* Digits x0, x1 times a digit y of the other factor. In `high` and `low` are the halves of x1 times the digit before y. They belong to
 * the same columns as those of x0 y, so they are added to each other first: a column waits for its sum less often. */
#define HALVES(x, high, low)                                                                                           \
    "vmovapd %[two104], " high "\n\t vfmadd231pd %[y], " x ", " high "\n\t"                                            \
    "vsubpd " high ", %[both], " low "\n\t vfmadd231pd %[y], " x ", " low "\n\t"
#define NEXT_DIGIT(load, y, column, next)                                                                              \
    load " " y ", %[y]\n\t" HALVES("%[x0]", "%[h]", "%[l]")                                                            \
    "vpaddq %[h], %[high], %[high]\n\t vpaddq %[l], %[low], %[low]\n\t"                                                \
    "vpaddq %[high], " next ", " next "\n\t vpaddq %[low], " column ", " column "\n\t"                                 \
    HALVES("%[x1]", "%[high]", "%[low]")

/* Two digits of one factor times four of the other, into c0 ... c5. Written out because the compiler would rather keep columns in
 * memory: with six columns, x0, x1, y, two constants and four halves, 15 of 16 registers are used. `size` is of a digit of the
 * second factor in memory. All outputs are written before the last input is read (&), so none may share its register with an
 * input of equal value. */
#define TILE(c, x0_, x1_, q, load, y0, y1, y2, y3, size)                                                               \
    do {                                                                                                               \
        digits y_, h_, l_, high_, low_;                                                                                \
        __asm__(load " " y0 ", %[y]\n\t" HALVES("%[x0]", "%[h]", "%[l]")                                               \
                "vpaddq %[l], %[c0], %[c0]\n\t vpaddq %[h], %[c1], %[c1]\n\t"                                          \
                HALVES("%[x1]", "%[high]", "%[low]")                                                                   \
                NEXT_DIGIT(load, y1, "%[c1]", "%[c2]")                                                                 \
                NEXT_DIGIT(load, y2, "%[c2]", "%[c3]")                                                                 \
                NEXT_DIGIT(load, y3, "%[c3]", "%[c4]")                                                                 \
                "vpaddq %[low], %[c4], %[c4]\n\t vpaddq %[high], %[c5], %[c5]\n\t"                                     \
                : [c0] "+&x"((c)->c0), [c1] "+&x"((c)->c1), [c2] "+&x"((c)->c2), [c3] "+&x"((c)->c3),                  \
                  [c4] "+&x"((c)->c4), [c5] "+&x"((c)->c5), [y] "=&x"(y_), [h] "=&x"(h_), [l] "=&x"(l_),               \
                  [high] "=&x"(high_), [low] "=&x"(low_)                                                               \
                : [x0] "x"(x0_), [x1] "x"(x1_), [two104] "x"(_mm256_set1_pd(TWO_104)),                                 \
                  [both] "x"(_mm256_set1_pd(TWO_104 + TWO_52)), [q] "r"(q), "m"(*(const char(*)[4 * (size)])(q)));     \
    } while (0)

/* Four numbers by four numbers. */
INLINE void tile(struct columns6 *c, const digits *p, const digits *q) {
    TILE(c, p[0], p[1], q, "vmovapd", "(%[q])", "32(%[q])", "64(%[q])", "96(%[q])", 32);
}

/* Four numbers by a constant from digit `at` on: by one for all lanes, which is read once for all of them, or by one for each. */
INLINE void tile_by_constant(struct columns6 *c, digits x0, digits x1, const void *constant, int at, int lanewise) {
    if (lanewise) {
        const digits *q = (const digits *)constant + at;
        TILE(c, x0, x1, q, "vmovapd", "(%[q])", "32(%[q])", "64(%[q])", "96(%[q])", 32);
    } else {
        const double *q = (const double *)constant + at;
        TILE(c, x0, x1, q, "vbroadcastsd", "(%[q])", "8(%[q])", "16(%[q])", "24(%[q])", 8);
    }
}

INLINE digits digit_of_constant(const void *constant, int at, int lanewise) {
    return lanewise ? ((const digits *)constant)[at] : BROADCAST((const double *)constant + at);
}

/* The two halves of one product of digits. */
INLINE void times(words *low, words *high, digits x, digits y) {
    digits h = _mm256_fmadd_pd(x, y, _mm256_set1_pd(TWO_104));
    digits l = _mm256_fmadd_pd(x, y, _mm256_sub_pd(_mm256_set1_pd(TWO_104 + TWO_52), h));
    *low = ADD(*low, WORDS(l)), *high = ADD(*high, WORDS(h));
}

/* The low 52 bits of a column as a digit; the exponents of 2^52 and 2^104 are above them. */
INLINE digits digits_of(words column) {
    words mask = _mm256_set1_epi64x(((int64_t)1 << DIGIT_BITS) - 1);
    digits two52 = _mm256_set1_pd(TWO_52);
    return _mm256_sub_pd(DOUBLES(_mm256_or_si256(_mm256_and_si256(column, mask), WORDS(two52))), two52);
}

INLINE words all(uint64_t word) { return _mm256_set1_epi64x((int64_t)word); }

INLINE words carry_of(words column) { return _mm256_srli_epi64(column, DIGIT_BITS); }

INLINE words words_of(digits digit) {
    digits two52 = _mm256_set1_pd(TWO_52);
    return _mm256_xor_si256(WORDS(_mm256_add_pd(digit, two52)), WORDS(two52));
}

/* Tiles of two digits of p by four of q in columns 2 s ...: those of p at i = s - 2 j for quads j of q, 0 <= i < pairs. */
INLINE int first_quad(int s, int pairs) { return s < pairs ? 0 : (s - pairs + 2) / 2; }
INLINE int last_quad(int s, int quads) { return s < 0 ? -1 : s / 2 < quads ? s / 2 : quads - 1; }

/* All columns of p q, or of p q + p2 q2, constants included. */
INLINE void product_columns(words *out, const digits *p, const digits *q, const digits *p2, const digits *q2, int D) {
    struct columns6 c = no_columns();
    for (int s = 0; s < D; s++) {
        int first = first_quad(s, D / 2), last = last_quad(s, D / 4);
        for (int j = first; j <= last; j++) {
            tile(&c, p + (2 * s - 4 * j), q + 4 * j);
            if (p2) tile(&c, p2 + (2 * s - 4 * j), q2 + 4 * j);
        }
        out[2 * s] = c.c0, out[2 * s + 1] = c.c1;
        next_columns(&c);
    }
}

/* The sum of a number's lower and upper digits: as many digits as the lower part has, each at most 2^52, and a mask of all ones in
 * the lanes with a carry out of the sum. */
struct sum {
    digits digits[MAX_DIGITS / 2];
    words carried;
};

/* A sum of two digits is below 2^53, so it has a carry of 0 or 1, and what is left of it is at most 2^52 - 1. With the carry from
 * below that is at most 2^52, which need not be carried on: TILE is right for factors of 2^52 too. Their product is at most
 * 2^104, so high is 2^104 + 2^104, whose bits are those of 2^104 plus 2^52, and low is 2^52. So no digit waits for another. */
INLINE void add_halves(struct sum *out, const digits *p, int lower, int D) {
    const digits one = _mm256_set1_pd(1), two104 = _mm256_set1_pd(TWO_104), scale = _mm256_set1_pd(0x1p-52);
    digits carry = _mm256_setzero_pd(), above = two104;
    for (int i = 0; i < lower; i++) {
        const digits sum = lower + i < D ? _mm256_fmadd_pd(p[i], one, p[lower + i]) : p[i]; /* the multiplier adds as well */
        above = _mm256_add_pd(sum, two104); /* 2^104, or 2^104 + 2^52 if there is a carry */
        const digits place = _mm256_sub_pd(above, two104);
        out->digits[i] = _mm256_fmadd_pd(carry, scale, _mm256_sub_pd(sum, place));
        carry = place;
    }
    out->carried = SUB(WORDS(two104), WORDS(above));
}

/* Digit i of c s' + c' s, with the bits of 2^52 twice: what the carries c and c' (0 or 1) contribute to (s + c B) (s' + c' B), except
 * for c c' B^2. */
INLINE words carried_digit(const struct sum *s, const struct sum *t, int i) {
    const digits two52 = _mm256_set1_pd(TWO_52);
    return ADD(WORDS(_mm256_add_pd(_mm256_and_pd(DOUBLES(s->carried), t->digits[i]), two52)),
               WORDS(_mm256_add_pd(_mm256_and_pd(DOUBLES(t->carried), s->digits[i]), two52)));
}

/* Below this number of digits, the sums cost as much as they save. */
enum { SPLIT_FROM = 32 };

INLINE int lower_digits(int D) { return D < SPLIT_FROM ? D : (D + 7) / 8 * 4; }

/* Like `product_columns`, but from products of halves (Karatsuba and Ofman): with p = p0 + p1 B and q = q0 + q1 B
 *
 *     p q = p0 q0 + ((p0 + p1) (q0 + q1) - p0 q0 - p1 q1) B + p1 q1 B^2
 *
 * With each of the three products cut into a lower and an upper part, (L0 L1), (M0 M1) and (H0 H1), the parts of p q are
 *
 *     L0      M0 - L0 + (L1 - H0)      M1 - H1 - (L1 - H0)      H1
 *
 * if both halves have `lower` digits. If the upper half has fewer, H1 is shorter by twice the difference. Because of the
 * carries of the sums, the value of a column differs from that in `product_columns` and can be negative, but the value of all
 * columns together is the same. Like any others, products of sums are at most 160 2^52 < 2^60 in a column, so all columns are
 * above -2^61; the constants add 2^62 to each column and subtract it from the next as 2^10. `sums` are those of p, q, p2, q2. */
INLINE void split_columns(words *out, const digits *p, const digits *q, const digits *p2, const digits *q2,
                          const struct sum *const sums[4], int D) {
    const int lower = lower_digits(D), upper = D - lower;
    if (!upper) {
        product_columns(out, p, q, p2, q2, D);
        return;
    }
    words middle[MAX_DIGITS + 4];
    product_columns(out, p, q, p2, q2, lower);
    product_columns(out + 2 * lower, p + lower, q + lower, p2 ? p2 + lower : 0, q2 ? q2 + lower : 0, upper);
    product_columns(middle, sums[0]->digits, sums[1]->digits, p2 ? sums[2]->digits : 0, q2 ? sums[3]->digits : 0, lower);
    for (int i = 0; i < lower; i++) {
        const words between = SUB(out[lower + i], out[2 * lower + i]);
        out[lower + i] = ADD(between, SUB(middle[i], out[i]));
        words column = ADD(SUB(middle[lower + i], between), carried_digit(sums[0], sums[1], i));
        if (p2) column = ADD(column, carried_digit(sums[2], sums[3], i));
        if (lower + i < 2 * upper) column = SUB(column, out[3 * lower + i]);
        out[2 * lower + i] = column;
    }
    words both = _mm256_and_si256(sums[0]->carried, sums[1]->carried); /* all ones are -1 */
    if (p2) both = ADD(both, _mm256_and_si256(sums[2]->carried, sums[3]->carried));
    out[3 * lower] = SUB(out[3 * lower], both);
}

/* All columns of p^2: twice the products of digits i < j, then the squares of the digits. The constants are added as often as in
 * p p. */
INLINE void square_columns(words *out, const digits *p, int D) {
    struct columns6 c = no_columns();
    for (int s = 0; s < D; s++) {
        /* The pair of digits 2 i, 2 i + 1 lies wholly below quad j when i = s - 2 j < 2 j. */
        for (int j = s / 4 + 1, last = last_quad(s, D / 4); j <= last; j++) tile(&c, p + (2 * s - 4 * j), p + 4 * j);
        /* Within quad s / 4: the product of its upper two digits lies one step higher than the rest. */
        if (s % 4 == 0) {
            const digits *x = p + s;
            times(&c.c1, &c.c2, x[0], x[1]);
            times(&c.c2, &c.c3, x[0], x[2]);
            times(&c.c3, &c.c4, x[0], x[3]);
            times(&c.c3, &c.c4, x[1], x[2]);
            times(&c.c4, &c.c5, x[1], x[3]);
        } else if (s % 4 == 1) {
            const digits *x = p + s - 1;
            times(&c.c3, &c.c4, x[2], x[3]);
        }
        words low = ADD(c.c0, c.c0), high = ADD(c.c1, c.c1);
        times(&low, &high, p[s], p[s]);
        out[2 * s] = low, out[2 * s + 1] = high;
        next_columns(&c);
    }
}

/* A reduction finds M with columns + M n = R t, and t: M = k m + mu 2^(52 (D - 2)).
 *
 * With k = -1/n mod 2^104 and N = k n = 2^104 h - 1, no product is needed to find what to add: adding m N clears the two low
 * digits m of the columns. To add m N is to add m h two digits higher and to subtract m. So D - 2 digits are cleared in pairs. Each
 * pair is m itself, and only carries pass between columns. The rest is below T / 2^(52 (D - 2)) + k n, which is 2^104 n too long;
 * so the last two digits, t, are cleared by adding mu n with mu = t k mod 2^104. Then
 *
 *     M = k m + mu 2^(52 (D - 2)) < 2^104 2^(52 (D - 2)) + 2^(52 D) = 2 R
 *
 * h <= n has D digits. `constant` subtracts all bits of the constants that products and rows add. The only exception is what the
 * row of mu adds to the two columns from which mu is read: that is subtracted after it has been added. */
struct reduction {
    struct columns6 c; /* from 2 s on, for the step s that is next */
    words carry;
    digits mu0, mu1;
    digits m[MAX_DIGITS]; /* the last two are zero */
    const words *columns; /* [2 D] */
    const int64_t *constant;
};

INLINE void begin_reduction(struct reduction *r, const words *columns, const int64_t *constant, int D) {
    r->c = (struct columns6){all(constant[0]), all(constant[1]), all(constant[2]), all(constant[3]), all(constant[4]),
                             all(constant[5])};
    r->carry = all(0);
    r->m[D - 2] = r->m[D - 1] = _mm256_setzero_pd();
    r->columns = columns, r->constant = constant;
}

/* Drop columns 2 s and 2 s + 1; those that come up begin with their constants. */
INLINE void next_constants(struct columns6 *c, const int64_t *constant, int s, int D) {
    next_columns(c);
    if (s < D - 3) c->c4 = all(constant[2 * s + 6]), c->c5 = all(constant[2 * s + 7]);
}

/* The first half: find m and mu. `lower` is the reduction whose M is to be added, or missing: the four products of a pair of its
 * digits and k, two lower and two upper halves of them in a column, and mu. `twice` says that the columns count twice. */
INLINE void find_m(struct reduction *r, const struct reduction *lower, int twice, const struct modulus *mod, int D,
                   int lanewise) {
    const int last = D / 2 - 1;
    const digits k[2] = {digit_of_constant(mod->k, 0, lanewise), digit_of_constant(mod->k, 1, lanewise)};
    struct columns6 c = r->c;
    words carry = all(0);
    digits *m = r->m, x0 = _mm256_setzero_pd(), x1 = x0;
    for (int s = 0; s <= last; s++) {
        words first = r->columns[2 * s], second = r->columns[2 * s + 1];
        if (twice) first = ADD(first, first), second = ADD(second, second);
        if (lower && s == last) first = ADD(first, words_of(lower->mu0)), second = ADD(second, words_of(lower->mu1));
        c.c0 = ADD(c.c0, ADD(first, carry)), c.c1 = ADD(c.c1, second);
        if (lower && s % 2 == 0) tile(&c, k, lower->m + 2 * s);
        /* Each pair waits for the one before, which is therefore multiplied last, and from registers. */
        for (int j = last_quad(s - 1, D / 4); j > 0; j--) {
            const digits *pair = m + (2 * (s - 1) - 4 * j);
            tile_by_constant(&c, pair[0], pair[1], mod->h, 4 * j, lanewise);
        }
        if (s) tile_by_constant(&c, x0, x1, mod->h, 0, lanewise);
        if (s == last) break;
        m[2 * s] = x0 = digits_of(c.c0);
        c.c1 = ADD(c.c1, carry_of(c.c0));
        m[2 * s + 1] = x1 = digits_of(c.c1);
        carry = carry_of(c.c1);
        next_constants(&c, r->constant, s, D);
    }
    const digits t0 = digits_of(c.c0), t1 = digits_of(ADD(c.c1, carry_of(c.c0)));
    words low = all(0), high = low, beyond = low;
    times(&low, &high, t0, k[0]);
    times(&high, &beyond, t0, k[1]);
    times(&high, &beyond, t1, k[0]);
    r->mu0 = digits_of(low), r->mu1 = digits_of(high);
    r->c = c;
}

/* The second half: t. */
INLINE void find_t(digits *out, struct reduction *r, int twice, const struct modulus *mod, int D, int lanewise) {
    const int last = D / 2 - 1;
    const words two52 = WORDS(_mm256_set1_pd(TWO_52)), two104 = WORDS(_mm256_set1_pd(TWO_104));
    struct columns6 c = r->c;
    tile_by_constant(&c, r->mu0, r->mu1, mod->n, 0, lanewise);
    c.c0 = SUB(c.c0, two52), c.c1 = SUB(c.c1, ADD(ADD(two52, two52), two104));
    words carry = carry_of(ADD(c.c1, carry_of(c.c0)));
    next_constants(&c, r->constant, last, D);
    for (int s = last + 1; s < D; s++) {
        words first = r->columns[2 * s], second = r->columns[2 * s + 1];
        if (twice) first = ADD(first, first), second = ADD(second, second);
        c.c0 = ADD(c.c0, ADD(first, carry)), c.c1 = ADD(c.c1, second);
        for (int j = D / 4 - 1, until = first_quad(s - 1, last); j >= until; j--) {
            const digits *pair = r->m + (2 * (s - 1) - 4 * j);
            tile_by_constant(&c, pair[0], pair[1], mod->h, 4 * j, lanewise);
        }
        if ((s - last) % 2 == 0 && s < D - 1) tile_by_constant(&c, r->mu0, r->mu1, mod->n, 2 * (s - last), lanewise);
        c.c1 = ADD(c.c1, carry_of(c.c0));
        carry = carry_of(c.c1);
        out[2 * s - D] = digits_of(c.c0), out[2 * s + 1 - D] = digits_of(c.c1);
        next_constants(&c, r->constant, s, D);
    }
}

/* a b / R, or a^2 / R if `square`. The order of the halves of the two reductions gives the processor other products to make while it
 * waits for mu. Of a square, the columns of lo hi count twice. */
INLINE void multiply_digits(digits *out, const digits *a, const digits *b, const struct modulus *mod, int D, int lanewise,
                            int square) {
    words lo[2 * MAX_DIGITS], hi[2 * MAX_DIGITS];
    struct sum a_lo, a_hi, b_lo, b_hi;
    if (D >= SPLIT_FROM) {
        add_halves(&a_lo, a, lower_digits(D), D), add_halves(&a_hi, a + D, lower_digits(D), D);
        if (!square) add_halves(&b_lo, b, lower_digits(D), D), add_halves(&b_hi, b + D, lower_digits(D), D);
    }
    struct reduction r_lo, r_hi;
    if (square) square_columns(lo, a, D);
    else split_columns(lo, a, b, 0, 0, (const struct sum *const[4]){&a_lo, &b_lo, 0, 0}, D);
    begin_reduction(&r_lo, lo, square ? CONSTANT_SQUARE(mod, D) : CONSTANT_LO(mod, D), D);
    find_m(&r_lo, 0, 0, mod, D, lanewise);
    if (square) split_columns(hi, a, a + D, 0, 0, (const struct sum *const[4]){&a_lo, &a_hi, 0, 0}, D);
    else split_columns(hi, a, b + D, a + D, b, (const struct sum *const[4]){&a_lo, &b_hi, &a_hi, &b_lo}, D);
    begin_reduction(&r_hi, hi, CONSTANT_HI(mod, D), D);
    find_m(&r_hi, &r_lo, square, mod, D, lanewise);
    find_t(out, &r_lo, 0, mod, D, lanewise);
    find_t(out + D, &r_hi, square, mod, D, lanewise);
}

/* The usual numbers of digits, for the compiler to know: those of keys of 2048, 3072 and 4096 bits, and of their primes, which alone
 * lie beside each other. */
#define FOR_DIGITS(call, m)                                                                                            \
    if ((m)->lanewise) {                                                                                               \
        switch ((m)->digits) {                                                                                         \
        case 20: call(20, 1); break;                                                                                   \
        case 32: call(32, 1); break;                                                                                   \
        default: call((m)->digits, 1); break;                                                                          \
        }                                                                                                              \
    } else {                                                                                                           \
        switch ((m)->digits) {                                                                                         \
        case 40: call(40, 0); break;                                                                                   \
        case 60: call(60, 0); break;                                                                                   \
        case 80: call(80, 0); break;                                                                                   \
        default: call((m)->digits, 0); break;                                                                          \
        }                                                                                                              \
    }

/* out = a b / R mod n^2. `out` may be a or b. */
KERNEL static void multiply_lanes(digits *out, const digits *a, const digits *b, const struct modulus *m) {
#define CALL(D, lanewise) multiply_digits(out, a, b, m, D, lanewise, 0)
    FOR_DIGITS(CALL, m)
#undef CALL
}

/* out = a^2 / R mod n^2. `out` may be a. */
KERNEL static void square_lanes(digits *out, const digits *a, const struct modulus *m) {
#define CALL(D, lanewise) multiply_digits(out, a, a, m, D, lanewise, 1)
    FOR_DIGITS(CALL, m)
#undef CALL
}

/* out = a + b, digit by digit with carries. The caller makes sure that lo and hi stay below 16 n. */
KERNEL static void add_lanes(digits *out, const digits *a, const digits *b, const struct modulus *mod) {
    for (int half = 0; half < 2; half++) {
        words carry = _mm256_setzero_si256();
        for (int i = half * mod->digits; i < (half + 1) * mod->digits; i++) {
            words column = ADD(carry, ADD(words_of(a[i]), words_of(b[i])));
            out[i] = digits_of(column), carry = carry_of(column);
        }
    }
}

/* Rows of four digits to columns of four digits. */
INLINE void transpose(digits *v) {
    digits a = _mm256_unpacklo_pd(v[0], v[1]), b = _mm256_unpackhi_pd(v[0], v[1]);
    digits c = _mm256_unpacklo_pd(v[2], v[3]), d = _mm256_unpackhi_pd(v[2], v[3]);
    v[0] = _mm256_permute2f128_pd(a, c, 0x20), v[1] = _mm256_permute2f128_pd(b, d, 0x20);
    v[2] = _mm256_permute2f128_pd(a, c, 0x31), v[3] = _mm256_permute2f128_pd(b, d, 0x31);
}

#include "operations.h"

const struct kernels avx2_kernels = {.name = "avx2", .lanes = LANES, .k_digits = K_DIGITS, .n_columns = 3, OPERATIONS};

#endif
