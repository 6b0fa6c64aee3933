/* Whole operations, four numbers at a time.
 *
 * An *element* is a number modulo n^2 at rest: 2 D digits, those of lo and then those of hi (see arithmetic.c), one after the other.
 * Four of them are turned into lanes as they are needed, which costs a hundredth of a product. In *Montgomery form* it
 * stands for x by x R, so that products stay in that form. Every element that a function here writes has lo, hi < 3 n,
 * or < 8 n after `enter`; the products take up to 16 n.
 *
 * When a list does not divide by four, the last element is repeated in the lanes that are left, and written once.
 */
#include "operations.h"

#if HAVE_KERNEL

#include <stdlib.h>
#include <string.h>

enum { MAX_LIMBS = (MAX_DIGITS * DIGIT_BITS + 63) / 64, WINDOW = 4 };

static int64_t size_of(const struct modulus *m) { return 2 * (int64_t)m->digits; }

static int lanes_from(int64_t start, int64_t count) { return count - start < LANES ? (int)(count - start) : LANES; }

/* Rows of four doubles to columns of four doubles. */
KERNEL static inline void transpose(digits4 *v) {
    digits4 a = _mm256_unpacklo_pd(v[0], v[1]), b = _mm256_unpackhi_pd(v[0], v[1]);
    digits4 c = _mm256_unpacklo_pd(v[2], v[3]), d = _mm256_unpackhi_pd(v[2], v[3]);
    v[0] = _mm256_permute2f128_pd(a, c, 0x20), v[1] = _mm256_permute2f128_pd(b, d, 0x20);
    v[2] = _mm256_permute2f128_pd(a, c, 0x31), v[3] = _mm256_permute2f128_pd(b, d, 0x31);
}

KERNEL static void gather(digits4 *out, const double *const elements[LANES], const struct modulus *m) {
    for (int i = 0; i < size_of(m); i += LANES) {
        for (int lane = 0; lane < LANES; lane++) out[i + lane] = _mm256_loadu_pd(elements[lane] + i);
        transpose(out + i);
    }
}

KERNEL static void scatter(double *const elements[LANES], int lanes, const digits4 *in, const struct modulus *m) {
    for (int i = 0; i < size_of(m); i += LANES) {
        digits4 v[LANES] = {in[i], in[i + 1], in[i + 2], in[i + 3]};
        transpose(v);
        for (int lane = 0; lane < lanes; lane++) _mm256_storeu_pd(elements[lane] + i, v[lane]);
    }
}

/* Four neighbours of a list, `stride` elements apart. */
KERNEL static void load(digits4 *out, const double *list, int lanes, int64_t stride, const struct modulus *m) {
    const double *elements[LANES];
    for (int lane = 0; lane < LANES; lane++)
        elements[lane] = list + (lane < lanes ? lane : lanes - 1) * stride * size_of(m);
    gather(out, elements, m);
}

KERNEL static void store(double *list, int lanes, int64_t stride, const digits4 *in, const struct modulus *m) {
    double *elements[LANES];
    for (int lane = 0; lane < LANES; lane++)
        elements[lane] = list + (lane < lanes ? lane : lanes - 1) * stride * size_of(m);
    scatter(elements, lanes, in, m);
}

KERNEL static void broadcast(digits4 *out, const double *element, const struct modulus *m) {
    for (int i = 0; i < size_of(m); i++) out[i] = _mm256_broadcast_sd(element + i);
}

/* Digits of a big-endian number; `width` bytes, at most 52 `digits` bits. One lane of four. */
static void read_digits(double *out, int digits, const uint8_t *bytes, int64_t width) {
    uint8_t little[MAX_CHUNKS * MAX_DIGITS * DIGIT_BITS / 8 + 8] = {0};
    for (int64_t i = 0; i < width; i++) little[i] = bytes[width - 1 - i];
    for (int i = 0; i < digits; i++) {
        uint64_t word; /* x86-64 is little-endian; 52 bits from bit 0 or 4 of a byte are in 64 */
        memcpy(&word, little + i * DIGIT_BITS / 8, sizeof word);
        out[LANES * i] = (double)(word >> i * DIGIT_BITS % 8 & (((uint64_t)1 << DIGIT_BITS) - 1));
    }
}

