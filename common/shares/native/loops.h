/* The loops of every level, included once by each. The includer defines LANES, `fill`, MUL32 and TOTAL.
 *
 * Everything is integer arithmetic modulo 2^64, and gives the bits of reference.py, which explains it. Two vectors at a
 * time hide the latency of the multiplications. Buffers on the stack take less than 64 KB.
 */
#define VECTOR_BYTES (8 * LANES)
#define STEP (2 * LANES)
/* Where vector v of STEP rows begins in a table of so many columns, which is at the first of these rows. */
#define AT(count, v) ((int64_t)((v) * LANES / 8) * (count) * 8 + (v) * LANES % 8)
#define UNROLL _Pragma("GCC unroll 8")
#define BOTH UNROLL for (int v = 0; v < 2; v++)

typedef uint64_t lanes __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
typedef int64_t signed_lanes __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
typedef int32_t half_lanes __attribute__((vector_size(VECTOR_BYTES / 2), aligned(4), may_alias));

#define LOAD(p) (*(const lanes *)(p))
#define LOAD_SIGNED(p) (*(const signed_lanes *)(p))
#define LOAD_NARROW(p) ((lanes)__builtin_convertvector(*(const half_lanes *)(p), signed_lanes))
#define STORE(p, value) (*(lanes *)(p) = (lanes)(value))
#define STORE_SIGNED(p, value) (*(signed_lanes *)(p) = (value))
#define SPREAD(x) ((x) - (lanes){0})
#define SPREAD_SIGNED(x) ((x) - (signed_lanes){0})
#define ALIGNED __attribute__((aligned(64)))

#define DIGEST_FACTOR UINT64_C(0x9E3779B97F4A7C15)
/* (2 pi / 2^32)^2 / 2, 2 pi / 2^32 and (2 pi / 2^32)^3 / 6, with 90, 70 and 102 fraction bits. */
#define COS_2 INT64_C(1324675879)
#define SIN_1 INT64_C(1727108826179)
#define SIN_3 INT64_C(2646)

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline __m128i next_key(__m128i key, __m128i assist) {
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
    return _mm_xor_si128(key, _mm_shuffle_epi32(assist, 0xFF));
}

static void expand(const uint8_t *bytes, struct schedule *out) {
    __m128i key = _mm_loadu_si128((const __m128i *)bytes), *keys = (__m128i *)out->keys;
    keys[0] = key;
#define NEXT(i, constant) keys[i] = key = next_key(key, _mm_aeskeygenassist_si128(key, constant))
    NEXT(1, 0x01), NEXT(2, 0x02), NEXT(3, 0x04), NEXT(4, 0x08), NEXT(5, 0x10);
    NEXT(6, 0x20), NEXT(7, 0x40), NEXT(8, 0x80), NEXT(9, 0x1B), NEXT(10, 0x36);
#undef NEXT
}

static void stream(const struct schedule *key, uint64_t purpose, int64_t row, int64_t rows, int64_t count, uint64_t *out) {
    fill(key, purpose, (uint64_t)(row / 8 * count), rows / 8 * count, out);
}

/* Columns [first, first + some) of the stream of some rows, as a table of its own. */
static inline void part(const struct schedule *key, uint64_t purpose, int64_t row, int64_t rows, int64_t count, int64_t first,
                        int64_t some, uint64_t *out) {
    if (some == count) {
        stream(key, purpose, row, rows, count, out);
        return;
    }
    for (int64_t g = 0; g < rows / 8; g++)
        fill(key, purpose, (uint64_t)((row / 8 + g) * count + first), some, out + 8 * some * g);
}

/* z += X w */
#define FORWARD(NAME, TYPE, READ)                                                                                      \
    static void NAME(const TYPE *x, int64_t count, const uint64_t *w, int64_t rows, uint64_t *z) {                     \
        for (int64_t i = 0; i < rows; i += STEP) {                                                                     \
            lanes sum[2];                                                                                              \
            BOTH sum[v] = LOAD(z + i + v * LANES);                                                                     \
            const TYPE *at = x + i * count;                                                            \
            for (int64_t j = 0; j < count; j++) {                                                                      \
                const lanes by = SPREAD(w[j]);                                                                         \
                BOTH sum[v] += READ(at + 8 * j + AT(count, v)) * by;                                                   \
            }                                                                                                          \
            BOTH STORE(z + i + v * LANES, sum[v]);                                                                     \
        }                                                                                                              \
    }
