/* Whole operations, as many numbers at a time as there are lanes. Each path includes this file once, after its arithmetic:
 *
 *     KERNEL                  the attribute that lets a function use the path's instructions
 *     LANES, K_DIGITS         a power of two; digits of the constant k, see kernels.h
 *     digit                   the type of a digit, of 64 bits
 *     digits, words           vectors of LANES digits, and of LANES whole numbers of 64 bits
 *     words_of, digits_of     between the two, for numbers below 2^52
 *     all, transpose          one word in all lanes; rows of LANES digits to columns
 *     multiply_lanes, square_lanes, add_lanes     products and sums modulo n^2, one in each lane
 *
 * A number is a pair, x = lo - hi n. An *element* is a number at rest: 2 D digits, those of lo and then those of hi, one after the
 * other. They are turned into lanes as they are needed, which costs a few hundredths of a product. In *Montgomery form* an element
 * stands for x by x R, so that products stay in that form. Every element that a function here writes has lo, hi < 3 n,
 * or < 8 n after `enter`; the products take up to 16 n.
 *
 * When a list does not divide by LANES, the lanes that are left compute the last element too, and write it to the same place.
 */
#include <stdlib.h>
#include <string.h>

enum { MAX_LIMBS = (MAX_DIGITS * DIGIT_BITS + 63) / 64, WINDOW = 4 };

typedef unsigned long long counts __attribute__((vector_size(sizeof(words)), may_alias));

static int64_t size_of(const struct modulus *m) { return 2 * (int64_t)m->digits; }

static int lanes_from(int64_t start, int64_t count) { return count - start < LANES ? (int)(count - start) : LANES; }

KERNEL static void gather(digits *out, const uint64_t *const elements[LANES], const struct modulus *m) {
    for (int i = 0; i < size_of(m); i += LANES) {
        digits v[LANES];
        for (int lane = 0; lane < LANES; lane++) memcpy(&v[lane], elements[lane] + i, sizeof v[lane]);
        transpose(v);
        for (int lane = 0; lane < LANES; lane++) out[i + lane] = v[lane];
    }
}

/* Lanes with the same element must hold the same number. */
KERNEL static void scatter(uint64_t *const elements[LANES], const digits *in, const struct modulus *m) {
    for (int i = 0; i < size_of(m); i += LANES) {
        digits v[LANES];
        for (int lane = 0; lane < LANES; lane++) v[lane] = in[i + lane];
        transpose(v);
        for (int lane = 0; lane < LANES; lane++) memcpy(elements[lane] + i, &v[lane], sizeof v[lane]);
    }
}

/* Neighbours in a list, `stride` elements apart. */
KERNEL static void load(digits *out, const uint64_t *list, int lanes, int64_t stride, const struct modulus *m) {
    const uint64_t *elements[LANES];
    for (int lane = 0; lane < LANES; lane++)
        elements[lane] = list + (lane < lanes ? lane : lanes - 1) * stride * size_of(m);
    gather(out, elements, m);
}

KERNEL static void store(uint64_t *list, int lanes, int64_t stride, const digits *in, const struct modulus *m) {
    uint64_t *elements[LANES];
    for (int lane = 0; lane < LANES; lane++)
        elements[lane] = list + (lane < lanes ? lane : lanes - 1) * stride * size_of(m);
    scatter(elements, in, m);
}

KERNEL static void broadcast(digits *out, const uint64_t *element, const struct modulus *m) {
    for (int i = 0; i < size_of(m); i++) out[i] = (digits)all(element[i]);
}

/* Eight bytes of a big-endian number, the lowest of which has `below` bytes below it; zero above the number. */
static inline uint64_t word_at(const uint8_t *bytes, int64_t width, int64_t below) {
    uint64_t word = 0;
    const int64_t start = width - 8 - below;
    if (start >= 0) memcpy(&word, bytes + start, sizeof word);
    else if (start > -8) memcpy((uint8_t *)&word - start, bytes, (size_t)(8 + start));
    return __builtin_bswap64(word);
}

