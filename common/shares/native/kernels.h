/* What the levels of the processor have in common: the numbers of a format, and the functions that each level has.
 *
 * Tables have the layout of layout.py: (n_rows / 8, n_columns, 8). Numbers of rows are multiples of 16, `row` is the first
 * row and a multiple of 8, so the part of a stream begins at a whole group of 8 elements.
 */
#ifndef TRILATERAL_SHARES_KERNELS_H
#define TRILATERAL_SHARES_KERNELS_H

#include <stdint.h>

/* The levels need intrinsics, 64-bit addresses and target pragmas. */
#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_KERNEL 1
#else
#define HAVE_KERNEL 0
#endif

enum {
    MAX_TERMS = 40,       /* series.py */
    WAVE_BITS = 30,       /* format.py */
    COEF_BITS = 32,       /* series.py */
    LOSS_COEF_BITS = 23,  /* series.py */
    TURN_SHIFT = 17,      /* PERIOD_BITS - 32 of format.py: what is above it is an angle, and a turn is 2^32 */
    TABLE_ENTRIES = 1 << 16,
    BATCH = 64,           /* rows whose values stay in the first-level cache */
    CHUNK = 64,           /* columns of a mask that are made at a time */
};

/* Keys of the rounds of AES-128. */
struct schedule {
    _Alignas(64) uint8_t keys[11][16];
};

/* The numbers of a Format. */
struct format {
    int64_t terms, residual_cut, square_cut, weighted;
    const int64_t *wave_cut;     /* bits to drop from a wave of r */
    const int64_t *by_cut;       /* bits to drop from a wave of z times b_k */
    const int64_t *loss_cut;     /* bits to drop from a wave of z times the coefficient of the loss */
    const int64_t *coef;         /* b_k */
    const int64_t *loss_coef;    /* 2048 L_k / P */
    const int32_t *table;        /* TABLE_ENTRIES pairs: cos, sin */
};

enum { PURPOSE_COLUMNS = 1, PURPOSE_WEIGHTS = 3, PURPOSE_WEIGHTED = 4, PURPOSE_SCORES = 5, PURPOSE_OPENED = 6, PURPOSE_DEALT = 7 };

/* Columns of a party: integers or elements; the other pointer is NULL. */
struct columns {
    const int32_t *narrow;
    const uint64_t *wide;
    int64_t count;
};

struct score_part {
    struct columns own, other;
    const uint64_t *own_weights, *opened, *other_weights;
    struct schedule mask, score;
    uint64_t offset;
};

struct dealer {
    struct schedule host_session, guest_session, host_round, guest_round;
    const uint64_t *a, *b;
    int64_t n_host, n_guest;
    uint64_t *sum_host, *sum_guest, *sum_loss;  /* NULL: no sums */
};

struct residual {
    struct schedule round;
    int host, gradient;
    const uint64_t *dealt, *z;
    uint64_t *d, *loss, *v;  /* d without a gradient, and v without sample weights: not written */
    uint64_t digest[8];
};

/* The waves of the step of inference; see information.py. Values of a row lie in planes: (n_values, n_rows). */
struct slopes {
    int64_t terms, wave_cut;     /* bits to drop from a dealt wave */
    const int64_t *coef;         /* g_k, then b_k, then h_k */
    const int32_t *table;
};

struct level {
    void (*expand)(const uint8_t *key, struct schedule *out);
    void (*stream)(const struct schedule *key, uint64_t purpose, int64_t row, int64_t rows, int64_t count, uint64_t *out);
    void (*mask)(const struct columns *in, const struct schedule *key, uint64_t purpose, int64_t row, int64_t rows,
                 uint64_t *out);
    void (*score_part)(const struct score_part *in, int64_t row, int64_t rows, uint64_t *z);
    void (*deal)(const struct format *f, const struct dealer *in, int64_t row, int64_t rows, uint64_t *for_host,
                 uint64_t *for_guest);
    void (*residual)(const struct format *f, struct residual *in, int64_t row, int64_t rows);
    void (*add_products)(const struct columns *in, const uint64_t *d, int64_t vectors, int64_t rows, uint64_t *sums);
    void (*add_mask_products)(const struct schedule *key, uint64_t purpose, int64_t row, int64_t rows, int64_t count,
                              const uint64_t *o, uint64_t *sums);
    void (*scale)(const struct columns *in, const uint64_t *factors, int64_t rows, uint64_t *out);
    void (*deal_waves)(const struct slopes *f, const uint64_t *r, int64_t rows, uint64_t *even, uint64_t *odd);
    void (*add_waves)(const struct slopes *f, const uint64_t *z, int64_t rows, const uint64_t *even, const uint64_t *odd,
                      uint64_t *slope, uint64_t *residual, uint64_t *entropy, uint64_t *digest);
};

extern const struct level avx2_level, avx512_level;

#endif