FORWARD(forward, uint64_t, LOAD)
FORWARD(forward_narrow, int32_t, LOAD_NARROW)

/* sums += X'd, for at most BATCH rows */
#define BACKWARD(NAME, TYPE, READ)                                                                                     \
    static void NAME(const TYPE *x, int64_t count, const uint64_t *d, int64_t rows, uint64_t *sums) {                  \
        for (int64_t j = 0; j < count; j++) {                                                                          \
            lanes sum[2] = {{0}, {0}};                                                                                 \
            for (int64_t i = 0; i < rows; i += STEP)                                                                   \
                BOTH sum[v] += READ(x + i * count + 8 * j + AT(count, v)) * LOAD(d + i + v * LANES);                   \
            sum[0] += sum[1];                                                                                          \
            sums[j] += TOTAL(sum[0]);                                                                                  \
        }                                                                                                              \
    }
BACKWARD(backward, uint64_t, LOAD)
BACKWARD(backward_narrow, int32_t, LOAD_NARROW)

static void mask(const struct columns *in, const struct schedule *key, uint64_t purpose, int64_t row, int64_t rows,
                 uint64_t *out) {
    const int64_t n = rows * in->count, most = 512;
    for (int64_t i = 0; i < n; i += most) {
        const int64_t some = least(most, n - i);
        fill(key, purpose, (uint64_t)(row / 8 * in->count + i / 8), some / 8, out + i);
        if (in->wide)
            for (int64_t j = i; j < i + some; j += LANES) STORE(out + j, LOAD(in->wide + j) - LOAD(out + j));
        else
            for (int64_t j = i; j < i + some; j += LANES) STORE(out + j, LOAD_NARROW(in->narrow + j) - LOAD(out + j));
    }
}

static void score_part(const struct score_part *in, int64_t row, int64_t rows, uint64_t *z) {
    uint64_t masks[BATCH * CHUNK] ALIGNED;
    const int64_t own = in->own.count, other = in->other.count;
    for (int64_t i = 0; i < rows; i += BATCH) {
        const int64_t some = least(BATCH, rows - i);
        stream(&in->score, PURPOSE_SCORES, row + i, some, 1, z + i);
        for (int64_t j = i; j < i + some; j += LANES) STORE(z + j, LOAD(z + j) + SPREAD(in->offset));
        forward_narrow(in->own.narrow + i * own, own, in->own_weights, some, z + i);
        forward(in->other.wide + i * other, other, in->other_weights, some, z + i);
        for (int64_t c = 0; c < own; c += CHUNK) {
            const int64_t chunk = least(CHUNK, own - c);
            part(&in->mask, PURPOSE_COLUMNS, row + i, some, own, c, chunk, masks);
            forward(masks, chunk, in->opened + c, some, z + i);
        }
    }
}

/* The vectors lie one after the other, and so do their sums. All of them meet a batch while it is in the cache. */
static void add_products(const struct columns *in, const uint64_t *d, int64_t vectors, int64_t rows, uint64_t *sums) {
    for (int64_t i = 0; i < rows; i += BATCH) {
        const int64_t some = least(BATCH, rows - i);
        for (int64_t v = 0; v < vectors; v++) {
            if (in->wide)
                backward(in->wide + i * in->count, in->count, d + v * rows + i, some, sums + v * in->count);
            else
                backward_narrow(in->narrow + i * in->count, in->count, d + v * rows + i, some, sums + v * in->count);
        }
    }
}

/* Each column times a factor for each row; the columns lie one after the other. */
static void scale(const struct columns *in, const uint64_t *factors, int64_t rows, uint64_t *out) {
    const int64_t count = in->count;
    for (int64_t i = 0; i < rows; i += STEP) {
        lanes factor[2];
        BOTH factor[v] = LOAD(factors + i + v * LANES);
        for (int64_t j = 0; j < count; j++)
            BOTH {
                const int64_t at = i * count + 8 * j + AT(count, v);
                STORE(out + j * rows + i + v * LANES,
                      (in->wide ? LOAD(in->wide + at) : LOAD_NARROW(in->narrow + at)) * factor[v]);
            }
    }
}