/* Take numbers from outside, below 2^(52 D chunks): x = sum_i x_i R^i with D digits in each x_i, so
 *
 *     x R = sum_i x_i R^(i + 2) / R                 and   x = sum_i x_i R^(i + 1) / R   when not in Montgomery form
 *
 * Each product has lo = x_i < R and hi = 0 with lo', hi' < n: lo'' < n + 2 n, hi'' < n + 2 + 2 n (see arithmetic.c), and a sum of up to
 * two is below 8 n. With more chunks each sum is multiplied by R / R = 1 first, which brings it below 3 n again. */
KERNEL void enter(double *out, const uint8_t *numbers, int64_t width, int64_t count, int montgomery, const struct modulus *m) {
    unsigned rounding = toward_zero();
    for (int64_t start = 0; start < count; start += LANES) {
        int lanes = lanes_from(start, count);
        double digits[MAX_CHUNKS * MAX_DIGITS][LANES] __attribute__((aligned(32)));
        digits4 sum[2 * MAX_DIGITS], factor[2 * MAX_DIGITS], part[2 * MAX_DIGITS], one[2 * MAX_DIGITS];
        for (int lane = 0; lane < LANES; lane++) {
            const uint8_t *number = numbers + (start + (lane < lanes ? lane : lanes - 1)) * width;
            read_digits(&digits[0][lane], m->chunks * m->digits, number, width);
        }
        broadcast(one, m->power_of_r, m);
        for (int i = 0; i < m->chunks; i++) {
            for (int j = 0; j < m->digits; j++) {
                part[j] = _mm256_load_pd(digits[i * m->digits + j]);
                part[m->digits + j] = _mm256_setzero_pd();
            }
            broadcast(factor, m->power_of_r + (i + montgomery) * size_of(m), m);
            multiply4(part, part, factor, m);
            if (i >= 2) multiply4(sum, sum, one, m);
            if (i) add4(sum, sum, part, m);
            else memcpy(sum, part, (size_t)size_of(m) * sizeof *sum);
        }
        store(out + start * size_of(m), lanes, 1, sum, m);
    }
    restore_rounding(rounding);
}

static void limbs_of(uint64_t *out, const double *digits, const struct modulus *m) {
    memset(out, 0, (size_t)m->limbs * sizeof *out);
    for (int i = 0; i < m->digits; i++) {
        uint64_t digit = (uint64_t)digits[i];
        int bit = i * DIGIT_BITS, word = bit / 64, shift = bit % 64;
        out[word] |= digit << shift;
        if (shift > 64 - DIGIT_BITS) out[word + 1] |= digit >> (64 - shift);
    }
}

/* x -= n if x >= n; returns 1 if so. The time is the same either way. */
static uint64_t subtract_once(uint64_t *x, const struct modulus *m) {
    uint64_t difference[MAX_LIMBS], borrow = 0;
    for (int i = 0; i < m->limbs; i++) {
        unsigned __int128 step = (unsigned __int128)x[i] - m->n_limbs[i] - borrow;
        difference[i] = (uint64_t)step, borrow = (uint64_t)(step >> 64) & 1;
    }
    uint64_t keep = (uint64_t)0 - borrow;
    for (int i = 0; i < m->limbs; i++) x[i] = (x[i] & keep) | (difference[i] & ~keep);
    return 1 - borrow;
}

/* lo - hi n modulo n^2, big-endian, of an element with lo, hi < 3 n. */
static void write_number(uint8_t *out, const double *element, const struct modulus *m) {
    uint64_t lo[MAX_LIMBS], hi[MAX_LIMBS], x[2 * MAX_LIMBS] = {0};
    limbs_of(lo, element, m), limbs_of(hi, element + m->digits, m);
    uint64_t carry = subtract_once(lo, m);
    carry += subtract_once(lo, m);
    subtract_once(hi, m), subtract_once(hi, m);
    for (int i = 0; i < m->limbs; i++) { /* 0 < n - hi + carry <= n + 2 */
        __int128 step = (__int128)m->n_limbs[i] - hi[i] + (int64_t)carry;
        hi[i] = (uint64_t)step, carry = (uint64_t)(step >> 64);
    }
    subtract_once(hi, m);
    memcpy(x, lo, (size_t)m->limbs * sizeof *lo);
    for (int i = 0; i < m->limbs; i++) {
        carry = 0;
        for (int j = 0; j < m->limbs; j++) { /* at most (2^64 - 1)^2 + 2 (2^64 - 1) = 2^128 - 1 */
            unsigned __int128 step = (unsigned __int128)hi[i] * m->n_limbs[j] + x[i + j] + carry;
            x[i + j] = (uint64_t)step, carry = (uint64_t)(step >> 64);
        }
        x[i + m->limbs] = carry;
    }
    for (int64_t i = 0; i < m->width; i++) out[m->width - 1 - i] = (uint8_t)(x[i / 8] >> 8 * (i % 8));
}

