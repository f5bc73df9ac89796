/* What a device can do at best, behind functions that TVM's RPC can call: the twin of benchmarking/roofline.py.
 *
 * Linked with error.c and pool.c, whose threads do the work.
 */
#include "internal.h"

#if defined(__AVX512F__)
enum { BYTES = 64 };
#elif defined(__AVX__)
enum { BYTES = 32 };
#else
enum { BYTES = 16 };
#endif
typedef float vector __attribute__((vector_size(BYTES)));
enum { SUMS = 12, STEPS = 500000, ROUNDS = 7, TYPE_INT = 1, TYPE_FLOAT = 3 }; /* TYPE_: of tvm/ffi/c_api.h */

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message); /* the runner's */

extern int (*__TVMBackendParallelLaunch)(int (*)(int, void *, void *), void *, int);

static float values[256]; /* read at run time, so that nothing is computed while compiling; one for each thread */

/* Twelve independent sums, because two units of a latency of four or five cycles want ten under way. */
static int multiply_add(int task, void *group, void *data) {
  vector s[SUMS], by = {0}, plus = {0};
  (void)group, (void)data;
  float *value = &values[task & 255];
  by += *value * 0.5f, plus += *value;
  for (int i = 0; i < SUMS; i++) s[i] = plus * (float)i;
  for (long step = 0; step < STEPS; step++) {
#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++) s[i] = s[i] * by + plus;
  }
  for (int i = 1; i < SUMS; i++) s[0] += s[i];
  *(volatile float *)value = s[0][0];
  return 0;
}

typedef struct copying {
  unsigned char *data;
  size_t part;
  int repeats;
} copying;

/* Each thread copies from its own memory to its own. */
static int copy(int task, void *group, void *data) {
  const copying *work = data;
  unsigned char *from = work->data + (size_t)task * 2 * work->part;
  (void)group;
  for (int i = 0; i < work->repeats; i++) {
    memcpy(from + work->part, from, work->part);
    __asm__ volatile("" ::: "memory");
  }
  return 0;
}

static int failed(const char *message) {
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", message);
  return -1;
}

static int answer(et_any *result, double value) {
  result->type_index = TYPE_FLOAT;
  memcpy(&result->value, &value, sizeof value);
  return 0;
}

/* The shortest of several rounds on a pool of threads, in nanoseconds; 0 where there are no threads. */
static uint64_t best_ns(int threads, int (*task)(int, void *, void *), void *data) {
  edgetune_error error;
  et_pool *pool = et_pool_create(threads, 1000, 0, NULL, 0, &error);
  if (pool == NULL) return 0;
  void *before = et_pool_enter(pool, &error);
  uint64_t best = UINT64_MAX;
  for (int i = 0; i < ROUNDS; i++) {
    uint64_t start = et_now_ns();
    __TVMBackendParallelLaunch(task, data, threads);
    uint64_t took = et_now_ns() - start;
    if (took < best) best = took;
  }
  et_pool_leave(before);
  et_pool_free(pool);
  return best;
}

/* (threads): 10^9 float32 operations a second, a multiply-add counting two. */
EDGETUNE_API int __tvm_ffi_edgetune_peak(void *self, et_any *arguments, int32_t count, et_any *result) {
  (void)self;
  if (count != 1 || arguments[0].type_index != TYPE_INT) return failed("edgetune_peak takes a number of threads");
  int threads = (int)arguments[0].value.integer;
  for (int i = 0; i < 256; i++) values[i] = 1.0f;
  uint64_t took = best_ns(threads, multiply_add, NULL);
  if (took == 0) return failed("the device gives no threads");
  return answer(result, 2.0 * SUMS * (BYTES / 4) * STEPS * threads / (double)took);
}

/* (threads, bytes of all arrays together): 10^9 bytes a second of copying, read and written. */
EDGETUNE_API int __tvm_ffi_edgetune_bandwidth(void *self, et_any *arguments, int32_t count, et_any *result) {
  (void)self;
  if (count != 2 || arguments[0].type_index != TYPE_INT || arguments[1].type_index != TYPE_INT)
    return failed("edgetune_bandwidth takes numbers of threads and bytes");
  int threads = (int)arguments[0].value.integer;
  copying work = {NULL, (size_t)arguments[1].value.integer / (2 * (size_t)threads), 1};
  work.repeats = work.part < 8u << 20 ? (int)((8u << 20) / work.part) : 1;
  void *memory = NULL;
  size_t size = work.part * 2 * (size_t)threads;
  if (posix_memalign(&memory, EDGETUNE_ALIGNMENT, size) != 0) return failed("the device has no memory for the arrays");
  memset(memory, 1, size);
  work.data = memory;
  uint64_t took = best_ns(threads, copy, &work);
  free(memory);
  if (took == 0) return failed("the device gives no threads");
  return answer(result, (double)size * work.repeats / (double)took);
}