static void add_mask_products(const struct schedule *key, uint64_t purpose, int64_t row, int64_t rows, int64_t count,
                              const uint64_t *o, uint64_t *sums) {
    uint64_t masks[BATCH * CHUNK] ALIGNED;
    for (int64_t i = 0; i < rows; i += BATCH) {
        const int64_t some = least(BATCH, rows - i);
        for (int64_t c = 0; c < count; c += CHUNK) {
            const int64_t chunk = least(CHUNK, count - c);
            part(key, purpose, row + i, some, count, c, chunk, masks);
            backward(masks, chunk, o + i, some, sums + c);
        }
    }
}

/* The first cos and sin of at most BATCH angles. A wave stays below 2^30 + 2^10, so all products of two fit. */
static inline void first_waves(const int32_t *table, const uint64_t *angles, int64_t rows, int64_t *cos, int64_t *sin) {
    uint64_t entries[BATCH] ALIGNED;
    const signed_lanes half = SPREAD_SIGNED(INT64_C(1) << (WAVE_BITS - 1));
    for (int64_t i = 0; i < rows; i++)
        __builtin_memcpy(entries + i, table + 2 * ((angles[i] >> (TURN_SHIFT + 16)) & 0xFFFF), 8);
    for (int64_t i = 0; i < rows; i += LANES) {
        /* MUL32 reads the lower half of a lane: the cosine as it is, the sine after a shift. */
        const signed_lanes high_cos = LOAD_SIGNED(entries + i), high_sin = high_cos >> 32;
        const signed_lanes low = (signed_lanes)((LOAD(angles + i) >> TURN_SHIFT) & 0xFFFF);
        const signed_lanes square = MUL32(low, low), cube = MUL32(square >> 16, low);
        const signed_lanes low_cos = (INT64_C(1) << WAVE_BITS) - ((square * COS_2 + (INT64_C(1) << 59)) >> 60);
        const signed_lanes low_sin = (low * SIN_1 - ((cube * SIN_3) >> 16) + (INT64_C(1) << 39)) >> 40;
        STORE_SIGNED(cos + i, (MUL32(high_cos, low_cos) - MUL32(high_sin, low_sin) + half) >> WAVE_BITS);
        STORE_SIGNED(sin + i, (MUL32(high_cos, low_sin) + MUL32(high_sin, low_cos) + half) >> WAVE_BITS);
    }
}

/* The waves of STEP rows, term after term. */
struct waves {
    signed_lanes cos[2], sin[2], cos_1[2], sin_1[2];
};

static inline void begin_waves(struct waves *w, const int64_t *cos, const int64_t *sin) {
    BOTH w->cos[v] = w->cos_1[v] = LOAD_SIGNED(cos + v * LANES);
    BOTH w->sin[v] = w->sin_1[v] = LOAD_SIGNED(sin + v * LANES);
}

static inline void next_waves(struct waves *w) {
    const signed_lanes half = SPREAD_SIGNED(INT64_C(1) << (WAVE_BITS - 1));
    BOTH {
        const signed_lanes cos = w->cos[v], sin = w->sin[v];
        w->cos[v] = (MUL32(cos, w->cos_1[v]) - MUL32(sin, w->sin_1[v]) + half) >> WAVE_BITS;
        w->sin[v] = (MUL32(cos, w->sin_1[v]) + MUL32(sin, w->cos_1[v]) + half) >> WAVE_BITS;
    }
}

static inline signed_lanes half_of(int64_t bits) { return SPREAD_SIGNED((INT64_C(1) << bits) >> 1); }