/* n - x for the digits of x <= n in one lane of four. */
static void subtract_from_n(double *x, const struct modulus *m) {
    int64_t borrow = 0;
    for (int i = 0; i < m->digits; i++) {
        const int64_t difference = (int64_t)m->n[i] - (int64_t)x[LANES * i] + borrow;
        x[LANES * i] = (double)(difference & (((int64_t)1 << DIGIT_BITS) - 1)), borrow = difference >> DIGIT_BITS;
    }
}

/* Convert numbers for the outside: x (1 + p n) mod n^2, from x in Montgomery form and a plaintext p < n; x alone if there is no
 * plaintext. x R (1 + p n) / R: leaving the form and adding a plaintext are one product, with lo = 1 and hi = n - p. */
KERNEL void leave(uint8_t *out, const double *elements, const uint8_t *plaintexts, int64_t count, const struct modulus *m) {
    unsigned rounding = toward_zero();
    for (int64_t start = 0; start < count; start += LANES) {
        int lanes = lanes_from(start, count);
        digits4 x[2 * MAX_DIGITS], factor[2 * MAX_DIGITS];
        double results[LANES][2 * MAX_DIGITS];
        memset(factor, 0, sizeof factor);
        factor[0] = _mm256_set1_pd(1);
        for (int lane = 0; plaintexts && lane < lanes; lane++) {
            double *hi = (double *)(factor + m->digits) + lane;
            read_digits(hi, m->digits, plaintexts + (start + lane) * (m->width / 2), m->width / 2);
            subtract_from_n(hi, m);
        }
        load(x, elements + start * size_of(m), lanes, 1, m);
        multiply4(x, x, factor, m);
        scatter((double *[LANES]){results[0], results[1], results[2], results[3]}, LANES, x, m);
        for (int lane = 0; lane < lanes; lane++) write_number(out + (start + lane) * m->width, results[lane], m);
    }
    restore_rounding(rounding);
}

/* out_i = a_i b_i / R */
KERNEL void multiply(double *out, const double *a, const double *b, int64_t count, const struct modulus *m) {
    unsigned rounding = toward_zero();
    for (int64_t start = 0; start < count; start += LANES) {
        int lanes = lanes_from(start, count);
        digits4 x[2 * MAX_DIGITS], y[2 * MAX_DIGITS];
        load(x, a + start * size_of(m), lanes, 1, m), load(y, b + start * size_of(m), lanes, 1, m);
        multiply4(x, x, y, m);
        store(out + start * size_of(m), lanes, 1, x, m);
    }
    restore_rounding(rounding);
}

/* Square each element `times` times, in Montgomery form. */
KERNEL void square(double *out, const double *a, int64_t times, int64_t count, const struct modulus *m) {
    unsigned rounding = toward_zero();
    for (int64_t start = 0; start < count; start += LANES) {
        int lanes = lanes_from(start, count);
        digits4 x[2 * MAX_DIGITS];
        load(x, a + start * size_of(m), lanes, 1, m);
        for (int64_t i = 0; i < times; i++) square4(x, x, m);
        store(out + start * size_of(m), lanes, 1, x, m);
    }
    restore_rounding(rounding);
}

/* bases_i^exponent, all in Montgomery form. For secret exponents: squarings and products follow from the exponent's length
 * alone, and each product reads the whole table of 16 powers and keeps the one it needs under a mask. */
