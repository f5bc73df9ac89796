/* What the runtime's sources and the generated program of a model share.
 *
 * The runtime is compiled once for an architecture and used with every C library there (glibc, musl, bionic):
 * it includes headers of the compiler only, and declares what it calls here. All of it has the same binary
 * interface in the three; what has not (off_t, struct stat, thread-local variables) is not used.
 */
#ifndef EDGETUNE_INTERNAL_H
#define EDGETUNE_INTERNAL_H

#include <stdatomic.h>

#include "edgetune.h"

/* libc */
void *memcpy(void *to, const void *from, size_t size);
void *memset(void *to, int value, size_t size);
int strcmp(const char *a, const char *b);
void *calloc(size_t count, size_t size);
void free(void *memory);
int posix_memalign(void **memory, size_t alignment, size_t size);
int open(const char *path, int flags, ...);
int close(int file);
int munmap(void *memory, size_t size);
long syscall(long number, ...);
int sched_yield(void);
int getpid(void);
int sched_setaffinity(int thread, size_t size, const void *mask);
struct et_timespec {
  long seconds;
  long nanoseconds;
};
int clock_gettime(int clock, struct et_timespec *now);
unsigned long getauxval(unsigned long type);
int pthread_create(unsigned long *thread, const void *attributes, void *(*start)(void *), void *argument);
int pthread_join(unsigned long thread, void **result);
int pthread_once(int *once, void (*start)(void));
int pthread_key_create(unsigned *key, void (*destroy)(void *));
void *pthread_getspecific(unsigned key);
int pthread_setspecific(unsigned key, const void *value);

/* How TVM's kernels are called: TVMFFIAny, DLTensor (dlpack.h) and the signature of a packed function. */
typedef struct et_any {
  int32_t type_index;
  uint32_t padding;
  union {
    int64_t integer;
    void *pointer;
  } value;
} et_any;
#define ET_TYPE_DLTENSOR 7 /* kTVMFFIDLTensorPtr of tvm/ffi/c_api.h */

typedef struct et_tensor {
  void *data;
  int32_t device_type;
  int32_t device_id;
  int32_t rank;
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t dtype_lanes;
  int64_t *shape;
  int64_t *strides;
  uint64_t byte_offset;
} et_tensor;

typedef int (*et_kernel)(void *self, et_any *arguments, int32_t num_arguments, et_any *result);

/* A model's program: tensors have places, a step calls a kernel on places. */
enum { ET_ARENA, ET_WEIGHTS, ET_INPUT, ET_OUTPUT };

typedef struct et_place {
  uint32_t space;
  uint64_t offset; /* bytes in the arena or the weights, the index of an input or output */
} et_place;

typedef struct et_step {
  et_kernel kernel; /* NULL: copy `bytes` from the first place to the second */
  uint32_t first_argument;
  uint32_t num_arguments;
  uint64_t bytes;
} et_step;

#define ET_PROGRAM_VERSION 2

struct edgetune_program {
  uint32_t version; /* ET_PROGRAM_VERSION */
  int32_t threads;
  const char *name;
  const char *target;
  const char *const *features; /* that the CPU must have, LLVM's names; ends with NULL */
  const edgetune_tensor_info *inputs, *outputs;
  const edgetune_kernel_info *kernels;
  const et_place *places;
  const uint32_t *arguments; /* indices of places, all steps' one after the other */
  const et_step *steps;
  int32_t num_inputs, num_outputs;
  uint32_t num_places, num_arguments, num_steps;
  uint64_t arena_bytes;     /* of intermediate tensors */
  uint64_t workspace_bytes; /* that the kernels want at most on one thread */
  uint64_t weights_bytes, weights_checksum;
  const void *weights;          /* inside the library; NULL: in a file */
  const edgetune_program *next; /* for another combination of sizes, on the same weights */
};

/* In a static library, names of the runtime's own parts stand beside those of the app. */
#define et_pool_create edgetune_private_pool_create
#define et_pool_free edgetune_private_pool_free
#define et_pool_enter edgetune_private_pool_enter
#define et_pool_leave edgetune_private_pool_leave
#define et_now_ns edgetune_private_now_ns
#define et_missing_feature edgetune_private_missing_feature
#define et_fail edgetune_private_fail
#define et_decimal edgetune_private_decimal

/* pool.c */
typedef struct et_pool et_pool;
et_pool *et_pool_create(int threads, int spin_us, size_t workspace_bytes, const int32_t *cores, int num_cores,
                        edgetune_error *error);
void et_pool_free(et_pool *pool);
/* Between these, kernels called by this thread run on the pool. enter returns what leave wants. */
void *et_pool_enter(et_pool *pool, edgetune_error *error);
void et_pool_leave(void *before);
uint64_t et_now_ns(void);

/* cpu.c: the first of the features that this CPU has not; NULL where it has all. */
const char *et_missing_feature(const char *const *features);

/* error.c: the message is all parts together; the list ends with NULL. */
edgetune_status et_fail(edgetune_error *error, edgetune_status status, const char *const *parts);
#define ET_FAIL(error, status, ...) et_fail(error, status, (const char *const[]){__VA_ARGS__, NULL})
const char *et_decimal(uint64_t number, char buffer[24]);

#endif