/* Turn the streams in both tables into corrections: value - stream, of at most BATCH rows. `last` is U_c e. */
static void deal_values(const struct format *f, const uint64_t *r, const uint64_t *last, int64_t rows, uint64_t *for_host,
                        uint64_t *for_guest) {
    const int64_t K = f->terms, even = K + 3, odd = K + 2 + f->weighted;
    int64_t cos[BATCH] ALIGNED, sin[BATCH] ALIGNED;
    first_waves(f->table, r, rows, cos, sin);
    for (int64_t i = 0; i < rows; i += STEP) {
        uint64_t *e = for_guest + i * even, *o = for_host + i * odd;
        struct waves w;
        begin_waves(&w, cos + i, sin + i);
        for (int64_t k = 0;;) {
            const int64_t cut = f->wave_cut[k];
            const signed_lanes half = half_of(cut);
            BOTH {
                uint64_t *c = e + 8 * k + AT(even, v), *s = o + 8 * k + AT(odd, v);
                STORE(c, (lanes)((w.cos[v] + half) >> cut) - LOAD(c));
                STORE(s, (lanes)((w.sin[v] + half) >> cut) - LOAD(s));
            }
            if (++k == K) break;
            next_waves(&w);
        }
        BOTH {
            const lanes x = LOAD(r + i + v * LANES), square = x >> f->square_cut;
            const lanes wrap = (x >> 63) << (64 - f->square_cut);
            uint64_t *c = e + 8 * K + AT(even, v), *s = o + 8 * K + AT(odd, v);
            STORE(c, (x >> f->residual_cut) - LOAD(c));
            STORE(c + 8, square - LOAD(c + 8));
            STORE(c + 16, wrap * wrap - 2 * square * wrap - LOAD(c + 16));
            STORE(s, wrap - LOAD(s));
            STORE(s + 8, square * square - LOAD(s + 8));
            if (f->weighted) STORE(s + 16, LOAD(last + i + v * LANES) - LOAD(s + 16));
        }
    }
}

static void deal(const struct format *f, const struct dealer *in, int64_t row, int64_t rows, uint64_t *for_host,
                 uint64_t *for_guest) {
    const int64_t even = f->terms + 3, odd = f->terms + 2 + f->weighted, opened = 1 + f->weighted;
    uint64_t masks[BATCH * CHUNK] ALIGNED, e_host[2 * BATCH] ALIGNED, e_1[BATCH] ALIGNED, e_2[BATCH] ALIGNED;
    uint64_t r[BATCH] ALIGNED, s_2[BATCH] ALIGNED, products[BATCH] ALIGNED, weights[BATCH] ALIGNED, last[BATCH] ALIGNED;
    for (int64_t i = 0; i < rows; i += BATCH) {
        const int64_t some = least(BATCH, rows - i), at = row + i;
        stream(&in->host_round, PURPOSE_SCORES, at, some, 1, r);
        stream(&in->guest_round, PURPOSE_SCORES, at, some, 1, s_2);
        if (f->weighted || in->sum_host) {
            stream(&in->host_round, PURPOSE_OPENED, at, some, opened, e_host);
            for (int64_t j = 0; j < some; j += 8) __builtin_memcpy(e_1 + j, e_host + j * opened, 64);
        }
        if (in->sum_host) stream(&in->guest_round, PURPOSE_OPENED, at, some, 1, e_2);
        for (int64_t j = 0; j < some; j++) products[j] = 0;
        for (int64_t c = 0; c < in->n_host; c += CHUNK) {
            const int64_t chunk = least(CHUNK, in->n_host - c);
            part(&in->host_session, PURPOSE_COLUMNS, at, some, in->n_host, c, chunk, masks);
            forward(masks, chunk, in->a + c, some, products);
            if (in->sum_host) backward(masks, chunk, e_2, some, in->sum_host + c);
        }
        for (int64_t c = 0; c < in->n_guest; c += CHUNK) {
            const int64_t chunk = least(CHUNK, in->n_guest - c);
            part(&in->guest_session, PURPOSE_COLUMNS, at, some, in->n_guest, c, chunk, masks);
            forward(masks, chunk, in->b + c, some, products);
            if (in->sum_host && f->weighted) part(&in->guest_session, PURPOSE_WEIGHTED, at, some, in->n_guest, c, chunk, masks);
            if (in->sum_host) backward(masks, chunk, e_1, some, in->sum_guest + c);
        }
        for (int64_t j = 0; j < some; j++) r[j] += s_2[j] - products[j];
        if (f->weighted) {
            stream(&in->guest_session, PURPOSE_WEIGHTS, at, some, 1, weights);
            for (int64_t j = 0; j < some; j++) last[j] = weights[j] * e_1[j];
            uint64_t total = 0;
            for (int64_t j = 0; j < some; j++) total += weights[j] * e_host[j / 8 * 16 + 8 + j % 8];
            if (in->sum_host) *in->sum_loss += total;
        }
        stream(&in->host_round, PURPOSE_DEALT, at, some, even, for_guest + i * even);
        stream(&in->guest_round, PURPOSE_DEALT, at, some, odd, for_host + i * odd);
        deal_values(f, r, last, some, for_host + i * odd, for_guest + i * even);
    }
}