KERNEL void power(double *out, const double *bases, const uint8_t *exponent, int64_t exponent_bytes, int64_t count,
                  const struct modulus *m) {
    unsigned rounding = toward_zero();
    for (int64_t start = 0; start < count; start += LANES) {
        int lanes = lanes_from(start, count);
        digits4 powers[1 << WINDOW][2 * MAX_DIGITS], x[2 * MAX_DIGITS], factor[2 * MAX_DIGITS];
        broadcast(powers[0], m->power_of_r, m);
        load(powers[1], bases + start * size_of(m), lanes, 1, m);
        for (int i = 2; i < 1 << WINDOW; i++) multiply4(powers[i], powers[i - 1], powers[1], m);
        memcpy(x, powers[0], sizeof x);
        for (int64_t position = 0; position < 2 * exponent_bytes; position++) {
            int digit = exponent[position / 2] >> (position % 2 ? 0 : 4) & 15;
            for (int i = 0; i < WINDOW; i++) square4(x, x, m);
            digits4 masks[1 << WINDOW];
            for (int i = 0; i < 1 << WINDOW; i++) /* all ones when i == digit: (i ^ digit) - 1 is negative for 0 alone */
                masks[i] = _mm256_castsi256_pd(_mm256_set1_epi64x((int64_t)((i ^ digit) - 1) >> 63));
            for (int j = 0; j < size_of(m); j++) {
                factor[j] = _mm256_setzero_pd();
                for (int i = 0; i < 1 << WINDOW; i++)
                    factor[j] = _mm256_or_pd(factor[j], _mm256_and_pd(masks[i], powers[i][j]));
            }
            multiply4(x, x, factor, m);
        }
        store(out + start * size_of(m), lanes, 1, x, m);
        memset(powers, 0, sizeof powers), memset(x, 0, sizeof x), memset(factor, 0, sizeof factor);
        __asm__ volatile("" : : "r"(powers), "r"(x), "r"(factor) : "memory"); /* the wipe is not optimised away */
    }
    restore_rounding(rounding);
}

/* Rows of powers 0 ... 255 of their bases. */
KERNEL void fill_comb(double *rows, const double *bases, int64_t n_rows, const struct modulus *m) {
    unsigned rounding = toward_zero();
    for (int64_t start = 0; start < n_rows; start += LANES) {
        int lanes = lanes_from(start, n_rows);
        double *to = rows + start * COMB_ROW * size_of(m);
        digits4 x[2 * MAX_DIGITS], base[2 * MAX_DIGITS];
        broadcast(x, m->power_of_r, m);
        load(base, bases + start * size_of(m), lanes, 1, m);
        for (int i = 0; i < COMB_ROW; i++) {
            store(to + i * size_of(m), lanes, COMB_ROW, x, m);
            if (i + 1 < COMB_ROW) multiply4(x, x, base, m);
        }
    }
    restore_rounding(rounding);
}

KERNEL static inline void prefetch(const double *element, const struct modulus *m) {
    for (int i = 0; i < size_of(m); i += 8) _mm_prefetch((const char *)(element + i), _MM_HINT_T0);
}

/* For each exponent, with one byte for each row: the product of one power from each row. The exponents decide the addresses. */
KERNEL void draw(double *out, const double *comb, int64_t n_rows, const uint8_t *exponents, int64_t count,
                 const struct modulus *m) {
    unsigned rounding = toward_zero();
    for (int64_t start = 0; start < count; start += LANES) {
        int lanes = lanes_from(start, count);
        digits4 x[2 * MAX_DIGITS], factor[2 * MAX_DIGITS];
        const double *now[LANES] = {0}, *next[LANES] = {0};
        for (int64_t row = 0; row <= n_rows; row++) {
            for (int lane = 0; lane < LANES && row < n_rows; lane++) {
                const uint8_t *exponent = exponents + (start + (lane < lanes ? lane : lanes - 1)) * n_rows;
                next[lane] = comb + (row * COMB_ROW + exponent[row]) * size_of(m);
                prefetch(next[lane], m);
            }
            if (row == 1) gather(x, now, m);
            else if (row > 1) gather(factor, now, m), multiply4(x, x, factor, m);
            memcpy(now, next, sizeof now);
        }
        store(out + start * size_of(m), lanes, 1, x, m);
    }
    restore_rounding(rounding);
}