/* Digits first ... first + count - 1 of a big-endian number, as whole numbers, in one lane. */
static void read_digits(words *out, int lane, int64_t first, int count, const uint8_t *bytes, int64_t width) {
    for (int i = 0; i < count; i++) { /* 52 bits from bit 0 or 4 of a byte are in 64 */
        const int64_t bit = (first + i) * DIGIT_BITS;
        ((int64_t *)(out + i))[lane] = (int64_t)(word_at(bytes, width, bit / 8) >> bit % 8 & DIGIT_MASK);
    }
}

/* Take numbers from outside, below 2^(52 D chunks): x = sum_i x_i R^i with D digits in each x_i, so
 *
 *     x R = sum_i x_i R^(i + 2) / R                 and   x = sum_i x_i R^(i + 1) / R   when not in Montgomery form
 *
 * Each product has lo = x_i < R and hi = 0 with lo', hi' < n: lo'' < n + 2 n, hi'' < n + 2 + 2 n (see the path's arithmetic), and a
 * sum of up to two is below 8 n. With more chunks each sum is multiplied by R / R = 1 first, which brings it below 3 n again. */
KERNEL static void enter(uint64_t *out, const uint8_t *numbers, int64_t width, int64_t count, int montgomery,
                         const struct modulus *m) {
    const int D = m->digits;
    for (int64_t start = 0; start < count; start += LANES) {
        int lanes = lanes_from(start, count);
        digits sum[2 * MAX_DIGITS], factor[2 * MAX_DIGITS], part[2 * MAX_DIGITS];
        for (int i = 0; i < m->chunks; i++) {
            for (int lane = 0; lane < LANES; lane++)
                read_digits((words *)part, lane, (int64_t)i * D, D, numbers + (start + (lane < lanes ? lane : lanes - 1)) * width,
                            width);
            for (int j = 0; j < D; j++) part[j] = digits_of(((words *)part)[j]), part[D + j] = (digits)all(0);
            broadcast(factor, m->power_of_r + (i + montgomery) * size_of(m), m);
            multiply_lanes(part, part, factor, m);
            if (i >= 2) {
                broadcast(factor, m->power_of_r, m);
                multiply_lanes(sum, sum, factor, m);
            }
            if (i) add_lanes(sum, sum, part, m);
            else memcpy(sum, part, (size_t)size_of(m) * sizeof *sum);
        }
        store(out + start * size_of(m), lanes, 1, sum, m);
    }
}