/* A call with constants leaves no branch in its loops. */
static inline __attribute__((always_inline)) void residual_rows(const struct format *f, struct residual *in, int64_t row,
                                                                int64_t rows, const int host, const int gradient) {
    const int64_t K = f->terms, even = K + 3, odd = K + 2 + f->weighted, t = f->residual_cut, tq = f->square_cut;
    int64_t cos[BATCH] ALIGNED, sin[BATCH] ALIGNED;
    uint64_t own[BATCH * (MAX_TERMS + 3)] ALIGNED;
    for (int64_t batch = 0; batch < rows; batch += BATCH) {
        const int64_t some = least(BATCH, rows - batch);
        const uint64_t *z = in->z + batch, *dealt = in->dealt + batch * (host ? odd : even);
        stream(&in->round, PURPOSE_DEALT, row + batch, some, host ? even : odd, own);
        first_waves(f->table, z, some, cos, sin);
        for (int64_t i = 0; i < some; i += STEP) {
            const uint64_t *e = (host ? own : dealt) + i * even;
            const uint64_t *o = (host ? dealt : own) + i * odd;
            struct waves w;
            lanes d[2], loss[2], hash[2];
            begin_waves(&w, cos + i, sin + i);
            BOTH {
                const uint64_t *c = e + 8 * K + AT(even, v), *s = o + 8 * K + AT(odd, v);
                const lanes x = LOAD(z + i + v * LANES), clear = (x >> 63) - 1, wrap = LOAD(s) & clear;
                const lanes zeta = (x >> tq) - (UINT64_C(1) << (62 - tq));
                hash[v] = x;
                loss[v] = LOAD(s + 8) + (LOAD(c + 16) & clear) - 2 * zeta * (LOAD(c + 8) - wrap);
                d[v] = (wrap << (tq - t)) - LOAD(c);
                if (host) loss[v] += zeta * zeta;
                if (host) d[v] += (x >> t) - (UINT64_C(1) << (62 - t));
                if (in->v) STORE(in->v + batch + i + v * LANES, LOAD(s + 16));
            }
            for (int64_t k = 0;;) {
                const int64_t cut = f->by_cut[k], loss_cut = f->loss_cut[k];
                const signed_lanes half = half_of(cut), loss_half = half_of(loss_cut);
                const signed_lanes b = SPREAD_SIGNED(f->coef[k]), loss_b = SPREAD_SIGNED(f->loss_coef[k]);
                BOTH {
                    const lanes c = LOAD(e + 8 * k + AT(even, v)), s = LOAD(o + 8 * k + AT(odd, v));
                    if (gradient) {
                        const lanes by_cos = (lanes)((MUL32(w.sin[v], b) + half) >> cut);
                        const lanes by_sin = (lanes)((MUL32(w.cos[v], b) + half) >> cut);
                        d[v] += by_cos * c - by_sin * s;
                        hash[v] ^= by_cos + (by_sin << 32);
                    }
                    const lanes by_cos = (lanes)((MUL32(w.cos[v], loss_b) + loss_half) >> loss_cut);
                    const lanes by_sin = (lanes)((MUL32(w.sin[v], loss_b) + loss_half) >> loss_cut);
                    loss[v] -= by_cos * c + by_sin * s;
                    hash[v] = (hash[v] << 13 | hash[v] >> 51) + (by_cos + (by_sin << 32));
                }
                if (++k == K) break;
                next_waves(&w);
            }
            BOTH {
                uint64_t *digest = in->digest + v * LANES % 8;
                STORE(digest, LOAD(digest) * DIGEST_FACTOR + hash[v]);
                STORE(in->loss + batch + i + v * LANES, loss[v]);
                if (gradient) STORE(in->d + batch + i + v * LANES, d[v]);
            }
        }
    }
}

static void residual(const struct format *f, struct residual *in, int64_t row, int64_t rows) {
    if (in->host && in->gradient)
        residual_rows(f, in, row, rows, 1, 1);
    else if (in->gradient)
        residual_rows(f, in, row, rows, 0, 1);
    else
        residual_rows(f, in, row, rows, in->host, 0);
}