/* For each base its powers 1, 3, 5 ... 2^(width - 1) - 1, and then those of its inverse: 2^(width - 1) elements. */
KERNEL void odd_powers(double *out, const double *bases, const double *inverses, int width, int64_t count,
                       const struct modulus *m) {
    unsigned rounding = toward_zero();
    const int64_t half = (int64_t)1 << (width - 2);
    for (int64_t start = 0; start < count; start += LANES) {
        int lanes = lanes_from(start, count);
        for (int sign = 0; sign < 2; sign++) {
            digits4 x[2 * MAX_DIGITS], step[2 * MAX_DIGITS];
            double *to = out + (2 * start + sign) * half * size_of(m);
            load(x, (sign ? inverses : bases) + start * size_of(m), lanes, 1, m);
            if (half > 1) square4(step, x, m);
            for (int64_t i = 0; i < half; i++) {
                store(to + i * size_of(m), lanes, 2 * half, x, m);
                if (i + 1 < half) multiply4(x, x, step, m);
            }
        }
    }
    restore_rounding(rounding);
}

/* Bound on the size of a value in a column: with smaller values, the additions in next_digit stay below 2^63. */
static const int64_t MIN_TOO_LARGE = (int64_t)1 << 62;

/* One signed digit of a number: 0, or odd and below 2^(width - 1) in size. */
struct digit {
    int64_t rest; /* what is left of the number above it */
    int value;
};

static struct digit next_digit(int64_t rest, int width) {
    int value = 0;
    if (rest & 1) {
        const int64_t half = (int64_t)1 << (width - 1);
        value = (int)(((rest + half) & (2 * half - 1)) - half);
    }
    return (struct digit){(rest - value) >> 1, value};
}

/* The current work of a lane: the powers that still have to go into one bucket. */
struct lane {
    const int32_t *next, *end;
    double *bucket;
};

/* The powers to multiply into each bucket, sorted by bucket. */
struct work {
    int64_t *ends; /* [n_buckets + 1] entries of bucket b are from ends[b - 1] on, and begin at ends[-1] = 0 */
    int32_t *powers;
    int64_t n_buckets, current;
    double *elements;
    uint8_t *filled;
};

static const double *power_at(const double *powers, int32_t index, const struct modulus *m) {
    return powers + index * size_of(m);
}

/* Give a lane the next bucket that needs a product. An empty bucket takes its first power unchanged. */
static int next_bucket(struct lane *lane, double *digits, struct work *work, const double *powers, const struct modulus *m) {
    for (; work->current < work->n_buckets; work->current++) {
        int64_t b = work->current;
        const int32_t *next = work->powers + (b ? work->ends[b - 1] : 0), *end = work->powers + work->ends[b];
        if (next == end) continue;
        double *bucket = work->elements + b * size_of(m);
        if (!work->filled[b]) {
            memcpy(bucket, power_at(powers, *next++, m), (size_t)size_of(m) * sizeof *bucket);
            work->filled[b] = 1;
        }
        if (next == end) continue;
        for (int i = 0; i < size_of(m); i++) digits[LANES * i] = bucket[i];
        *lane = (struct lane){next, end, bucket};
        work->current++;
        return 1;
    }
    return 0;
}

KERNEL static void work_off(struct work *work, const double *powers, const struct modulus *m) {
    digits4 x[2 * MAX_DIGITS], factor[2 * MAX_DIGITS];
    struct lane lanes[LANES];
    const double *elements[LANES];
    int busy = 0, alive[LANES];
    memset(x, 0, sizeof x);
    for (int l = 0; l < LANES; l++) {
        alive[l] = next_bucket(&lanes[l], (double *)x + l, work, powers, m);
        busy += alive[l];
    }
    while (busy) {
        for (int l = 0; l < LANES; l++) elements[l] = alive[l] ? power_at(powers, *lanes[l].next, m) : powers;
        gather(factor, elements, m);
        for (int l = 0; l < LANES; l++)
            if (alive[l] && lanes[l].next + 1 < lanes[l].end) prefetch(power_at(powers, lanes[l].next[1], m), m);
        multiply4(x, x, factor, m);
        for (int l = 0; l < LANES; l++) {
            if (!alive[l] || ++lanes[l].next < lanes[l].end) continue;
            for (int i = 0; i < size_of(m); i++) lanes[l].bucket[i] = ((double *)x)[LANES * i + l];
            alive[l] = next_bucket(&lanes[l], (double *)x + l, work, powers, m);
            busy -= !alive[l];
        }
    }
}