/* Digits, which are whole numbers here, as words of 64 bits. */
static void limbs_of(uint64_t *out, const uint64_t *in, const struct modulus *m) {
    for (unsigned word = 0; word < (unsigned)m->limbs; word++) {
        const unsigned i = 64 * word / DIGIT_BITS, D = (unsigned)m->digits, shift = 64 * word % DIGIT_BITS;
        out[word] = in[i] >> shift; /* then one digit more, or two */
        if (i + 1 < D) out[word] |= in[i + 1] << (DIGIT_BITS - shift);
        if (i + 2 < D && shift > 2 * DIGIT_BITS - 64) out[word] |= in[i + 2] << (2 * DIGIT_BITS - shift);
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

/* lo - hi n modulo n^2, big-endian, of an element of whole numbers with lo, hi < 3 n: with lo = l + c n that is l + (c - hi) n. */
static void write_number(uint8_t *out, const uint64_t *element, const struct modulus *m) {
    uint64_t lo[MAX_LIMBS], hi[MAX_LIMBS], x[2 * MAX_LIMBS];
    limbs_of(lo, element, m), limbs_of(hi, element + m->digits, m);
    uint64_t borrow = 0, carry = subtract_once(lo, m);
    carry += subtract_once(lo, m);
    subtract_once(hi, m), subtract_once(hi, m);
    for (int i = 0; i < m->limbs; i++) { /* c - hi with c <= 2 < n */
        unsigned __int128 step = (unsigned __int128)(i ? 0 : carry) - hi[i] - borrow;
        hi[i] = (uint64_t)step, borrow = (uint64_t)(step >> 64) & 1;
    }
    const uint64_t negative = (uint64_t)0 - borrow;
    carry = 0;
    for (int i = 0; i < m->limbs; i++) {
        unsigned __int128 step = (unsigned __int128)hi[i] + (m->n_limbs[i] & negative) + carry;
        hi[i] = (uint64_t)step, carry = (uint64_t)(step >> 64);
    }
    /* Word by word, from the lowest: one sum of three words takes all products of a column, so additions wait for each other once. */
    unsigned __int128 sum = 0;
    const int last = m->limbs - 1;
    for (int t = 0; t <= 2 * last; t++) {
        uint64_t top = 0;
        if (t <= last) sum += lo[t]; /* below 2^72 before */
        for (int i = t <= last ? 0 : t - last; i <= (t <= last ? t : last); i++) {
            const unsigned __int128 product = (unsigned __int128)hi[i] * m->n_limbs[t - i];
            sum += product, top += sum < product;
        }
        x[t] = (uint64_t)sum;
        sum = sum >> 64 | (unsigned __int128)top << 64;
    }
    x[2 * last + 1] = (uint64_t)sum;
    for (int64_t i = 0; i < m->width; i += 8) {
        const uint64_t word = __builtin_bswap64(x[i / 8]);
        const size_t rest = (size_t)(m->width - i < 8 ? m->width - i : 8);
        memcpy(out + m->width - i - (int64_t)rest, (const uint8_t *)&word + 8 - rest, rest);
    }
}

/* 1 + p n for the plaintexts p < n of some lanes: lo = 1 and hi = n - p. It is 1 if there are no plaintexts. */
KERNEL static void read_plaintexts(digits *out, const uint8_t *plaintexts, int64_t start, int lanes, const struct modulus *m) {
    const int D = m->digits;
    for (int i = 0; i < 2 * D; i++) out[i] = digits_of(all(i == 0));
    if (!plaintexts) return;
    const int64_t width = m->width / 2;
    words *hi = (words *)(out + D), borrow = all(0);
    for (int lane = 0; lane < LANES; lane++)
        read_digits(hi, lane, 0, D, plaintexts + (start + (lane < lanes ? lane : lanes - 1)) * width, width);
    for (int i = 0; i < D; i++) {
        const words difference = words_of((digits)all(((const uint64_t *)m->n)[i])) - hi[i] + borrow;
        borrow = (words)(difference < all(0));
        out[D + i] = digits_of(difference & all(DIGIT_MASK));
    }
}

/* Convert numbers for the outside: x (1 + p n) mod n^2, from x in Montgomery form and a plaintext p < n; x alone if there is no
 * plaintext. Leaving the form and adding a plaintext are one product, x R (1 + p n) / R. */
KERNEL static void leave(uint8_t *out, const uint64_t *elements, const uint8_t *plaintexts, int64_t count,
                         const struct modulus *m) {
    for (int64_t start = 0; start < count; start += LANES) {
        int lanes = lanes_from(start, count);
        digits x[2 * MAX_DIGITS], factor[2 * MAX_DIGITS];
        uint64_t results[LANES][2 * MAX_DIGITS], *rows[LANES];
        read_plaintexts(factor, plaintexts, start, lanes, m);
        load(x, elements + start * size_of(m), lanes, 1, m);
        multiply_lanes(x, x, factor, m);
        for (int i = 0; i < size_of(m); i++) x[i] = (digits)words_of(x[i]);
        for (int lane = 0; lane < LANES; lane++) rows[lane] = results[lane];
        scatter(rows, x, m);
        for (int lane = 0; lane < lanes; lane++) write_number(out + (start + lane) * m->width, results[lane], m);
    }
}

/* x (1 + p n) in Montgomery form: the product with 1 + p n leaves the form, and the one with R^2 enters it again. */
KERNEL static void add_plaintexts(uint64_t *out, const uint64_t *elements, const uint8_t *plaintexts, int64_t count,
                                  const struct modulus *m) {
    for (int64_t start = 0; start < count; start += LANES) {
        int lanes = lanes_from(start, count);
        digits x[2 * MAX_DIGITS], factor[2 * MAX_DIGITS];
        read_plaintexts(factor, plaintexts, start, lanes, m);
        load(x, elements + start * size_of(m), lanes, 1, m);
        multiply_lanes(x, x, factor, m);
        broadcast(factor, m->power_of_r + size_of(m), m);
        multiply_lanes(x, x, factor, m);
        store(out + start * size_of(m), lanes, 1, x, m);
    }
}

/* out_i = a_i b_i / R */
KERNEL static void multiply(uint64_t *out, const uint64_t *a, const uint64_t *b, int64_t count, const struct modulus *m) {
    for (int64_t start = 0; start < count; start += LANES) {
        int lanes = lanes_from(start, count);
        digits x[2 * MAX_DIGITS], y[2 * MAX_DIGITS];
        load(x, a + start * size_of(m), lanes, 1, m), load(y, b + start * size_of(m), lanes, 1, m);
        multiply_lanes(x, x, y, m);
        store(out + start * size_of(m), lanes, 1, x, m);
    }
}

/* Square each element `times` times, in Montgomery form. */
KERNEL static void square(uint64_t *out, const uint64_t *a, int64_t times, int64_t count, const struct modulus *m) {
    for (int64_t start = 0; start < count; start += LANES) {
        int lanes = lanes_from(start, count);
        digits x[2 * MAX_DIGITS];
        load(x, a + start * size_of(m), lanes, 1, m);
        for (int64_t i = 0; i < times; i++) square_lanes(x, x, m);
        store(out + start * size_of(m), lanes, 1, x, m);
    }
}

/* The product of all elements, in Montgomery form: in each lane that of every LANES-th, and then that of the lanes. */
KERNEL static void product(uint64_t *out, const uint64_t *a, int64_t count, const struct modulus *m) {
    digits x[2 * MAX_DIGITS], factor[2 * MAX_DIGITS];
    uint64_t results[LANES][2 * MAX_DIGITS], *rows[LANES];
    const uint64_t *elements[LANES];
    broadcast(x, m->power_of_r, m);
    for (int64_t start = 0; start < count; start += LANES) {
        for (int64_t lane = 0; lane < LANES; lane++)
            elements[lane] = start + lane < count ? a + (start + lane) * size_of(m) : m->power_of_r;
        gather(start ? factor : x, elements, m);
        if (start) multiply_lanes(x, x, factor, m);
    }
    for (int lane = 0; lane < LANES; lane++) rows[lane] = results[lane];
    for (int distance = LANES / 2; distance; distance /= 2) {
        scatter(rows, x, m);
        for (int lane = 0; lane < LANES; lane++) elements[lane] = results[(lane + distance) % LANES];
        gather(factor, elements, m);
        multiply_lanes(x, x, factor, m);
    }
    store(out, 1, 1, x, m);
}

/* What a call of `power` keeps outside its stack, which is small with some C libraries: the table, and the moduli of its lanes. */
struct powers {
    digits n[MAX_DIGITS], h[MAX_DIGITS], k[K_DIGITS];
    digits table[]; /* [1 << WINDOW][2 D] */
};

/* Put the constants of each lane's modulus side by side. `which` says which of the moduli a lane has. */
KERNEL static struct modulus beside(struct powers *to, const struct modulus *moduli, const int which[LANES]) {
    struct modulus out = moduli[0];
    for (int lane = 0; lane < LANES; lane++) {
        const struct modulus *m = &moduli[which[lane]];
        for (int i = 0; i < m->digits; i++) {
            ((digit *)&to->n[i])[lane] = ((const digit *)m->n)[i];
            ((digit *)&to->h[i])[lane] = ((const digit *)m->h)[i];
        }
        for (int i = 0; i < K_DIGITS; i++) ((digit *)&to->k[i])[lane] = ((const digit *)m->k)[i];
    }
    out.n = to->n, out.h = to->h, out.k = to->k, out.lanewise = 1;
    return out;
}

/* base^exponent for elements first ... stop - 1 of a list, all in Montgomery form. The list has `count` bases for each of the moduli,
 * and there is an exponent for each. The moduli have equally many digits. For secret exponents: squarings and products follow from
 * the exponents' length alone, and each product reads the whole table of 16 powers and keeps those it needs under a mask. */
KERNEL static int power(uint64_t *out, const uint64_t *bases, const uint8_t *exponents, int64_t exponent_bytes, int64_t count,
                        int64_t first, int64_t stop, const struct modulus *moduli) {
    const int64_t size = size_of(moduli);
    const size_t bytes = sizeof(struct powers) + (size_t)(size << WINDOW) * sizeof(digits);
    struct powers *const own = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!own) return -1;
    for (int64_t start = first; start < stop; start += LANES) {
        int lanes = lanes_from(start, stop), which[LANES];
        digits x[2 * MAX_DIGITS], factor[2 * MAX_DIGITS], *const table = own->table;
        words masks[1 << WINDOW];
        const uint64_t *ones[LANES];
        for (int lane = 0; lane < LANES; lane++) {
            which[lane] = (int)((start + (lane < lanes ? lane : lanes - 1)) / count);
            ones[lane] = moduli[which[lane]].power_of_r;
        }
        const struct modulus m = beside(own, moduli, which);
        gather(table, ones, &m);
        load(table + size, bases + start * size, lanes, 1, &m);
        for (int i = 2; i < 1 << WINDOW; i++) multiply_lanes(table + i * size, table + (i - 1) * size, table + size, &m);
        memcpy(x, table, (size_t)size * sizeof *x);
        for (int64_t position = 0; position < 2 * exponent_bytes; position++) {
            for (int i = 0; i < WINDOW; i++) square_lanes(x, x, &m);
            words wanted = all(0);
            for (int lane = 0; lane < LANES; lane++)
                wanted[lane] = exponents[which[lane] * exponent_bytes + position / 2] >> (position % 2 ? 0 : 4) & 15;
            for (int i = 0; i < 1 << WINDOW; i++) masks[i] = (words)(wanted == all((uint64_t)i)); /* all ones where they are equal */
            /* Hide from the compiler that a mask is all ones or zero: it would turn masks into branches, or into loads of some
             * lanes only. */
            __asm__("" : "+m"(masks));
            for (int j = 0; j < size; j++) {
                words chosen = all(0);
                for (int i = 0; i < 1 << WINDOW; i++) chosen |= masks[i] & (words)table[i * size + j];
                factor[j] = (digits)chosen;
            }
            multiply_lanes(x, x, factor, &m);
        }
        store(out + start * size, lanes, 1, x, &m);
        memset(x, 0, sizeof x), memset(factor, 0, sizeof factor), memset(masks, 0, sizeof masks);
        __asm__ volatile("" : : "r"(x), "r"(factor), "r"(masks) : "memory"); /* the wipe is not optimised away */
    }
    memset(own, 0, bytes);
    __asm__ volatile("" : : "r"(own) : "memory");
    free(own);
    return 0;
}

KERNEL static inline void prefetch(const uint64_t *element, const struct modulus *m) {
    for (int i = 0; i < size_of(m); i += 8) __builtin_prefetch(element + i);
}

/* Products of powers from a comb of `n_tables` tables, each of which has `entries` of them, a power of two. A product has `steps`
 * steps, each with an index into every table: x = prod_s (prod_t table_t[index_st])^(2^(steps - 1 - s)). Indices are taken modulo
 * `entries`. They decide the addresses. */
KERNEL static void draw(uint64_t *out, const uint64_t *comb, int64_t n_tables, int64_t entries, const uint16_t *indices,
                        int64_t steps, int64_t count, const struct modulus *m) {
    const int64_t n_indices = steps * n_tables;
    for (int64_t start = 0; start < count; start += LANES) {
        int lanes = lanes_from(start, count);
        digits x[2 * MAX_DIGITS], factor[2 * MAX_DIGITS];
        const uint64_t *now[LANES] = {0}, *next[LANES] = {0};
        for (int64_t i = 0; i <= n_indices; i++) {
            for (int lane = 0; lane < LANES && i < n_indices; lane++) {
                const int64_t residue = start + (lane < lanes ? lane : lanes - 1);
                const int64_t index = indices[residue * n_indices + i] & (entries - 1);
                next[lane] = comb + (i % n_tables * entries + index) * size_of(m);
                prefetch(next[lane], m);
            }
            if (i == 1) gather(x, now, m);
            if (i > 1) {
                if ((i - 1) % n_tables == 0) square_lanes(x, x, m);
                gather(factor, now, m);
                multiply_lanes(x, x, factor, m);
            }
            memcpy(now, next, sizeof now);
        }
        store(out + start * size_of(m), lanes, 1, x, m);
    }
}

/* Ciphertexts of a block, in groups of nearly equal size. A group of s has a table of 2^s products, one for each subset. */
struct group {
    int64_t first, size;
};

static struct group group_of(const struct tables *tables, int64_t g) {
    const int64_t first = tables->count * g / tables->n_groups;
    return (struct group){first, tables->count * (g + 1) / tables->n_groups - first};
}

static uint64_t *table_of(const struct tables *tables, int64_t g, const struct modulus *m) {
    return tables->elements + g * tables->entries * size_of(m);
}

/* Halves first ... stop - 1 of the tables, two of each table: entry e of a table is the product of the bases i of its group with bit i
 * in e, so that each entry takes one product with another entry. The upper half of a table is that with the group's last base. */
KERNEL static void fill_tables(const struct tables *tables, const uint64_t *bases, int64_t first, int64_t stop,
                               const struct modulus *m) {
    const int64_t size = size_of(m);
    for (int64_t half = first; half < stop; half++) {
        const struct group group = group_of(tables, half / 2);
        const uint64_t *base = bases + group.first * size, *last = base + (group.size - 1) * size;
        const int64_t entries = (int64_t)1 << (group.size - 1);
        uint64_t *out = table_of(tables, half / 2, m) + half % 2 * entries * size, *rows[LANES];
        digits x[2 * MAX_DIGITS], factor[2 * MAX_DIGITS];
        const uint64_t *elements[LANES];
        int64_t done = 1, i = 0;
        for (; i == 0 || (done < LANES && done < entries); i++) { /* the subsets of the first few bases, in the lanes */
            for (int l = 0; l < LANES; l++) elements[l] = (l >> i & 1) && done < entries ? base + i * size : m->power_of_r;
            if (done < entries) done *= 2;
            if (!i) gather(x, elements, m);
            else gather(factor, elements, m), multiply_lanes(x, x, factor, m);
        }
        if (half % 2) broadcast(factor, last, m), multiply_lanes(x, x, factor, m);
        for (int64_t l = 0; l < LANES; l++) rows[l] = out + (l & (done - 1)) * size;
        scatter(rows, x, m);
        for (; done < entries; i++, done *= 2) {
            broadcast(factor, base + i * size, m);
            for (int64_t e = 0; e < done; e += LANES) {
                load(x, out + e * size, LANES, 1, m);
                multiply_lanes(x, x, factor, m);
                store(out + (done + e) * size, LANES, 1, x, m);
            }
        }
    }
}

/* The entries of the tables that belong to one bit of LANES numbers for each ciphertext: values[i] has those of ciphertext i. Returns 0
 * if each of them is the empty product. */
KERNEL static int find_entries(const uint64_t *entries[LANES], const struct tables *tables, int64_t g, const words *values,
                               int64_t bit, const struct modulus *m) {
    const struct group group = group_of(tables, g);
    const uint64_t *table = table_of(tables, g, m);
    words subset = all(0);
    int64_t any = 0;
    for (int64_t i = group.size - 1; i >= 0; i--) subset = subset + subset + ((words)((counts)values[group.first + i] >> bit) & all(1));
    for (int l = 0; l < LANES; l++) entries[l] = table + subset[l] * size_of(m), any |= subset[l];
    return any != 0;
}

/* Multiply a block's ciphertexts into buckets of pairs first ... stop - 1: with v = x + offset for the value x of each sample, bucket t
 * of a column and slot gets all ciphertexts with bit t in v. `fresh` buckets have no contents yet. */
KERNEL static int fill_buckets(const struct buckets *buckets, const struct tables *tables, const struct samples *samples,
                               int fresh, int64_t first, int64_t stop, const struct modulus *m) {
    const int64_t slots = buckets->slots, bits = buckets->bits, size = size_of(m), n_steps = bits * tables->n_groups;
    words *const values = aligned_alloc(64, ((size_t)tables->count * sizeof *values + 63) / 64 * 64);
    if (!values) return -1;
    uint64_t beyond = 0;
    for (int64_t start = first; start < stop; start += LANES) {
        const int lanes = lanes_from(start, stop);
        uint64_t *rows[LANES];
        for (int l = 0; l < LANES; l++) {
            const int64_t pair = start + (l < lanes ? l : lanes - 1), column = pair / slots;
            rows[l] = buckets->elements + pair * bits * size;
            for (int64_t i = 0; i < tables->count; i++) {
                const int64_t sample = (i + 1) * slots - 1 - pair % slots;
                uint64_t value = (uint64_t)samples->offsets[column];
                if (sample < samples->count) value += (uint64_t)samples->values[sample * samples->columns + column];
                ((int64_t *)(values + i))[l] = (int64_t)value, beyond |= value >> bits;
            }
        }
        if (beyond) break;
        digits x[2 * MAX_DIGITS], factor[2 * MAX_DIGITS];
        const uint64_t *now[LANES], *next[LANES];
        int wanted = find_entries(now, tables, 0, values, 0, m), next_wanted = 0;
        for (int64_t step = 0; step < n_steps; step++) {
            const int64_t g = step % tables->n_groups;
            if (!g && !fresh) gather(x, (const uint64_t *const *)rows, m);
            if (!g && fresh) gather(x, now, m);
            else if (wanted) gather(factor, now, m);
            if (step + 1 < n_steps) { /* the processor fetches what comes next while it multiplies */
                next_wanted = find_entries(next, tables, (step + 1) % tables->n_groups, values, (step + 1) / tables->n_groups, m);
                for (int l = 0; l < LANES; l++) prefetch(next[l], m);
            }
            if (wanted && (g || !fresh)) multiply_lanes(x, x, factor, m);
            memcpy(now, next, sizeof now), wanted = next_wanted;
            if (g + 1 < tables->n_groups) continue;
            scatter(rows, x, m);
            for (int l = 0; l < LANES; l++) rows[l] += size;
        }
    }
    free(values);
    return beyond ? -2 : 0;
}

/* Which step of Horner's rule a lane is at: `step` of all steps of a column's chain, and whether the lane's part of it begins or ends
 * there. A lane without work has column -1. */
struct turn {
    int64_t column, step;
    int begins, ends;
};

/* A chain has `steps` steps, and each lane `length` >= steps turns. The chains follow each other through the turns of the first lane, of
 * the second, and so on (McNaughton 1959). If a chain does not end in its lane, the next lane computes its first steps, from turn 0 on,
 * and its own lane the others, in its last turns: that is later, because length >= steps. */
static struct turn turn_of(int64_t turn, int64_t length, int64_t steps, int64_t n_columns) {
    const int64_t column = turn / steps, first = column * steps, stop = first + steps;
    const int64_t boundary = (first / length + 1) * length; /* where the lane in which the chain begins ends */
    if (column >= n_columns) return (struct turn){.column = -1};
    if (boundary >= stop) return (struct turn){column, turn - first, turn == first, turn + 1 == stop};
    if (turn >= boundary) return (struct turn){column, turn - boundary, turn == boundary, turn + 1 == stop};
    return (struct turn){column, turn - first + stop - boundary, turn == first, turn + 1 == boundary};
}

/* prod_t bucket_t^(2^t) by Horner's rule for columns first ... stop - 1. Slots are `slot_bits` apart, and each step of the rule takes
 * so many places: those of one slot, and if slots are narrower than numbers, of the next ones below too. All lanes are at the same
 * place of their steps, so that they multiply together. */
KERNEL static void join_buckets(uint64_t *out, const struct buckets *buckets, int64_t slot_bits, int64_t first, int64_t stop,
                                const struct modulus *m) {
    const int64_t slots = buckets->slots, bits = buckets->bits, size = size_of(m);
    const int64_t steps = slots + (bits - 1) / slot_bits, all_steps = (stop - first) * steps;
    const int64_t length = all_steps > LANES * steps ? (all_steps + LANES - 1) / LANES : steps;
    digits x[2 * MAX_DIGITS], factor[2 * MAX_DIGITS];
    struct turn turns[LANES];
    int begun = 0; /* before the first product, all lanes hold 1 */
    broadcast(x, m->power_of_r, m);
    for (int64_t time = 0; time < length && first < stop; time++) {
        for (int l = 0; l < LANES; l++) {
            turns[l] = turn_of(l * length + time, length, steps, stop - first);
            if (!turns[l].begins) continue;
            const uint64_t *row = turns[l].step ? out + (first + turns[l].column) * size : m->power_of_r;
            for (int i = 0; i < size; i++) ((uint64_t *)(x + i))[l] = row[i];
        }
        for (int64_t place = slot_bits - 1; place >= 0; place--) {
            if (begun) square_lanes(x, x, m);
            for (int64_t below = 0; place + below * slot_bits < bits; below++, begun = 1) {
                const uint64_t *rows[LANES];
                for (int l = 0; l < LANES; l++) {
                    const int64_t slot = steps - 1 - turns[l].step - below;
                    const int64_t pair = (first + turns[l].column) * slots + slot;
                    const int used = turns[l].column >= 0 && slot >= 0 && slot < slots;
                    rows[l] = used ? buckets->elements + (pair * bits + place + below * slot_bits) * size : m->power_of_r;
                    if (used && place) prefetch(rows[l] - size, m);
                }
                gather(begun ? factor : x, rows, m);
                if (begun) multiply_lanes(x, x, factor, m);
            }
        }
        for (int l = 0; l < LANES; l++) {
            if (!turns[l].ends) continue;
            uint64_t *row = out + (first + turns[l].column) * size;
            for (int i = 0; i < size; i++) row[i] = ((uint64_t *)(x + i))[l];
        }
    }
}

#define OPERATIONS                                                                                                     \
    .enter = enter, .leave = leave, .add_plaintexts = add_plaintexts, .multiply = multiply, .square = square,          \
    .product = product, .power = power, .draw = draw, .fill_tables = fill_tables, .fill_buckets = fill_buckets,        \
    .join_buckets = join_buckets