/* Turn the first planes of both streams into corrections of the waves of r: value - stream. */
static void deal_waves(const struct slopes *f, const uint64_t *r, int64_t rows, uint64_t *even, uint64_t *odd) {
    int64_t cos[BATCH] ALIGNED, sin[BATCH] ALIGNED;
    const int64_t cut = f->wave_cut;
    const signed_lanes half = half_of(cut);
    for (int64_t batch = 0; batch < rows; batch += BATCH) {
        const int64_t some = least(BATCH, rows - batch);
        first_waves(f->table, r + batch, some, cos, sin);
        for (int64_t i = 0; i < some; i += STEP) {
            struct waves w;
            begin_waves(&w, cos + i, sin + i);
            for (int64_t k = 0;;) {
                BOTH {
                    const int64_t at = k * rows + batch + i + v * LANES;
                    STORE(even + at, (lanes)((w.cos[v] + half) >> cut) - LOAD(even + at));
                    STORE(odd + at, (lanes)((w.sin[v] + half) >> cut) - LOAD(odd + at));
                }
                if (++k == f->terms) break;
                next_waves(&w);
            }
        }
    }
}

/* slope += sum_k g_k cos k(z - r), entropy += sum_k h_k cos k(z - r), residual += sum_k b_k sin k(z - r), from the shares
 * of the waves of r. */
static void add_waves(const struct slopes *f, const uint64_t *z, int64_t rows, const uint64_t *even, const uint64_t *odd,
                      uint64_t *slope, uint64_t *residual, uint64_t *entropy, uint64_t *digest) {
    int64_t cos[BATCH] ALIGNED, sin[BATCH] ALIGNED;
    const signed_lanes half = half_of(WAVE_BITS);
    for (int64_t batch = 0; batch < rows; batch += BATCH) {
        const int64_t some = least(BATCH, rows - batch);
        first_waves(f->table, z + batch, some, cos, sin);
        for (int64_t i = 0; i < some; i += STEP) {
            struct waves w;
            lanes s[2], d[2], e[2], hash[2];
            begin_waves(&w, cos + i, sin + i);
            BOTH {
                const int64_t at = batch + i + v * LANES;
                s[v] = LOAD(slope + at), d[v] = LOAD(residual + at), e[v] = LOAD(entropy + at), hash[v] = LOAD(z + at);
            }
            for (int64_t k = 0;;) {
                const signed_lanes g = SPREAD_SIGNED(f->coef[k]), b = SPREAD_SIGNED(f->coef[f->terms + k]);
                const signed_lanes h = SPREAD_SIGNED(f->coef[2 * f->terms + k]);
                BOTH {
                    const int64_t at = k * rows + batch + i + v * LANES;
                    const lanes cos_r = LOAD(even + at), sin_r = LOAD(odd + at);
                    lanes by_cos = (lanes)((MUL32(w.cos[v], g) + half) >> WAVE_BITS);
                    lanes by_sin = (lanes)((MUL32(w.sin[v], g) + half) >> WAVE_BITS);
                    s[v] += by_cos * cos_r + by_sin * sin_r;
                    hash[v] = (hash[v] << 13 | hash[v] >> 51) + (by_cos + (by_sin << 32));
                    by_cos = (lanes)((MUL32(w.sin[v], b) + half) >> WAVE_BITS);
                    by_sin = -(lanes)((MUL32(w.cos[v], b) + half) >> WAVE_BITS);
                    d[v] += by_cos * cos_r + by_sin * sin_r;
                    hash[v] = (hash[v] << 13 | hash[v] >> 51) + (by_cos + (by_sin << 32));
                    by_cos = (lanes)((MUL32(w.cos[v], h) + half) >> WAVE_BITS);
                    by_sin = (lanes)((MUL32(w.sin[v], h) + half) >> WAVE_BITS);
                    e[v] += by_cos * cos_r + by_sin * sin_r;
                    hash[v] = (hash[v] << 13 | hash[v] >> 51) + (by_cos + (by_sin << 32));
                }
                if (++k == f->terms) break;
                next_waves(&w);
            }
            BOTH {
                const int64_t at = batch + i + v * LANES;
                uint64_t *of_group = digest + v * LANES % 8;
                STORE(slope + at, s[v]);
                STORE(residual + at, d[v]);
                STORE(entropy + at, e[v]);
                STORE(of_group, LOAD(of_group) * DIGEST_FACTOR + hash[v]);
            }
        }
    }
}

#define LEVEL {expand, stream, mask, score_part, deal, residual, add_products, add_mask_products, scale, deal_waves, add_waves}