/* Multiply the powers of a block's ciphertexts into the buckets of columns first ... stop - 1. */
KERNEL int fill_buckets(struct buckets *buckets, const double *powers, int width, const struct samples *samples,
                        int64_t first, int64_t stop, const struct modulus *m) {
    const int64_t per_column = buckets->slots * buckets->bits, half = (int64_t)1 << (width - 2);
    struct work work = {.n_buckets = (stop - first) * per_column,
                        .elements = buckets->elements + first * per_column * size_of(m),
                        .filled = buckets->filled + first * per_column};
    /* Digits that are not zero are at least `width` places apart. */
    size_t capacity = (size_t)((stop - first) * samples->count * (buckets->bits / width + 1));
    work.ends = calloc((size_t)work.n_buckets + 1, sizeof *work.ends);
    work.powers = malloc((capacity + 1) * sizeof *work.powers);
    int status = work.ends && work.powers ? 0 : -1;
    /* A counting sort: count, add up, and put each power in its place. This moves the ends to the starts of their buckets,
     * and back. */
    for (int pass = 0; !status && pass < 2; pass++) {
        for (int64_t i = 0; !status && i < samples->count; i++) {
            int64_t slot = buckets->slots - 1 - i % samples->slots;
            int32_t table = (int32_t)(i / samples->slots * 2 * half);
            for (int64_t column = first; column < stop; column++) {
                int64_t bucket = ((column - first) * buckets->slots + slot) * buckets->bits, bit = 0;
                struct digit digit = {samples->values[i * samples->columns + column], 0};
                if (digit.rest >= MIN_TOO_LARGE || digit.rest <= -MIN_TOO_LARGE) {
                    status = -2;
                    break;
                }
                for (; digit.rest; bit++) {
                    digit = next_digit(digit.rest, width);
                    if (!digit.value) continue;
                    if (bit >= buckets->bits) {
                        status = -2;
                        break;
                    }
                    int32_t index = digit.value > 0 ? digit.value >> 1 : (int32_t)half + (-digit.value >> 1);
                    if (pass) work.powers[--work.ends[bucket + bit]] = table + index;
                    else work.ends[bucket + bit]++;
                }
            }
        }
        for (int64_t b = 1; !status && !pass && b <= work.n_buckets; b++) work.ends[b] += work.ends[b - 1];
    }
    if (!status) {
        unsigned rounding = toward_zero();
        /* Now ends[b] is where bucket b begins, which is where bucket b - 1 ends. */
        memmove(work.ends, work.ends + 1, (size_t)work.n_buckets * sizeof *work.ends);
        work_off(&work, powers, m);
        restore_rounding(rounding);
    }
    free(work.ends), free(work.powers);
    return status;
}

/* prod_t bucket_t^(2^t) by Horner's rule for columns first ... stop - 1. Slots are `slot_bits` apart. 1 if all buckets are empty. */
KERNEL void join_buckets(double *out, const struct buckets *buckets, int64_t slot_bits, int64_t first, int64_t stop,
                         const struct modulus *m) {
    unsigned rounding = toward_zero();
    const int64_t slots = buckets->slots, bits = buckets->bits;
    for (int64_t start = first; start < stop; start += LANES) {
        int lanes = lanes_from(start, stop), begun = 0;
        digits4 x[2 * MAX_DIGITS], factor[2 * MAX_DIGITS];
        broadcast(x, m->power_of_r, m);
        for (int64_t place = slot_bits * (slots - 1) + bits - 1; place >= 0; place--) {
            if (begun) square4(x, x, m);
            /* If slots are narrower than numbers, several slots have a bucket for this place. */
            int64_t slot = place / slot_bits < slots ? place / slot_bits : slots - 1;
            for (; slot >= 0 && place - slot * slot_bits < bits; slot--) {
                const double *elements[LANES];
                int any = 0;
                for (int l = 0; l < LANES; l++) {
                    int64_t b = ((start + (l < lanes ? l : lanes - 1)) * slots + slot) * bits + place - slot * slot_bits;
                    elements[l] = buckets->filled[b] ? buckets->elements + b * size_of(m) : m->power_of_r;
                    any |= buckets->filled[b];
                }
                if (!any) continue;
                gather(factor, elements, m);
                if (begun) multiply4(x, x, factor, m);
                else memcpy(x, factor, (size_t)size_of(m) * sizeof *x);
                begun = 1;
            }
        }
        store(out + start * size_of(m), lanes, 1, x, m);
    }
    restore_rounding(rounding);
}

#endif
